//! Relays: connections that speak for several user agents. Each member has a socket here that no shard knows.
//!
//! Messages between a member and its owner pass through its home, so they may be late: a member whose session has ended
//! is told so when others are served already, and its acks may come to nothing. The oracle expects less of it.

use machine::ids::Uaid;
use machine::message::Message;
use machine::{AgentCommand, CloseReason, Command, RelayCommand, RelayEvent, SessionEvent};

use crate::shared::Verdict;
use crate::socket::{Frame, Place, Socket, SocketId};
use crate::world::World;

impl World {
    /// A user agent connects through its relay, which connects first when it has to.
    pub(crate) fn connect_member(&mut self, index: usize, relay: usize) -> SocketId {
        if self.relays[relay].socket.is_none() {
            let shard = self.rng.clients.index(self.shards.len());
            let id = self.sockets.len();
            self.sockets.push(Socket::new(None, Place::Waiting { shard }));
            self.sockets[id].relay = Some(relay);
            self.sockets[id].inbox.push_back(RelayCommand::Open.into());
            self.relays[relay].socket = Some(id);
            self.log(None, format_args!("relay {relay} connects as socket {id} to shard {shard}"));
        }
        let id = self.sockets.len();
        self.sockets.push(Socket::new(Some(index), Place::Member { relay }));
        id
    }

    /// Commands of a member go into the connection of its relay.
    pub(crate) fn flush_member(&mut self, id: SocketId) {
        let Place::Member { relay } = self.sockets[id].place else { return };
        let said: Vec<Command> = self.sockets[id].inbox.drain(..).collect();
        let Some(socket) = self.relays[relay].socket else { return };
        for command in said {
            let command = match command {
                // A member that says hello again is another one to its relay: not for these.
                Command::Agent(AgentCommand::Hello(_)) if self.sockets[id].peer.uaid.is_some() => continue,
                Command::Agent(AgentCommand::Hello(hello)) => {
                    self.sockets[socket].attaching.push_back(id);
                    RelayCommand::Attach(hello)
                }
                Command::Agent(AgentCommand::Session(command)) => match self.sockets[id].peer.uaid {
                    Some(uaid) => RelayCommand::For { uaid, command: Box::new(command) },
                    None => continue,
                },
                _ => continue,
            };
            self.sockets[socket].inbox.push_back(command.into());
        }
    }

    /// A member goes away; its relay says so.
    pub(crate) fn member_leaves(&mut self, id: SocketId) {
        let Place::Member { relay } = self.sockets[id].place else { return };
        let Some((socket, uaid)) = self.relays[relay].socket.zip(self.sockets[id].peer.uaid) else { return };
        self.sockets[socket].inbox.push_back(RelayCommand::Bye(uaid).into());
    }

    /// A relay does something: it goes, stops reading, or reads again.
    pub(crate) fn relay_acts(&mut self) {
        if self.relays.is_empty() {
            return;
        }
        let relay = self.rng.clients.index(self.relays.len());
        let Some(id) = self.relays[relay].socket else { return };
        let faults = &self.plan.faults;
        let (disconnect, stop) = (faults.disconnect, faults.stop_reading * 3);
        if self.sockets[id].is_stale {
            self.hang_up_relay(id, relay);
        } else if self.sockets[id].peer.paused {
            self.sockets[id].peer.paused = !self.rng.clients.permille(300);
        } else if self.rng.clients.permille(stop) {
            self.marks.hit("relay: stops reading");
            self.sockets[id].peer.paused = true;
        } else if self.rng.clients.permille(disconnect) {
            self.marks.hit("relay: goes");
            self.hang_up_relay(id, relay);
        }
    }

    /// A relay resets its connection.
    pub(crate) fn hang_up_relay(&mut self, id: SocketId, relay: usize) {
        let socket = &mut self.sockets[id];
        socket.peer_open = false;
        socket.inbox.clear();
        socket.outbox.clear();
        self.relay_gone(relay);
    }

    /// The connection of a relay is over at its own end, or it has read that it is.
    pub(crate) fn relay_gone(&mut self, relay: usize) {
        self.relays[relay].socket = None;
        let of_it = |place| matches!(place, Place::Member { relay: of } if of == relay);
        let members: Vec<SocketId> = (0..self.sockets.len()).filter(|id| of_it(self.sockets[*id].place)).collect();
        members.into_iter().for_each(|id| self.member_over(id));
        self.relays[relay].members.clear();
    }

    /// The machine has ended the connection of a relay, and with it the sessions of its members.
    pub(crate) fn relay_ended(&mut self, id: SocketId) {
        let Some(relay) = self.sockets[id].relay.filter(|relay| self.relays[*relay].socket == Some(id)) else { return };
        let members: Vec<SocketId> = self.relays[relay].members.values().copied().collect();
        members.into_iter().for_each(|member| self.oracle.session_ended(member));
    }

