//! The most similar word or name for a wrong one, and the levels of the log.

use tracing_subscriber::filter::{LevelFilter, Targets};

use super::key::Key;

/// The levels of `log.level`, in rising detail, and `off`.
const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace", "off"];

/// Names of levels in other programs.
const SYNONYMS: &[(&str, &str)] = &[
    ("verbose", "debug"),
    ("fatal", "error"),
    ("critical", "error"),
    ("notice", "info"),
    ("all", "trace"),
    ("none", "off"),
    ("silent", "off"),
    ("quiet", "warn"),
];

/// The words of the other keys.
const WORDS: &[(&str, &[&str])] = &[
    ("access.register", &["open", "token", "vapid"]),
    ("acme.agree", &["true", "false"]),
    ("acme.challenge", &["tls-alpn-01", "http-01"]),
    ("bridge.fcm.collapse", &["true", "false"]),
    ("drain.mode", &["close", "hibernate"]),
    ("endpoint.tokens", &["short", "fernet"]),
    ("log.color", &["true", "false"]),
    ("log.format", &["text", "json"]),
    ("shards.plane", &["auto", "io_uring", "poll"]),
    ("shards.steer", &["off", "cpu"]),
    ("store.kind", &["embedded", "scylla", "memory"]),
    ("tls.min_version", &["1.3", "1.2"]),
    ("tls.unknown_name", &["refuse", "default"]),
];

/// The most similar word that this key takes, if any is similar.
pub(super) fn nearest(key: &str, text: &str) -> Option<String> {
    if key == "log.level" {
        return nearest_level(text);
    }
    let (_, words) = WORDS.iter().find(|(of, _)| *of == key)?;
    nearest_of(words, text).map(str::to_owned)
}

/// The levels of `log.level` by target. A target that the text does not name has the level that stands alone in the
/// text, else info. `None`: the text has a word that is no level.
pub(super) fn targets(text: &str) -> Option<Targets> {
    let (mut targets, mut default) = (Targets::new(), LevelFilter::INFO);
    for item in text.split(',').map(str::trim) {
        match targeted(item) {
            Some((target, level)) => targets = targets.with_target(target, level_of(level)?),
            None => default = level_of(item)?,
        }
    }
    // Once, at the end: the most detail that targets had at any time decides which events are looked at.
    Some(targets.with_default(default))
}

fn level_of(text: &str) -> Option<LevelFilter> {
    LEVELS.iter().find(|level| level.eq_ignore_ascii_case(text))?.parse().ok()
}

/// `murre::edge=debug`: module and level.
fn targeted(item: &str) -> Option<(&str, &str)> {
    let is_path = |module: &str| !module.is_empty() && module.chars().all(|c| c.is_alphanumeric() || "_:-".contains(c));
    item.split_once('=').filter(|(module, _)| is_path(module))
}

fn nearest_level(text: &str) -> Option<String> {
    let level = |text: &str| {
        let text = text.to_ascii_lowercase();
        let synonym = SYNONYMS.iter().find(|(word, _)| *word == text).map(|(_, level)| *level);
        synonym.or_else(|| nearest_of(LEVELS, &text))
    };
    let one = |item: &str| match targeted(item) {
        Some((module, of)) => level(of).map(|level| format!("{module}={level}")),
        None if item.contains("::") => Some(format!("{item}=debug")),
        None => level(item).map(str::to_owned),
    };
    let items: Option<Vec<String>> = text.split(',').map(|item| one(item.trim())).collect();
    items.map(|items| items.join(","))
}

/// The most similar of these words, if any is similar.
pub fn nearest_of<'w>(words: &[&'w str], text: &str) -> Option<&'w str> {
    let likeness = |word: &str| strsim::normalized_damerau_levenshtein(word, text);
    let best = words.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= LIKENESS_MIN).then_some(best)
}

/// The key whose name is most like `name`, if any is like it at all.
pub(super) fn nearest_key(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    let likeness = |key: &Key| {
        // The section may be missing or wrong; the key is meant all the same.
        let last = |text: &str| text.rsplit('.').next().map_or(String::new(), str::to_owned);
        let whole = strsim::normalized_damerau_levenshtein(name, key.name);
        whole.max(strsim::normalized_damerau_levenshtein(&last(name), &last(key.name)) * 0.95)
    };
    let best = keys.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= LIKENESS_MIN).then_some(best)
}

/// Below this two words or names have nothing to do with each other.
const LIKENESS_MIN: f64 = 0.4;
