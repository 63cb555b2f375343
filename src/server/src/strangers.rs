//! Limits on callers by their address: made from the configuration, reloaded and aged. Refusals are logged, also those
//! of `access.*`.

use std::sync::{Arc, Mutex, PoisonError};

use machine::time::{Instant, TimeSpan};
use runtime::process_clock::ProcessClock;
use runtime::reactor::{CallerRules, Proxies};
use runtime::strangers::{Cause, Limit, Refusals, Strangers};

use config::Config;

/// Returns the rules about the addresses of callers. The limits that a public server has by default stay off on a
/// kernel that does not tell addresses; where a setting of the operator needs them, the judge of the host has refused
/// it.
pub(super) fn rules(config: &Config, shards: u16, tells_peers: bool) -> CallerRules {
    let strangers = Arc::new(Strangers::new(config.stranger_limits(), shards));
    let proxy = &config.proxy;
    let proxies =
        Proxies { trusted: proxy.trusted.clone().into(), protocol: proxy.protocol, header: proxy.header.is_some() };
    let rules = CallerRules { strangers, proxies };
    if tells_peers || !rules.need_addresses() { rules } else { CallerRules::default() }
}

/// The limits of a node, and the time of the last log line about each.
pub(super) struct StrangerWatch {
    strangers: Arc<Strangers>,
    process_clock: Arc<ProcessClock>,
    /// In the order of [`Cause::all`].
    logged: Mutex<[Option<Instant>; 7]>,
}

/// Key of a limit.
fn key(limit: Limit) -> &'static str {
    match limit {
        Limit::Connections => "strangers.connections",
        Limit::Handshakes => "strangers.handshakes",
        Limit::NewUsers => "strangers.new_users",
        Limit::Registers => "strangers.registers",
    }
}

/// Least interval between two lines about one cause.
const LOG_INTERVAL: TimeSpan = TimeSpan::from_secs(60);

impl StrangerWatch {
    pub fn new(strangers: Arc<Strangers>, process_clock: Arc<ProcessClock>) -> StrangerWatch {
        StrangerWatch { strangers, process_clock, logged: Mutex::default() }
    }

    /// Takes `strangers.*` of this configuration. A limit that it switches on or off stays, because connections that
    /// are there are counted, or not, from their begin. Returns the keys of those.
    pub fn reload(&self, config: &Config) -> Vec<&'static str> {
        self.strangers.set_limits(config.stranger_limits()).into_iter().map(key).collect()
    }

    /// Forgets some of the addresses that hold nothing, and logs refusals: for each limit and each rule of access the
    /// first one and then at most one line a minute. Called about once a second.
    pub fn look(&self) {
        let now = self.process_clock.now().mono;
        self.strangers.age(now);
        for (cause, Refusals { count: refused, network }) in self.take_due(now) {
            // The network of the last of them, and never its whole address.
            let network = network.map_or_else(|| "unknown".to_owned(), |network| network.to_string());
            match cause {
                Cause::Limit(limit) => {
                    let setting = format!("strangers.{}", limit.name());
                    tracing::warn!(setting, refused, %network, "callers refused by a limit of strangers");
                }
                Cause::Access(access) => {
                    tracing::warn!(mode = access.name(), refused, %network, "callers refused by a rule of access");
                }
            }
        }
    }

    /// Takes the refusals for each cause that had no line in the last minute, for a line now.
    fn take_due(&self, now: Instant) -> Vec<(Cause, Refusals)> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Vec::new();
        for (cause, at) in Cause::all().zip(logged.iter_mut()) {
            if at.is_some_and(|at| now.since(at) < LOG_INTERVAL) {
                continue;
            }
            if let Some(refusals) = self.strangers.take_refusals(cause) {
                *at = Some(now);
                due.push((cause, refusals));
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use runtime::strangers::{Access, StrangerLimits};

    use super::*;
    use config::Sources;

    fn config(settings: &[&str]) -> Config {
        let sets = settings.iter().map(|text| (*text).to_owned()).collect();
        Config::load(&Sources { sets, ..Sources::default() }).unwrap()
    }

    fn watch(limits: StrangerLimits) -> StrangerWatch {
        StrangerWatch::new(Arc::new(Strangers::new(limits, 1)), Arc::new(ProcessClock::start()))
    }

    fn at(seconds: u64) -> Instant {
        Instant(0).after(TimeSpan::from_secs(seconds))
    }

    #[test]
    fn limits_of_a_public_server_stay_off_where_the_kernel_tells_no_addresses() {
        let public = config(&["public.domain=push.example", "tls.cert=c", "tls.key=k"]);
        assert!(rules(&public, 1, true).need_addresses());
        assert!(!rules(&public, 1, false).need_addresses());
    }

    #[test]
    fn each_cause_has_a_line_at_once_and_then_one_a_minute_with_all_refusals() {
        let watch = watch(StrangerLimits { connections: 1, registers_per_hour: 1, ..StrangerLimits::default() });
        let caller: IpAddr = "192.0.2.77".parse().unwrap();
        let stranger = watch.strangers.enter(caller, at(0)).unwrap().unwrap();
        let refuse = |times| assert!((0..times).all(|_| watch.strangers.enter(caller, at(0)).is_err()));
        let lines = |now| watch.take_due(now).into_iter().map(|(cause, of)| (cause, of.count)).collect::<Vec<_>>();
        assert!(lines(at(1)).is_empty());
        refuse(3);
        assert_eq!(lines(at(2)), [(Cause::Limit(Limit::Connections), 3)]);
        refuse(4);
        assert!(lines(at(61)).is_empty());
        refuse(5);
        assert!(watch.strangers.take(stranger, Limit::Registers, at(0)));
        assert!(!watch.strangers.take(stranger, Limit::Registers, at(0)));
        assert_eq!(lines(at(61)), [(Cause::Limit(Limit::Registers), 1)], "another limit has lines of its own");
        let line = watch.take_due(at(62)).remove(0).1;
        assert_eq!((line.count, line.network), (9, "192.0.2.0/24".parse().ok()));
        assert!(lines(at(999)).is_empty());
        watch.strangers.refuse(Access::Token, 2, Some(stranger));
        watch.strangers.refuse(Access::Token, 3, None);
        let line = watch.take_due(at(999)).remove(0);
        assert_eq!((line.0, line.1.count), (Cause::Access(Access::Token), 5), "a rule has lines as a limit has");
        assert_eq!(line.1.network, "192.0.2.0/24".parse().ok(), "of the last known address");
        watch.strangers.refuse(Access::Token, 1, None);
        assert!(lines(at(1_058)).is_empty());
        assert_eq!(watch.take_due(at(1_059)).remove(0).1.network, None);
    }

    #[test]
    fn a_reload_takes_exempt_networks_and_numbers_of_limits_that_are_on() {
        let first = config(&["strangers.connections=1"]);
        let watch = watch(first.stranger_limits());
        let enter = |address: &str| watch.strangers.enter(address.parse().unwrap(), at(0));
        assert!(enter("192.0.2.1").is_ok() && enter("192.0.2.1").is_err());
        let new = ["strangers.connections=2", "strangers.exempt=10.0.0.0/8", "strangers.registers=1"];
        assert_eq!(watch.reload(&config(&new)), ["strangers.registers"]);
        assert!(enter("192.0.2.1").is_ok() && enter("192.0.2.1").is_err());
        assert!((0..9).all(|_| enter("10.1.2.3") == Ok(None)));
        let stranger = enter("192.0.2.2").unwrap().unwrap();
        assert!((0..9).all(|_| watch.strangers.take(stranger, Limit::Registers, at(0))), "it needs a restart");
    }
}
