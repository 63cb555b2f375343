//! Work at storage: every operation carries a ticket that finds the state that asked, if it still stands.
//!
//! Operations somebody can be refused for (a hello, a POST) need a free ticket. Those that must happen (saving
//! a ledger, deleting what was acked) wait in a backlog instead and are tried again after an error.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::ids::Chid;
use crate::ids::{KeyDigest, Stamp, StoreTicket, Uaid};
use crate::limits;
use crate::message::{Message, Rank, Topic};
use crate::time::{Instant, Span, UnixSeconds};

use super::cluster::{Doubt, Presence, Route, Tale};
use super::command::Refusal;
use super::components::dead_endpoints::Epoch;
use super::components::requests::Asker;
use super::input::Effect;
use super::receipt::ReceiptQuery;
use super::slab::{Ref, Slab};
use super::store::{RowKey, StoreError, StoreOp, StoreReply};
use super::{ShardMachine, Turn};

/// Who waits for a reply of storage.
pub(super) enum Work {
    LoadUser {
        greeting: Ref,
    },
    Register {
        session: Ref,
        uaid: Uaid,
        chid: Chid,
        key: Option<KeyDigest>,
    },
    Unregister {
        session: Ref,
        uaid: Uaid,
        chid: Chid,
    },
    Publish(PublishWork),
    Page {
        session: Ref,
    },
    Retry {
        session: Ref,
        stamp: Stamp,
    },
    Spill {
        session: Ref,
        stamps: Vec<Stamp>,
    },
    Depart {
        uaid: Uaid,
    },
    Settle {
        uaid: Uaid,
        count: usize,
    },
    Cancel {
        asker: Asker,
        row: RowKey,
    },
    Receipt {
        asker: Asker,
        query: Box<ReceiptQuery>,
    },
    /// Nobody waits for it.
    Touch,
    /// The refresh of a user. `look`: its session looks at storage then.
    Refresh {
        session: Ref,
        look: bool,
    },
    Contact {
        session: Ref,
    },
    /// Whom to wake.
    Wake {
        uaid: Uaid,
    },
    /// The drop of a user whose hello waits for it.
    StartOver {
        greeting: Ref,
        uaid: Uaid,
    },
    /// The drop of a user.
    Reset {
        uaid: Uaid,
    },
    /// The row that says the session is here.
    Enter {
        session: Ref,
    },
    /// The same row again, with the refresh of its user.
    RenewPresence {
        session: Ref,
    },
    /// Whether a session's user is still here.
    Doubt {
        session: Ref,
        /// Why it asks.
        why: Doubt,
    },
    /// The user of a POST that is on its way.
    Look(Box<Route>),
    /// The user of a stored message, once more.
    LookAgain(Box<Tale>),
    /// A stored message once more, where low water does not hide it.
    SaveAgain(Box<Tale>),
    /// At another node: a message for its session.
    Push(Box<Route>),
    /// At another node: something was stored.
    Tell(Box<Tale>),
    /// At another node: its session is over.
    Leave {
        uaid: Uaid,
        presence: Presence,
    },
    /// An unregister nobody waits for: the hello of the session left the channel out.
    Forget {
        session: Ref,
        uaid: Uaid,
        chid: Chid,
        /// Registers of the channel when the hello came.
        asked: Epoch,
    },
}

/// A POST at storage.
pub(super) struct PublishWork {
    pub asker: Asker,
    pub row: RowKey,
    /// Registers of this subscription when storage was asked.
    pub epoch: Epoch,
    /// Set when its sender asked for a receipt: when the message expires.
    pub receipt: Option<UnixSeconds>,
    /// Bytes taken from the user's budget of today.
    pub charged: u32,
    /// The topic slot it takes when it is written, and its place among those that want it.
    pub slot: Option<(Chid, Topic, Rank)>,
    /// When it was stamped; of a saved row, which low water does not cover, when it was submitted.
    pub since: Instant,
    /// The rule it broke, to be said unless there is no subscription.
    pub refusal: Option<Refusal>,
    /// TTL 0 or a refusal: only the check is made, nothing is written.
    pub check_only: bool,
    /// Where the user was, and what comes after the commit.
    pub storing: Storing,
}

