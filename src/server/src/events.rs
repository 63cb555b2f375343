//! The thread that logs events of clients ([`edge::EventKind`]). Shards cannot log them: writing can block.
//!
//! It exists only while the log takes these lines, so that a node that logs at info has neither queue nor thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use machine::CloseReason;
use runtime::ports::Port;
use tracing::Dispatch;
use tracing::dispatcher::{get_default, with_default};

use edge::{Ended, EventKind, Events, Report};
use protocol::wire::upgrade::family_name;

/// The target of upgrades, hellos and refusals in `log.level`.
const CLIENTS: &str = "murre::clients";
/// The target of the line at the end of each session.
const SESSIONS: &str = "murre::sessions";
/// Interval between reads of the queue, and the most events that each read logs: 2,000 a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const EVENTS_PER_LOOK: usize = 100;

/// The running thread. When it is dropped it logs what is in the queue and ends.
pub(super) struct EventLog {
    events: Arc<Events>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EventLog {
    /// Returns true if the log of the calling thread takes such events.
    pub fn is_wanted() -> bool {
        let clients = tracing::enabled!(target: CLIENTS, tracing::Level::DEBUG);
        clients || tracing::enabled!(target: SESSIONS, tracing::Level::DEBUG)
    }

    /// Starts the thread, if the log of the calling thread takes such events.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn start() -> io::Result<Option<EventLog>> {
        if !EventLog::is_wanted() {
            return Ok(None);
        }
        let (events, stop) = (Arc::new(Events::new()), Arc::new(AtomicBool::new(false)));
        let (taken, stopped, log) = (Arc::clone(&events), Arc::clone(&stop), get_default(Dispatch::clone));
        let body = move || with_default(&log, || run(&taken, &stopped));
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(body)?;
        Ok(Some(EventLog { events, stop, thread: Some(thread) }))
    }

    pub fn events(&self) -> Arc<Events> {
        Arc::clone(&self.events)
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

fn run(events: &Events, stop: &AtomicBool) {
    let mut said = 0;
    loop {
        let ends = stop.load(Ordering::Relaxed);
        // At the end, the whole queue, which is bounded.
        let budget = if ends { usize::MAX } else { EVENTS_PER_LOOK };
        (0..budget).map_while(|_| events.take()).for_each(|report| log(&report));
        let dropped = events.dropped();
        if dropped > said {
            tracing::debug!(target: CLIENTS, events = dropped - said, "client events dropped");
            said = dropped;
        }
        if ends {
            return;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn log(report: &Report) {
    let shard = report.shard.0;
    match report.happening {
        EventKind::Upgraded { agent_family } => {
            let (system, browser) = family_name(agent_family);
            tracing::debug!(target: CLIENTS, shard, system, browser, "WebSocket upgraded");
        }
        EventKind::Checked { agent_family } => {
            let (system, browser) = family_name(agent_family);
            tracing::debug!(target: CLIENTS, shard, system, browser, "Mobile client check");
        }
        EventKind::Greeted { mode } => tracing::debug!(target: CLIENTS, shard, mode, "hello answered"),
        EventKind::Refused { port, status, errno, cause } => {
            tracing::debug!(target: CLIENTS, shard, port = name(port), status, errno, cause, "request refused");
        }
        EventKind::Ended(Ended { reason, code, mode, agent_family, minutes, counts }) => {
            let (system, browser) = family_name(agent_family);
            let by = if reason == CloseReason::PeerClosed { "peer" } else { "server" };
            let (acks, registers, nacks) = (counts.acks(), counts.registers(), counts.nacks());
            match minutes {
                Some(minutes) => tracing::debug!(
                    target: SESSIONS,
                    shard, ?reason, code, by, mode, system, browser, minutes, acks, registers, nacks,
                    "session ended"
                ),
                None => tracing::debug!(target: SESSIONS, shard, ?reason, code, by, system, browser, "WebSocket ended"),
            }
        }
    }
}

fn name(port: Port) -> &'static str {
    match port {
        Port::WebSocket => "websocket",
        Port::Endpoint => "endpoint",
        Port::Node => "node",
        Port::Public => "public",
    }
}
