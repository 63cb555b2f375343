//! Judges whether this process can freeze and thaw connections, by doing it once, and finds what an earlier process has
//! left.

use std::io;

use config::{Config, Hibernate};
use hibernate::{LeftTable, Unfit};
use host::{Finding, Verdict};
use server::{DataDir, HibernationNote, listen_ports, tables_in_the_way, try_hibernation};

/// Returns one finding if `hibernate.after` is set, and one if packet rules of an earlier process are there.
pub fn examine(config: &Config) -> Vec<Finding> {
    let on = config.hibernate.after.is_some().then(|| judge(&config.hibernate, try_hibernation()));
    let note = HibernationNote::read(&config.data_dir);
    let tables = tables_in_the_way(note.as_ref(), &listen_ports(config));
    // The server that runs has written it.
    let note = note.filter(|note| note.is_of_here() && !DataDir::is_in_use(&config.data_dir));
    on.into_iter().chain(judge_left(note.as_ref(), tables)).collect()
}

/// Judges the packet rules that no process owns.
fn judge_left(note: Option<&HibernationNote>, tables: io::Result<Vec<LeftTable>>) -> Option<Finding> {
    let (is_allowed, tables) = match (tables, note) {
        (Ok(tables), _) => (true, tables),
        (Err(_), Some(note)) => (false, vec![LeftTable { name: note.table.clone(), ports: note.ports.clone() }]),
        // Without the capability nothing can be seen, and nothing was written down.
        (Err(_), None) => return None,
    };
    let each = tables.iter().map(|LeftTable { name, ports }| format!("{name} for the ports {ports:?}"));
    let found = each.collect::<Vec<_>>().join(", ");
    let mut mend: Vec<String> = tables.iter().map(|table| format!("nft delete table inet {}", table.name)).collect();
    let closed = "an earlier process has left them, and the kernel drops every new connection to these ports";
    let (verdict, why) = if is_allowed {
        let next = "`murre serve` takes them over or removes them when it starts; without it, remove them by hand";
        (Verdict::Warn, format!("{closed}; {next}"))
    } else {
        mend.insert(0, "murre serve   # once, with CAP_NET_ADMIN (tuning/hibernate.conf)".to_owned());
        mend.push("rm DATA_DIR/hibernation   # after the table is removed by hand".to_owned());
        let refuses = "`murre serve` refuses to start, because this process lacks CAP_NET_ADMIN to remove them";
        (Verdict::Fail, format!("{closed}; {refuses}"))
    };
    let wanted = "none without a process".to_owned();
    (!tables.is_empty()).then_some(Finding { what: "packet rules that were left", found, wanted, verdict, why, mend })
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
    use config::Sources;
    use host::runs_here;

    fn config(settings: &[&str]) -> Config {
        let sets = settings.iter().map(|text| (*text).to_owned()).collect();
        Config::load(&Sources { sets, ..Sources::default() }).unwrap()
    }

    #[test]
    fn hibernation_is_judged_only_where_it_is_switched_on() {
        assert!(examine(&config(&[])).is_empty() && examine(&config(&["hibernate.queue=7"])).is_empty());
        assert_eq!(examine(&config(&["hibernate.after=60"]))[0].what, "hibernation");
    }

    #[test]
    fn packet_rules_that_were_left_are_named_with_their_ports() {
        let note = HibernationNote::new(7, &[443], "/run/murre/frozen".as_ref()).unwrap();
        let left = || vec![LeftTable { name: "murre_7".to_owned(), ports: vec![443, 8443] }];
        assert!(judge_left(None, Ok(Vec::new())).is_none() && judge_left(Some(&note), Ok(Vec::new())).is_none());
        let found = judge_left(None, Ok(left())).unwrap();
        assert_eq!((found.verdict, &*found.found), (Verdict::Warn, "murre_7 for the ports [443, 8443]"));
        assert!(found.mend[0].contains("nft delete table inet murre_7"), "{found:?}");
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        assert!(judge_left(None, refused()).is_none());
        let found = judge_left(Some(&note), refused()).unwrap();
        assert_eq!((found.verdict, &*found.found), (Verdict::Fail, "murre_7 for the ports [443]"));
        assert!(found.why.contains("CAP_NET_ADMIN"), "{found:?}");
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
