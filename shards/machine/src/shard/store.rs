//! What the machine asks of storage, as plain data (ARCHITECTURE.md 8.7).
//!
//! Laws that every backend passes (`src/store/laws`): what was acknowledged is read back; operations of
//! one UAID take effect in submission order; a batch of one UAID is atomic; expired rows are never returned
//! and do not block live ones; a delete of a stamp removes exactly that version and nothing newer; a topic
//! write that does not replace the row (`Message::replaces`) is ignored; pages are merged in clock order over
//! message and saved rows.

use std::sync::Arc;

use crate::ids::{Chid, Clock, KeyDigest, Stamp, Uaid};
use crate::message::{Message, Topic, Tries};
use crate::simple::Contact;
use crate::time::UnixSeconds;

use super::peer::Presence;
use super::row::RowKey;

/// One operation. Its reply comes back under the ticket it was submitted with.
#[derive(Debug, Clone)]
pub enum StoreOp {
    /// Who is this? -> [`StoreReply::User`].
    LoadUser {
        /// The user.
        uaid: Uaid,
    },
    /// Where is this user connected, and has it this channel? As `LoadUser`, with that channel alone or none: a user
    /// may have thousands. -> [`StoreReply::User`].
    Locate {
        /// The user.
        uaid: Uaid,
        /// The channel that a POST named.
        chid: Chid,
    },
    /// The user is alive: refresh its expiry. May ride relaxed. -> [`StoreReply::Done`].
    Touch {
        /// The user.
        uaid: Uaid,
        /// Now.
        seen: UnixSeconds,
    },
    /// Add a channel, and the user if it is new; idempotent (an existing channel keeps its `registered_at`).
    /// Durable before the reply. -> [`StoreReply::Done`].
    Register {
        /// The user.
        uaid: Uaid,
        /// The channel.
        chid: Chid,
        /// Digest of the key the endpoint is locked to.
        key: Option<KeyDigest>,
        /// The owner's clock.
        at: Clock,
        /// Wall time, for the user's expiry.
        seen: UnixSeconds,
        /// How the user is reached from now on; without one what is known of that stays, and a new user is reached by
        /// WebPush.
        contact: Option<Box<Contact>>,
        /// Where a new user is connected, on a shared store: written together with it.
        presence: Option<Presence>,
    },
    /// How the user is reached from now on, also when storage is full. May ride relaxed. -> [`StoreReply::Done`], also
    /// when there is no such user.
    SetContact {
        /// The user.
        uaid: Uaid,
        /// Its last hello said this.
        contact: Box<Contact>,
    },
    /// The user is connected here from now on. Durable before the reply: what is stored after it is notified. Stores
    /// that no other node reads have nothing to do. -> [`StoreReply::Done`], also when there is no such user.
    SetPresence {
        /// The user.
        uaid: Uaid,
        /// Where, and since when.
        presence: Presence,
    },
    /// That session is no more; a newer one of the same node stays. May ride relaxed. -> [`StoreReply::Done`].
    ClearPresence {
        /// The user.
        uaid: Uaid,
        /// Exactly which.
        presence: Presence,
    },
    /// Remove a channel and every row of its messages, in all families. Durable. -> [`StoreReply::Done`],
    /// also when there was no such channel or user.
    Unregister {
        /// The user.
        uaid: Uaid,
        /// The channel.
        chid: Chid,
        /// The owner's clock.
        at: Clock,
    },
    /// Remove the user with all its rows. Durable. -> [`StoreReply::Done`].
    DropUser {
        /// The user.
        uaid: Uaid,
    },
    /// Store a POSTed message if its user exists, its channel is registered and its mode is the user's: topic row
    /// or message row. Durable before the reply. With TTL 0 only the checks are made and nothing is stored.
    /// -> [`StoreReply::Done`], [`StoreReply::NoSubscription`] or [`StoreReply::OtherMode`].
    Publish {
        /// The stamped message.
        message: Arc<Message>,
        /// The machine has just read the user and its channels and reads them again when this is done: a store that
        /// would have to read for its checks leaves them out. Never with TTL 0.
        checked: bool,
    },
    /// Store unacked directs under their own stamps: saved rows, or topic rows for topic messages
    /// (older than the row: ignored). One UAID. Durable before the reply. -> [`StoreReply::Done`].
    Save {
        /// All of one user.
        messages: Vec<Arc<Message>>,
    },
    /// Topic messages of a user, all channels, unexpired, in (chid, topic) order. -> [`StoreReply::Page`].
    Topics {
        /// The user.
        uaid: Uaid,
        /// Only rows behind this one.
        after: Option<(Chid, Topic)>,
        /// At most this many rows.
        limit: u16,
        /// Wall time to judge expiry by.
        now: UnixSeconds,
    },
    /// Message and saved rows of a user, merged, unexpired, in stamp order. -> [`StoreReply::Page`].
    Messages {
        /// The user.
        uaid: Uaid,
        /// Only rows with a greater stamp.
        after: Stamp,
        /// At most this many rows.
        limit: u16,
        /// Wall time to judge expiry by.
        now: UnixSeconds,
    },
    /// One row again, wherever it is. -> [`StoreReply::Page`] with one row or none.
    Read {
        /// Which.
        row: RowKey,
        /// Wall time to judge expiry by.
        now: UnixSeconds,
    },
    /// Remember how often these rows were delivered in vain, in exactly their versions; rows that are gone stay gone.
    /// May ride relaxed. -> [`StoreReply::Done`].
    Tried {
        /// All of one user.
        rows: Vec<(RowKey, Tries)>,
    },
    /// Remove these rows in exactly their versions (an ack, a cancel, a replacement): message, saved and
    /// topic form alike. May ride relaxed with the next durable batch; `durable` waits for it.
    /// `low_water`: every message row at or below it is settled. -> [`StoreReply::Done`].
    Settle {
        /// All of one user.
        rows: Vec<RowKey>,
        /// For the user of the rows.
        low_water: Option<Clock>,
        /// Whether the reply means synced.
        durable: bool,
    },
}

