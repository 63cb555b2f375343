//! Sources of settings: a TOML file, the environment, the command line; flattened to `section.key`.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::key::{FILE_VARIABLE, VARIABLE_PREFIX};
use super::keys::{self, KEYS};
use super::parse::Raw;
use super::setting::{Origin, Setting};

/// Sources to read, in rising precedence.
#[derive(Clone, Default)]
pub struct Sources {
    /// `--config FILE`.
    pub file: Option<PathBuf>,
    /// The environment: every variable; others than `MURRE_*` are ignored.
    pub variables: Vec<(String, String)>,
    /// Named flags: the flag as written, its key, its value.
    pub flags: Vec<(String, &'static str, String)>,
    /// `--set section.key=value`, after the named flags.
    pub sets: Vec<String>,
}

impl Sources {
    /// The environment of this process and nothing else. A variable that is not Unicode is passed on with replacement
    /// characters, so that its key refuses it.
    pub fn from_env() -> Sources {
        let lossy = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        Sources { variables: std::env::vars_os().map(lossy).collect(), ..Sources::default() }
    }

    /// Every setting, those that win last.
    pub(super) fn settings(&self) -> Result<Vec<Setting>, ConfigError> {
        let mut settings = Vec::new();
        if let Some(path) = &self.file {
            let text =
                std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable { path: path.clone(), error })?;
            from_toml(path, &text, &mut settings)?;
        }
        let ours = |name: &str| name.starts_with(VARIABLE_PREFIX) && name != FILE_VARIABLE;
        let mut variables: Vec<_> = self.variables.iter().filter(|(name, _)| ours(name)).collect();
        variables.sort();
        for (name, value) in variables {
            settings.push(from_variable(name, value));
        }
        for (flag, key, value) in &self.flags {
            let origin = Origin::Flag(flag.clone());
            settings.push(Setting { origin, name: (*key).to_owned(), value: Raw::one(value) });
        }
        for text in &self.sets {
            let (name, value) = text.split_once('=').ok_or_else(|| ConfigError::NotASetting { text: text.clone() })?;
            let origin = Origin::Flag("--set".to_owned());
            settings.push(Setting { origin, name: name.trim().to_owned(), value: Raw::one(value) });
        }
        Ok(settings)
    }
}

impl Sources {
    /// Returns true if a source that can be read asks for a log of JSON objects. A fault of the others is told that
    /// way.
    pub fn ask_for_json(&self) -> bool {
        let readable = Sources { file: None, sets: Vec::new(), ..self.clone() };
        let settings = self.settings().or_else(|_| readable.settings()).unwrap_or_default();
        let last = settings.iter().rev().find(|setting| setting.name == "log.format");
        last.is_some_and(|setting| setting.value.clone().spelled() == "json")
    }
}

/// `MURRE_WEBSOCKET__LISTEN` is `websocket.listen`.
fn from_variable(variable: &str, value: &str) -> Setting {
    let known = KEYS.iter().find(|key| key.variable() == variable);
    let name = known.map_or_else(
        || variable.trim_start_matches(VARIABLE_PREFIX).replace("__", ".").to_ascii_lowercase(),
        |key| key.name.to_owned(),
    );
    Setting { origin: Origin::Variable(variable.to_owned()), name, value: Raw::one(value) }
}

fn from_toml(path: &Path, text: &str, settings: &mut Vec<Setting>) -> Result<(), ConfigError> {
    let at = |offset: usize| Origin::File { path: path.to_owned(), line: line_of(text, offset) };
    let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        origin: at(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    flatten("", document.get_ref(), &at, settings);
    // The table is in alphabetical order; the first thing wrong should be the first in the file.
    settings.sort_by_key(|setting| match setting.origin {
        Origin::File { line, .. } => line,
        Origin::Variable(_) | Origin::Flag(_) => usize::MAX,
    });
    Ok(())
}

fn flatten(prefix: &str, table: &DeTable<'_>, at: &impl Fn(usize) -> Origin, settings: &mut Vec<Setting>) {
    for (key, value) in table {
        let name = if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => flatten(&name, inner, at, settings),
            // A section whose keys are all commented out.
            DeValue::Table(_) if keys::is_section(&name) => {}
            other => settings.push(Setting { origin: at(key.span().start), name, value: raw(other) }),
        }
    }
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::one(text),
        DeValue::Integer(number) => Raw::One(number.to_string()),
        DeValue::Float(number) => Raw::One(number.to_string()),
        DeValue::Boolean(flag) => Raw::One(flag.to_string()),
        DeValue::Datetime(time) => Raw::One(time.to_string()),
        // A list within a list, or a table, becomes a text no key accepts.
        DeValue::Array(items) => Raw::Many(items.iter().map(|item| raw(item.get_ref()).spelled()).collect()),
        DeValue::Table(_) => Raw::one("{}"),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
