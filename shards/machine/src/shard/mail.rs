//! What shards say to each other. One writer, one reader; a mail is moved, never shared.
//!
//! A [`Request`] is sent only with reply credit, so its lane and the lane of its [`Reply`] have room by
//! construction (`limits::reply_credit`). Requests cause replies, replies cause no mail: a DAG.

use crate::ids::{Chid, Claim, RequestId, ShardId, Uaid};

use super::command::{Cancel, Cancelled, Hello, NodeAnswer, NodeCommand, Publish, Published, carries};
use super::member::{MemberEvent, MemberReply, MemberRequest};
use super::receipt::{ReceiptAnswer, ReceiptQuery};

/// A mail between two shards. At most 40 bytes; what is bigger is boxed.
#[derive(Debug)]
pub enum Mail {
    /// If dropped: cannot be; the lane has a place for every credit.
    Request {
        /// Where the reply goes.
        from: ShardId,
        /// Names the request at the sender.
        id: RequestId,
        /// What is asked.
        request: Request,
    },
    /// If dropped: cannot be; the lane has a place for every credit.
    Reply {
        /// The request this answers.
        id: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// State and bytes of a socket on its way to its owner, for the claim that was granted.
    /// If dropped: cannot be; every grant reserved a place. If the descriptor never comes: the half pair times
    /// out at the owner, and the user agent reconnects.
    Arrive(Box<Arrival>),
    /// The socket of a claim that was granted does not come: it is gone, or could not be moved. The owner frees the
    /// place that the grant reserved.
    /// If dropped: cannot be, as above; each grant causes this mail or `Arrive`, never both.
    Stayed(Claim),
}

const _: () = assert!(size_of::<Mail>() <= 40);

/// What one shard asks of the owner of a UAID.
#[derive(Debug)]
pub enum Request {
    /// "A socket of mine says it is this user." Answered by `Refused`, `Granted`, `Full`, `Superseded` or
    /// `Unavailable`.
    /// The claim names the attempt and is also the user_data of the moving descriptor.
    Claim(Box<ClaimRequest>),
    /// A POST landed here.
    Publish(Box<Publish>),
    /// A cancel landed here.
    Cancel(Box<Cancel>),
    /// A look at a receipt landed here. Its reply may take until the end of its wait, so only half the reply credit is
    /// given to these.
    Receipt(Box<ReceiptQuery>),
    /// A request of another node landed here.
    Node(NodeCommand),
    /// A member of a relay of ours asks something, or its relay has changed. Causes `MemberEvent`s.
    Member(Box<MemberRequest>),
    /// To the home of a relay: about a member of it. Causes its reply only.
    MemberEvent(Box<MemberEvent>),
}

/// What the owner must know of a hello to decide on it.
#[derive(Debug)]
pub struct ClaimRequest {
    /// Whom the socket says it is.
    pub uaid: Uaid,
    /// Names the attempt.
    pub claim: Claim,
    /// As in the hello.
    pub channels: Option<Box<[Chid]>>,
}

/// The owner's answer.
#[derive(Debug)]
pub enum Reply {
    /// To a claim.
    Claim(ClaimReply),
    /// To a POST.
    Publish(Published),
    /// To a cancel.
    Cancel(Cancelled),
    /// To a look at a receipt.
    Receipt(ReceiptAnswer),
    /// To a node request.
    Node(NodeAnswer),
    /// To both mails about members.
    Member(MemberReply),
}

carries! {
    Reply: ClaimReply, reply => Reply::Claim(reply);
    Reply: Published, published => Reply::Publish(published);
    Reply: Cancelled, cancelled => Reply::Cancel(cancelled);
    Reply: ReceiptAnswer, answer => Reply::Receipt(answer);
    Reply: NodeAnswer, answer => Reply::Node(answer);
    Reply: MemberReply, reply => Reply::Member(reply);
}

/// The owner's decision on a claim (ARCHITECTURE.md 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimReply {
    /// No such user: mint a fresh UAID where the socket is.
    Refused,
    /// A place is reserved: move the socket.
    Granted,
    /// No place left at the owner: close 1013.
    Full,
    /// A newer hello of the same UAID came meanwhile: close 1011.
    Superseded,
    /// Storage could not say: close 1011.
    Unavailable,
}

/// A session in transit between two shards.
#[derive(Debug)]
pub struct Arrival {
    /// The claim that was granted.
    pub claim: Claim,
    /// What the user agent said; its `fresh` is unused from here on.
    pub hello: Box<Hello>,
    /// Every byte that was received behind the hello and not decoded yet.
    pub bytes: Box<[u8]>,
}
