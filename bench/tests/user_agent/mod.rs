//! Messages of a user agent and their answers, message by message and field by field (PROTOCOL.md 1.4 to 1.6, 1.9, 1.11
//! and 12).

mod hello;

mod channels;

mod messages;

mod sessions;

mod urgency;

use crate::common::{UserAgent, World};

/// The code that a session of its own is closed with for this message.
fn closed_with(world: &World, greeted: bool, message: &str) -> u16 {
    let mut agent = UserAgent::connect(world.server.websocket());
    if greeted {
        agent.hello(None);
    }
    agent.send_text(message);
    agent.close_code()
}
