//! State of a POST, or of a notification of another node, while storage or that node works on it.

use std::sync::Arc;

use crate::ids::{Chid, Uaid};
use crate::message::{Message, Urgency};
use crate::time::Instant;

use super::super::command::{Published, Refusal};
use super::super::components::requests::ReplyTo;
use super::super::peer::Presence;
use super::super::pending_publish::{AfterCommit, PendingPublish, PushOutcome};
use super::super::row::RowKey;
use super::super::store::StoreOp;

/// A POST whose user is being read. Owner shard of the node where it landed; bounded by the tickets.
pub(in crate::shard) struct Lookup {
    pub reply_to: ReplyTo<Published>,
    pub uaid: Uaid,
    pub chid: Chid,
    /// Message without a stamp, or the rule that it broke.
    pub message: Result<Arc<Message>, Refusal>,
}

/// A POST whose user was read, on its way to the node that has the user. Bounded as above.
pub(in crate::shard) struct RemotePublish {
    pub reply_to: ReplyTo<Published>,
    pub uaid: Uaid,
    pub chid: Chid,
    pub message: Arc<Message>,
    /// Time at which it was stamped.
    pub stamped: Instant,
    /// Nodes that may have the user and were not asked, newest last.
    pub left: Vec<Presence>,
    /// Node that is being asked.
    pub asked: Option<Presence>,
}

/// A pending notification of the node that holds the user's session. The ticket limit bounds their number.
pub(in crate::shard) struct PeerNotify {
    pub uaid: Uaid,
    /// POST that waits for the end of this, and its answer then.
    pub waits: Option<(ReplyTo<Published>, Published)>,
    /// Urgency of the message that was stored.
    pub urgency: Option<Urgency>,
    /// Session that holds the message: it need not read it unless its minimum has fallen.
    pub held_by: Option<Presence>,
    /// Row that was stored for it; deleted if its channel does not exist any more.
    pub row: Option<RowKey>,
    /// Session whose push of the message may have been carried out.
    pub unsure: Option<Presence>,
    /// True if the session here has read storage already.
    pub looked: bool,
    /// `delivery.durable`: message that is sent on from memory.
    pub send: Option<Arc<Message>>,
    /// Message that was stored as a message row: low water may have passed its clock meanwhile.
    pub hidden: Option<Arc<Message>>,
    /// Nodes that may have the user and were not notified, newest last.
    pub left: Vec<Presence>,
    /// Node that is being notified.
    pub asked: Option<Presence>,
}

impl PeerNotify {
    /// Returns the notification of a POST that was stored.
    pub fn of_publish(work: PendingPublish, published: Published) -> PeerNotify {
        let send = work.storing.send().cloned();
        let (mut hidden, mut unsure, mut held_by) = (None, None, None);
        if let AfterCommit::Routed { message, push, .. } = work.storing {
            hidden = Some(message).filter(|one| one.topic.is_none());
            match push {
                PushOutcome::NotTaken => {}
                PushOutcome::Unsure(row) => (hidden, unsure) = (None, Some(row)),
                PushOutcome::Held(row) => held_by = Some(row),
            }
        }
        let (row, waits) = (work.row, Some((work.reply_to, published)));
        PeerNotify {
            waits,
            urgency: Some(work.urgency),
            held_by,
            row: Some(row),
            unsure,
            send,
            hidden,
            ..PeerNotify::of_save(row.uaid)
        }
    }

    /// Returns the notification of a POST that was refused because it was not certainly stored, while its push may have
    /// been carried out: the node that has the user must know that there may be a row.
    pub fn of_failure(work: PendingPublish) -> Option<PeerNotify> {
        let AfterCommit::Routed { push: PushOutcome::Unsure(unsure), .. } = work.storing else { return None };
        Some(PeerNotify { row: Some(work.row), unsure: Some(unsure), ..PeerNotify::of_save(work.row.uaid) })
    }

    /// Returns the notification of a session's unacked directs that were saved.
    pub fn of_save(uaid: Uaid) -> PeerNotify {
        PeerNotify {
            uaid,
            waits: None,
            urgency: None,
            held_by: None,
            row: None,
            unsure: None,
            looked: false,
            send: None,
            hidden: None,
            left: Vec::new(),
            asked: None,
        }
    }
}

impl PeerNotify {
    /// Returns the operation that reads the user again.
    pub fn load_op(&self) -> StoreOp {
        match self.row {
            Some(row) => StoreOp::Locate { uaid: self.uaid, chid: row.chid },
            None => StoreOp::LoadUser { uaid: self.uaid },
        }
    }
}
