//! Fence of a node: its rings are restricted, and its process forbids itself further ones (decision 0042).

use runtime::ring::{Fence, forbid_rings};

/// Forbids further rings to this process, if it is the node. Returns the state of the fence: `closed`, or `open` and
/// the reason. No shard has begun yet.
pub(super) fn close(Fence { rings, operations, register_calls }: Fence, is_process: bool) -> String {
    if !is_process {
        return "open: the process is more than this node".to_owned();
    }
    match forbid_rings() {
        Ok(()) => {
            tracing::info!(rings, operations, register_calls, "rings fenced, and further ones forbidden");
            "closed".to_owned()
        }
        Err(error) => {
            tracing::warn!(rings, operations, register_calls, %error, "rings fenced; further ones cannot be forbidden");
            format!("open: {error}")
        }
    }
}
