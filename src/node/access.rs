//! Rules about callers, from the configuration to the form of the edge.

use crate::config::{Config, RegisterMode};
use crate::edge::{AccessRules, ForwardRules, Register};
use protocol::webpush::forward::Targets;

/// Returns the rules of `access.*`, `endpoint.allowed_keys` and `forward.*`.
pub(super) fn rules(config: &Config) -> AccessRules {
    let access = &config.access;
    let register = match access.register {
        RegisterMode::Open => Register::Open,
        RegisterMode::Token => Register::Token(access.tokens.iter().map(|token| token.reveal().to_owned()).collect()),
        RegisterMode::Vapid => Register::Vapid(access.vapid_keys.clone()),
    };
    let forward = ForwardRules {
        targets: Targets { own: config.public.domain.clone(), only: config.forward.hosts.clone() },
        create_rate: config.forward.create_rate,
        create_token: config.forward.create_token.as_ref().map(|token| token.reveal().to_owned()),
    };
    AccessRules { register, senders: config.endpoint.allowed_keys.clone(), forward }
}
