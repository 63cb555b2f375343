//! Orders from the rest of the process to a shard, and the news that it hears back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::queue::ArrayQueue;

use crate::mailbox::Waker;
use machine::BroadcastVersion;

/// Something every shard is told.
pub enum ControlMessage<E> {
    /// Accept no more, settle what is accepted, and end sessions at this rate.
    Drain {
        /// Sessions per second and shard.
        rate: u32,
    },
    /// These broadcast values are set.
    Broadcasts(Arc<[BroadcastVersion]>),
    /// Notifications of another node are lost: every session reads storage.
    ReadStorage,
    /// Something for the shard's edge, on the shard's thread: new keys, a new limit. Must not block.
    Edge(Arc<dyn Fn(&mut E) + Send + Sync>),
    /// Accept no more, and freeze every session that can be: they go on in the next process.
    Hibernate,
    /// Leave the loop after this turn.
    Stop,
}

impl<E> Clone for ControlMessage<E> {
    fn clone(&self) -> ControlMessage<E> {
        match self {
            ControlMessage::Drain { rate } => ControlMessage::Drain { rate: *rate },
            ControlMessage::Broadcasts(values) => ControlMessage::Broadcasts(Arc::clone(values)),
            ControlMessage::ReadStorage => ControlMessage::ReadStorage,
            ControlMessage::Edge(change) => ControlMessage::Edge(Arc::clone(change)),
            ControlMessage::Hibernate => ControlMessage::Hibernate,
            ControlMessage::Stop => ControlMessage::Stop,
        }
    }
}

/// Controls that one shard has not read yet. At the bound the sender waits: it is the control plane or the main thread.
const CONTROLS_MAX: usize = 64;

/// The bounded lane from the rest of the process to one shard.
pub(crate) struct ControlQueue<E> {
    queue: ArrayQueue<ControlMessage<E>>,
    waker: Arc<Waker>,
    drained: AtomicBool,
    hibernated: AtomicBool,
}

impl<E> ControlQueue<E> {
    pub(crate) fn new(waker: Arc<Waker>) -> ControlQueue<E> {
        ControlQueue {
            queue: ArrayQueue::new(CONTROLS_MAX),
            waker,
            drained: AtomicBool::new(false),
            hibernated: AtomicBool::new(false),
        }
    }

    /// Hands a control to the shard; waits while the lane is full. Not for shard threads.
    pub(crate) fn send(&self, control: ControlMessage<E>) {
        let mut waiting = control;
        while let Err(back) = self.queue.push(waiting) {
            waiting = back;
            self.waker.wake();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.waker.wake();
    }

    pub(super) fn receive(&self) -> Option<ControlMessage<E>> {
        self.queue.pop()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn say_drained(&self) {
        self.drained.store(true, Ordering::Release);
    }

    pub(super) fn say_hibernated(&self) {
        self.hibernated.store(true, Ordering::Release);
    }

    /// Returns true if the shard has said that nothing more can be frozen.
    pub(crate) fn is_hibernated(&self) -> bool {
        self.hibernated.load(Ordering::Acquire)
    }

    /// Returns true if the shard has said that its drain is complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }
}
