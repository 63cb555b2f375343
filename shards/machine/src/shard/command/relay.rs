//! Words between relays and the machine (PROTOCOL.md 13).

use crate::ids::Uaid;

use super::agent::{Hello, SessionCommand, SessionEvent};
use super::close::CloseReason;

/// Commands of a relay to its home.
#[derive(Debug)]
pub enum RelayCommand {
    /// The first message of its WebSocket: "I speak for others". [`RelayEvent::Opened`] answers.
    Open,
    /// One more user agent. [`SessionEvent::Hello`] in [`RelayEvent::Of`] answers, or [`RelayEvent::Bye`].
    Attach(Box<Hello>),
    /// A command of a member; answered as for a session with a socket of its own.
    For {
        /// UAID of the member.
        uaid: Uaid,
        /// Command of the member.
        command: Box<SessionCommand>,
    },
    /// The relay speaks for this user agent no more. [`RelayEvent::Bye`] answers, also when it did not.
    Bye(Uaid),
    /// As [`super::AgentCommand::Ping`]: pings belong to the connection.
    Ping,
    /// A WebSocket Pong frame arrived.
    Pong,
}

/// Messages that are written on the socket of a relay.
#[derive(Debug)]
pub enum RelayEvent {
    /// It is a relay from now on.
    Opened {
        /// Most members at a time.
        members: u16,
    },
    /// As it would be written on a socket of this member's own.
    Of {
        /// UAID of the member.
        uaid: Uaid,
        /// Message of its session.
        event: Box<SessionEvent>,
    },
    /// This user agent is no member any more, or could not become one.
    Bye {
        /// UAID of the member; `None` when a hello without a UAID failed.
        uaid: Option<Uaid>,
        /// Reason; `PeerClosed` when the relay asked for it.
        reason: CloseReason,
    },
    /// A WebSocket Ping frame with an empty payload.
    Ping,
    /// The reply to `{}`.
    Pong,
}
