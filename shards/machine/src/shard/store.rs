//! Operations of the machine at storage, as plain data (ARCHITECTURE.md 8.7).
//!
//! Laws that every backend passes (`src/store/src/conformance`): what was acknowledged is read back; operations of
//! one UAID take effect in submission order; a batch of one UAID is atomic; expired rows are never returned
//! and do not block live ones; a delete of a stamp removes exactly that version and nothing newer; a topic
//! write that does not replace the row (`Message::replaces`) is ignored; pages are merged in clock order over
//! message and saved rows.

use std::sync::Arc;

use crate::ids::{AddressDigest, Chid, Clock, KeyDigest, Stamp, Uaid};
use crate::message::{Message, Topic, Tries};
use crate::simplepush::Contact;
use crate::time::UnixSeconds;
use crate::upstream::Bridged;

use super::peer::Presence;
use super::row::RowKey;

/// One operation. Its reply comes back under the ticket it was submitted with.
#[derive(Debug, Clone)]
pub enum StoreOp {
    /// Read the user. -> [`StoreReply::User`].
    LoadUser { uaid: Uaid },
    /// Read the presence rows of the user, and its registration of this channel. As `LoadUser`, with that channel alone
    /// or none: a user can have thousands. -> [`StoreReply::User`].
    Locate {
        uaid: Uaid,
        /// Channel that a POST named.
        chid: Chid,
    },
    /// The user is alive: refresh its expiry. May ride relaxed. -> [`StoreReply::Done`].
    Touch { uaid: Uaid, seen: UnixSeconds },
    /// Add a channel, and the user if it is new; idempotent (an existing channel keeps its `registered_at`).
    /// Durable before the reply. -> [`StoreReply::Done`].
    Register {
        uaid: Uaid,
        chid: Chid,
        /// Digest of the key that locks the endpoint.
        key: Option<KeyDigest>,
        /// Clock of the owner.
        at: Clock,
        /// Wall time, for the user's expiry.
        seen: UnixSeconds,
        /// New contact of the user ([`Contact::replacing`]). `None` keeps the stored contact; a new user gets WebPush
        /// without a minimum.
        contact: Option<Box<Contact>>,
        /// Presence row of a new user, on a shared store: written together with the user.
        presence: Option<Presence>,
        /// Address that a new user's messages are charged to; a user that is there keeps its own. Stores without a
        /// bound on bytes forget it.
        maker: Option<AddressDigest>,
    },
    /// Add a channel to a user that is there, for the registration API; it makes no user, also beside a removal of the
    /// user on another node. Idempotent. Durable before the reply. -> [`StoreReply::Done`],
    /// [`StoreReply::NoSubscription`] if there is no such user, or [`StoreReply::OtherKey`].
    Subscribe {
        uaid: Uaid,
        chid: Chid,
        /// Digest of the key that locks the endpoint.
        key: Option<KeyDigest>,
        /// Clock of the owner.
        at: Clock,
    },
    /// Set the contact of the user, also when storage is full; its bridge stays ([`Contact::replacing`]). ->
    /// [`StoreReply::Done`], also if there is no such user.
    SetContact {
        uaid: Uaid,
        contact: Box<Contact>,
        /// True if the reply means synced; otherwise it may ride relaxed.
        durable: bool,
    },
    /// Write the presence row of the user. Durable before the reply: this node is notified of what is stored after it.
    /// Stores that no other node reads have nothing to do. -> [`StoreReply::Done`], also if there is no such user: then
    /// the row stands with the register that may follow.
    SetPresence { uaid: Uaid, presence: Presence },
    /// Delete the presence row of a session that ended; a newer row of the same node stays. May ride relaxed. ->
    /// [`StoreReply::Done`].
    ClearPresence {
        uaid: Uaid,
        /// Exact version of the row.
        presence: Presence,
    },
    /// Replace the record of a bridged user by a newer one, without a refusal; refreshes its expiry to the time of the
    /// registration. Nothing is written if the user is not bridged or its record is as new. Durable, also when storage
    /// is full, with all channels of the user: no removal of the earlier record takes effect behind it. ->
    /// [`StoreReply::Done`].
    SetBridge { uaid: Uaid, bridge: Box<Bridged> },
    /// Note the refusal of the token that was registered then, if the user still has it and none is noted. May ride
    /// relaxed. -> [`StoreReply::Done`].
    MarkRefused { uaid: Uaid, registered: Clock, at: UnixSeconds },
    /// End the note of a refusal of the token that was registered then, because the service took a notification for it.
    /// The record becomes one microsecond newer, so that a removal of the refused one does not end it, and any
    /// registration replaces it. The expiry of the user stays. May ride relaxed. -> [`StoreReply::Done`].
    ClearRefused { uaid: Uaid, registered: Clock },
    /// Remove the user with all its rows, if its token is still the one that was registered then. Durable. ->
    /// [`StoreReply::Done`] once there is no such user, or [`StoreReply::Kept`].
    DropBridged { uaid: Uaid, registered: Clock },
    /// Remove a channel and every row of its messages, in all families. Durable. -> [`StoreReply::Done`],
    /// also when there was no such channel or user.
    Unregister {
        uaid: Uaid,
        chid: Chid,
        /// Clock of the owner.
        at: Clock,
    },
    /// Remove the user with all its rows. Durable. -> [`StoreReply::Done`].
    DropUser { uaid: Uaid },
    /// Remove a user that has no channel, no presence row, no bridge and no minimum urgency. A register that comes
    /// behind it stands, also one of another node that has read the user before. May ride relaxed. ->
    /// [`StoreReply::Done`] if this removed the user, or [`StoreReply::Kept`].
    DropIdle { uaid: Uaid },
    /// Store a POSTed message if its user exists, its channel is registered and its mode is the user's: topic row
    /// or message row. Durable before the reply. With TTL 0 only the checks are made and nothing is stored.
    /// Refused as full, too, if room is scarce and the user or its address has more than its share (`crate::share`).
    /// -> [`StoreReply::Done`], [`StoreReply::Scarce`], [`StoreReply::NoSubscription`] or [`StoreReply::OtherMode`].
    Publish {
        message: Arc<Message>,
        /// True if the machine has just read the user and its channels and reads them again after this operation. A
        /// store that would have to read for its checks then leaves the checks out. Never with TTL 0, nor of a bridged
        /// user: the read says that it is one.
        checked: bool,
    },
    /// Store unacked directs under their own stamps: saved rows, or topic rows for topic messages
    /// (older than the row: ignored). One UAID. Durable before the reply. -> [`StoreReply::Done`] or
    /// [`StoreReply::Scarce`].
    Save {
        /// Messages of one user.
        messages: Vec<Arc<Message>>,
    },
    /// Topic messages of a user, all channels, unexpired, in (chid, topic) order. -> [`StoreReply::Page`].
    Topics {
        uaid: Uaid,
        /// Only rows behind this one.
        after: Option<(Chid, Topic)>,
        /// Maximum number of rows.
        limit: u16,
        /// Wall time for the expiry.
        now: UnixSeconds,
    },
    /// Message and saved rows of a user, merged, unexpired, in stamp order. -> [`StoreReply::Page`].
    Messages {
        uaid: Uaid,
        /// Only rows with a greater stamp.
        after: Stamp,
        /// Maximum number of rows.
        limit: u16,
        /// Wall time for the expiry.
        now: UnixSeconds,
    },
    /// Read one row again, in any form. -> [`StoreReply::Page`] with one row or none.
    Read {
        row: RowKey,
        /// Wall time for the expiry.
        now: UnixSeconds,
    },
    /// Write the number of vain deliveries of these rows, in exactly their versions; missing rows stay missing. May
    /// ride relaxed. -> [`StoreReply::Done`].
    Tried {
        /// Rows of one user.
        rows: Vec<(RowKey, Tries)>,
    },
    /// Remove these rows in exactly their versions (an ack, a cancel, a replacement): message, saved and
    /// topic form alike. May ride relaxed with the next durable batch; `durable` waits for it.
    /// `low_water`: every message row at or below it is settled. -> [`StoreReply::Done`].
    Settle {
        /// Rows of one user.
        rows: Vec<RowKey>,
        /// New low water of that user.
        low_water: Option<Clock>,
        /// True if the reply means synced.
        durable: bool,
    },
}

