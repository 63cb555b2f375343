//! Work that waits for a reply, at storage or at another node.

use crate::ids::{Chid, KeyDigest, Stamp, Uaid};

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
    /// A message for its session.
    Push(Box<Route>),
    /// Something was stored.
    Tell(Box<Tale>),
    /// Its session is over.
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
    /// No state waits for it.
    Touch,
    /// The refresh of a user. `look`: its session looks at storage then.
    Refresh {
        session: Ref,
        look: bool,
    },
    Contact {
        session: Ref,
    },
    /// The read of a user that is woken.
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
    /// The read of a user, to learn if it is still here.
    Doubt {
        session: Ref,
    },
    /// The user of a POST that is on its way.
    Look(Box<Lookup>),
    /// The user of a stored message, once more.
    LookAgain(Box<Tale>),
    /// A stored message once more, where low water does not hide it.
    SaveAgain(Box<Tale>),
    /// An unregister without a caller: the hello of the session left the channel out.
    Forget {
        session: Ref,
        uaid: Uaid,
        chid: Chid,
        /// Registers of the channel when the hello came.
        asked: Epoch,
    },
}
