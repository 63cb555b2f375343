//! Operations whose replies wait for a sync.

use machine::StoreOp;

/// Returns true if the reply must wait for a sync.
pub(super) fn is_durable(op: &StoreOp) -> bool {
    match op {
        StoreOp::Settle { durable, .. } | StoreOp::SetContact { durable, .. } => *durable,
        StoreOp::Touch { .. }
        | StoreOp::DropIdle { .. }
        | StoreOp::MarkRefused { .. }
        | StoreOp::ClearRefused { .. } => false,
        other => !other.is_read(),
    }
}
