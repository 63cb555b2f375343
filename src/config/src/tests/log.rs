//! `log.level`: levels by target, and what is none.

use tracing::Level;

use super::*;

#[test]
fn a_level_of_the_log_that_is_none_is_refused_with_its_line_and_the_nearest() {
    for (text, nearest) in [
        ("verbose", "debug"),
        ("warning", "warn"),
        ("Inof", "info"),
        ("info,murre::edge=debgu", "info,murre::edge=debug"),
        ("murre::edge", "murre::edge=debug"),
    ] {
        let said = File::new(&format!("[log]\n\nlevel = \"{text}\"\n")).refusal();
        assert!(said.starts_with(&format!("murre.toml line 3: invalid value {text:?} for log.level; ")), "{said}");
        assert!(said.ends_with(&format!("; did you mean {nearest}?")), "{said}");
    }
    for text in ["", "info,", "[conn]=debug", "murre[conn]=debug", "murre{a=1}=debug", "a b=info"] {
        let said = refusal(&sets(&[&format!("log.level={text}")]));
        assert!(said.contains("for log.level"), "{said}");
    }
    for text in ["error", "WARN", "info", "debug", "trace", "off", "murre::edge=debug", "warn,scylla=off,murre=trace"] {
        load(&sets(&[&format!("log.level={text}")]));
    }
}

#[test]
fn a_target_has_its_last_level_and_the_others_keep_theirs() {
    let level = load(&sets(&["log.level=murre::edge=debug"])).log.level;
    assert!(level.would_enable("murre::edge", &Level::DEBUG) && level.would_enable("scylla", &Level::INFO));
    assert!(!level.would_enable("scylla", &Level::DEBUG));
    let level = load(&sets(&["log.level=a=debug,a=warn"])).log.level;
    assert!(level.would_enable("a", &Level::WARN) && !level.would_enable("a", &Level::INFO));
}
