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

use crate::ids::{CallerAddress, EmissionId};

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

/// Things that outlive a command if it is carried out, or that an event gives to its peer.
///
/// Every command and every event says so, and a shard admits each of them by the address of its caller before it takes
/// effect (`shards/runtime/src/reactor/admission.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Creates {
    Nothing,
    /// A channel of a user that is there.
    Channel,
    /// A user. It is stored with its first channel, which is counted by itself.
    User,
    /// A user and its first channel.
    UserWithChannel,
    /// A place among the relays of its shard, until its connection ends.
    Relay,
}

impl Command {
    /// Returns what the command makes.
    pub fn creates(&self) -> Creates {
        let of_session = |command: &SessionCommand| match command {
            SessionCommand::Register { .. } => Creates::Channel,
            SessionCommand::Unregister { .. }
            | SessionCommand::Urgency { .. }
            | SessionCommand::Ack(_)
            | SessionCommand::AckVersions(_)
            | SessionCommand::Nack { .. }
            | SessionCommand::BroadcastSubscribe(_) => Creates::Nothing,
        };
        match self {
            Command::Agent(AgentCommand::Session(command)) => of_session(command),
            // The event that tells a new UAID says that its user is new: only the owner shard knows it.
            Command::Agent(AgentCommand::Hello(_) | AgentCommand::Ping | AgentCommand::Pong) => Creates::Nothing,
            Command::Relay(RelayCommand::For { command, .. }) => of_session(command),
            Command::Relay(RelayCommand::Open) => Creates::Relay,
            Command::Relay(
                RelayCommand::Attach(_) | RelayCommand::Bye(_) | RelayCommand::Ping | RelayCommand::Pong,
            ) => Creates::Nothing,
            Command::Registration(command) => match command.call {
                RegistrationCall::Create { .. } => Creates::UserWithChannel,
                RegistrationCall::Subscribe(Ok(_)) => Creates::Channel,
                RegistrationCall::Subscribe(Err(_))
                | RegistrationCall::Update(_)
                | RegistrationCall::List
                | RegistrationCall::Remove
                | RegistrationCall::Unsubscribe(_) => Creates::Nothing,
            },
            Command::Sender(SenderCommand::Publish(_) | SenderCommand::Cancel(_) | SenderCommand::Receipt(_)) => {
                Creates::Nothing
            }
            Command::Node(NodeCommand::Push(_) | NodeCommand::Notify(_) | NodeCommand::Disconnect(_)) => {
                Creates::Nothing
            }
        }
    }

    /// Names the address of the caller, if this command may make a user. A user without one is charged to no address.
    pub fn set_caller(&mut self, address: CallerAddress) {
        match self {
            Command::Agent(AgentCommand::Session(SessionCommand::Register { caller, .. })) => *caller = Some(address),
            Command::Relay(RelayCommand::For { command, .. }) => {
                if let SessionCommand::Register { caller, .. } = &mut **command {
                    *caller = Some(address);
                }
            }
            Command::Registration(command) => {
                if let RegistrationCall::Create { caller, .. } = &mut command.call {
                    *caller = Some(address);
                }
            }
            Command::Agent(_) | Command::Relay(_) | Command::Sender(_) | Command::Node(_) => {}
        }
    }
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

    /// Returns what the event gives to its peer: a UAID that was made for it is a user.
    pub fn creates(&self) -> Creates {
        let of_session = |event: &SessionEvent| match event {
            SessionEvent::Hello { minted: true, .. } => Creates::User,
            SessionEvent::Hello { minted: false, .. }
            | SessionEvent::Registered { .. }
            | SessionEvent::Unregistered { .. }
            | SessionEvent::Notification { .. }
            | SessionEvent::Urgency { .. }
            | SessionEvent::Broadcast(_) => Creates::Nothing,
        };
        match self {
            Event::Agent(AgentEvent::Session(event)) => of_session(event),
            Event::Relay(RelayEvent::Of { event, .. }) => of_session(event),
            Event::Agent(AgentEvent::Ping | AgentEvent::Pong)
            | Event::Relay(RelayEvent::Opened { .. } | RelayEvent::Bye { .. } | RelayEvent::Ping | RelayEvent::Pong)
            | Event::Sender(_)
            | Event::Registration(_)
            | Event::Node(_) => Creates::Nothing,
        }
    }
}

impl Event {
    /// Returns true if this event refuses a request for a reason that lies with its sender.
    pub fn is_refusal(&self) -> bool {
        match self {
            Event::Sender(SenderEvent::Published(published)) => match published {
                Published::Accepted { .. } | Published::NotBridged(_) | Published::Unavailable => false,
                Published::NoSubscription
                | Published::OtherMode
                | Published::Refused(_)
                | Published::TooMany { .. }
                | Published::OverBudget { .. } => true,
            },
            Event::Registration(answer) => match answer {
                RegistrationAnswer::Registered { .. }
                | RegistrationAnswer::Done
                | RegistrationAnswer::Channels(_)
                | RegistrationAnswer::Unavailable => false,
                RegistrationAnswer::NoUser
                | RegistrationAnswer::NoChannel
                | RegistrationAnswer::Conflict
                | RegistrationAnswer::Full
                | RegistrationAnswer::Refused(_)
                | RegistrationAnswer::TooMany { .. } => true,
            },
            Event::Agent(_) | Event::Relay(_) | Event::Sender(_) | Event::Node(_) => false,
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
    Event: NodeAnswer, answer => Event::Node(answer);
}
