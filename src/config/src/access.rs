//! `access.*`: user agents that may get endpoints.

use machine::ids::KeyDigest;

use super::allowed::VAPID_KEYS;
use super::error::ConfigError;
use super::key::settings;
use super::parse;
use super::parse::Secret;
use super::settings::Config;

settings! {
    /// `access.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Access as ACCESS at [access] {
        pub register: RegisterMode = "access.register" [live], "open",
            "open, token or vapid",
            "User agents that get endpoints: all, those whose upgrade or first registration carries one of access.tokens, or all for app servers with one of access.vapid_keys.",
            parse::word([("open", RegisterMode::Open), ("token", RegisterMode::Token), ("vapid", RegisterMode::Vapid)]);
        /// Tokens of 16 to 128 visible characters that need no escape in a path.
        pub tokens: Vec<Secret> = "access.tokens" [secret live], "",
            "at most 256 tokens of 16 to 128 letters, digits and -._~=, [t1,t2] or t1,t2",
            "Tokens of user agents: wss://NAME/t/TOKEN/, or Authorization: Bearer TOKEN on the upgrade.",
            parse::access_tokens;
        /// Digests of VAPID public keys.
        pub vapid_keys: Vec<KeyDigest> = "access.vapid_keys" [live], "",
            VAPID_KEYS,
            "VAPID public keys that a register must name with access.register = vapid; others are answered 401.",
            parse::vapid_keys;
    }
}

/// `access.register`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RegisterMode {
    #[default]
    Open,
    Token,
    Vapid,
}

/// Refuses a mode whose list is empty: it would lock every user agent out. Refuses a list without its mode: it would
/// lock none out.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let access = &config.access;
    match access.register {
        RegisterMode::Token if access.tokens.is_empty() => {
            Err(ConfigError::Conflict("access.register = token needs access.tokens: the tokens that open the door"))
        }
        RegisterMode::Vapid if access.vapid_keys.is_empty() => Err(ConfigError::Conflict(
            "access.register = vapid needs access.vapid_keys: the public keys of the app servers that get endpoints",
        )),
        RegisterMode::Open | RegisterMode::Vapid if !access.tokens.is_empty() => {
            Err(ConfigError::Conflict("access.tokens has no effect without access.register = token: set it too"))
        }
        RegisterMode::Open | RegisterMode::Token if !access.vapid_keys.is_empty() => {
            Err(ConfigError::Conflict("access.vapid_keys has no effect without access.register = vapid: set it too"))
        }
        RegisterMode::Open | RegisterMode::Token | RegisterMode::Vapid => Ok(()),
    }
}
