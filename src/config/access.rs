//! `access.*`: user agents that may get endpoints.

use machine::ids::KeyDigest;

use super::parse::Secret;
use super::{Config, ConfigError};

/// `access.*`.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub register: RegisterMode,
    /// Tokens of 16 to 128 visible characters that need no escape in a path.
    pub tokens: Vec<Secret>,
    /// Digests of VAPID public keys.
    pub vapid_keys: Vec<KeyDigest>,
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