/// What a stored POST needs when its commit returns.
pub(super) enum Storing {
    /// The user is here, or this node is alone.
    Here {
        /// `delivery.durable`: send this from memory.
        send: Option<Arc<Message>>,
    },
    /// The user was looked up and is elsewhere, or nowhere.
    Routed {
        /// What is stored: the second look may find that it has to be stored once more.
        message: Arc<Message>,
        /// `delivery.durable`: the node that has the user sends it from memory.
        send: bool,
        /// A push to this session got no answer.
        unsure: Option<Presence>,
    },
}

impl Storing {
    /// What is sent from memory once it is stored.
    pub fn send(&self) -> Option<&Arc<Message>> {
        match self {
            Storing::Here { send } => send.as_ref(),
            Storing::Routed { message, send, .. } => Some(message).filter(|_| *send),
        }
    }
}

/// Tickets and the backlog of one shard.
pub(super) struct Tickets {
    open: Slab<Work>,
    /// Must-do operations without a ticket, oldest first, and when to try them. Bounded by the ledgers and
    /// windows they come from.
    backlog: VecDeque<(Instant, Work, StoreOp)>,
    /// How many operations of each user are in the backlog.
    waiting: BTreeMap<Uaid, u32>,
}

impl Tickets {
    pub fn new() -> Tickets {
        Tickets { open: Slab::new(), backlog: VecDeque::new(), waiting: BTreeMap::new() }
    }

    /// Whether something that can be refused may be submitted: a quarter is kept for what must happen.
    pub fn room(&self) -> bool {
        self.open.len() < limits::STORE_TICKETS_MAX / 4 * 3
    }

    pub fn idle(&self) -> bool {
        self.open.is_empty() && self.backlog.is_empty()
    }

    pub fn outstanding(&self) -> usize {
        self.open.len()
    }

    /// A ticket for work that is not at storage.
    pub fn open_for(&mut self, work: Work) -> StoreTicket {
        let at = self.open.insert(work);
        StoreTicket { index: at.index, generation: at.generation }
    }

    /// Takes a ticket back.
    pub fn close(&mut self, at: Ref) -> Option<Work> {
        self.open.remove(at)
    }

    fn wait(&mut self, due: Instant, work: Work, op: StoreOp) {
        *self.waiting.entry(op.uaid()).or_insert(0) += 1;
        self.backlog.push_back((due, work, op));
    }

    fn next_of_backlog(&mut self) -> Option<(Work, StoreOp)> {
        let (_, work, op) = self.backlog.pop_front()?;
        if let Entry::Occupied(mut count) = self.waiting.entry(op.uaid()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some((work, op))
    }

    /// When the oldest backlog entry is due.
    pub fn due(&self) -> Option<Instant> {
        self.backlog.front().map(|(due, ..)| *due)
    }
}

impl ShardMachine {
    /// Submits an operation; the caller has asked `room` unless it must happen.
    pub(super) fn submit(&mut self, turn: &mut Turn<'_>, work: Work, op: StoreOp) {
        // Behind a waiting operation of the same user: order per UAID is what the laws promise.
        let behind = self.tickets.waiting.contains_key(&op.uaid());
        if behind || self.tickets.open.len() >= limits::STORE_TICKETS_MAX {
            self.tickets.wait(turn.now.mono, work, op);
            return;
        }
        self.submit_now(turn, work, op);
    }

    fn submit_now(&mut self, turn: &mut Turn<'_>, work: Work, op: StoreOp) {
        self.stats.store_operations += 1;
        let ticket = self.tickets.open_for(work);
        turn.effects.push_back(Effect::Store(ticket, op));
    }

    /// Submits a must-do operation again after a pause.
    pub(super) fn submit_later(&mut self, turn: &Turn<'_>, work: Work, op: StoreOp) {
        self.stats.store_retries += 1;
        self.tickets.wait(turn.now.mono.after(BACKLOG_PAUSE), work, op);
    }

