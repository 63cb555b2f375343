//! Messages of relays: connections that speak for several user agents, a member each (PROTOCOL.md 13).

use machine::RelayCommand;
use machine::ids::Uaid;
use machine::simplepush::Mode;
use runtime::ports::Ingest;

use super::PushEdge;
use super::messages::MessageAction;
use protocol::wire::client_message::{BadMessage, ClientMessage};
use protocol::wire::relay::{self, RelayMessage};
use protocol::wire::simplepush::HelloPart;

impl PushEdge {
    /// Handles one message of a relay. Members are always in WebPush mode.
    pub(super) fn relay_message(
        &mut self,
        agent_family: u16,
        text: &str,
        consumed: usize,
        out: &mut Vec<u8>,
    ) -> Ingest {
        let command = match relay::read(text) {
            Err(BadMessage) => return self.unreadable(),
            Ok(RelayMessage::Ping) => RelayCommand::Ping,
            Ok(RelayMessage::Bye(uaid)) => RelayCommand::Bye(Uaid(uaid)),
            Ok(RelayMessage::Hello(hello)) => {
                let ClientMessage::Hello { uaid, channels, broadcasts } = hello else { return self.misplaced() };
                let part = HelloPart { mode: Mode::WebPush, wake: None };
                match self.hello(uaid, channels, broadcasts, agent_family, part) {
                    Ok(hello) => RelayCommand::Attach(hello),
                    Err(end) => return end,
                }
            }
            Ok(RelayMessage::Of { uaid, message }) => match self.asked(message, false, Some(Uaid(uaid)), out) {
                MessageAction::Command(command) => RelayCommand::For { uaid: Uaid(uaid), command: Box::new(command) },
                MessageAction::Answered => return Ingest::Next { consumed },
                MessageAction::Misplaced => return self.misplaced(),
            },
        };
        Ingest::Command { consumed, command: command.into() }
    }
}
