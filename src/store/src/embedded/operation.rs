//! Operations by what they need of the committer: a write, a sync, or neither.

use machine::StoreOp;

/// Returns true if the committer writes for it.
pub(super) fn is_write(op: &StoreOp) -> bool {
    match op {
        StoreOp::LoadUser { .. }
        | StoreOp::Locate { .. }
        | StoreOp::Topics { .. }
        | StoreOp::Messages { .. }
        | StoreOp::Read { .. } => false,
        StoreOp::Touch { .. }
        | StoreOp::Register { .. }
        | StoreOp::Subscribe { .. }
        | StoreOp::SetContact { .. }
        | StoreOp::SetPresence { .. }
        | StoreOp::ClearPresence { .. }
        | StoreOp::Unregister { .. }
        | StoreOp::DropUser { .. }
        | StoreOp::SetBridge { .. }
        | StoreOp::MarkRefused { .. }
        | StoreOp::ClearRefused { .. }
        | StoreOp::DropBridged { .. }
        | StoreOp::Publish { .. }
        | StoreOp::Save { .. }
        | StoreOp::Settle { .. }
        | StoreOp::Tried { .. } => true,
    }
}

/// Returns true if the reply must wait for a sync.
pub(super) fn is_durable(op: &StoreOp) -> bool {
    match op {
        StoreOp::Settle { durable, .. } | StoreOp::SetContact { durable, .. } => *durable,
        StoreOp::Touch { .. } | StoreOp::MarkRefused { .. } | StoreOp::ClearRefused { .. } => false,
        other => is_write(other),
    }
}
