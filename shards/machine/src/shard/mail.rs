//! Mail between shards. One writer, one reader; a mail is moved, never shared.
//!
//! A [`Request`] is sent only with reply credit, so its lane and the lane of its [`Reply`] have room by
//! construction (`limits::reply_credit`). Requests cause replies, replies cause no mail: a DAG.

use crate::ids::{Chid, Claim, RequestId, ShardId, Uaid};

use super::command::{
    Cancel, Cancelled, Hello, NodeAnswer, NodeCommand, Publish, Published, RegistrationAnswer, RegistrationCommand,
    carries,
};
use super::handover::{BridgeHandover, DeviceReport};
use super::member::{MemberEvent, MemberReply, MemberRequest};
use super::receipt::{ReceiptAnswer, ReceiptQuery};

/// A mail between two shards. At most 40 bytes; larger contents are boxed.
#[derive(Debug)]
pub enum Mail {
    /// If dropped: cannot be; the lane has a place for every credit.
    Request {
        /// Shard that gets the reply.
        from: ShardId,
        /// Name of the request at the sender.
        id: RequestId,
        request: Request,
    },
    /// If dropped: cannot be; the lane has a place for every credit.
    Reply { id: RequestId, reply: Reply },
    /// State and bytes of a socket on its way to its owner, for the claim that was granted.
    /// If dropped: cannot be; every grant reserved a place. If the descriptor never comes: the half pair times out at
    /// the owner, and the user agent reconnects.
    Arrive(Box<Arrival>),
    /// The socket of a granted claim does not come: it is gone, or could not be moved. The owner frees the place that
    /// the grant reserved.
    /// If dropped: cannot be, as above; each grant causes this mail or `Arrive`, never both.
    Stayed(Claim),
}

const _: () = assert!(size_of::<Mail>() <= 40);

/// A request to the owner of a UAID.
#[derive(Debug)]
pub enum Request {
    /// A socket of the sender has this UAID in its hello. Answered by `Refused`, `Granted`, `Full`, `Superseded` or
    /// `Unavailable`. The claim names the attempt and is also the user_data of the moving descriptor.
    Claim(Box<ClaimRequest>),
    /// A POST that another shard received.
    Publish(Box<Publish>),
    /// A cancel that another shard received.
    Cancel(Box<Cancel>),
    /// A receipt request that another shard received. Its reply can take until the end of its wait, so these requests
    /// get only half the reply credit.
    Receipt(Box<ReceiptQuery>),
    /// A call of the registration API that another shard received.
    Registration(Box<RegistrationCommand>),
    /// The verdict of the service on a device, for a POST that another shard received.
    DeviceReport(Box<DeviceReport>),
    /// A request of another node that another shard received.
    Node(NodeCommand),
    /// A request of a member, or a change of its relay. Causes `MemberEvent`s.
    Member(Box<MemberRequest>),
    /// A message to the home of a relay about a member. Causes its reply only.
    MemberEvent(Box<MemberEvent>),
}

/// Facts of a hello that the owner needs for its decision.
#[derive(Debug)]
pub struct ClaimRequest {
    /// UAID in the hello.
    pub uaid: Uaid,
    /// Name of the attempt.
    pub claim: Claim,
    /// Channels in the hello.
    pub channels: Option<Box<[Chid]>>,
}

/// Answer of the owner.
#[derive(Debug)]
pub enum Reply {
    Claim(ClaimReply),
    Publish(Published),
    /// To `Publish` for a bridged user: the shard that received the POST calls the service.
    Bridge(Box<BridgeHandover>),
    Cancel(Cancelled),
    Receipt(ReceiptAnswer),
    Registration(Box<RegistrationAnswer>),
    Node(NodeAnswer),
    /// Answer to both mails about members.
    Member(MemberReply),
}

carries! {
    Reply: ClaimReply, reply => Reply::Claim(reply);
    Reply: Published, published => Reply::Publish(published);
    Reply: Cancelled, cancelled => Reply::Cancel(cancelled);
    Reply: ReceiptAnswer, answer => Reply::Receipt(answer);
    Reply: RegistrationAnswer, answer => Reply::Registration(Box::new(answer));
    Reply: NodeAnswer, answer => Reply::Node(answer);
    Reply: MemberReply, reply => Reply::Member(reply);
}

/// Decision of the owner on a claim (ARCHITECTURE.md 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimReply {
    /// No such user: the shard of the socket mints a fresh UAID.
    Refused,
    /// A place is reserved: move the socket.
    Granted,
    /// No place left at the owner: close 1013.
    Full,
    /// A newer hello of the same UAID came meanwhile: close 1011.
    Superseded,
    /// Storage did not answer: close 1011.
    Unavailable,
}

/// A session in transit between two shards.
#[derive(Debug)]
pub struct Arrival {
    pub claim: Claim,
    /// Hello of the user agent; its `fresh` is not used from here on.
    pub hello: Box<Hello>,
    pub bytes: Carried,
}

/// Bytes that travel with a moved socket: received and not decoded yet, and the secrets of a TLS connection. Only the
/// reactor reads them. Overwritten when they are dropped, and never shown.
#[derive(Default)]
pub struct Carried(pub Box<[u8]>);

impl std::fmt::Debug for Carried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Carried({} bytes)", self.0.len())
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.fill(0);
        std::hint::black_box(&self.0);
    }
}
