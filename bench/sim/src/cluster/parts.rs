//! Parts of a cluster that are no user agents: nodes, calls between them, operations of storage, and POSTs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use machine::ids::{Chid, Claim, Clock, Stamp, StoreTicket, Uaid};
use machine::message::{Message, Rank, Topic};
use machine::peers::{BootRow, DebtTime, PeerCall, PeerClient};
use machine::{Mail, NodeId, PeerOp, PeerReply, Presence, ShardMachine, StoreError, StoreOp, StoreReply};

use super::phones::{Handed, Request};
use super::sock::{Channel, SockId};
use crate::shared::Recipient;

/// Event that a request over HTTP waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    Post(usize),
    Cancel,
    /// A call of another node.
    Call(u64),
    /// A call of the registration API.
    Phone(Request),
}

/// One node.
pub(super) struct Node {
    pub(super) up: bool,
    /// Time at which it starts again, while it is down.
    pub(super) returns_at: u64,
    pub(super) id: Arc<NodeId>,
    pub(super) shards: Vec<Shard>,
    /// Messages in its ledgers at its end, and the furthest that its clock may have been.
    pub(super) left: Vec<Arc<Message>>,
    pub(super) floor: Clock,
    /// Its calls of the others.
    pub(super) client: PeerClient<Waiter>,
    /// File of its data directory with the nodes that it owes something while the store does not take that
    /// (`src/control_plane/peer_client/unwritten.rs`).
    pub(super) unwritten: BTreeSet<Arc<str>>,
    /// Users of its ledgers, whose nodes it notifies at its start, and the end of the time that this takes.
    pub(super) tells: (Vec<Uaid>, u64),
    /// Time at which it looks for what it is owed.
    pub(super) looks_at: u64,
    /// It has drained, and what it owes is left to the others then; true when that is done.
    pub(super) leaves_at: Option<(u64, bool)>,
    /// It does nothing before this.
    pub(super) paused_until: u64,
    /// It does not reach the store before this.
    pub(super) store_cut_until: u64,
    /// It was told to stop; its patience ends then.
    pub(super) stopping: Option<u64>,
    /// Its clock is ahead by this much.
    pub(super) offset_us: i64,
    pub(super) drift: i64,
    pub(super) drift_since: u64,
    /// Nothing keeps its drift within the allowed skew.
    pub(super) runs_away: bool,
    /// Its shards stamp nothing, and until when.
    pub(super) clock_stopped: bool,
    pub(super) righted_at: u64,
    /// Time at which it renews its lease and asks about its clock.
    pub(super) kept_at: u64,
    /// Time since which others have been silent as far as it sees.
    pub(super) silent_since: BTreeMap<usize, u64>,
}

/// One shard of a boot.
pub(super) struct Shard {
    pub(super) machine: ShardMachine,
    pub(super) ledger: BTreeMap<u32, Arc<Message>>,
    pub(super) lanes: [VecDeque<Mail>; 3],
    pub(super) conns: BTreeMap<u32, SockId>,
    /// Descriptors on their way here.
    pub(super) moves: Vec<(SockId, Claim)>,
    pub(super) drained: bool,
}

/// Forms in which a message was written.
#[derive(Clone, Copy, Default)]
pub(super) struct Forms {
    pub(super) plain: bool,
    pub(super) saved: bool,
}

/// A write that says that a boot is over.
pub(super) struct Burial {
    pub(super) at: u64,
    pub(super) by: (usize, u64),
    pub(super) node: usize,
    pub(super) boot: u64,
    /// Question of a client that asked for it.
    pub(super) asked: Option<(Arc<str>, Vec<u64>, BootRow)>,
}

/// An operation that has not taken effect.
pub(super) struct Work {
    pub(super) node: usize,
    pub(super) shard: usize,
    pub(super) ticket: StoreTicket,
    pub(super) op: StoreOp,
    pub(super) ready_at: u64,
    pub(super) gives_up_at: u64,
    pub(super) behind: Behind,
}

/// An answer on its way back to the same boot of the node.
pub(super) struct Reply {
    pub(super) node: usize,
    pub(super) shard: usize,
    pub(super) uaid: Uaid,
    pub(super) ticket: StoreTicket,
    pub(super) result: Result<StoreReply, StoreError>,
    /// Clock of the message that was stored, microseconds.
    pub(super) stamped: Option<u64>,
    /// It answers a `Settle`.
    pub(super) settles: bool,
    /// It answers a write of messages.
    pub(super) writes: bool,
    /// It answers the second write of a message that had turned up below low water.
    pub(super) again: bool,
    /// Message of the checked write of a message row that this answers.
    pub(super) wrote: Option<Stamp>,
    /// Message that the second read behind its write finds at or below low water.
    pub(super) below: Option<Stamp>,
}

