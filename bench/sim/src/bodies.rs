//! Memory: every body that a machine keeps is one that it counts.

use std::sync::{Arc, Weak};

use machine::limits;
use machine::message::Message;

use crate::world::{Verdict, World};

/// Bodies that machines have handed out and may still keep.
#[derive(Default)]
pub(crate) struct Bodies(Vec<Weak<Message>>);

impl Bodies {
    /// A machine has this one.
    pub(crate) fn seen(&mut self, message: &Arc<Message>) {
        self.0.push(Arc::downgrade(message));
    }

    /// Bytes of those that are still kept.
    fn kept(&mut self) -> u64 {
        self.0.retain(|body| body.strong_count() > 0);
        let mut bodies: Vec<Arc<Message>> = self.0.iter().filter_map(Weak::upgrade).collect();
        bodies.sort_by_key(Arc::as_ptr);
        bodies.dedup_by_key(|body| Arc::as_ptr(body));
        let overhead = u64::from(limits::LEDGER_RECORD_OVERHEAD_BYTES);
        bodies.iter().map(|body| body.encoded_len() as u64 + overhead).sum()
    }
}

impl World {
    /// Nothing is under way, so bodies are kept by machines only: all of them count against their bounds.
    pub(crate) fn bodies_counted(&mut self) -> Verdict {
        // Messages that wait to be stored again are bounded elsewhere.
        let quiet = self.shards.iter().all(|shard| shard.machine.is_quiet());
        if !quiet || !self.store.idle() || self.lanes.iter().flatten().any(|lane| !lane.is_empty()) {
            return Ok(());
        }
        let counted = |machine: &mut machine::ShardMachine| {
            let stats = machine.stats();
            stats.ledger_bytes + stats.row_bytes
        };
        let counted: u64 = self.shards.iter_mut().map(|shard| counted(&mut shard.machine)).sum();
        let kept = self.bodies.kept();
        if kept > counted {
            return Err(format!("machines keep {kept} bytes of messages and count {counted} against their bounds"));
        }
        Ok(())
    }
}
