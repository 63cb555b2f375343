//! Work that waits for a reply, at storage or at another node.

use crate::ids::{Chid, KeyDigest, Stamp, Uaid};
use crate::message::Urgency;

use super::cluster::pending::{Lookup, PeerNotify, RemotePublish};
use super::command::Cancelled;
use super::components::dead_endpoints::Epoch;
use super::components::requests::ReplyTo;
use super::peer::Presence;
use super::pending_bridge::{PendingRefusal, PendingRegistration};
use super::pending_publish::PendingPublish;
use super::receipt::{ReceiptAnswer, ReceiptQuery};
use super::row::RowKey;
use super::slab::SlabKey;

/// State that the reply to a ticket is for.
#[expect(clippy::large_enum_variant, reason = "a box would cost each operation at storage an allocation")]
pub(super) enum Waiting {
    Store(PendingOp),
    Peer(PendingPeerOp),
}

/// State that the reply of another node is for.
pub(super) enum PendingPeerOp {
    /// A message for a session on the other node.
    Push(Box<RemotePublish>),
    /// A notification that something was stored.
    Notify(Box<PeerNotify>),
    /// The end of a session on the other node.
    Leave { uaid: Uaid, presence: Presence },
}

/// The session whose channels are listed, and the channel that was unregistered.
#[derive(Clone, Copy)]
pub(super) struct ListChannels {
    pub session: SlabKey,
    pub uaid: Uaid,
    pub chid: Chid,
    /// True if a command of the session waits for it.
    pub is_command: bool,
}

/// State that the reply of storage is for.
pub(super) enum PendingOp {
    LoadUser {
        pending_hello: SlabKey,
    },
    Register {
        session: SlabKey,
        uaid: Uaid,
        chid: Chid,
        key: Option<KeyDigest>,
    },
    Unregister {
        session: SlabKey,
        uaid: Uaid,
        chid: Chid,
    },
    /// The list of a user's channels, of which storage has unregistered this one.
    ListChannels(ListChannels),
    Publish(PendingPublish),
    Page {
        session: SlabKey,
    },
    Retry {
        session: SlabKey,
        stamp: Stamp,
    },
    Spill {
        session: SlabKey,
        stamps: Vec<Stamp>,
    },
    SaveUnacked {
        uaid: Uaid,
    },
    Settle {
        uaid: Uaid,
        count: usize,
    },
    Cancel {
        reply_to: ReplyTo<Cancelled>,
        row: RowKey,
    },
    Receipt {
        reply_to: ReplyTo<ReceiptAnswer>,
        query: Box<ReceiptQuery>,
    },
    /// A call of the registration API.
    Registration(Box<PendingRegistration>),
    /// The refusal of a device by its service.
    DeviceRefused(Box<PendingRefusal>),
    /// Work without state.
    Touch,
    /// The refresh of a user. `look`: its session reads storage after it.
    Refresh {
        session: SlabKey,
        look: bool,
    },
    Contact {
        session: SlabKey,
    },
    /// The write of a minimum urgency.
    Minimum {
        session: SlabKey,
        minimum: Urgency,
    },
    /// The write of the minimum that a session has, after one that failed.
    KeepMinimum {
        session: SlabKey,
        minimum: Option<Urgency>,
    },
    /// The read of a user for a wake-up.
    Wake {
        uaid: Uaid,
    },
    /// The drop of a user whose hello waits for it.
    StartOver {
        pending_hello: SlabKey,
        uaid: Uaid,
    },
    /// The drop of a user.
    Reset {
        uaid: Uaid,
    },
    /// The drop of a user without a channel, whose session has ended.
    DropIdle {
        uaid: Uaid,
    },
    /// The write of a session's presence row.
    WritePresence {
        session: SlabKey,
    },
    /// The same write, with the refresh of its user.
    RenewPresence {
        session: SlabKey,
    },
    /// The read of a user, to find out if it is still here.
    CheckPresence {
        session: SlabKey,
    },
    /// The read of a user for a POST.
    LoadForPublish(Box<Lookup>),
    /// The second read of a user, after a message was stored.
    LoadForNotify(Box<PeerNotify>),
    /// The second store of a message, as a row that low water does not hide.
    SaveAgain(Box<PeerNotify>),
    /// An unregister without a caller: the hello of the session left the channel out.
    UnregisterReconciled {
        session: SlabKey,
        uaid: Uaid,
        chid: Chid,
        /// Number of registers of the channel when the hello came.
        asked: Epoch,
    },
}
