//! Parts of the world of bridged users: requests and phones, nodes, records in storage, calls of the service. The
//! files beside this one move them.

use std::collections::{BTreeSet, VecDeque};

use machine::ids::{Chid, Clock, Stamp, StoreTicket, Uaid};
use machine::time::UnixSeconds;
use machine::upstream::BridgeOutcome;
use machine::{Mail, Refusal, ShardMachine, StoreError, StoreOp, StoreReply};

/// One installation of an app.
#[derive(Default)]
pub(super) struct Phone {
    pub(super) uaid: Option<Uaid>,
    /// Channels that it was told of.
    pub(super) channels: Vec<Chid>,
}

/// A request that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) uaid: Uaid,
    pub(super) asked: Asked,
    /// Phone that asks; for a POST, that of the user.
    pub(super) phone: usize,
    /// Event at which it began.
    pub(super) since: u64,
    pub(super) began: u64,
}

impl Request {
    /// Time at which it began.
    pub(super) fn began(&self) -> u64 {
        self.began
    }
}

/// Content of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    Post(usize),
    Create { chid: Chid, device: usize },
    Update(usize),
    Subscribe(Chid),
    Unsubscribe(Chid),
    List,
    Remove,
}

/// One notification.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) uaid: Uaid,
    pub(super) chid: Chid,
    /// It broke a rule of the edge.
    pub(super) refused: bool,
    pub(super) since: u64,
    /// Stamp with which the service was called.
    pub(super) called: Option<Stamp>,
    /// Answer of the service.
    pub(super) verdict: Option<BridgeOutcome>,
}

/// Rule that a POST breaks.
pub(super) const BROKEN: Refusal = Refusal(3);

/// One node.
pub(super) struct Node {
    pub(super) up: bool,
    /// Time at which it starts again, while it is down.
    pub(super) returns_at: u64,
    pub(super) shards: Vec<Shard>,
    /// The furthest that its clock may have been.
    pub(super) floor: Clock,
    /// Its clock is ahead of the right time by this much.
    pub(super) offset_us: i64,
    /// It was told to stop; its patience ends then.
    pub(super) stopping: Option<u64>,
}

/// One shard of a boot.
pub(super) struct Shard {
    pub(super) machine: ShardMachine,
    pub(super) lanes: [VecDeque<Mail>; 3],
    pub(super) stalled_until: u64,
    pub(super) drained: bool,
}

/// Every state of a user in storage, each behind the event that made it. The first one is that there is none.
pub(super) struct User(pub(super) Vec<(u64, Option<State>)>);

/// A user in storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) channels: BTreeSet<Chid>,
    pub(super) device: usize,
    pub(super) version: Clock,
    pub(super) refused: Option<UnixSeconds>,
}

/// Answers of the service about one record: this token, as it was registered then.
#[derive(Default)]
pub(super) struct Judged {
    pub(super) gone: bool,
    /// Times of refusals that the guard let through.
    pub(super) doubted: Vec<u64>,
}

/// A device token: `device N`.
pub(super) struct Device {
    /// Usual answer of the service about it.
    pub(super) mood: Mood,
}

/// Usual answer of the service about a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mood {
    Fine,
    Ended,
    Doubted,
}

/// A call that the service has not answered.
pub(super) struct Call {
    /// Node and shard.
    pub(super) at: (usize, usize),
    pub(super) ticket: StoreTicket,
    pub(super) post: usize,
    /// Record that it was made for.
    pub(super) record: (Uaid, Clock, usize),
    pub(super) ready_at: u64,
    /// The service has answered it before.
    pub(super) again: bool,
}

/// An operation that has not taken effect.
pub(super) struct Work {
    /// Node and shard.
    pub(super) at: (usize, usize),
    pub(super) ticket: StoreTicket,
    pub(super) op: StoreOp,
    pub(super) ready_at: u64,
}

/// An answer on its way back to the same boot of the node.
pub(super) struct Reply {
    pub(super) at: (usize, usize),
    pub(super) uaid: Uaid,
    pub(super) ticket: StoreTicket,
    pub(super) result: Result<StoreReply, StoreError>,
}

/// The rule that is broken. Only tests make one.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BrokenRule {
    /// The removal of a refused token removes the user with any token.
    AnyTokenEnds,
    /// A mark is from a minute ago.
    MarkTooOld,
    /// A machine is told that the service took what it did not take.
    SentAlone,
    /// A refusal is believed while the guard is active.
    GuardIgnored,
    /// The service does not answer.
    AnswerLost,
    /// A new token keeps the mark of the old one.
    MarkStays,
    /// Storage says Done to a new token and does not keep it.
    UpdateIgnored,
    /// Storage says Done to a new channel and does not keep it.
    RegisterIgnored,
    /// Storage says Done to the removal of a user and keeps it.
    RemovalIgnored,
}
