//! Rules about callers, from the configuration to the form of the edge.

use config::{Config, RegisterMode};
use edge::{AccessRules, Register};

/// Returns the rules of `access.*` and `endpoint.allowed_keys`.
pub(super) fn rules(config: &Config) -> AccessRules {
    let access = &config.access;
    let register = match access.register {
        RegisterMode::Open => Register::Open,
        RegisterMode::Token => Register::Token(access.tokens.iter().map(|token| token.reveal().to_owned()).collect()),
        RegisterMode::Vapid => Register::Vapid(access.vapid_keys.clone()),
    };
    AccessRules { register, senders: config.endpoint.allowed_keys.clone() }
}
