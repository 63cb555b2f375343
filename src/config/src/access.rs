//! `access.*`: user agents that may get endpoints.

use super::error::ConfigError;
use super::settings::{Config, RegisterMode};

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
