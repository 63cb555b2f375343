//! What the calls of other nodes come to, for the metrics and the admin page.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shards::counters;
use shards::machine::{PeerOp, PeerReply};

counters! {
    /// Numbers of the calls of other nodes, all nodes together.
    pub struct PeerNumbers {
        counter peer_push_done: "PUT /push that the other node took.",
        counter peer_push_not_here: "PUT /push answered 404: the session is not there.",
        counter peer_push_busy: "PUT /push answered 503: the session takes nothing now.",
        counter peer_push_no_answer: "PUT /push sent and not answered in time.",
        counter peer_push_unreachable: "PUT /push not sent: no connection, circuit open, or too many wait.",
        counter peer_notify_done: "PUT /notif that the other node took.",
        counter peer_notify_not_here: "PUT /notif answered 404: the session is not there.",
        counter peer_notify_no_answer: "PUT /notif sent and not answered in time; it is owed then.",
        counter peer_notify_unreachable: "PUT /notif not sent; it is owed then.",
        counter peer_leave_done: "DELETE /notif that ended a session there.",
        counter peer_leave_not_here: "DELETE /notif answered 404: the session is not there.",
        counter peer_leave_no_answer: "DELETE /notif sent and not answered in time.",
        counter peer_leave_unreachable: "DELETE /notif not sent.",
        counter peer_refused: "Calls answered with a status that says that keys or versions of the nodes differ.",
        counter peer_answers: "Calls answered, owed ones too.",
        counter peer_answer_microseconds: "Time from the submission of a call to its answer, all calls together.",
        counter peer_answers_within_1ms: "Calls answered within 1 ms.",
        counter peer_answers_within_10ms: "Calls answered within 10 ms.",
        counter peer_answers_within_100ms: "Calls answered within 100 ms.",
        counter peer_answers_within_1s: "Calls answered within 1 s.",
        counter peer_owed_answered: "Owed notifications that were answered later.",
        counter peer_owed_over: "Owed notifications given up because their node's run is over.",
        counter peer_owed_dropped: "Owed notifications forgotten because there were too many.",
        counter peer_connects: "Connections to other nodes made.",
        counter peer_connects_failed: "Connections to other nodes that could not be made.",
        counter peer_circuits_opened: "How often a node was given up until it answers a probe.",
        gauge peer_nodes: "Other nodes called lately.",
        gauge peer_circuits_open: "Nodes that do not answer; calls of them fail at once.",
        gauge peer_owed: "Notifications owed to nodes that do not answer.",
        gauge peer_calls_under_way: "Calls being made.",
        gauge peer_calls_waiting: "Calls waiting for a connection.",
    }
}

impl PeerNumbers {
    /// Counts what a shard was told.
    pub(super) fn replied(&mut self, op: &PeerOp, reply: PeerReply) {
        use PeerReply::{Busy, Done, NoAnswer, NotHere, Unreachable};
        let counter = match (op, reply) {
            (PeerOp::Push { .. }, Done) => &mut self.peer_push_done,
            (PeerOp::Push { .. }, NotHere) => &mut self.peer_push_not_here,
            (PeerOp::Push { .. }, Busy) => &mut self.peer_push_busy,
            (PeerOp::Push { .. }, NoAnswer) => &mut self.peer_push_no_answer,
            (PeerOp::Push { .. }, Unreachable) => &mut self.peer_push_unreachable,
            (PeerOp::Notify { .. }, Done) => &mut self.peer_notify_done,
            (PeerOp::Notify { .. }, NotHere) => &mut self.peer_notify_not_here,
            (PeerOp::Notify { .. }, NoAnswer) => &mut self.peer_notify_no_answer,
            (PeerOp::Notify { .. }, Busy | Unreachable) => &mut self.peer_notify_unreachable,
            (PeerOp::Leave { .. }, Done) => &mut self.peer_leave_done,
            (PeerOp::Leave { .. }, NotHere) => &mut self.peer_leave_not_here,
            (PeerOp::Leave { .. }, NoAnswer) => &mut self.peer_leave_no_answer,
            (PeerOp::Leave { .. }, Busy | Unreachable) => &mut self.peer_leave_unreachable,
        };
        *counter += 1;
    }

    /// Counts an answer that took this long.
    pub(super) fn answered(&mut self, took: Duration) {
        self.peer_answers += 1;
        self.peer_answer_microseconds += took.as_micros() as u64;
        self.peer_answers_within_1ms += u64::from(took <= Duration::from_millis(1));
        self.peer_answers_within_10ms += u64::from(took <= Duration::from_millis(10));
        self.peer_answers_within_100ms += u64::from(took <= Duration::from_millis(100));
        self.peer_answers_within_1s += u64::from(took <= Duration::from_secs(1));
    }
}

/// One other node as operators see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::island) struct Shown {
    /// Its `node.url`.
    pub url: Box<str>,
    /// It does not answer.
    pub circuit_open: bool,
    /// Connections to it.
    pub connections: usize,
    /// Calls that wait for one of them.
    pub waiting: usize,
    /// Notifications owed to it.
    pub owed: usize,
}

/// Every node as of a moment ago; as many as [`super::node::NODES_MAX`].
#[derive(Default)]
pub(in crate::island) struct Showcase(Mutex<Vec<Shown>>);

impl Showcase {
    /// What is shown.
    pub fn look(&self) -> MutexGuard<'_, Vec<Shown>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