/// Reply of storage that made a machine ask for this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Behind {
    /// A write of messages; the stamp of one that was written as a message row.
    Write(Option<Stamp>),
    /// A page of messages that was read.
    Page,
    /// The write of a message that had turned up below low water.
    SaveAgain,
    #[default]
    Other,
}

/// One call under way.
pub(super) struct Call {
    pub(super) id: u64,
    pub(super) from: usize,
    pub(super) from_boot: u64,
    /// The call as its client knows it; none after it was given up.
    pub(super) asked: Option<PeerCall<Waiter>>,
    pub(super) op: PeerOp,
    pub(super) stage: Stage,
    pub(super) gives_up_at: u64,
    /// Time at which a machine was given it.
    pub(super) given_at: u64,
    /// The newest stamp that the session had been sent when it refused this push.
    pub(super) behind: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No connection.
    Refused { at: u64 },
    /// On its way there; `u64::MAX` when it was lost.
    Out { at: u64 },
    /// A machine has it.
    There,
    /// On its way back.
    Back { at: u64, reply: PeerReply },
}

impl Call {
    /// Latest time at which it goes on.
    pub(super) fn due(&self) -> u64 {
        let (Stage::Refused { at } | Stage::Out { at } | Stage::Back { at, .. }) = self.stage else {
            return self.gives_up_at;
        };
        if self.asked.is_some() { at.min(self.gives_up_at) } else { at }
    }
}

/// Shard and ticket that wait for a call.
pub(super) type Waiter = (usize, StoreTicket);

/// A write or a delete of a debt, on its way from a boot of a node to the store.
pub(super) struct DebtWrite {
    pub(super) by: (usize, u64),
    /// The node that is owed.
    pub(super) url: Arc<str>,
    pub(super) id: u64,
    /// `None`: it is deleted.
    pub(super) time: Option<DebtTime>,
    pub(super) at: u64,
}

/// One POST. Times are steps of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Post {
    pub(super) to: Recipient,
    pub(super) topic: Option<Topic>,
    pub(super) ttl: u32,
    /// Of a SimplePush update; 0 of a notification.
    pub(super) version: u64,
    /// An ack of a version may have settled it although it was not sent: it may come, need not.
    pub(super) ack_odd: bool,
    /// Its channel when it was sent.
    pub(super) channel: Channel,
    pub(super) start: u64,
    /// The node where it landed, and its boot.
    pub(super) landed: usize,
    pub(super) boot: u64,
    /// Step at which its 201 was written.
    pub(super) seen: Option<u64>,
    pub(super) stamp: Option<Stamp>,
    /// Identity under which user agents were sent it.
    pub(super) sent_as: Option<Stamp>,
    pub(super) expires: u64,
    /// It was in storage or in a ledger at some time.
    pub(super) held: bool,
    pub(super) sent: u32,
    pub(super) acked: Option<u64>,
    /// The boot of a node that took its first ack.
    pub(super) acked_by: Option<u64>,
    /// Monotonic time of its first ack.
    pub(super) acked_at: Option<u64>,
    /// The socket that it was sent on last.
    pub(super) sent_on: Option<SockId>,
    /// The boot that took its first ack on the socket that it was sent on, so that it knows the message.
    pub(super) settled_by: Option<u64>,
    /// That boot was told in time that there may be a row of it.
    pub(super) told: bool,
    /// That boot was told so when it no longer had to remember the ack.
    pub(super) told_late: bool,
    /// The node that may have had it was asked about it, and a push of it arrived only then.
    pub(super) asked: bool,
    pub(super) pushed_late: bool,
    /// It was written when the boot that took its ack no longer had to remember that.
    pub(super) written_late: bool,
    /// The second read behind its write found it at or below low water, and it was not saved since.
    pub(super) below: bool,
    /// That has happened to it: it is stored once more, perhaps long after its ack.
    pub(super) turned_up: bool,
    /// Rows of other nodes for its user when it was saved again; the first one of them must be told.
    pub(super) holders: Vec<Presence>,
    /// A node was called for its user since.
    pub(super) holder_told: bool,
    /// Runs that storage gave it to before the delete that its ack caused had arrived there.
    pub(super) read_by: BTreeSet<u64>,
    /// The link brought a push of it twice.
    pub(super) pushed_twice: bool,
    /// The newest stamp that a session had been sent when it refused a push of this.
    pub(super) refused_behind: Option<Stamp>,
    /// The boot that refused a push of this, and time and stamp of that push.
    pub(super) refused_by: Option<(u64, u64, Stamp)>,
    pub(super) cancelled: bool,
    /// Its user has a bridge.
    pub(super) handed: Option<Handed>,
}

