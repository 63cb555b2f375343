//! SimplePush: version updates, of which only the newest counts; acks by version; wake-ups of absent user agents
//! (PROTOCOL.md 1.12).

mod versions;

mod modes;
mod waking;

mod life;

use super::*;
use crate::simplepush::{Contact, Update};

fn update_on(uaid: Uaid, chid: Chid, version: u64) -> Message {
    Update { version, data: "d" }.to_message(uaid, chid, UnixSeconds(0), 3_600)
}

fn update(uaid: Uaid, version: u64) -> Message {
    update_on(uaid, CHANNEL, version)
}

impl Mesh {
    /// Returns a SimplePush session after its hello, with nothing under way.
    fn simple(&mut self, shard: usize, uaid: Option<Uaid>) -> Socket {
        self.simple_with(shard, uaid, None)
    }

    fn simple_with(&mut self, shard: usize, uaid: Option<Uaid>, wake: Option<&str>) -> Socket {
        let socket = self.open(shard);
        self.say_hello_as(socket, uaid, Reach::Simple, wake);
        self.run();
        socket
    }

    /// Returns a user in storage in SimplePush mode.
    fn simple_user(&mut self, shard: usize, wake: Option<&str>) -> Uaid {
        let uaid = self.known_user(shard);
        let wake = wake.and_then(WakeData::new);
        let contact = Box::new(Contact { mode: Reach::Simple, wake, ..Contact::default() });
        self.store.done(&StoreOp::SetContact { uaid, contact, durable: true });
        uaid
    }

    fn ack_version(&mut self, socket: Socket, version: u64) {
        self.command(socket, SessionCommand::AckVersions(vec![AckVersion { chid: CHANNEL, version }]));
        self.run();
    }

    /// Returns true if this user has left nothing anywhere.
    fn nothing_left(&self, uaid: Uaid) -> bool {
        self.ledger.is_empty() && self.store.rows_of(uaid).is_empty()
    }
}
