//! Blocking calls on the port of a shard.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, bounded};
use machine::ids::StoreTicket;
use machine::limits;
use machine::{StoreError, StoreOp, StoreReply};
use runtime::ports::Store;

use super::port::TransferFault;
use crate::fault::FaultKind;

/// Longest wait for the replies to one list of operations.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between reads of the port. A reply can arrive between a read and the wait for the bell, and is then read
/// this much later.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A port with blocking calls. Lives on the calling thread.
pub struct BlockingPort {
    port: Box<dyn Store>,
    bell: Receiver<()>,
    asked: u32,
}

impl BlockingPort {
    /// Wraps the port that `open` makes with the given waker.
    pub fn new(open: impl FnOnce(Arc<dyn Fn() + Send + Sync>) -> Box<dyn Store>) -> BlockingPort {
        let (ring, bell) = bounded(1);
        let waker = move || {
            // Full: it has been rung already.
            let _ = ring.try_send(());
        };
        BlockingPort { port: open(Arc::new(waker)), bell, asked: 0 }
    }

    /// Returns the replies to these operations, in this order.
    ///
    /// # Errors
    /// The store refuses one of them or does not answer.
    pub fn ask(&mut self, ops: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault> {
        self.ask_each(ops)?.into_iter().map(|answer| answer.map_err(refused)).collect()
    }

    /// Returns the answers to these operations, in this order, refusals too.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn ask_each(&mut self, ops: Vec<StoreOp>) -> Result<Vec<Result<StoreReply, StoreError>>, TransferFault> {
        assert!(ops.len() <= limits::STORE_TICKETS_MAX, "a port takes no more at once");
        self.asked = self.asked.wrapping_add(1);
        let mut answers: Vec<_> = ops.iter().map(|_| None).collect();
        for (at, op) in ops.into_iter().enumerate() {
            self.port.submit(StoreTicket { index: at as u32, generation: self.asked }, op);
        }
        let end = Instant::now() + PATIENCE;
        let mut missing = answers.len();
        while missing > 0 {
            while let Some((ticket, answer)) = self.port.collect() {
                // A reply to an earlier list that was given up.
                if ticket.generation != self.asked {
                    continue;
                }
                answers[ticket.index as usize] = Some(answer);
                missing -= 1;
            }
            if missing > 0 {
                if Instant::now() >= end {
                    let said = "the store does not answer: see whether it works, then go on";
                    return Err(TransferFault::new(said, FaultKind::Passing));
                }
                let _ = self.bell.recv_timeout(LOOK_EVERY);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

/// Converts a store's refusal to the fault of a transfer.
pub fn refused(error: StoreError) -> TransferFault {
    let (said, kind) = match error {
        StoreError::Full => {
            ("the store takes no more: make room on its disk or raise store.max_bytes, then go on", FaultKind::Full)
        }
        StoreError::Transient => {
            ("the store is overloaded or cannot be reached: see whether it works, then go on", FaultKind::Passing)
        }
    };
    TransferFault::new(said, kind)
}
