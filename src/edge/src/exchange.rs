//! A request between its head and its answer: what is kept of it, and what is left to do.

use machine::Command;
use machine::ids::Uaid;
use machine::time::Instant;
use runtime::quota::{Quota, Share};

use super::drafts::{NodeCall, PostDraft, Posted, UpdateDraft};
use super::registering::{Registering, RegistrationDraft};
use super::reply::Reply;
use super::response::{Context, ECHO_BYTES_MAX};
use protocol::webpush::errno::ApiError;
use protocol::wire::body::BodyReader;
use protocol::wire::http1::Head;

/// A request between its head and its answer.
#[derive(Default)]
pub struct Exchange {
    pub(super) context: Context,
    pub(super) stage: Stage,
    /// Start of the turn that read the head.
    pub(super) begun: Instant,
}

#[derive(Default)]
pub(super) enum Stage {
    Body(Box<Pending>),
    /// The machine was asked to publish; holds the facts for the answer.
    Posted(Posted),
    Updated,
    /// The machine was asked a call of the registration API.
    Registering(Box<Registering>),
    /// The machine was asked any other command.
    #[default]
    Asked,
}

pub(super) struct Pending {
    pub(super) reader: BodyReader,
    /// Number of bytes of the body read so far; `u64::MAX` when the rest of it is not read.
    pub(super) seen: u64,
    /// The same with chunk sizes, extensions and trailers.
    pub(super) wire: u64,
    pub(super) plan: BodyAction,
    /// Share of the quota for unfinished requests.
    pub(super) share: Share,
}

impl Pending {
    /// Updates the share and returns true if the request exceeds the quota.
    pub(super) fn is_refused(&mut self, unfinished: &Quota, context: &Context) -> bool {
        let origin = context.origin.as_ref().map_or(0, |origin| origin.len());
        let bytes = size_of::<Exchange>() + size_of::<Pending>() + origin + self.plan.heap_bytes();
        let before = self.share.bytes();
        self.share.set(bytes);
        unfinished.refuses(before, bytes)
    }
}

/// Action after the body has been read.
pub(super) enum BodyAction {
    Reply(Reply),
    /// Ask the machine; the body does not matter.
    Ask(Command),
    Post(PostDraft),
    /// Publish a version update; the body is a form.
    Update(Box<UpdateDraft>),
    /// Read the body as that of a call of the registration API.
    Registration(Box<RegistrationDraft>),
    /// Read the body as that of a call of another node.
    Node {
        call: NodeCall,
        uaid: Uaid,
        body: Vec<u8>,
    },
}

impl BodyAction {
    /// Heap memory, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            BodyAction::Post(draft) => draft.payload.heap_bytes(),
            BodyAction::Update(draft) => size_of::<UpdateDraft>() + draft.heap_bytes(),
            BodyAction::Registration(draft) => draft.heap_bytes(),
            BodyAction::Node { body, .. } => body.capacity(),
            BodyAction::Reply(Reply::Options(Some(requested), _)) => requested.len(),
            BodyAction::Reply(Reply::Page(path)) => path.len(),
            BodyAction::Reply(_) | BodyAction::Ask(_) => 0,
        }
    }
}

/// Returns the answer to a method that a path does not take. OPTIONS and HEAD are taken everywhere, and do not show if
/// the path exists: the first of the services before this one did so (PROTOCOL.md 2.12), and monitors rely on it.
pub(super) fn method_refused(head: &Head<'_, '_>, allow: &'static str) -> BodyAction {
    BodyAction::Reply(match head.method {
        "OPTIONS" => {
            let requested = head.header("access-control-request-headers");
            Reply::Options(requested.filter(|list| list.len() <= ECHO_BYTES_MAX).map(Into::into), allow)
        }
        "HEAD" => Reply::Empty,
        _ => Reply::WrongMethod(ApiError::MethodNotAllowed, allow),
    })
}
