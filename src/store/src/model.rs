//! The store in memory: `store.kind = memory`, and the reference that the laws compare others with. Its behaviour is
//! [`machine::model`]; here are its ports.
//!
//! Lives on: every shard; one mutex around all users, held for one operation. Nothing survives the process.

mod transfer;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use machine::ids::StoreTicket;
use machine::model::Model as State;
use machine::time::UnixSeconds;
use machine::{StoreError, StoreOp, StoreReply};
use runtime::ports::Store;

/// Reply of a port.
type Answer = Result<StoreReply, StoreError>;

/// All users of a process. Shared by its ports.
pub struct Model {
    state: Arc<Mutex<State>>,
}

impl Model {
    /// An empty store that refuses messages beyond `bytes_max` bytes of them.
    pub fn new(bytes_max: u64) -> Model {
        Model::of(State::new(bytes_max))
    }

    /// Creates a store with this state.
    pub fn of(state: State) -> Model {
        Model { state: Arc::new(Mutex::new(state)) }
    }

    /// A shard's port to it. `waker` is called after each submission: its reply is there.
    pub fn port(&self, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Store> {
        Box::new(ModelPort { state: self.state.clone(), waker, replies: VecDeque::new() })
    }

    /// Drops expired messages and users not seen for 60 days, among all users at once.
    pub fn sweep(&self, now: UnixSeconds) {
        lock(&self.state).sweep(now, usize::MAX);
    }

    pub fn bytes(&self) -> u64 {
        lock(&self.state).bytes()
    }
}

/// One shard's port; its replies are there at once.
struct ModelPort {
    state: Arc<Mutex<State>>,
    waker: Arc<dyn Fn() + Send + Sync>,
    replies: VecDeque<(StoreTicket, Answer)>,
}

impl Store for ModelPort {
    fn submit(&mut self, ticket: StoreTicket, op: StoreOp) {
        let answer = lock(&self.state).apply(&op);
        self.replies.push_back((ticket, answer));
        (self.waker)();
    }

    fn collect(&mut self) -> Option<(StoreTicket, Answer)> {
        self.replies.pop_front()
    }
}

/// The state is whole between operations, so a panic elsewhere does not spoil it.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
