//! Cargo features: what this build has, and the settings that need one it lacks.

use super::drain::DrainMode;
use super::error::ConfigError;
use super::settings::Config;
use super::store::StoreKind;

/// Refuses a setting whose code was left out of this build.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let asked = Asked {
        acme: config.acme.agree,
        bridges: config.fcm.credentials.is_some() || config.apns.channels.is_some(),
        hibernate: config.hibernate.after.is_some() || config.drain.mode == DrainMode::Hibernate,
        scylla: config.store.kind == StoreKind::Scylla,
    };
    lacking(asked, BUILT).map_or(Ok(()), |said| Err(ConfigError::Conflict(said)))
}

/// One flag for each feature.
#[derive(Clone, Copy)]
struct Asked {
    acme: bool,
    bridges: bool,
    hibernate: bool,
    scylla: bool,
}

const BUILT: Asked = Asked {
    acme: cfg!(feature = "acme"),
    bridges: cfg!(feature = "bridges"),
    hibernate: cfg!(feature = "hibernate"),
    scylla: cfg!(feature = "scylla"),
};

/// Says what is asked for and not built.
fn lacking(asked: Asked, built: Asked) -> Option<&'static str> {
    let rows = [
        (
            asked.acme && !built.acme,
            "acme.agree needs the feature \"acme\", which this build lacks (murre --version); install a build that has \
             it, or set tls.cert and tls.key",
        ),
        (
            asked.bridges && !built.bridges,
            "a bridge needs the feature \"bridges\", which this build lacks (murre --version); install a build that has \
             it, or remove bridge.fcm.credentials and bridge.apns.channels",
        ),
        (
            asked.hibernate && !built.hibernate,
            "hibernate.after and drain.mode = hibernate need the feature \"hibernate\", which this build lacks \
             (murre --version); install a build that has it, or remove both",
        ),
        (
            asked.scylla && !built.scylla,
            "store.kind = scylla needs the feature \"scylla\", which this build lacks (murre --version); install a \
             build that has it, or set store.kind = embedded",
        ),
    ];
    rows.into_iter().find_map(|(is_lacking, said)| is_lacking.then_some(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Asked = Asked { acme: false, bridges: false, hibernate: false, scylla: false };

    #[test]
    fn each_feature_that_is_asked_for_and_not_built_is_named() {
        let all = Asked { acme: true, bridges: true, hibernate: true, scylla: true };
        assert_eq!(lacking(all, all), None);
        assert_eq!(lacking(NOTHING, NOTHING), None);
        for (feature, asked, built) in [
            ("acme", Asked { acme: true, ..NOTHING }, Asked { acme: false, ..all }),
            ("bridges", Asked { bridges: true, ..NOTHING }, Asked { bridges: false, ..all }),
            ("hibernate", Asked { hibernate: true, ..NOTHING }, Asked { hibernate: false, ..all }),
            ("scylla", Asked { scylla: true, ..NOTHING }, Asked { scylla: false, ..all }),
        ] {
            let said = lacking(asked, built).unwrap();
            assert!(said.contains(&format!("\"{feature}\"")), "{feature}: {said}");
        }
    }
}
