//! Health pages, and requests with a method that a path does not take.

use super::PushEdge;
use super::http::BodyAction;
use super::reply::Reply;
use super::response::{ECHO_BYTES_MAX, HEARTBEAT};
use protocol::webpush::errno::ApiError;
use protocol::wire::http1::Head;

impl PushEdge {
    /// Plans a health page, or 404 (PROTOCOL.md 7.1). A public port has `/__lbheartbeat__` only.
    pub(super) fn plan_page(&self, head: &Head<'_, '_>) -> BodyAction {
        if head.path == "*" {
            return method_refused(head, "GET, HEAD, POST, PUT, DELETE, OPTIONS");
        }
        if self.pages.find(head.path).is_none() {
            return BodyAction::Reply(Reply::Fault(ApiError::NotFound));
        }
        match head.method {
            "GET" | "HEAD" => BodyAction::Reply(Reply::Page(head.path.into())),
            _ => method_refused(head, "GET, HEAD, OPTIONS"),
        }
    }

    /// Returns true for the pages that a public port does not have.
    pub(super) fn is_for_operators(&self, path: &str) -> bool {
        path != HEARTBEAT && self.pages.find(path).is_some()
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
