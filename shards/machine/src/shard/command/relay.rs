//! Commands of relays, and the events of the machine for them (PROTOCOL.md 13).

use crate::ids::Uaid;

use super::agent::{Hello, SessionCommand, SessionEvent};
use super::close::CloseReason;

/// Commands of a relay to its home.
#[derive(Debug)]
pub enum RelayCommand {
    /// First message of its WebSocket: the connection speaks for several user agents. [`RelayEvent::Opened`] answers.
    Open,
    /// Hello of one more user agent. [`SessionEvent::Hello`] in [`RelayEvent::Of`] answers, or [`RelayEvent::Bye`].
    Attach(Box<Hello>),
    /// A command of a member; answered as for a session with a socket of its own.
    For { uaid: Uaid, command: Box<SessionCommand> },
    /// The relay stops speaking for this user agent. [`RelayEvent::Bye`] answers, also if it was no member.
    Bye(Uaid),
    /// As [`super::AgentCommand::Ping`]: pings belong to the connection.
    Ping,
    /// A WebSocket Pong frame arrived.
    Pong,
}

/// Messages that are written on the socket of a relay.
#[derive(Debug)]
pub enum RelayEvent {
    /// The connection is a relay from now on.
    Opened {
        /// Maximum number of members at a time.
        members: u16,
    },
    /// Message of a member's session, as on a socket of its own.
    Of { uaid: Uaid, event: Box<SessionEvent> },
    /// The user agent is no longer a member, or could not become one.
    Bye {
        /// UAID of the member; `None` when a hello without a UAID failed.
        uaid: Option<Uaid>,
        /// `PeerClosed` when the relay requested the end.
        reason: CloseReason,
    },
    /// A WebSocket Ping frame with an empty payload.
    Ping,
    /// The reply to `{}`.
    Pong,
}
