//! Addresses of names, from the resolver of the system. It blocks, so each lookup is a thread of its own, which is
//! never joined: neither the control plane nor its end is held up by a name server that does not answer.
//!
//! One lookup for a name at a time, for all callers: a name without an answer takes one place, however often it is
//! asked for, and leaves the others to names that can be found. A lookup that waits ends with its last caller.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{Semaphore, watch};

/// Addresses, or why there are none.
type ResolveResult = Result<Arc<[IpAddr]>, String>;
/// Gives a result to all callers.
type FoundSender = watch::Sender<Option<ResolveResult>>;
/// Asks for a name, and blocks.
type ResolveFn = fn(&str) -> std::io::Result<Vec<IpAddr>>;

/// Lookups under way.
pub(super) struct Resolver {
    ask: ResolveFn,
    permits: Arc<Semaphore>,
    /// By name; those that wait for a place are among them.
    in_flight: Mutex<HashMap<Box<str>, FoundSender>>,
}

impl Resolver {
    pub fn new(ask: ResolveFn) -> Arc<Resolver> {
        Arc::new(Resolver { ask, permits: Arc::new(Semaphore::new(LOOKUPS_MAX)), in_flight: Mutex::default() })
    }

    /// The addresses of a name; time is the caller's to bound, and a caller that gives up takes the answer from no
    /// other caller.
    ///
    /// # Errors
    /// The error of the resolver, or that there are too many lookups.
    pub async fn of(resolver: &Arc<Resolver>, name: &str) -> ResolveResult {
        let mut answer = Resolver::start(resolver, name)?;
        match answer.wait_for(Option::is_some).await {
            Ok(found) => found.clone().unwrap_or_else(|| Err(GONE.to_owned())),
            Err(_) => Err(GONE.to_owned()),
        }
    }

    /// The lookup of this name that is under way, or a new one.
    fn start(resolver: &Arc<Resolver>, name: &str) -> Result<watch::Receiver<Option<ResolveResult>>, String> {
        let mut in_flight = resolver.in_flight();
        if let Some(found) = in_flight.get(name) {
            return Ok(found.subscribe());
        }
        if in_flight.len() >= IN_FLIGHT_MAX {
            return Err(FULL.to_owned());
        }
        let (found, answer) = watch::channel(None);
        in_flight.insert(name.into(), found.clone());
        drop(in_flight);
        tokio::spawn(Resolver::look_up(Arc::clone(resolver), name.into(), found));
        Ok(answer)
    }

    async fn look_up(resolver: Arc<Resolver>, name: Box<str>, found: FoundSender) {
        let place = loop {
            tokio::select! {
                place = Arc::clone(&resolver.permits).acquire_owned() => break place,
                () = found.closed() => {
                    let mut in_flight = resolver.in_flight();
                    // Another caller may have come just now.
                    if found.receiver_count() == 0 {
                        in_flight.remove(&name);
                        return;
                    }
                }
            }
        };
        let Ok(place) = place else { return };
        let ended = LookupGuard { resolver: Arc::clone(&resolver), name };
        let body = move || {
            let said = (resolver.ask)(&ended.name).map(Arc::from).map_err(|error| error.to_string());
            drop(ended);
            drop(place);
            // The caller may be gone.
            let _ = found.send(Some(said));
        };
        // Without a thread the closure is dropped with `found`, and the callers that wait learn of it.
        let _ = std::thread::Builder::new().name("lookup".to_owned()).spawn(body);
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<Box<str>, FoundSender>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a lookup from those under way, however it ends.
struct LookupGuard {
    resolver: Arc<Resolver>,
    name: Box<str>,
}

impl Drop for LookupGuard {
    fn drop(&mut self) {
        self.resolver.in_flight().remove(&self.name);
    }
}

/// The resolver of the system.
pub(super) fn resolve_by_system(name: &str) -> std::io::Result<Vec<IpAddr>> {
    // The port is of no use here, and none is looked up.
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

/// Error text for a lookup whose thread did not start.
const GONE: &str = "this host gives no thread for a lookup";
/// Error text for a lookup beyond [`IN_FLIGHT_MAX`].
const FULL: &str = "too many names are looked up at a time";
/// Names that are looked up at a time. Queue: the next lookup waits for one to end.
const LOOKUPS_MAX: usize = 16;
/// Names that are looked up or wait for it. Refuse: the call fails as if the name were not found.
const IN_FLIGHT_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static HELD: (Mutex<bool>, Condvar) = (Mutex::new(true), Condvar::new());

    /// Gives no answer for `dead` until the test lets it.
    fn ask(name: &str) -> std::io::Result<Vec<IpAddr>> {
        if name == "none" {
            return Err(std::io::Error::other("no such name"));
        }
        if name == "dead" {
            ASKED.fetch_add(1, Ordering::SeqCst);
            let _held = HELD.1.wait_while(HELD.0.lock().unwrap(), |held| *held).unwrap();
        }
        Ok(vec![IpAddr::from([127, 0, 0, 9])])
    }

    #[tokio::test]
    async fn a_name_that_nobody_answers_for_takes_one_place_however_often_it_is_asked_for() {
        let resolver = Resolver::new(ask);
        for _ in 0..3 * LOOKUPS_MAX {
            let given_up = tokio::time::timeout(Duration::from_millis(5), Resolver::of(&resolver, "dead")).await;
            assert!(given_up.is_err());
        }
        let patience = Duration::from_secs(30);
        let other = tokio::time::timeout(patience, Resolver::of(&resolver, "alive")).await.expect("not held up");
        assert_eq!(&*other.unwrap(), [IpAddr::from([127, 0, 0, 9])]);
        assert_eq!(Resolver::of(&resolver, "none").await, Err("no such name".to_owned()));
        assert_eq!(ASKED.load(Ordering::SeqCst), 1);
        *HELD.0.lock().unwrap() = false;
        HELD.1.notify_all();
        let late = tokio::time::timeout(patience, Resolver::of(&resolver, "dead")).await.expect("in time");
        assert!(late.is_ok());
        while !resolver.in_flight.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Gives no answer at all.
    fn silent(_: &str) -> std::io::Result<Vec<IpAddr>> {
        SILENT.fetch_add(1, Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    }

    static SILENT: AtomicUsize = AtomicUsize::new(0);

    #[tokio::test]
    async fn lookups_are_bounded_and_those_that_wait_end_with_their_callers() {
        let resolver = Resolver::new(silent);
        let mut callers = tokio::task::JoinSet::new();
        for number in 0..128 {
            let resolver = Arc::clone(&resolver);
            callers.spawn(async move { Resolver::of(&resolver, &format!("dead{number}.example")).await });
        }
        let lookups = || resolver.in_flight.lock().unwrap().len();
        let patience = Duration::from_secs(30);
        let settle = async |expected: usize| {
            let settled = async {
                while lookups() != expected {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let _ = tokio::time::timeout(patience, settled).await;
            assert_eq!(lookups(), expected);
        };
        settle(128).await;
        let refused = tokio::time::timeout(patience, Resolver::of(&resolver, "one.more.example")).await;
        assert!(refused.expect("at once").is_err());
        assert_eq!(lookups(), 128);
        callers.shutdown().await;
        // Threads cannot be stopped; the others were never asked for.
        settle(LOOKUPS_MAX).await;
        // A thread is counted here before it has run.
        let asked = || SILENT.load(Ordering::SeqCst);
        let all_asked = async {
            while asked() < LOOKUPS_MAX {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(patience, all_asked).await;
        assert_eq!(asked(), LOOKUPS_MAX);
    }
}
