//! One setting, its name in the environment, and the form of a group of settings.

use super::parse::Raw;
use super::settings::Config;

/// Setting of the configuration.
#[derive(Clone, Copy)]
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

/// Writes a group of keys: secret or not, name, flag, default, accepted values, meaning, and the place of the value.
macro_rules! keys {
    ($(#[$meta:meta])* const $group:ident;
     $($(#[$secret:ident])? $name:literal $(($flag:literal $value:literal))? = $default:literal,
       $allowed:expr, $help:literal, $set:expr;)+) => {
        $(#[$meta])*
        pub(super) const $group: &[$crate::config::key::Key] = &[$($crate::config::key::Key {
            name: $name,
            flag: $crate::config::key::keys!(@flag $($flag $value)?),
            default: $default,
            allowed: $allowed,
            help: $help,
            secret: $crate::config::key::keys!(@secret $($secret)?),
            set: $set,
        }),+];
    };
    (@flag) => { None };
    (@flag $flag:literal $value:literal) => { Some(($flag, $value)) };
    (@secret) => { false };
    (@secret secret) => { true };
}
pub(super) use keys;

/// Puts groups together that have `N` keys in all.
pub(super) const fn concat<const N: usize>(groups: &[&[Key]]) -> [Key; N] {
    let mut keys = [groups[0][0]; N];
    let (mut group, mut at, mut filled) = (0, 0, 0);
    while filled < N {
        if at < groups[group].len() {
            keys[filled] = groups[group][at];
            (at, filled) = (at + 1, filled + 1);
        } else {
            (group, at) = (group + 1, 0);
        }
    }
    keys
}
