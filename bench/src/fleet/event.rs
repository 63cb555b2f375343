//! Plans of agents, and the events that come of them.

use std::time::{Duration, Instant};

/// Steps of an agent before it is idle, and its treatment of notifications.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Channels to have: an agent registers those that it lacks.
    pub channels: usize,
    /// VAPID key to register them with.
    pub key: Option<String>,
    /// Broadcast id to subscribe to.
    pub broadcast: Option<String>,
    pub ack: bool,
}

/// Reason for the end of a connection, seen from the agent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    /// A close frame with this code; 1005 when it had none.
    Closed(u16),
    /// FIN without a close frame.
    Finished,
    Reset,
    /// The server does not listen.
    Refused,
    /// Another errno.
    Failed(i32),
    /// The upgrade was answered with this status.
    Rejected(u16),
    /// The server said something that is not the protocol, or refused a step of the plan.
    Nonsense,
}

impl End {
    /// A few words for a table.
    pub fn name(self) -> String {
        match self {
            End::Closed(code) => format!("closed {code}"),
            End::Finished => "closed without a frame".into(),
            End::Reset => "reset".into(),
            End::Refused => "refused".into(),
            End::Failed(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
            End::Rejected(status) => format!("upgrade answered {status}"),
            End::Nonsense => "nonsense".into(),
        }
    }

    pub(super) fn of_errno(errno: i32) -> End {
        match errno {
            libc::ECONNREFUSED => End::Refused,
            libc::ECONNRESET | libc::EPIPE => End::Reset,
            other => End::Failed(other),
        }
    }
}

/// Something that happened to an agent.
#[derive(Debug)]
pub enum AgentEvent {
    /// The agent did its whole plan and is idle.
    Ready {
        /// Index in the swarm, as in the other variants.
        agent: usize,
        /// Time from the hello to its answer.
        hello: Duration,
    },
    /// A notification came (and was acked, if that is the plan).
    Notified {
        agent: usize,
        /// The first eight bytes of the body; `None` of a shorter one.
        sequence: Option<u64>,
        /// Time at which it was read.
        at: Instant,
    },
    /// The connection ended, but for those that the scenario ended itself.
    Ended {
        agent: usize,
        reason: End,
        /// It had been idle: it was not refused, but lost.
        was_ready: bool,
    },
    /// A client ping, `{}` or a WebSocket ping, was answered.
    Pong {
        /// Index in the swarm.
        agent: usize,
    },
    /// A WebSocket ping of the server came and was answered.
    Pinged {
        /// Index in the swarm.
        agent: usize,
    },
    /// A `register` beside the plan was answered.
    Registered {
        agent: usize,
        /// 200 when there is one more endpoint.
        status: u16,
    },
    /// A minimum urgency was answered.
    MinimumSet {
        agent: usize,
        /// 200 when it counts.
        status: u16,
    },
    /// An `unregister` was answered.
    Unregistered {
        agent: usize,
        /// 200 when it worked.
        status: u16,
    },
    /// A broadcast came that is not the answer of the plan's subscription.
    Broadcast {
        /// Index in the swarm.
        agent: usize,
    },
}

/// Way in which agents leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// FIN, or RST when there is unread input.
    Fin,
    /// RST: what is under way is lost.
    Reset,
    /// A close frame as a browser sends, then FIN.
    Close,
}
