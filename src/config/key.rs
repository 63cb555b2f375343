//! One setting, and its name in the environment.

use super::Config;
use super::parse::Raw;

/// Setting of the configuration.
pub struct Key {
    /// `section.key`, as in the TOML file.
    pub name: &'static str,
    /// The flag of `murre serve` without its dashes, and the name of its value.
    pub flag: Option<(&'static str, &'static str)>,
    /// Spelled as in the environment.
    pub default: &'static str,
    /// Accepted values, continuing "it takes".
    pub allowed: &'static str,
    /// Meaning, in one sentence.
    pub help: &'static str,
    /// Its value is never shown.
    pub secret: bool,
    /// Stores an accepted value in the configuration; `None` refuses it.
    pub set: fn(&mut Config, &Raw) -> Option<()>,
}

impl Key {
    /// `MURRE_SECTION__KEY`.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.replace('.', "__").to_ascii_uppercase())
    }
}

/// Prefix of murre's environment variables. A variable with it that matches no key is refused.
pub const VARIABLE_PREFIX: &str = "MURRE_";

/// The one variable with this prefix that is no key: the configuration file, as `--config`.
pub const FILE_VARIABLE: &str = "MURRE_CONFIG";