impl Post {
    pub(super) fn new(message: &Message, channel: Channel, start: u64, (landed, boot): (usize, u64)) -> Post {
        Post {
            to: Recipient { uaid: message.uaid, chid: message.chid },
            topic: message.topic,
            ttl: message.ttl,
            version: message.simple_version().unwrap_or(0),
            channel,
            start,
            landed,
            boot,
            expires: message.expires().0,
            ..Post::default()
        }
    }

    /// Its user agent acks it on this socket, to this boot of a node.
    pub(super) fn acks(&mut self, step: u64, now: u64, on: SockId, boot: u64) {
        if self.acked_at.is_none() && self.sent_on == Some(on) {
            self.settled_by = Some(boot);
        }
        self.acked.get_or_insert(step);
        self.acked_by.get_or_insert(boot);
        self.acked_at.get_or_insert(now);
    }

    pub(super) fn rank(&self) -> Option<Rank> {
        self.stamp.map(|stamp| Rank::new(self.version, stamp))
    }

    pub(super) fn slot(&self) -> Option<(Uaid, Chid, Topic)> {
        self.topic.map(|topic| (self.to.uaid, self.to.chid, topic))
    }
}

/// The rule that is broken. Only tests make one.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Breakage {
    /// A session is not found by its row: the row is never written.
    PresenceUnwritten,
    /// A session looks at storage before its row is there: the row is written seconds later.
    PresenceLate,
    /// A presence row is cleared in any version.
    ClearsAnyVersion,
    /// A node that stores a message does not see sessions that came since its first look: its second look finds none.
    LooksOnce,
    /// A node that is not reached counts as one that says "not here".
    UnreachedIsGone,
    /// A word without an answer is not owed.
    NothingIsOwed,
    /// No live session is refreshed, so none looks at storage by itself.
    NeverRefreshed,
    /// The row of a new user rides with its first register only.
    RowRidesOnce,
    /// A push without an answer counts as refused: it is stamped again.
    UnsureIsRefused,
    /// The node that may have delivered a push is not told of its row.
    UnsureIsForgotten,
    /// A row behind an unsure push is written as any other message.
    UnsureIsPlain,
    /// A refused push keeps its stamp.
    RefusedKeepsStamp,
    /// A session with something unacked does not find out that its user is elsewhere.
    NeverDoubts,
    /// A boot that was declared over goes on.
    BuriedGoesOn,
    /// A burial that is written late hits the boot that has entered since.
    BurialHitsNewerRun,
    /// No node asks the database about its clock.
    ClockUnasked,
    /// A push without an answer whose message was not surely stored is not told to the node that may have delivered it.
    FailureUntold,
    /// The row behind such a push stays when the node that is told of it has settled the message.
    SettledRowStays,
    /// A row that was cleared by mistake is not written again.
    ClearedRowStays,
    /// The row of a live session is not written again at a refresh.
    RowUnrenewed,
    /// No row is ever cleared.
    NothingIsCleared,
    /// A session that passes a row by does not ask about its user.
    PassedRowUndoubted,
    /// A session that passes a row by does not see that it lacks a registered channel.
    LackUnnoticed,
    /// A message that turns up below low water is not saved again.
    BelowLowWaterStays,
    /// A node does not know a push again that it has refused.
    RefusalForgotten,
    /// No debt is written down: what a node owes ends with it.
    DebtsUnwritten,
    /// A node that has lost notifications does not say so.
    LossUntold,
    /// A node that finds a debt does not read storage for its sessions.
    DebtUnread,
    /// The node that has the user is not told of a message that was saved again.
    SavedAgainUntold,
    /// The removal of a refused token removes the user with any token.
    AnyTokenEnds,
    /// A mark of a refused token is from a minute ago.
    MarkTooOld,
    /// A machine is told that the service took what it did not take.
    SentAlone,
    /// A refusal of a token is believed while the guard is active.
    GuardIgnored,
    /// The service does not answer.
    AnswerLost,
    /// A new token keeps the mark of the old one.
    MarkStays,
    /// Storage says Done to a new token and does not keep it.
    UpdateIgnored,
    /// Storage says Done to a new channel of a bridged user and does not keep it.
    SubscribeIgnored,
    /// Storage says Done to the removal of a user and keeps it.
    RemovalIgnored,
    /// An update takes its slot also from a higher version.
    LowerVersionWins,
}
