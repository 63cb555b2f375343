//! Settings as they were written, and what a running server takes of changed ones.

use super::error::ConfigError;
use super::key::{Key, Live};
use super::keys::KEYS;
use super::parse::{Raw, Written};
use super::settings::Config;

/// Place of a key in the table.
pub(super) fn place(name: &str) -> Option<usize> {
    KEYS.iter().position(|key| key.name == name)
}

/// A new configuration as a running server takes it.
#[derive(Debug)]
pub struct Reloaded {
    /// The running configuration with the new values of what is taken.
    pub config: Config,
    /// Names of the changed keys that wait for a restart.
    pub waiting: Vec<&'static str>,
}

impl Config {
    /// Compares `new` with this running configuration. `is_on`: what a key with [`Live::TakenIfOn`] belongs to is on.
    ///
    /// # Errors
    /// [`ConfigError`] if what is taken does not agree with what waits for a restart; then nothing is taken.
    pub fn reloaded(&self, new: &Config, is_on: impl Fn(&Key) -> bool) -> Result<Reloaded, ConfigError> {
        let mut written = self.written.clone();
        let mut waiting = Vec::new();
        for (key, (old, new)) in KEYS.iter().zip(written.0.iter_mut().zip(&new.written.0)) {
            let is_taken = match key.live {
                Live::Restart => false,
                Live::Taken => true,
                Live::TakenIfOn => is_on(key),
            };
            if is_taken {
                old.clone_from(new);
            } else if differ(key, old, new) {
                waiting.push(key.name);
            }
        }
        let config = Config::of(written).map_err(|error| match waiting.is_empty() {
            true => error,
            false => ConfigError::NeedsRestart { error: Box::new(error), waiting: waiting.join(", ") },
        })?;
        Ok(Reloaded { config, waiting })
    }

    /// This configuration with the settings of these names as `earlier` had them.
    #[must_use]
    pub fn keeping(&self, earlier: &Config, names: &[&'static str]) -> Config {
        let mut kept = self.clone();
        for at in names.iter().filter_map(|name| place(name)) {
            kept.written.0[at].clone_from(&earlier.written.0[at]);
        }
        kept
    }

    /// The configuration of these values.
    fn of(written: Written) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for (key, value) in KEYS.iter().zip(&written.0) {
            // Invariant: each was taken by its key when it was read.
            (key.set)(&mut config, value).expect("a value that was taken before");
        }
        config.written = written;
        config.check()?;
        Ok(config)
    }
}

/// Returns true if two values of a key mean different things; `5` and `5s` do not.
fn differ(key: &Key, one: &Raw, other: &Raw) -> bool {
    if one == other || one.items() == other.items() {
        return false;
    }
    // The values of others may be equal although they are spelled differently.
    let meaning = |raw: &Raw| {
        let mut config = Config::default();
        (key.set)(&mut config, raw).map(|()| format!("{config:?}"))
    };
    key.secret || meaning(one) != meaning(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sources;

    fn config(sets: &[&str]) -> Config {
        let sets = sets.iter().map(|text| (*text).to_owned()).collect();
        Config::load(&Sources { sets, ..Sources::default() }).unwrap()
    }

    fn reloaded(old: &[&str], new: &[&str]) -> Reloaded {
        config(old).reloaded(&config(new), |_| true).unwrap()
    }

    #[test]
    fn what_is_live_is_taken_and_what_is_not_keeps_its_value_and_is_named() {
        let old = ["websocket.welcome=1", "drain.mode=close", "delivery.window=10"];
        let new = ["websocket.welcome=2", "delivery.window=20", "log.level=debug", "store.kind=memory"];
        let Reloaded { config, waiting } = reloaded(&old, &new);
        assert_eq!(waiting, ["store.kind", "delivery.window"]);
        assert_eq!((config.websocket.welcome, config.delivery.window), (2, 10));
        assert_eq!(config.store.kind, crate::StoreKind::Embedded);
        assert_eq!(config.log.level.to_string(), "debug");
        // A key that waits is named again by the next reload, and a value of before waits for nothing.
        let again = config.reloaded(&self::config(&new), |_| true).unwrap();
        assert_eq!(again.waiting, ["store.kind", "delivery.window"]);
        assert!(config.reloaded(&self::config(&old), |_| true).unwrap().waiting.is_empty());
    }

    #[test]
    fn two_spellings_of_one_value_are_no_change() {
        let old = ["websocket.hello_timeout=5", "roles=connect,endpoint", "node.keys=0123456789abcdef"];
        let new = ["websocket.hello_timeout=5s", "roles=[endpoint, connect]", "node.keys=[0123456789abcdef]"];
        assert!(reloaded(&old, &new).waiting.is_empty());
        assert_eq!(reloaded(&old, &["websocket.hello_timeout=6s"]).waiting, ["websocket.hello_timeout"]);
        assert_eq!(reloaded(&[], &["broadcast.token=abc"]).waiting, ["broadcast.token"], "also of a secret");
    }

    #[test]
    fn a_key_of_something_that_is_off_waits() {
        let (old, new) = (config(&[]), config(&["bridge.queue=9", "bridge.auth_keys=0123456789abcdef"]));
        let off = old.reloaded(&new, |_| false).unwrap();
        assert_eq!((off.waiting, off.config.bridge_calls.queue), (vec!["bridge.queue"], 1024));
        let on = old.reloaded(&new, |_| true).unwrap();
        assert_eq!((on.waiting, on.config.bridge_calls.queue), (vec![], 9));
        let kept = on.config.keeping(&old, &["bridge.queue"]);
        assert_eq!(kept.reloaded(&new, |_| false).unwrap().waiting, ["bridge.queue"]);
    }

    #[test]
    fn what_is_taken_must_agree_with_what_waits() {
        let new = ["tls.cert=c", "tls.key=k", "websocket.tls.listen=127.0.0.1:1"];
        let said = config(&[]).reloaded(&config(&new), |_| true).unwrap_err().to_string();
        assert!(said.starts_with("tls.cert and tls.key need an address"), "{said}");
        assert!(said.ends_with("; the change of websocket.tls.listen waits for a restart; restart murre"), "{said}");
    }
}
