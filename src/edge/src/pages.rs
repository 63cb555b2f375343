//! Health pages.

use super::PushEdge;
use super::exchange::{BodyAction, method_refused};
use super::reply::Reply;
use super::response::HEARTBEAT;
use crate::health::Health;
use protocol::webpush::errno::ApiError;
use protocol::wire::http1::Head;

impl PushEdge {
    /// Plans a health page, or 404 (PROTOCOL.md 7.1). A public port has `/__lbheartbeat__` only.
    pub(super) fn plan_page(&self, head: &Head<'_, '_>) -> BodyAction {
        if head.path == "*" {
            return method_refused(head, "GET, HEAD, POST, PUT, DELETE, OPTIONS");
        }
        if self.pages.find(&head.path, Health::Good).is_none() {
            return BodyAction::Reply(Reply::Fault(ApiError::NotFound));
        }
        match head.method {
            "GET" | "HEAD" => BodyAction::Reply(Reply::Page((*head.path).into())),
            _ => method_refused(head, "GET, HEAD, OPTIONS"),
        }
    }

    /// Returns true for the pages that a public port does not have.
    pub(super) fn is_for_operators(&self, path: &str) -> bool {
        path != HEARTBEAT && self.pages.find(path, Health::Good).is_some()
    }
}
