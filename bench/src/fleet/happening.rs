//! What agents are told to do, and what comes of it.

use std::time::{Duration, Instant};

/// What an agent does before it is idle, and what it does with notifications.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Channels to have: an agent registers those that it lacks.
    pub channels: usize,
    /// VAPID key to register them with.
    pub key: Option<String>,
    /// Broadcast id to subscribe to.
    pub broadcast: Option<String>,
    /// Whether notifications are acked.
    pub ack: bool,
    /// How long slow agents take to ack (`Swarm::set_slow`).
    pub ack_delay: Duration,
    /// Whether `Happening::Notified` has the text of the version.
    pub versions: bool,
}

/// How a connection was made, in microseconds. Everything counts from when it was due, however late it was begun, so
/// that a generator that falls behind shows in the figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    pub(super) late: u32,
    pub(super) upgrade: u32,
    pub(super) hello: u32,
    pub(super) ready: u32,
}

impl Times {
    /// From when it was due to when it was begun.
    pub fn late(&self) -> Duration {
        Duration::from_micros(self.late.into())
    }

    /// From when it was due to the 101.
    pub fn upgrade(&self) -> Duration {
        Duration::from_micros(self.upgrade.into())
    }

    /// From the hello to its answer.
    pub fn hello(&self) -> Duration {
        Duration::from_micros(self.hello.into())
    }

    /// From when it was due to the end of the plan.
    pub fn ready(&self) -> Duration {
        Duration::from_micros(self.ready.into())
    }
}

/// Why a connection ended, seen from the agent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    /// A close frame with this code; 1005 when it had none.
    Closed(u16),
    /// FIN without a close frame.
    Finished,
    /// RST.
    Reset,
    /// Nobody listens.
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
pub enum Happening {
    /// The agent did its whole plan and is idle.
    Ready {
        /// Which.
        agent: usize,
        /// What it took.
        times: Times,
    },
    /// A notification came (and was acked, if that is the plan).
    Notified {
        /// To which.
        agent: usize,
        /// The first eight bytes of the body, when there are so many.
        sequence: Option<u64>,
        /// [`super::version_hash`] of the version.
        version: u64,
        /// The version itself, if the plan asks for it.
        text: Option<Box<str>>,
        /// When it was read.
        at: Instant,
    },
    /// The connection ended, but for those that the scenario ended itself.
    Ended {
        /// Whose.
        agent: usize,
        /// Why.
        reason: End,
        /// It had been idle: it was not refused, but lost.
        was_ready: bool,
    },
    /// A client ping was answered.
    Pong {
        /// Whose.
        agent: usize,
    },
    /// A WebSocket ping of the server came and was answered.
    Pinged {
        /// Whom.
        agent: usize,
    },
    /// A `register` beside the plan was answered.
    Registered {
        /// Whose.
        agent: usize,
        /// 200 when there is one more endpoint.
        status: u16,
    },
    /// An `unregister` was answered.
    Unregistered {
        /// Whose.
        agent: usize,
        /// 200 when it worked.
        status: u16,
    },
    /// A broadcast came that is not the answer of the plan's subscription.
    Broadcast {
        /// To which.
        agent: usize,
    },
}

/// How agents leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// FIN, or RST when there is unread input.
    Fin,
    /// RST: what is under way is lost.
    Reset,
    /// A close frame as a browser sends, then FIN.
    Close,
}
