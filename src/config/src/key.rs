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
    /// Its part in a reload.
    pub live: Live,
    /// Stores an accepted value in the configuration; `None` refuses it.
    pub set: fn(&mut Config, &Raw) -> Option<()>,
}

/// Part of a changed setting in a reload (SIGHUP).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Live {
    /// It waits for a restart.
    Restart,
    /// It is taken.
    Taken,
    /// It is taken if what it belongs to was on at the start, and stays on.
    TakenIfOn,
}

impl Live {
    /// Word of the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Live::Restart => "restart",
            Live::Taken => "taken",
            Live::TakenIfOn => "taken if on",
        }
    }
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

/// Declares the settings of a section, each once: field and type, name, marks, flag, default, accepted values, meaning
/// and parser. It makes the struct of the section and the group of its keys. Marks are `secret`, and `live` or
/// `live_if_on` for what SIGHUP takes; `at` is the place of the section in [`Config`]. Behind `with` are fields that
/// are no settings. The form without a struct is for one that another section or crate declares.
macro_rules! settings {
    ($(#[$attr:meta])* pub struct $name:ident as $group:ident at $place:tt {
        $($(#[$doc:meta])* $vis:vis $field:ident: $type:ty = $key:literal $([$($mark:ident)+])?
          $(($flag:literal $value:literal))?, $default:literal, $allowed:expr, $help:literal, $parse:expr;)+
    } $(with { $($(#[$more_doc:meta])* $more_vis:vis $more:ident: $more_type:ty,)+ })?) => {
        $(#[$attr])*
        pub struct $name {
            $(#[doc = $help] #[doc = ""] $(#[$doc])* $vis $field: $type,)+
            $($($(#[$more_doc])* $more_vis $more: $more_type,)+)?
        }
        $crate::key::settings! { $group at $place {
            $($field = $key $([$($mark)+])? $(($flag $value))?, $default, $allowed, $help, $parse;)+
        } }
    };
    ($group:ident at $place:tt {
        $($field:ident = $key:literal $([$($mark:ident)+])? $(($flag:literal $value:literal))?,
          $default:literal, $allowed:expr, $help:literal, $parse:expr;)+
    }) => {
        pub(super) const $group: &[$crate::key::Key] = &[$($crate::key::Key {
            name: $key,
            flag: $crate::key::settings!(@flag $($flag $value)?),
            default: $default,
            allowed: $allowed,
            help: $help,
            secret: $crate::key::is_marked(&[$($(stringify!($mark)),+)?], "secret"),
            live: $crate::key::live(&[$($(stringify!($mark)),+)?]),
            set: |config, raw| {
                $crate::key::settings!(@place config $place $field) = $crate::parse::by($parse, raw)?;
                Some(())
            },
        }),+];
    };
    (@flag) => { None };
    (@flag $flag:literal $value:literal) => { Some(($flag, $value)) };
    (@place $config:ident [$($section:ident)*] $field:ident) => { $config.$($section.)*$field };
}
pub(super) use settings;

/// Returns true if this mark is among those of a key.
pub(super) const fn is_marked(marks: &[&str], mark: &str) -> bool {
    let mut at = 0;
    while at < marks.len() {
        if is_same(marks[at].as_bytes(), mark.as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

/// Part in a reload of a key that has these marks.
pub(super) const fn live(marks: &[&str]) -> Live {
    let mut at = 0;
    while at < marks.len() {
        let is_known = is_marked(&["secret", "live", "live_if_on"], marks[at]);
        assert!(is_known, "a mark of a key is secret, live or live_if_on");
        at += 1;
    }
    if is_marked(marks, "live") {
        Live::Taken
    } else if is_marked(marks, "live_if_on") {
        Live::TakenIfOn
    } else {
        Live::Restart
    }
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

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
