//! Inputs of a shard and effects of a step: two closed enums.

use std::sync::Arc;

use crate::ids::{Claim, Clock, ConnId, EmissionId, LedgerSlot, ShardId, StoreTicket};
use crate::message::Message;
use crate::simplepush::WakeData;
use crate::time::Instant;
use crate::upstream::{BridgeOutcome, UpstreamOp};

use super::command::{BroadcastVersion, CloseReason, Command, Event, Hello};
use super::mail::{Carried, Mail};
use super::peer::{PeerOp, PeerReply};
use super::store::{StoreError, StoreOp, StoreReply};

/// An event that a shard must handle.
#[derive(Debug)]
pub enum Input {
    /// A WebSocket was upgraded; its hello clock starts. Never sent for HTTP connections: the machine knows those only
    /// by the commands they carry.
    Opened { conn: ConnId },
    /// A peer sent a request.
    Command { conn: ConnId, command: Command },
    /// A peer sent a complete frame that is no request: a Ping, or a part of a message.
    Frame { conn: ConnId },
    /// A WebSocket has ended: closed by its peer, reset, or ended by the edge. Not sent after `Effect::Close` or
    /// `Effect::Move`.
    Gone {
        conn: ConnId,
        /// Reason of the end, for the session log.
        reason: CloseReason,
    },
    /// The socket takes no more bytes; notifications wait until `Writable`.
    Blocked { conn: ConnId },
    /// The socket took no byte of this notification's frame. Comes right behind `Blocked`, oldest first.
    Unsent { conn: ConnId, emission: EmissionId },
    /// The socket takes bytes again, and the server has no unsent bytes for it.
    Writable { conn: ConnId },
    /// A mail from another shard.
    Mail(Mail),
    /// The descriptor of a granted claim is in this shard's ring. Pairs with `Mail::Arrive` in either order.
    Arrived {
        /// New name on this shard.
        conn: ConnId,
        claim: Claim,
    },
    /// The socket could not be moved and is still here (target full or gone); the machine closes it.
    MoveFailed {
        conn: ConnId,
        /// The shard that granted the claim.
        to: ShardId,
        /// The claim that failed.
        claim: Claim,
    },
    /// The machine has received everything that had arrived at the sockets at `until`. Sent before `Timeout`, because a
    /// silence ends a session only if the shard has read its socket. For a driver that never sends it, everything up to
    /// now counts as received.
    HorizonAdvanced {
        until: Instant,
        /// True if the shard was late: frames that were written since `until` have only now gone out.
        late: bool,
    },
    /// A reply of storage.
    Stored { ticket: StoreTicket, result: Result<StoreReply, StoreError> },
    /// The reply of another node, or its absence.
    Peer { ticket: StoreTicket, reply: PeerReply },
    /// The reply of the service of a bridged user, or its absence.
    Upstream { ticket: StoreTicket, reply: BridgeOutcome },
    /// `next_timeout` has come.
    Timeout,
    /// The difference between the time of the process and the clocks of the database became too large (`true`), or is
    /// small enough again. While it is too large nothing is stamped: POSTs, hellos, registers and unregisters are
    /// refused for the moment.
    ClockStopped(bool),
    /// New values of broadcasts, from the operator or a poller.
    Broadcasts(Arc<[BroadcastVersion]>),
    /// Another node has ended with notifications that it owed this one, or has lost them: every session reads storage.
    ReadStorage,
    /// Stop: directs become stored, ledgers are saved, sessions close with 1001 at the drain rate (ARCHITECTURE.md
    /// 4, close).
    Drain {
        /// Sessions to close per second on all shards together; this one closes its share of them.
        rate: u32,
    },
}

/// An action for the driver. The driver carries out effects in order, before the next input.
#[derive(Debug)]
pub enum Effect {
    /// The last command has ended: decode the next one, or poll for input.
    Ready(ConnId),
    Emit(ConnId, Event),
    /// Write the goodbye of this reason and close. The machine has forgotten the connection.
    Close(ConnId, CloseReason),
    /// Move the socket to its owner's ring under this claim, with `hello` and every undecoded byte in an
    /// `Mail::Arrive`. The machine has forgotten the connection unless `Input::MoveFailed` comes.
    Move {
        conn: ConnId,
        to: ShardId,
        /// Claim that pairs the descriptor and the mail.
        claim: Claim,
        hello: Box<Hello>,
    },
    /// Decode these bytes before any others of this connection: they came with it from another shard.
    Feed(ConnId, Carried),
    Mail(ShardId, Mail),
    Store(StoreTicket, StoreOp),
    Peer(StoreTicket, PeerOp),
    Upstream(StoreTicket, UpstreamOp),
    /// Append to the ledger log under this slot, before anything behind it in the queue is carried out.
    LedgerAppend(LedgerSlot, Arc<Message>),
    /// The record in this slot is settled or stored: it must not be replayed.
    LedgerDead(LedgerSlot),
    /// Persist that the shard's clock can reach this value (`ports::Ledger::clock_floor`), before anything behind it.
    ClockFloor(Clock),
    /// Ask the wake-up service to wake a user agent that has an update waiting (PROTOCOL.md 1.12).
    Wake(WakeData),
    /// The drain is complete: no session, no unsaved ledger, no storage work. Sent once.
    Drained,
}

/// Queue of effects, owned by the caller; reserved before every step, drained after it.
pub type EffectQueue = std::collections::VecDeque<Effect>;
