//! A port in moving time: the wall clock of the store moves with each operation, and the clocks of the laws follow it.
//!
//! The laws name clocks by small numbers, which are microseconds behind the start of their time here. A store refuses a
//! message 30 s behind its clock, so that the time of one law stays below that.
//!
//! The port forwards a bounded number of operations at a time, as a shard does: an operation must end 25 s after its
//! submission, and three replicas on a busy host do not end ten thousand of them in that time.

use std::collections::VecDeque;
use std::sync::Arc;

use machine::ids::{Clock, Stamp, StoreTicket};
use machine::message::Message;
use machine::time::UnixSeconds;
use machine::{Page, Presence, RowKey, StoreError, StoreOp, StoreReply, UserRow};
use runtime::ports::Store;
use runtime::process_clock::ProcessClock;

use crate::conformance::NOW;

/// Duration of an operation in the time of the laws, in microseconds.
const STEP_US: i64 = 1_000;
/// Start of that time, in microseconds since the Unix epoch.
const START_US: u64 = NOW.0 * 1_000_000;

/// Maximum number of operations that the store has at a time.
const IN_FLIGHT_MAX: usize = 64;

/// The port and the clock of its store.
pub(super) struct Moving<P> {
    port: P,
    process_clock: Arc<ProcessClock>,
    in_flight: usize,
    waiting: VecDeque<(StoreTicket, StoreOp)>,
}

/// Returns the wall clock with which the time of a law begins.
pub(super) fn process_clock() -> Arc<ProcessClock> {
    Arc::new(ProcessClock::standing(START_US))
}

impl<P: Store> Moving<P> {
    /// `wall` is the clock of the store that `port` leads to.
    pub(super) fn new(port: P, process_clock: Arc<ProcessClock>) -> Moving<P> {
        Moving { port, process_clock, in_flight: 0, waiting: VecDeque::new() }
    }

    fn forward(&mut self) {
        while self.in_flight < IN_FLIGHT_MAX
            && let Some((ticket, op)) = self.waiting.pop_front()
        {
            self.process_clock.apply_step(STEP_US);
            let op = self.later(op);
            self.port.submit(ticket, op);
            self.in_flight += 1;
        }
    }

    /// Time that has passed is added to the times by which reads judge.
    fn now(&self, now: UnixSeconds) -> UnixSeconds {
        UnixSeconds(now.0 + self.process_clock.unix().0 - NOW.0)
    }

    fn later(&self, op: StoreOp) -> StoreOp {
        match op {
            StoreOp::Publish { message, checked } => StoreOp::Publish { message: later_message(&message), checked },
            StoreOp::Save { messages } => {
                StoreOp::Save { messages: messages.iter().map(|message| later_message(message)).collect() }
            }
            StoreOp::Read { row, now } => StoreOp::Read { row: later_row(row), now: self.now(now) },
            StoreOp::Topics { uaid, after, limit, now } => StoreOp::Topics { uaid, after, limit, now: self.now(now) },
            StoreOp::Messages { uaid, after, limit, now } => {
                // The least stamp is the begin of a drain, not a time.
                let after = if after == Stamp::default() { after } else { later_stamp(after) };
                StoreOp::Messages { uaid, after, limit, now: self.now(now) }
            }
            StoreOp::Settle { rows, low_water, durable } => StoreOp::Settle {
                rows: rows.into_iter().map(later_row).collect(),
                low_water: low_water.map(later_clock),
                durable,
            },
            StoreOp::Tried { rows } => {
                StoreOp::Tried { rows: rows.into_iter().map(|(row, tries)| (later_row(row), tries)).collect() }
            }
            StoreOp::Register { uaid, chid, key, at, seen, contact, presence, maker } => StoreOp::Register {
                uaid,
                chid,
                key,
                at: later_clock(at),
                seen,
                contact,
                presence: presence.map(later_presence),
                maker,
            },
            StoreOp::Unregister { uaid, chid, at } => StoreOp::Unregister { uaid, chid, at: later_clock(at) },
            StoreOp::SetPresence { uaid, presence } => {
                StoreOp::SetPresence { uaid, presence: later_presence(presence) }
            }
            StoreOp::ClearPresence { uaid, presence } => {
                StoreOp::ClearPresence { uaid, presence: later_presence(presence) }
            }
            other => other,
        }
    }
}

fn later_clock(clock: Clock) -> Clock {
    Clock(clock.0 + START_US)
}

fn earlier_clock(clock: Clock) -> Clock {
    Clock(clock.0.saturating_sub(START_US))
}

fn later_stamp(stamp: Stamp) -> Stamp {
    Stamp { clock: later_clock(stamp.clock), ..stamp }
}

fn later_row(row: RowKey) -> RowKey {
    RowKey { stamp: later_stamp(row.stamp), ..row }
}

fn later_message(message: &Message) -> Arc<Message> {
    Arc::new(Message { stamp: later_stamp(message.stamp), ..message.clone() })
}

fn later_presence(presence: Presence) -> Presence {
    Presence { connected_at: presence.connected_at + START_US, ..presence }
}

fn earlier(reply: StoreReply) -> StoreReply {
    match reply {
        StoreReply::Page(page) => {
            let earlier = |message: &Arc<Message>| {
                let clock = earlier_clock(message.stamp.clock);
                Arc::new(Message { stamp: Stamp { clock, ..message.stamp }, ..Message::clone(message) })
            };
            let messages = page.messages.iter().map(earlier).collect();
            StoreReply::Page(Box::new(Page { messages, ..*page }))
        }
        StoreReply::User(Some(user)) => {
            let presence = user
                .presence
                .iter()
                .map(|presence| Presence { connected_at: presence.connected_at - START_US, ..presence.clone() });
            StoreReply::User(Some(Box::new(UserRow {
                low_water: earlier_clock(user.low_water),
                user_clock: earlier_clock(user.user_clock),
                presence: presence.collect(),
                ..*user
            })))
        }
        other => other,
    }
}

impl<P: Store> Store for Moving<P> {
    fn submit(&mut self, ticket: StoreTicket, op: StoreOp) {
        self.waiting.push_back((ticket, op));
        self.forward();
    }

    fn collect(&mut self) -> Option<(StoreTicket, Result<StoreReply, StoreError>)> {
        let (ticket, answer) = self.port.collect()?;
        self.in_flight -= 1;
        self.forward();
        Some((ticket, answer.map(earlier)))
    }
}
