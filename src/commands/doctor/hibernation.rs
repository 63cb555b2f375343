//! Judges whether this process can freeze and thaw connections, by doing it once.

use super::checks::{Finding, Verdict};
use crate::config::{Config, Hibernate};
use crate::node::try_hibernation;
use hibernate::Unfit;

/// Returns one finding if `hibernate.after` is set.
pub fn examine(config: &Config) -> Option<Finding> {
    config.hibernate.after.is_some().then(|| judge(&config.hibernate, try_hibernation()))
}

fn judge(settings: &Hibernate, result: Result<(), Unfit>) -> Finding {
    let after = settings.after.unwrap_or_default().as_secs_f64();
    let good = Finding {
        what: "hibernation",
        found: "a connection was frozen and thawed".to_owned(),
        wanted: format!("hibernate.after = {after}, hibernate.queue = {}", settings.queue),
        verdict: Verdict::Good,
        why: String::new(),
        mend: Vec::new(),
    };
    let Err(unfit) = result else { return good };
    Finding {
        found: "not possible here".to_owned(),
        verdict: Verdict::Warn,
        why: format!("{unfit}; the server starts without hibernation, and every connection stays in the kernel"),
        mend: vec![
            "cp tuning/hibernate.conf /etc/systemd/system/murre.service.d/   # CAP_NET_ADMIN; then daemon-reload"
                .to_owned(),
            "murre doctor   # again, with the capabilities of the server".to_owned(),
        ],
        ..good
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::runs_here;
    use crate::config::Sources;

    fn config(settings: &[&str]) -> Config {
        let sets = settings.iter().map(|text| (*text).to_owned()).collect();
        Config::load(&Sources { sets, ..Sources::default() }).unwrap()
    }

    #[test]
    fn hibernation_is_judged_only_where_it_is_switched_on() {
        assert!(examine(&config(&[])).is_none() && examine(&config(&["hibernate.queue=7"])).is_none());
        assert_eq!(examine(&config(&["hibernate.after=60"])).unwrap().what, "hibernation");
    }

    #[test]
    fn a_host_that_cannot_freeze_runs_without_hibernation_and_is_told_why() {
        let settings = config(&["hibernate.after=90s", "hibernate.queue=7"]).hibernate;
        let good = judge(&settings, Ok(()));
        assert_eq!((good.verdict, &*good.wanted), (Verdict::Good, "hibernate.after = 90, hibernate.queue = 7"));
        assert!(good.why.is_empty() && good.mend.is_empty());
        let unfit = judge(&settings, Err(Unfit::Kernel("the test")));
        assert_eq!(unfit.verdict, Verdict::Warn);
        assert!(unfit.why.contains("the test") && unfit.why.contains("; the server starts without "), "{unfit:?}");
        assert!(unfit.mend[0].contains("tuning/hibernate.conf"), "{unfit:?}");
        assert!(runs_here(&[unfit]));
    }
}