    fn member_over(&mut self, id: SocketId) {
        self.oracle.session_ended(id);
        self.sockets[id].place = Place::Ended;
        self.sockets[id].peer_open = false;
        for agent in &mut self.agents {
            if agent.sockets.contains(&id) {
                agent.sockets.retain(|of| *of != id);
                agent.retry_at = self.now + 1_000_000_000;
            }
        }
    }

    /// A command of a relay is about to be decoded.
    pub(crate) fn before_relay_command(&mut self, id: SocketId, shard: usize, command: RelayCommand) -> RelayCommand {
        let Some(relay) = self.sockets[id].relay else { return command };
        match command {
            RelayCommand::Attach(hello) => {
                let Some(member) = self.sockets[id].attaching.pop_front() else { return RelayCommand::Attach(hello) };
                self.relays[relay].attaching = Some(member);
                RelayCommand::Attach(self.before_hello(member, shard, hello))
            }
            RelayCommand::For { uaid, command } => {
                if let Some(member) = self.relays[relay].members.get(&uaid).copied() {
                    self.before_session_command(member, &command);
                }
                RelayCommand::For { uaid, command }
            }
            RelayCommand::Pong => {
                self.sockets[id].session.clocks.pong_owed = None;
                RelayCommand::Pong
            }
            RelayCommand::Open | RelayCommand::Bye(_) | RelayCommand::Ping => command,
        }
    }

    /// `Effect::Emit` on the connection of a relay.
    pub(crate) fn relay_said(&mut self, id: SocketId, event: RelayEvent) -> Verdict {
        let Some(relay) = self.sockets[id].relay else { return Err("words for a relay on a session".to_owned()) };
        if self.relays[relay].socket != Some(id) {
            // It has gone, and the shard has not noticed.
            return Ok(());
        }
        match event {
            RelayEvent::Ping => {
                self.server_pings(id)?;
                self.write(id, Frame::Ping, None)
            }
            RelayEvent::Pong => self.write(id, Frame::Pong, None),
            RelayEvent::Opened { .. } => {
                self.sockets[id].session.clocks.greeted = self.now;
                self.write(id, Frame::Pong, None)
            }
            RelayEvent::Of { uaid, event } => {
                let emission = event.emission();
                let member = match &*event {
                    SessionEvent::Hello { uaid, .. } => {
                        let member = self.relays[relay].attaching.take();
                        self.relays[relay].members.extend(member.map(|member| (*uaid, member)));
                        member
                    }
                    _ => self.relays[relay].members.get(&uaid).copied(),
                };
                let Some(member) = member else { return Err(format!("a relay is told {event:?} for no member")) };
                self.marks.hit("relay: member told");
                let (frame, _) = self.frame_of(member, *event)?;
                self.write(id, Frame::Of(member, Box::new(frame)), emission)
            }
            RelayEvent::Bye { uaid, reason } => {
                let there = uaid.and_then(|uaid| self.relays[relay].members.remove(&uaid));
                let Some(member) = there.or_else(|| self.relays[relay].attaching.take()) else {
                    // It has said bye to that member already.
                    return Ok(());
                };
                self.marks.hit(&format!("bye: {reason:?}"));
                self.oracle.session_ended(member);
                self.write(id, Frame::Of(member, Box::new(Frame::Closed(reason))), None)
            }
        }
    }

    /// Returns true if this is a member's: it may be told, and may be over, later than its owner knows.
    pub(crate) fn is_member(&self, id: SocketId) -> bool {
        matches!(self.sockets[id].place, Place::Member { .. })
    }

    /// The hello of a member is answered; its session may be over by now.
    pub(crate) fn member_greeted(&mut self, id: SocketId, uaid: Uaid) {
        let newer = self.oracle.resident.get(&uaid).is_some_and(|other| !self.is_member(*other));
        self.sockets[id].session.stale = newer;
        if !newer {
            self.outdated(uaid);
            self.oracle.resident.insert(uaid, id);
        }
    }

    /// A user that was served as a member of a relay is not any more.
    pub(crate) fn outdated(&mut self, uaid: Uaid) {
        if let Some(other) = self.oracle.resident.get(&uaid).copied().filter(|other| self.is_member(*other)) {
            self.sockets[other].session.stale = true;
            self.oracle.resident.remove(&uaid);
        }
    }

    /// A notification for a member.
    pub(crate) fn member_notified(&mut self, id: SocketId, message: &Message) -> Verdict {
        if self.sockets[id].session.served != Some(message.uaid) {
            return Err(format!("{message:?} for another member, on socket {id}"));
        }
        let index = self.oracle.identify(message)?;
        self.oracle.stamped(index, message)
    }

    /// A member has read that it is none any more.
    pub(crate) fn member_closed(&mut self, id: SocketId, reason: CloseReason) {
        self.log(None, format_args!("socket {id} reads bye: {reason:?}"));
        self.member_over(id);
    }
}