    /// Tries what waits in the backlog and is due.
    pub(super) fn submit_backlog(&mut self, turn: &mut Turn<'_>) {
        while turn.has_room() && self.tickets.open.len() < limits::STORE_TICKETS_MAX {
            match self.tickets.due() {
                Some(due) if due <= turn.now.mono => {}
                _ => return,
            }
            if let Some((work, op)) = self.tickets.next_of_backlog() {
                self.submit_now(turn, work, op);
            }
        }
    }

    /// A reply of storage: find who asked.
    pub(super) fn stored(&mut self, turn: &mut Turn<'_>, ticket: StoreTicket, result: Result<StoreReply, StoreError>) {
        let at = Ref { index: ticket.index, generation: ticket.generation };
        let Some(work) = self.tickets.close(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        if result.is_err() {
            self.stats.store_errors += 1;
        }
        self.note_room(&work, &result);
        match work {
            Work::LoadUser { greeting } => self.user_loaded(turn, greeting, result),
            Work::Register { session, uaid, chid, key } => {
                self.registered(turn, (session, uaid), chid, key, result.is_ok());
            }
            Work::Unregister { session, uaid, chid } => self.unregistered(turn, session, uaid, chid, result.is_ok()),
            Work::Publish(work) => self.publish_stored(turn, work, result),
            Work::Page { session } => {
                self.row_memory.end_page();
                self.page_loaded(turn, session, result);
            }
            Work::Retry { session, stamp } => self.retry_loaded(turn, session, stamp, result),
            Work::Spill { session, stamps } => self.spilled(turn, session, &stamps, result.is_ok()),
            Work::Depart { uaid } => self.departed(turn, uaid, result.map(drop)),
            Work::Settle { uaid, count } => self.settled(turn, uaid, count, result.is_ok()),
            Work::Cancel { asker, row } => self.cancelled(turn, asker, row, result.is_ok()),
            Work::Contact { session } => self.contact_set(turn, session, result.is_ok()),
            Work::Wake { uaid } => self.wake_loaded(turn, uaid, result),
            Work::Receipt { asker, query } => self.receipt_read(turn, asker, &query, result),
            Work::StartOver { greeting, uaid } => self.started_over(turn, greeting, uaid, result.is_ok()),
            Work::Reset { uaid } if result.is_ok() => self.end_receipts_of_user(uaid),
            Work::Forget { session, uaid, chid, asked } => {
                self.forgotten(turn, (session, uaid), (chid, asked), result.is_ok());
            }
            Work::Enter { session } => self.entered(turn, session, result.is_ok()),
            Work::RenewPresence { session } => self.presence_renewed(turn, session, result.is_ok()),
            Work::Doubt { session, why } => self.doubt_settled(turn, (session, why), result),
            Work::Look(route) => self.looked(turn, route, result),
            Work::LookAgain(tale) => self.looked_again(turn, tale, result),
            Work::SaveAgain(tale) => self.saved_again(turn, tale, result.is_ok()),
            Work::Refresh { session, look } => self.refreshed(turn, session, look, result.is_ok()),
            Work::Touch | Work::Reset { .. } => {}
            // Only another node answers these.
            Work::Push(_) | Work::Tell(_) | Work::Leave { .. } => self.stats.store_replies_stale += 1,
        }
        self.submit_backlog(turn);
    }
}

impl ShardMachine {
    /// Learns from the answer to a save whether storage has room for what is accepted: a message goes to the ledger
    /// only while storage would take it from there.
    fn note_room(&mut self, work: &Work, result: &Result<StoreReply, StoreError>) {
        if matches!(work, Work::Depart { .. } | Work::Spill { .. }) {
            self.storage_full = matches!(result, Err(StoreError::Full));
            self.stats.saves_refused += u64::from(self.storage_full);
        } else if matches!((work, result), (Work::Publish(publish), Ok(StoreReply::Done)) if !publish.check_only) {
            // Another answer says nothing: no row was written.
            self.storage_full = false;
        }
    }
}

/// How long a must-do operation rests after an error.
const BACKLOG_PAUSE: Span = Span::from_ms(1_000);
