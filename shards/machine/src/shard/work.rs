//! Work that waits for a reply, at storage or at another node.

use crate::ids::{Chid, KeyDigest, Stamp, Uaid};
use crate::message::Urgency;

use super::cluster::pending::{Lookup, Route, Tale};
use super::command::Cancelled;
use super::components::dead_endpoints::Epoch;
use super::components::requests::Asker;
use super::peer::Presence;
use super::pending_publish::PublishWork;
use super::receipt::{ReceiptAnswer, ReceiptQuery};
use super::row::RowKey;
use super::slab::Ref;

/// State that the reply to a ticket is for.
#[expect(clippy::large_enum_variant, reason = "a box would cost each operation at storage an allocation")]
pub(super) enum Waiting {
    Store(Work),
    Peer(PeerWork),
}

/// State that the reply of another node is for.
pub(super) enum PeerWork {
    /// A message for a session on the other node.
    Push(Box<Route>),
    /// A notification that something was stored.
    Tell(Box<Tale>),
    /// The end of a session on the other node.
    Leave { uaid: Uaid, presence: Presence },
}

/// State that the reply of storage is for.
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
        asker: Asker<Cancelled>,
        row: RowKey,
    },
    Receipt {
        asker: Asker<ReceiptAnswer>,
        query: Box<ReceiptQuery>,
    },
    /// Work without state.
    Touch,
    /// The refresh of a user. `look`: its session reads storage after it.
    Refresh {
        session: Ref,
        look: bool,
    },
    Contact {
        session: Ref,
    },
    /// The write of a minimum urgency.
    Minimum {
        session: Ref,
        minimum: Urgency,
    },
    /// The read of a user for a wake-up.
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
    /// The write of a session's presence row.
    Enter {
        session: Ref,
    },
    /// The same write, with the refresh of its user.
    RenewPresence {
        session: Ref,
    },
    /// The read of a user, to find out if it is still here.
    Doubt {
        session: Ref,
    },
    /// The read of a user for a POST.
    Look(Box<Lookup>),
    /// The second read of a user, after a message was stored.
    LookAgain(Box<Tale>),
    /// The second store of a message, as a row that low water does not hide.
    SaveAgain(Box<Tale>),
    /// An unregister without a caller: the hello of the session left the channel out.
    Forget {
        session: Ref,
        uaid: Uaid,
        chid: Chid,
        /// Number of registers of the channel when the hello came.
        asked: Epoch,
    },
}