impl StoreOp {
    /// Returns the user whose partition the operation touches. Operations of one UAID keep their order.
    pub fn uaid(&self) -> Uaid {
        match self {
            StoreOp::LoadUser { uaid }
            | StoreOp::Locate { uaid, .. }
            | StoreOp::Touch { uaid, .. }
            | StoreOp::Register { uaid, .. }
            | StoreOp::Subscribe { uaid, .. }
            | StoreOp::SetContact { uaid, .. }
            | StoreOp::SetPresence { uaid, .. }
            | StoreOp::ClearPresence { uaid, .. }
            | StoreOp::Unregister { uaid, .. }
            | StoreOp::DropUser { uaid }
            | StoreOp::DropIdle { uaid }
            | StoreOp::SetBridge { uaid, .. }
            | StoreOp::MarkRefused { uaid, .. }
            | StoreOp::ClearRefused { uaid, .. }
            | StoreOp::DropBridged { uaid, .. }
            | StoreOp::Topics { uaid, .. }
            | StoreOp::Messages { uaid, .. } => *uaid,
            StoreOp::Publish { message, .. } => message.uaid,
            StoreOp::Save { messages } => first(messages).uaid,
            StoreOp::Read { row, .. } => row.uaid,
            StoreOp::Settle { rows, .. } => first(rows).uaid,
            StoreOp::Tried { rows } => first(rows).0.uaid,
        }
    }