impl StoreOp {
    /// Whose partition it touches; operations of one UAID keep their order.
    pub fn uaid(&self) -> Uaid {
        match self {
            StoreOp::LoadUser { uaid }
            | StoreOp::Locate { uaid, .. }
            | StoreOp::Touch { uaid, .. }
            | StoreOp::Register { uaid, .. }
            | StoreOp::SetContact { uaid, .. }
            | StoreOp::SetPresence { uaid, .. }
            | StoreOp::ClearPresence { uaid, .. }
            | StoreOp::Unregister { uaid, .. }
            | StoreOp::DropUser { uaid }
            | StoreOp::Topics { uaid, .. }
            | StoreOp::Messages { uaid, .. } => *uaid,
            StoreOp::Publish { message, .. } => message.uaid,
            StoreOp::Save { messages } => first(messages).uaid,
            StoreOp::Read { row, .. } => row.uaid,
            StoreOp::Settle { rows, .. } => first(rows).uaid,
            StoreOp::Tried { rows } => first(rows).0.uaid,
        }
    }
}

/// Invariant: `Save`, `Settle` and `Tried` are never empty; the machine asserts it where it makes them.
fn first<T>(items: &[T]) -> &T {
    items.first().expect("Save and Settle name at least one row")
}

/// The answer to one operation.
#[derive(Debug)]
pub enum StoreReply {
    /// It is done, as durable as the operation says.
    Done,
    /// To `Publish`: no such user, or its channel is not registered.
    NoSubscription,
    /// To `Publish`: the user is not reached in the mode of this message (`Message::mode`).
    OtherMode,
    /// To `LoadUser` and `Locate`; `None` when nobody has this UAID.
    User(Option<Box<UserRow>>),
    /// To `Topics`, `Messages` and `Read`.
    Page(Box<Page>),
}

impl StoreReply {
    /// The reply to `LoadUser` or `Locate`.
    pub(super) fn user(self) -> Option<Box<UserRow>> {
        let StoreReply::User(user) = self else { unreachable!("storage answers a look with a user") };
        user
    }

    /// The reply to `Topics`, `Messages` or `Read`.
    pub(super) fn page(self) -> Box<Page> {
        let StoreReply::Page(page) = self else { unreachable!("storage answers a read with a page") };
        page
    }

    /// The reply to `Publish`, or to the `Save` of a message whose push got no answer.
    pub(super) fn written(self) -> Written {
        match self {
            StoreReply::Done => Written::Done,
            StoreReply::NoSubscription => Written::NoSubscription,
            StoreReply::OtherMode => Written::OtherMode,
            StoreReply::User(_) | StoreReply::Page(_) => unreachable!("storage answers a write with no rows"),
        }
    }
}

/// Outcome of the write of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Done,
    NoSubscription,
    OtherMode,
}

/// What records mean today; a user with an older one is reset (PROTOCOL.md 1.10).
pub const RECORD_VERSION: u8 = 1;

/// Durable facts about a UAID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRow {
    /// Version of the record's meaning (PROTOCOL.md 1.10).
    pub record_version: u8,
    /// When the user was last seen, as of the last refresh.
    pub seen: UnixSeconds,
    /// Every message row at or below it is settled.
    pub low_water: Clock,
    /// The greatest clock any write on this user carried.
    pub user_clock: Clock,
    /// False only when there certainly is no message row.
    pub may_have_messages: bool,
    /// How it is reached.
    pub contact: Contact,
    /// Registered channels.
    pub channels: Vec<Chid>,
    /// Where the user is connected, newest first; always empty on a store that no other node reads.
    pub presence: Vec<Presence>,
}

impl UserRow {
    /// The greatest clock in it: whoever reads it goes on above that, so that a later session has a later row.
    pub fn newest_clock(&self) -> Clock {
        let newest = self.presence.first().map_or(0, |row| row.connected_at);
        self.user_clock.max(Clock(newest))
    }
}

/// Some rows, and where the next page starts.
#[derive(Debug, Default)]
pub struct Page {
    /// Live rows in order.
    pub messages: Vec<Arc<Message>>,
    /// Whether there was nothing behind the last one when it was read.
    pub exhausted: bool,
}

/// Why storage did not do it. The operation may still have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Overloaded, stalled, or unreachable: worth trying again.
    Transient,
    /// The bound on disk use or of a user's bytes is reached: messages are refused until it is not.
    Full,
}
