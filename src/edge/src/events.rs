//! Events of clients, for a log at debug: upgrades, hellos, refusals, and the end of each WebSocket.
//!
//! A shard never logs, because writing can block it. It puts a small value into a queue that all shards share, and one
//! thread of the node takes the value out and logs it. If the log has no such lines, there is no queue, and a shard
//! pays for one look at an `Option`. A full queue drops the report and counts it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use machine::ids::ShardId;
use machine::time::Now;
use machine::{AgentCommand, CloseReason, Command, RelayCommand, SessionCommand};
use runtime::ports::Port;

/// Maximum number of reports that wait to be logged, at about 64 bytes each. Shed: further reports are counted and not
/// logged.
const EVENTS_MAX: usize = 4_096;

/// An event of a client. It holds no secret: no UAID, no token, no path, no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A connection became a WebSocket.
    Upgraded { agent_family: u16 },
    /// A device asked for its channels.
    Checked { agent_family: u16 },
    /// A hello was answered.
    Greeted {
        /// "webpush", "simplepush" or "relay".
        mode: &'static str,
    },
    /// An HTTP request was refused.
    Refused {
        port: Port,
        status: u16,
        /// `errno` of the answer, if it has one.
        errno: Option<u16>,
        /// `message` of the answer.
        cause: &'static str,
    },
    /// A WebSocket ended.
    Ended(Ended),
}

/// End of a WebSocket, with the facts that need no memory while the WebSocket is idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    pub reason: CloseReason,
    /// Code of the close frame that was sent, or with [`CloseReason::PeerClosed`] received; `None` without one.
    pub code: Option<u16>,
    /// "webpush", "simplepush" or "relay".
    pub mode: &'static str,
    /// Family of the user agent; 0 when its socket came from another shard.
    pub agent_family: u16,
    /// Whole minutes since its hello was answered, up to 45 days; `None` without a hello.
    pub minutes: Option<u16>,
    pub counts: Counts,
}

/// Numbers of the commands of one WebSocket, members of a relay included. They use the two spare bytes of a codec, so
/// an idle session pays nothing for them: eight bits and twice four. Each number stops at its bound.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts([u8; 2]);

impl Counts {
    const ACKS_MAX: u32 = 255;
    const OTHERS_MAX: u32 = 15;

    /// Number of messages acked, at most 255.
    pub fn acks(self) -> u32 {
        self.bits() & Counts::ACKS_MAX
    }

    /// Number of registers, at most 15.
    pub fn registers(self) -> u32 {
        (self.bits() >> 8) & Counts::OTHERS_MAX
    }

    /// Number of nacks, at most 15.
    pub fn nacks(self) -> u32 {
        self.bits() >> 12
    }

    fn bits(self) -> u32 {
        u32::from(u16::from_le_bytes(self.0))
    }

    pub(super) fn take(&mut self, command: &Command) {
        let command = match command {
            Command::Agent(AgentCommand::Session(command)) => command,
            Command::Relay(RelayCommand::For { command, .. }) => command,
            Command::Agent(_)
            | Command::Relay(_)
            | Command::Sender(_)
            | Command::Registration(_)
            | Command::Node(_) => return,
        };
        let (acks, registers, nacks) = match command {
            SessionCommand::Ack(updates) => (updates.len(), 0, 0),
            SessionCommand::AckVersions(updates) => (updates.len(), 0, 0),
            SessionCommand::Register { .. } => (0, 1, 0),
            SessionCommand::Nack { .. } => (0, 0, 1),
            SessionCommand::Unregister { .. }
            | SessionCommand::Urgency { .. }
            | SessionCommand::BroadcastSubscribe(_) => return,
        };
        let more =
            |before: u32, by: usize, most: u32| before.saturating_add(u32::try_from(by).unwrap_or(most)).min(most);
        let acks = more(self.acks(), acks, Counts::ACKS_MAX);
        let registers = more(self.registers(), registers, Counts::OTHERS_MAX);
        let nacks = more(self.nacks(), nacks, Counts::OTHERS_MAX);
        let [low, high, ..] = (acks | (registers << 8) | (nacks << 12)).to_le_bytes();
        self.0 = [low, high];
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} acks, {} registers, {} nacks", self.acks(), self.registers(), self.nacks())
    }
}

/// A happening and its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    pub shard: ShardId,
    pub happening: EventKind,
}

/// Queue between all shards and the thread that logs.
pub struct Events {
    queue: ArrayQueue<Report>,
    dropped: AtomicU64,
}

impl Events {
    #[expect(clippy::new_without_default, reason = "there is one for a process, made on purpose")]
    pub fn new() -> Events {
        Events { queue: ArrayQueue::new(EVENTS_MAX), dropped: AtomicU64::new(0) }
    }

