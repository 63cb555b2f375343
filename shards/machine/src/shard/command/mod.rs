//! What edges ask of the machine ([`Command`]) and what the machine has them say ([`Event`]), by who speaks.
//!
//! A connection has at most one command under way: after a command the loop decodes no further bytes of
//! that connection until the machine says [`super::Effect::Ready`] (ring/RULES.md rule 8).

mod agent;
mod close;
mod node;
mod relay;
mod sender;

pub use agent::{
    AckUpdate, AckVersion, AgentCommand, AgentEvent, BroadcastDelta, BroadcastVersion, Hello, SessionCommand,
    SessionEvent,
};
pub use close::CloseReason;
pub use node::{NodeAnswer, NodeCommand, NodeDisconnect, NodeNotify, NodePush};
pub use relay::{RelayCommand, RelayEvent};
pub use sender::{Cancel, Cancelled, Disposition, Publish, Published, Refusal, SenderCommand, SenderEvent};

use crate::ids::EmissionId;

use super::receipt::ReceiptAnswer;

/// One decoded request of a peer.
#[derive(Debug)]
pub enum Command {
    /// Of a user agent.
    Agent(AgentCommand),
    /// Of a relay.
    Relay(RelayCommand),
    /// Of an app server.
    Sender(SenderCommand),
    /// Of another node.
    Node(NodeCommand),
}

/// What the machine has an edge write on one connection.
#[derive(Debug)]
pub enum Event {
    /// To a user agent.
    Agent(AgentEvent),
    /// To a relay.
    Relay(RelayEvent),
    /// To an app server.
    Sender(SenderEvent),
    /// To another node.
    Node(NodeAnswer),
}

impl Event {
    /// The emission this is, of the session or, on a relay, of the connection.
    pub fn emission(&self) -> Option<EmissionId> {
        match self {
            Event::Agent(AgentEvent::Session(event)) => event.emission(),
            Event::Relay(RelayEvent::Of { event, .. }) => event.emission(),
            Event::Agent(_) | Event::Relay(_) | Event::Sender(_) | Event::Node(_) => None,
        }
    }
}

/// Conversions of words into the enum that carries them.
macro_rules! carries {
    ($($whole:ident: $part:ty, $name:ident => $made:expr;)+) => {
        $(impl From<$part> for $whole {
            fn from($name: $part) -> $whole {
                $made
            }
        })+
    };
}
pub(super) use carries;

carries! {
    Command: AgentCommand, command => Command::Agent(command);
    Command: SessionCommand, command => Command::Agent(AgentCommand::Session(command));
    Command: RelayCommand, command => Command::Relay(command);
    Command: SenderCommand, command => Command::Sender(command);
    Command: NodeCommand, command => Command::Node(command);
    Event: AgentEvent, event => Event::Agent(event);
    Event: SessionEvent, event => Event::Agent(AgentEvent::Session(event));
    Event: RelayEvent, event => Event::Relay(event);
    Event: Published, published => Event::Sender(SenderEvent::Published(published));
    Event: Cancelled, cancelled => Event::Sender(SenderEvent::Cancelled(cancelled));
    Event: ReceiptAnswer, answer => Event::Sender(SenderEvent::Receipt(answer));
    Event: NodeAnswer, answer => Event::Node(answer);
}
