//! Notifications to the service manager: sd_notify(3) of systemd, one datagram each.
//!
//! The node sends one when it serves, one when it stops, and more while a stop goes on: then `TimeoutStopSec=` bounds
//! silence, not the whole drain, which takes `sessions / drain.rate` and longer. The node waits for no answer, and
//! sends nothing without a manager.
//! Lives on: the thread that starts and stops the node.

use std::env;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Connection to the service manager, if there is one.
#[derive(Default)]
pub(super) struct ServiceManager {
    /// A socket and its peer's address.
    line: Option<(UnixDatagram, SocketAddr)>,
    /// Time of the last request for more time.
    asked: Option<Instant>,
}

impl ServiceManager {
    /// Returns the manager that `NOTIFY_SOCKET` names: a path, or an abstract name with `@` in front.
    pub fn of_process() -> ServiceManager {
        env::var_os("NOTIFY_SOCKET").map_or_else(ServiceManager::default, |name| ServiceManager::at(&name))
    }

    /// Returns the manager at this address; none if the address cannot be used: a node serves all the same.
    pub fn at(name: &OsStr) -> ServiceManager {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(name),
        };
        let line = UnixDatagram::unbound().and_then(|socket| {
            // A manager that does not read must not hold up a stop.
            socket.set_nonblocking(true)?;
            Ok((socket, address?))
        });
        match line {
            Ok(line) => ServiceManager { line: Some(line), asked: None },
            Err(error) => {
                tracing::warn!(%error, "NOTIFY_SOCKET not understood; the service manager is not notified");
                ServiceManager::default()
            }
        }
    }

    /// Reports that every listener answers.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// Reports that the node stops. [`ServiceManager::still_stopping`] repeats it.
    pub fn stopping(&mut self, why: &str) {
        self.say(&format!("STOPPING=1\nSTATUS={why}"));
        self.still_stopping();
    }

    /// Requests more time, at most once per `ASK_EVERY`.
    pub fn still_stopping(&mut self) {
        if self.asked.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
            self.asked = Some(Instant::now());
            self.ask_for(ASK_FOR);
        }
    }

    /// Requests `span` from now on, for a step without reports.
    pub fn ask_for(&self, span: Duration) {
        self.say(&format!("EXTEND_TIMEOUT_USEC={}", span.as_micros()));
    }

    fn say(&self, words: &str) {
        if let Some((socket, address)) = &self.line
            && let Err(error) = socket.send_to_addr(words.as_bytes(), address)
        {
            tracing::debug!(%error, "service manager not notified");
        }
    }
}

/// Interval between requests while a stop goes on, and the time that each asks for: some of them can be late.
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASK_FOR: Duration = Duration::from_secs(30);

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A manager that records, and its address.
    pub(crate) struct Listening {
        socket: UnixDatagram,
        pub name: std::ffi::OsString,
    }

    impl Listening {
        pub(crate) fn below(dir: &std::path::Path) -> Listening {
            let name = dir.join("notify").into_os_string();
            Listening { socket: UnixDatagram::bind(&name).unwrap(), name }
        }

        /// Returns the datagrams that arrived since the last call.
        pub(crate) fn heard(&self) -> Vec<String> {
            self.socket.set_nonblocking(true).unwrap();
            let mut bytes = [0; 1_024];
            std::iter::from_fn(|| {
                let length = self.socket.recv(&mut bytes).ok()?;
                Some(String::from_utf8(bytes[..length].to_vec()).unwrap())
            })
            .collect()
        }
    }

    #[test]
    fn a_manager_is_told_in_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let listening = Listening::below(dir.path());
        let mut manager = ServiceManager::at(&listening.name);
        manager.ready();
        manager.stopping("closing 3 sessions");
        manager.still_stopping();
        manager.ask_for(Duration::from_millis(1_500));
        assert_eq!(
            listening.heard(),
            [
                "READY=1",
                "STOPPING=1\nSTATUS=closing 3 sessions",
                "EXTEND_TIMEOUT_USEC=30000000",
                "EXTEND_TIMEOUT_USEC=1500000",
            ],
            "not asked again at once"
        );
    }

    #[test]
    fn abstract_names_are_understood() {
        let name = format!("murre-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        ServiceManager::at(OsStr::new(&format!("@{name}"))).ready();
        let mut bytes = [0; 32];
        assert_eq!(socket.recv(&mut bytes).unwrap(), "READY=1".len());
    }

    #[test]
    fn nobody_and_nonsense_are_no_trouble() {
        for name in ["/nobody/listens/here", "", "@", &"x".repeat(200)] {
            let mut manager = ServiceManager::at(OsStr::new(name));
            manager.ready();
            manager.stopping("");
        }
        ServiceManager::default().ready();
    }
}
