//! Requests of edges to the machine ([`Command`]) and messages of the machine that edges write ([`Event`]), by peer.
//!
//! A connection has at most one command under way. After a command the loop decodes no further bytes of that connection
//! until the machine sends [`super::Effect::Ready`] (ring/RULES.md rule 8).

mod agent;
mod close;
mod node;
mod registration;
mod relay;
mod sender;

pub use agent::{
    AckUpdate, AckVersion, AgentCommand, AgentEvent, BroadcastDelta, BroadcastVersion, Hello, SessionCommand,
    SessionEvent,
};
pub use close::CloseReason;
pub use node::{NodeAnswer, NodeCommand, NodeDisconnect, NodeNotify, NodePush};
pub use registration::{Device, NewChannel, RegistrationAnswer, RegistrationCall, RegistrationCommand};
pub use relay::{RelayCommand, RelayEvent};
pub use sender::{Cancel, Cancelled, Disposition, Publish, Published, Refusal, SenderCommand, SenderEvent};

use crate::ids::EmissionId;
use crate::upstream::ForwardOutcome;

use super::receipt::ReceiptAnswer;

/// One decoded request of a peer.
#[derive(Debug)]
pub enum Command {
    Agent(AgentCommand),
    Relay(RelayCommand),
    Sender(SenderCommand),
    Registration(Box<RegistrationCommand>),
    Node(NodeCommand),
}

/// Message that an edge writes on one connection.
#[derive(Debug)]
pub enum Event {
    Agent(AgentEvent),
    Relay(RelayEvent),
    Sender(SenderEvent),
    Registration(RegistrationAnswer),
    Node(NodeAnswer),
}

impl Event {
    /// Returns the name of the emission, of the session or, on a relay, of the connection.
    pub fn emission(&self) -> Option<EmissionId> {
        match self {
            Event::Agent(AgentEvent::Session(event)) => event.emission(),
            Event::Relay(RelayEvent::Of { event, .. }) => event.emission(),
            Event::Agent(_) | Event::Relay(_) | Event::Sender(_) | Event::Registration(_) | Event::Node(_) => None,
        }
    }

    /// Returns true if this event tells a user agent a UAID that was made for it.
    pub fn is_new_user(&self) -> bool {
        match self {
            Event::Agent(AgentEvent::Session(event)) => matches!(event, SessionEvent::Hello { minted: true, .. }),
            Event::Relay(RelayEvent::Of { event, .. }) => matches!(**event, SessionEvent::Hello { minted: true, .. }),
            Event::Agent(_) | Event::Relay(_) | Event::Sender(_) | Event::Registration(_) | Event::Node(_) => false,
        }
    }
}

/// Implements the conversions of a value into the enum that carries it.
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
    Command: RegistrationCommand, command => Command::Registration(Box::new(command));
    Command: NodeCommand, command => Command::Node(command);
    Event: AgentEvent, event => Event::Agent(event);
    Event: SessionEvent, event => Event::Agent(AgentEvent::Session(event));
    Event: RelayEvent, event => Event::Relay(event);
    Event: Published, published => Event::Sender(SenderEvent::Published(published));
    Event: Cancelled, cancelled => Event::Sender(SenderEvent::Cancelled(cancelled));
    Event: ReceiptAnswer, answer => Event::Sender(SenderEvent::Receipt(answer));
    Event: RegistrationAnswer, answer => Event::Registration(answer);
    Event: ForwardOutcome, outcome => Event::Sender(SenderEvent::Forwarded(outcome));
    Event: NodeAnswer, answer => Event::Node(answer);
}
