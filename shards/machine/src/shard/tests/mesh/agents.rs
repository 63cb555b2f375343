//! Actions of user agents, and the messages that they receive.

use super::{CHANNEL, Mesh, Place, Said, Socket};
use crate::ids::{Chid, KeyDigest, Stamp, Uaid};
use crate::message::Urgency;
use crate::shard::*;
use crate::simplepush::{Mode, WakeData};

impl Mesh {
    pub fn open(&mut self, shard: usize) -> Socket {
        let conn = self.conn();
        let (said, emissions, told) = (Vec::new(), Vec::new(), Vec::new());
        self.sockets.push(Place { shard, conn, said, emissions, told, ready: true, fed: Vec::new() });
        self.step(shard, Input::Opened { conn });
        Socket(self.sockets.len() - 1)
    }

    /// Returns true if the edge would take the next command of this socket.
    pub fn is_ready(&self, socket: Socket) -> bool {
        self.sockets[socket.0].ready
    }

    pub fn command(&mut self, socket: Socket, command: impl Into<Command>) {
        let place = &mut self.sockets[socket.0];
        assert!(place.ready, "a command only when the socket is ready");
        place.ready = false;
        let (shard, conn) = (place.shard, place.conn);
        self.step(shard, Input::Command { conn, command: command.into() });
    }

    pub fn say_hello(&mut self, socket: Socket, uaid: Option<Uaid>) {
        self.say_hello_as(socket, uaid, Mode::WebPush, None);
    }

    pub fn say_hello_as(&mut self, socket: Socket, uaid: Option<Uaid>, mode: Mode, wake: Option<&str>) {
        let fresh = self.uaid_of(self.sockets[socket.0].shard);
        let wake = wake.and_then(WakeData::new);
        let hello = Hello { channels: self.channels.clone(), mode, wake, ..Hello::new(uaid, fresh) };
        self.command(socket, AgentCommand::Hello(Box::new(hello)));
    }

    /// Returns a socket on `shard` after its hello, with nothing under way.
    pub fn session(&mut self, shard: usize, uaid: Option<Uaid>) -> Socket {
        let socket = self.open(shard);
        self.say_hello(socket, uaid);
        self.run();
        socket
    }

    pub fn register(&mut self, socket: Socket, chid: Chid) {
        self.command(socket, SessionCommand::Register { chid, key: Some(KeyDigest([1; 32])), caller: None });
        self.run();
    }

    /// Names a minimum urgency, and returns the status of the reply.
    pub fn set_minimum(&mut self, socket: Socket, minimum: Urgency) -> Option<u16> {
        self.command(socket, SessionCommand::Urgency { minimum: Some(minimum) });
        self.run();
        self.said(socket).iter().rev().find_map(|said| match said {
            Said::Urgency(status) => Some(*status),
            _ => None,
        })
    }

    pub fn ack(&mut self, socket: Socket, stamp: Stamp) {
        let update = AckUpdate { stamp, chid: CHANNEL, topic: None, code: 100 };
        self.command(socket, SessionCommand::Ack(vec![update]));
        self.run();
    }

    pub fn close(&mut self, socket: Socket) {
        let (shard, conn) = (self.sockets[socket.0].shard, self.sockets[socket.0].conn);
        self.step(shard, Input::Gone { conn, reason: CloseReason::PeerClosed });
        self.run();
    }

    pub fn said(&self, socket: Socket) -> &[Said] {
        &self.sockets[socket.0].said
    }

    pub fn shard_of(&self, socket: Socket) -> usize {
        self.sockets[socket.0].shard
    }

    pub fn fed(&self, socket: Socket) -> &[u8] {
        &self.sockets[socket.0].fed
    }

    pub fn uaid_on(&self, socket: Socket) -> Uaid {
        let hello = self.said(socket).iter().find_map(|said| match said {
            Said::Hello(uaid) => Some(*uaid),
            _ => None,
        });
        hello.expect("hello was answered")
    }

    pub fn notifications(&self, socket: Socket) -> Vec<Stamp> {
        self.said(socket)
            .iter()
            .filter_map(|said| match said {
                Said::Notification(stamp) => Some(*stamp),
                _ => None,
            })
            .collect()
    }

    pub fn closed(&self, socket: Socket) -> Option<CloseReason> {
        self.said(socket).iter().find_map(|said| match said {
            Said::Closed(reason) => Some(*reason),
            _ => None,
        })
    }

    /// Stops the socket from taking bytes.
    pub fn block(&mut self, socket: Socket) {
        let (shard, conn) = (self.sockets[socket.0].shard, self.sockets[socket.0].conn);
        self.step(shard, Input::Blocked { conn });
    }

    /// Refuses the last `count` notification frames.
    pub fn unsend(&mut self, socket: Socket, count: usize) {
        let place = &mut self.sockets[socket.0];
        let (shard, conn) = (place.shard, place.conn);
        let refused = place.emissions.split_off(place.emissions.len() - count);
        for emission in refused {
            self.step(shard, Input::Unsent { conn, emission });
        }
    }

    pub fn unblock(&mut self, socket: Socket) {
        let (shard, conn) = (self.sockets[socket.0].shard, self.sockets[socket.0].conn);
        self.step(shard, Input::Writable { conn });
        self.run();
    }
}
