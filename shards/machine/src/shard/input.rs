//! Everything that can happen to a shard, and everything it can want done: two closed enums.

use std::sync::Arc;

use crate::ids::{Claim, Clock, ConnId, EmissionId, LedgerSlot, ShardId, StoreTicket};
use crate::message::Message;
use crate::simple::WakeData;
use crate::time::Instant;

use super::command::{BroadcastVersion, CloseReason, Command, Event, Hello};
use super::mail::Mail;
use super::peer::{PeerOp, PeerReply};
use super::store::{StoreError, StoreOp, StoreReply};

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// A WebSocket was upgraded; its hello clock starts. Never sent for HTTP connections: the machine
    /// knows those only by the commands they carry.
    Opened {
        /// The socket.
        conn: ConnId,
    },
    /// A peer asked for something.
    Command {
        /// The socket.
        conn: ConnId,
        /// The request.
        command: Command,
    },
    /// A peer sent a whole frame that asks for nothing: a Ping, or a part of a message.
    Frame {
        /// The socket.
        conn: ConnId,
    },
    /// A WebSocket is gone: closed by its peer, reset, or ended by the edge. Not sent after `Effect::Close` or
    /// `Effect::Move`.
    Gone {
        /// The socket.
        conn: ConnId,
        /// Who ended it, for the session log.
        reason: CloseReason,
    },
    /// The socket takes no more bytes; notifications wait until `Writable`.
    Blocked {
        /// The socket.
        conn: ConnId,
    },
    /// None of this notification's frame was sent. Comes right behind `Blocked`, oldest first.
    Unsent {
        /// The socket.
        conn: ConnId,
        /// Which emission.
        emission: EmissionId,
    },
    /// The socket takes bytes again and nothing of ours is owed.
    Writable {
        /// The socket.
        conn: ConnId,
    },
    /// From another shard.
    Mail(Mail),
    /// The descriptor of a granted claim is in this shard's ring. Pairs with `Mail::Arrive` in either order.
    Arrived {
        /// Its new name here.
        conn: ConnId,
        /// The claim it carries.
        claim: Claim,
    },
    /// The socket could not be moved and is still here (target full or gone); the machine closes it.
    MoveFailed {
        /// The socket.
        conn: ConnId,
        /// The shard that granted the claim.
        to: ShardId,
        /// The claim that came to nothing.
        claim: Claim,
    },
    /// What had arrived at the sockets at `until` has been told. Sent before `Timeout`, since nobody is ended for a
    /// silence that the shard has not heard out; a driver that never says so hears at once.
    Heard {
        /// That instant.
        until: Instant,
        /// Hearing it took long: what was sent since then has only now gone out.
        late: bool,
    },
    /// Storage answered.
    Stored {
        /// What it answers.
        ticket: StoreTicket,
        /// The answer.
        result: Result<StoreReply, StoreError>,
    },
    /// Another node answered, or did not.
    Peer {
        /// What it answers.
        ticket: StoreTicket,
        /// The answer.
        reply: PeerReply,
    },
    /// `next_timeout` has come.
    Timeout,
    /// The time of the process was found to be too far from the clocks of the database, or near enough again. While it
    /// is too far nothing is stamped: POSTs, hellos, registers and unregisters are refused for the moment.
    ClockStopped(bool),
    /// The operator or a poller set these broadcast values.
    Broadcasts(Arc<[BroadcastVersion]>),
    /// Stop: directs become stored, ledgers are saved, sessions close with 1001 at the drain rate (ARCHITECTURE.md
    /// 4, close).
    Drain {
        /// Sessions to close per second on this shard.
        rate: u32,
    },
}

/// Something the machine wants done. Carried out in order, before the next input.
#[derive(Debug)]
pub enum Effect {
    /// The last command is done with: decode the next one, or poll for input.
    Ready(ConnId),
    /// Write this.
    Emit(ConnId, Event),
    /// Write the goodbye of this reason and close. The machine has forgotten the connection.
    Close(ConnId, CloseReason),
    /// Move the socket to its owner's ring under this claim, with `hello` and every undecoded byte in an
    /// `Mail::Arrive`. The machine has forgotten the connection unless `Input::MoveFailed` comes.
    Move {
        /// The socket.
        conn: ConnId,
        /// Its owner.
        to: ShardId,
        /// Pairs descriptor and mail.
        claim: Claim,
        /// What the user agent said.
        hello: Box<Hello>,
    },
    /// Decode these bytes before any others of this connection: they came with it from another shard.
    Feed(ConnId, Box<[u8]>),
    /// To another shard.
    Mail(ShardId, Mail),
    /// To storage.
    Store(StoreTicket, StoreOp),
    /// To another node.
    Peer(StoreTicket, PeerOp),
    /// Append to the ledger log under this slot, before anything behind it in the queue is carried out.
    LedgerAppend(LedgerSlot, Arc<Message>),
    /// The record in this slot is settled or stored: it must not be replayed.
    LedgerDead(LedgerSlot),
    /// Persist that the shard's clock may reach this value (`ports::Ledger::clock_floor`), before anything behind it.
    ClockFloor(Clock),
    /// Have the wake-up service wake a user agent that has an update waiting (PROTOCOL.md 1.12).
    Wake(WakeData),
    /// The drain is complete: no session, no unsaved ledger, no storage work. Said once.
    Drained,
}

/// The caller's queue of effects; reserved before every step, drained after it.
pub type EffectQueue = std::collections::VecDeque<Effect>;