    /// Puts a report in, if there is room. Never waits.
    fn put(&self, report: Report) -> bool {
        let fits = self.queue.push(report).is_ok();
        if !fits {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// Removes and returns the oldest report.
    pub fn take(&self) -> Option<Report> {
        self.queue.pop()
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Shard's end of the queue, if there is one.
pub(super) struct Reporter {
    shard: ShardId,
    events: Option<Arc<Events>>,
    /// Port of the request that is being answered.
    pub(super) port: Port,
}

impl Reporter {
    pub(super) fn new(shard: ShardId, events: Option<Arc<Events>>) -> Reporter {
        Reporter { shard, events, port: Port::WebSocket }
    }

    /// Replaces the queue.
    pub(super) fn set_events(&mut self, events: Option<Arc<Events>>) {
        self.events = events;
    }

    /// Sets the port of the reports that follow.
    #[inline]
    pub(super) fn on(&mut self, port: Port) {
        self.port = port;
    }

    /// Returns true if there is a queue.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.events.is_some()
    }

    /// Reports a happening. Returns the number of reports that were dropped: 0 or 1.
    #[inline]
    pub(super) fn tell(&self, happening: EventKind) -> u64 {
        match &self.events {
            Some(events) => u64::from(!events.put(Report { shard: self.shard, happening })),
            None => 0,
        }
    }
}

/// Returns the minute since the process started, from 1 on; after [`MINUTES`] it begins again.
pub(super) fn minute(now: Now) -> u16 {
    (now.mono.0 / 60_000_000_000 % MINUTES) as u16 + 1
}

/// Returns the minutes from one [`minute`] to this one; `None` from 0, which is none.
pub(super) fn minutes_since(since: u16, now: Now) -> Option<u16> {
    let passed = u64::from(minute(now)) + MINUTES - u64::from(since);
    (since != 0).then_some((passed % MINUTES) as u16)
}

/// 45 days, so that two spare bytes of a WebSocket's codec are enough.
const MINUTES: u64 = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts_and_never_waits() {
        let events = Arc::new(Events::new());
        let reporter = Reporter::new(ShardId(3), Some(Arc::clone(&events)));
        let happening = EventKind::Greeted { mode: "webpush" };
        let dropped: u64 = (0..EVENTS_MAX + 7).map(|_| reporter.tell(happening)).sum();
        assert_eq!((dropped, events.dropped()), (7, 7));
        let taken = std::iter::from_fn(|| events.take()).collect::<Vec<_>>();
        assert_eq!(taken.len(), EVENTS_MAX);
        assert_eq!(taken[0], Report { shard: ShardId(3), happening });
        assert_eq!(Reporter::new(ShardId(0), None).tell(happening), 0, "nobody wants to know");
    }

    #[test]
    fn commands_are_counted_up_to_their_bounds_and_none_spills_into_another() {
        use machine::AckUpdate;
        use machine::ids::{Chid, Uaid};
        let ack = || AckUpdate { stamp: Default::default(), chid: Chid([1; 16]), topic: None, code: 100 };
        let register =
            || -> Command { SessionCommand::Register { chid: Chid([1; 16]), key: None, caller: None }.into() };
        let seen = |counts: Counts| (counts.acks(), counts.registers(), counts.nacks());
        let mut counts = Counts::default();
        counts.take(&SessionCommand::Ack(vec![ack(), ack()]).into());
        counts.take(&register());
        counts.take(&AgentCommand::Ping.into());
        let of_member =
            RelayCommand::For { uaid: Uaid([2; 16]), command: Box::new(SessionCommand::Nack { code: 301 }) };
        counts.take(&of_member.into());
        assert_eq!(seen(counts), (2, 1, 1));
        (0..5_000).for_each(|_| counts.take(&SessionCommand::Ack(vec![ack()]).into()));
        assert_eq!(seen(counts), (255, 1, 1));
        (0..100).for_each(|_| counts.take(&register()));
        assert_eq!(seen(counts), (255, 15, 1));
        (0..100).for_each(|_| counts.take(&SessionCommand::Nack { code: 302 }.into()));
        assert_eq!(seen(counts), (255, 15, 15));
    }

    #[test]
    fn minutes_are_counted_over_the_wrap() {
        let at = |minutes: u64| {
            let mono = machine::time::Instant(minutes * 60_000_000_000);
            Now { mono, unix_us: 0 }
        };
        for (from, to, passed) in [(0, 0, 0), (0, 7, 7), (65_530, 65_540, 10), (3 * 65_535, 3 * 65_535 + 9, 9)] {
            assert_eq!(minutes_since(minute(at(from)), at(to)), Some(passed), "{from} to {to}");
        }
        assert_eq!(minutes_since(0, at(5)), None);
    }
}
