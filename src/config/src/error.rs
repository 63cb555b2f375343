//! Errors of a configuration, with their place: one sentence that says what to do.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::key::Key;
use super::setting::{Origin, Setting};
use super::words;

/// Cause for which there is no configuration.
pub enum ConfigError {
    /// The file given with `--config` cannot be read.
    Unreadable { path: PathBuf, error: std::io::Error },
    /// The file is not TOML.
    Syntax { origin: Origin, message: String },
    /// `--set` without `=`.
    NotASetting { text: String },
    /// A key that does not exist.
    UnknownKey {
        origin: Origin,
        name: String,
        /// Key with the most similar name.
        nearest: Option<&'static Key>,
    },
    /// A value that the key does not take.
    BadValue {
        origin: Origin,
        key: &'static Key,
        /// `None` for secrets.
        value: Option<String>,
        /// Accepted word with the most similar spelling.
        nearest: Option<String>,
    },
    /// Two listeners of which one would get connections of the other.
    OneAddress {
        /// Key and address.
        one: (&'static str, SocketAddr),
        other: (&'static str, SocketAddr),
    },
    /// New settings that do not agree with those that wait for a restart.
    NeedsRestart {
        error: Box<ConfigError>,
        /// Names of the keys that wait.
        waiting: String,
    },
    /// Settings that are valid alone and not together.
    Conflict(&'static str),
}

impl ConfigError {
    /// `setting` is not a value of `key`.
    pub(super) fn bad_value(key: &'static Key, setting: &Setting) -> ConfigError {
        let value = (!key.secret).then(|| setting.value.spelled());
        let nearest = value.as_deref().and_then(|value| words::nearest(key.name, value));
        ConfigError::BadValue { origin: setting.origin.clone(), key, value, nearest }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Unreadable { path, error } => {
                write!(f, "cannot read the configuration {}: {error}", path.display())
            }
            ConfigError::Syntax { origin, message } => write!(f, "{origin}: not TOML: {message}"),
            ConfigError::NotASetting { text } => write!(f, "flag --set: {text:?} is not section.key=value"),
            ConfigError::UnknownKey { origin, name, nearest } => {
                write!(f, "{origin}: there is no key {name}")?;
                match (origin, nearest) {
                    (Origin::Variable(_), Some(key)) => write!(f, "; did you mean {}?", key.variable()),
                    (_, Some(key)) => write!(f, "; did you mean {}?", key.name),
                    (_, None) => f.write_str("; the section Settings of docs/OPERATIONS.md lists them all"),
                }
            }
            ConfigError::BadValue { origin, key, value, nearest } => {
                let shown = value.as_ref().map_or_else(|| "(not shown)".to_owned(), |value| format!("{value:?}"));
                write!(f, "{origin}: invalid value {shown} for {}; expected {}", key.name, key.allowed)?;
                nearest.as_ref().map_or(Ok(()), |nearest| write!(f, "; did you mean {nearest}?"))
            }
            ConfigError::OneAddress { one: (one, first), other: (other, second) } => {
                write!(f, "{one} = {first} and {other} = {second} listen on one address; give each a port of its own")
            }
            ConfigError::NeedsRestart { error, waiting } => {
                write!(f, "{error}; the change of {waiting} waits for a restart; restart murre")
            }
            ConfigError::Conflict(sentence) => f.write_str(sentence),
        }
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigError({self})")
    }
}

impl std::error::Error for ConfigError {}