    /// Returns true if the operation changes nothing.
    pub fn is_read(&self) -> bool {
        match self {
            StoreOp::LoadUser { .. }
            | StoreOp::Locate { .. }
            | StoreOp::Topics { .. }
            | StoreOp::Messages { .. }
            | StoreOp::Read { .. } => true,
            StoreOp::Touch { .. }
            | StoreOp::Register { .. }
            | StoreOp::Subscribe { .. }
            | StoreOp::SetContact { .. }
            | StoreOp::SetPresence { .. }
            | StoreOp::ClearPresence { .. }
            | StoreOp::Unregister { .. }
            | StoreOp::DropUser { .. }
            | StoreOp::DropIdle { .. }
            | StoreOp::SetBridge { .. }
            | StoreOp::MarkRefused { .. }
            | StoreOp::ClearRefused { .. }
            | StoreOp::DropBridged { .. }
            | StoreOp::Publish { .. }
            | StoreOp::Save { .. }
            | StoreOp::Settle { .. }
            | StoreOp::Tried { .. } => false,
        }
    }
}

/// Invariant: `Save`, `Settle` and `Tried` are never empty; the machine asserts it where it makes them.
fn first<T>(items: &[T]) -> &T {
    items.first().expect("Save and Settle name at least one row")
}

/// Reply to one operation.
#[derive(Debug)]
pub enum StoreReply {
    /// The operation is done, as durable as the operation requires.
    Done,
    /// As `Done`, to `Publish` and `Save`: room is scarce.
    Scarce,
    /// To `Publish`: no such user, or its channel is not registered. To `Subscribe`: no such user.
    NoSubscription,
    /// To `Subscribe`: the channel is registered with another key, or one of the two has none; nothing was written.
    OtherKey,
    /// To `DropBridged`: the user has another device, or none, and stays. To `DropIdle`: nothing was removed.
    Kept,
    /// To `Publish`: the mode of this message (`Message::mode`) is not the user's.
    OtherMode,
    /// To `Publish`: the user is bridged and its channel registered; nothing was stored.
    Bridged(Box<Bridged>),
    /// To `LoadUser` and `Locate`; `None` when no user has this UAID.
    User(Option<Box<UserRow>>),
    /// To `Topics`, `Messages` and `Read`.
    Page(Box<Page>),
}

impl StoreReply {
    /// Returns the reply to `LoadUser` or `Locate`.
    pub(super) fn user(self) -> Option<Box<UserRow>> {
        let StoreReply::User(user) = self else { unreachable!("storage answers a look with a user") };
        user
    }

    /// Returns the reply to `Topics`, `Messages` or `Read`.
    pub(super) fn page(self) -> Box<Page> {
        let StoreReply::Page(page) = self else { unreachable!("storage answers a read with a page") };
        page
    }

    /// Returns the reply to `Publish`, or to the `Save` of a message whose push got no answer.
    pub(super) fn written(self) -> Written {
        match self {
            StoreReply::Done | StoreReply::Scarce => Written::Done,
            StoreReply::NoSubscription => Written::NoSubscription,
            StoreReply::OtherMode => Written::OtherMode,
            StoreReply::OtherKey
            | StoreReply::Kept
            | StoreReply::Bridged(_)
            | StoreReply::User(_)
            | StoreReply::Page(_) => {
                unreachable!("storage answers a write with no rows")
            }
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

/// Current meaning of records; a user with an older version is reset (PROTOCOL.md 1.10).
pub const RECORD_VERSION: u8 = 1;

/// Durable facts about a UAID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRow {
    /// Version of the record's meaning (PROTOCOL.md 1.10).
    pub record_version: u8,
    /// Time at which the user was last seen, as of the last refresh.
    pub seen: UnixSeconds,
    /// Every message row at or below it is settled.
    pub low_water: Clock,
    /// Greatest clock of any write on this user.
    pub user_clock: Clock,
    /// False only if there certainly is no message row.
    pub may_have_messages: bool,
    pub contact: Contact,
    pub channels: Vec<Chid>,
    /// Presence rows, newest first; always empty on a store that no other node reads.
    pub presence: Vec<Presence>,
}

impl UserRow {
    /// Returns the greatest clock in the row. A reader continues above it, so that a later session has a later row.
    pub fn newest_clock(&self) -> Clock {
        let newest = self.presence.first().map_or(0, |row| row.connected_at);
        self.user_clock.max(Clock(newest))
    }
}

/// A page of rows.
#[derive(Debug, Default)]
pub struct Page {
    /// Live rows in order.
    pub messages: Vec<Arc<Message>>,
    /// True if there was nothing behind the last row when it was read.
    pub exhausted: bool,
}

/// Failure of a storage operation. The operation may still have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Overloaded, stalled, or unreachable: a new try can succeed.
    Transient,
    /// The bound on disk use or on a user's bytes is reached: messages are refused until there is room.
    Full,
}
