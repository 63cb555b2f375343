//! Memory: every body that a machine keeps is one that it counts.

use std::sync::{Arc, Weak};

use machine::limits;
use machine::message::Message;

/// Bodies that machines have handed out and may still keep.
#[derive(Default)]
pub(crate) struct Bodies(Vec<Weak<Message>>);

impl Bodies {
    /// A machine has this one.
    pub(crate) fn seen(&mut self, message: &Arc<Message>) {
        self.0.push(Arc::downgrade(message));
    }

    /// Bytes of those that are still kept.
    pub(crate) fn kept(&mut self) -> u64 {
        self.0.retain(|body| body.strong_count() > 0);
        let mut bodies: Vec<Arc<Message>> = self.0.iter().filter_map(Weak::upgrade).collect();
        bodies.sort_by_key(Arc::as_ptr);
        bodies.dedup_by_key(|body| Arc::as_ptr(body));
        let overhead = u64::from(limits::LEDGER_RECORD_OVERHEAD_BYTES);
        bodies.iter().map(|body| body.encoded_len() as u64 + overhead).sum()
    }
}
