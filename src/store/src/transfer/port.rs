//! The users and messages of a store as a transfer carries them, and the calls by which it does.

use std::fmt;
use std::sync::Arc;

use machine::ids::{Chid, Clock, KeyDigest, Uaid};
use machine::message::Message;
use machine::simplepush::Contact;
use machine::time::UnixSeconds;
use machine::{StoreOp, StoreReply, UserRow};

use crate::fault::FaultKind;

/// One channel with all its stored data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Channel {
    pub chid: Chid,
    /// Digest of the key its endpoint is locked to.
    pub key: Option<KeyDigest>,
    /// Clock of the write that made it.
    pub registered_at: Clock,
}

/// All stored data of a user but its messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WholeUser {
    pub uaid: Uaid,
    /// Version of the record's meaning (PROTOCOL.md 1.10).
    pub record_version: u8,
    /// Time at which the user was last seen, as of the last refresh.
    pub seen: UnixSeconds,
    /// Every message row at or below it is settled.
    pub low_water: Clock,
    /// The greatest clock any write on this user carried.
    pub user_clock: Clock,
    /// False only when there certainly is no row.
    pub may_have_messages: bool,
    pub contact: Contact,
    /// In the order of their ids, each once.
    pub channels: Vec<Channel>,
}

impl WholeUser {
    /// A user as the machine reads it, with all stored data of its channels.
    pub fn of(uaid: Uaid, row: UserRow, channels: Vec<Channel>) -> WholeUser {
        WholeUser {
            uaid,
            record_version: row.record_version,
            seen: row.seen,
            low_water: row.low_water,
            user_clock: row.user_clock,
            may_have_messages: row.may_have_messages,
            contact: row.contact,
            channels,
        }
    }
}

/// Some users of a store, in its own order.
#[derive(Debug, Default)]
pub struct Listed {
    pub users: Vec<WholeUser>,
    /// Positions of users whose record is damaged, or of a version that this build does not know. An operator can find
    /// each in the store by it. It does not have the UAID, which is a secret.
    pub unreadable: Vec<String>,
    /// Last user of both lists; `None` is the end.
    pub last: Option<Uaid>,
}

impl Listed {
    pub fn readable(users: Vec<WholeUser>) -> Listed {
        Listed { last: users.last().map(|user| user.uaid), users, unreadable: Vec::new() }
    }
}

/// A store whose users can be listed, read whole and written whole. Calls block until they are answered.
pub trait Transfer {
    /// Returns the users behind `after` in the store's own order, `limit` at most. The order must not change while the
    /// store is not written. Users that are written meanwhile may be in it or not.
    ///
    /// # Errors
    /// The store cannot be read; nothing is known then.
    fn users(&mut self, after: Option<Uaid>, limit: usize) -> Result<Listed, TransferFault>;

    /// Returns these users, in this order.
    ///
    /// # Errors
    /// As [`Transfer::users`], or the record of one of them cannot be read.
    fn find(&mut self, uaids: &[Uaid]) -> Result<Vec<Option<WholeUser>>, TransferFault>;

    /// Writes messages under their own stamps, in the form of saved rows or, with a topic, of topic rows (one that
    /// does not replace the row that is there is ignored), whether or not there is such a user. Each row lives until
    /// the message expires. Durable when it returns.
    ///
    /// # Errors
    /// The store refuses or cannot be written; some rows may be written.
    fn put_rows(&mut self, rows: &[Arc<Message>]) -> Result<(), TransferFault>;

    /// Writes users, each atomically. An existing user keeps its channels with their keys and times, while those that
    /// it lacks are added, and its `seen`, `low_water` and `user_clock` when they are greater. A bridged user gets a
    /// newer bridge. Writes carry the clocks
    /// that the users have, so that in a store that settles conflicts by them newer ones win. Durable when it returns.
    ///
    /// # Errors
    /// As [`Transfer::put_rows`].
    fn put_users(&mut self, users: &[WholeUser]) -> Result<(), TransferFault>;

    /// Returns the replies of the store's port to these operations, in this order; at most `limits::STORE_TICKETS_MAX`.
    ///
    /// # Errors
    /// The store refuses one of them.
    fn ask(&mut self, ops: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault>;
}

/// Reason why a transfer cannot go on: one sentence that says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferFault {
    said: String,
    kind: FaultKind,
}

impl TransferFault {
    /// One sentence that says what to do.
    pub fn new(said: impl Into<String>, kind: FaultKind) -> TransferFault {
        TransferFault { said: said.into(), kind }
    }

    /// Kind of the fault.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }
}

impl fmt::Display for TransferFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for TransferFault {}
