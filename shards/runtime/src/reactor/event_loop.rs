//! One turn after the other.

use crate::mailbox::Lane;
use crate::ports::Edge;
use crate::ring::{Completion, Flags, SocketMove, Standing, State};
use machine::ids::{ConnId, ShardId};
use machine::limits;
use machine::time::TimeSpan;
use machine::{AgentCommand, Command, Effect, Event, Input, Mail};

use super::hibernation::Hibernator;
use super::input_horizon::SubmitResult;
use super::{ControlMessage, Machine, Reactor};

// Most items that one turn takes from each source, so that none starves another, and that a turn is short: what is sent
// in it goes out with the next one. A completion costs a place in a line only, or the end of a connection, of which the
// lines read few in a turn, and app servers stand behind those completions: their bound is large.
pub(super) const COMPLETIONS_PER_TURN: usize = 1_024;
const MAILS_PER_LANE_AND_TURN: usize = 16;
const REPLIES_PER_TURN: usize = 16;
const CONTROLS_PER_TURN: usize = 16;

/// Interval at which the numbers are copied out while the shard works.
pub(super) const PUBLISH_EVERY: TimeSpan = TimeSpan::from_secs(1);

/// Returns true if a peer, another shard or another node waits for the result of an input.
fn is_request(input: &Input) -> bool {
    match input {
        Input::Frame { .. } | Input::Timeout | Input::HorizonAdvanced { .. } => false,
        Input::Command { command, .. } => !matches!(command, Command::Agent(AgentCommand::Pong)),
        _ => true,
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Runs the shard until it is told to stop.
    pub(crate) fn run(&mut self) {
        self.steer_accepting();
        while !self.stopping {
            let worked = self.turn();
            // From here, because the frames of the turn lie below this one.
            if self.tls.take_leftovers() {
                wipe::stack::<{ wipe::SHARD_STACK_BYTES }>();
            }
            if !worked {
                self.park();
            }
        }
        self.turn();
        self.flush_now();
        self.publish();
    }

    /// One turn; false when there was nothing to do.
    pub(super) fn turn(&mut self) -> bool {
        self.now = self.clock.now();
        self.stats.turns += 1;
        if self.clock.is_stopped() != self.clock_stopped {
            self.clock_stopped = !self.clock_stopped;
            self.inputs.push_back(Input::ClockStopped(self.clock_stopped));
        }
        let mut worked = self.plane.enter();
        let (ready, more) = (self.plane.ready(), self.input_horizon.reaps() && self.plane.has_more());
        self.input_horizon.entered(self.now.mono, SubmitResult { ready, more, connections: self.conns.open_count() });
        while let Some(sent) = self.plane.next_sent() {
            self.sent(sent);
        }
        self.drive();
        let mut handled = 0;
        while handled < self.completions_max
            && let Some(completion) = self.plane.next()
        {
            worked = true;
            handled += 1;
            self.unpublished |= !matches!(completion, Completion::Woken);
            self.complete(completion);
            self.drive();
        }
        // Some completions belong to no connection: when none is left, all were handled.
        let handled = if self.plane.has_ready() { handled } else { usize::MAX };
        self.input_horizon.handled(handled, self.starved.len(), self.lines.in_line());
        let first = self.serve_first();
        let mut told = self.read_controls();
        told |= self.read_lanes();
        told |= self.read_store();
        told |= self.read_peers();
        told |= self.read_upstreams();
        told |= self.run_timers();
        told |= self.hibernate();
        self.hand_over_senders();
        let starved = self.starved.len();
        self.feed_starved();
        self.feed_unasked();
        self.input_horizon.fed_starved(starved - self.starved.len());
        self.unpublished |= told | first;
        let busy = told | first | self.plane.has_ready();
        worked |= self.serve_last(busy) | busy;
        self.tell_lateness();
        self.flush();
        self.steer_accepting();
        if self.unpublished && self.now.mono.since(self.published) >= PUBLISH_EVERY {
            self.publish();
        }
        // Frames are left when sessions must be thawed for them in the next turns.
        let has_late_frames = self.hibernator.as_ref().is_some_and(Hibernator::has_late_frames);
        worked || self.plane.has_ready() || has_late_frames
    }

    fn complete(&mut self, completion: Completion) {
        match completion {
            Completion::Accepted { listener, ring, result } => self.accepted(listener, ring, result),
            Completion::Readable(done) => self.readable(done),
            Completion::Writable(done) => self.writable(done),
            Completion::Received { done, span, result } => self.received(done, span, result),
            Completion::Peer { done, span, result } => self.peer_told(done, span, result),
            Completion::ShutDown { done, result } => self.shut_down(done, result),
            Completion::Closed { done, result } => self.closed(done, result),
            Completion::Moved { done, result } => self.moved(done, result),
            Completion::Arrived { claim, tls, ring, result } => self.arrived(claim, tls, ring, result),
            Completion::Dealt { kind, ring, result } => self.dealt(kind, ring, result),
            Completion::HandedOver { from, ring, result } => self.handed_over(from, ring, result),
            Completion::TakenOut { done, socket } => self.taken_out(done, socket),
            Completion::Woken => {}
        }
    }

    /// Tells the machine everything that happened, one input at a time, each with its effects carried out
    /// before the next.
    pub(super) fn drive(&mut self) {
        while let Some(input) = self.inputs.pop_front() {
            if is_request(&input) {
                self.parking.requested(self.now.mono);
            }
            self.effects.reserve(limits::EFFECTS_PER_INPUT_MAX);
            self.machine.step(self.now, input, &mut self.effects);
            while let Some(effect) = self.effects.pop_front() {
                self.carry_out(effect);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Ready(conn) => self.ready(conn),
            Effect::Emit(conn, event) => self.emit(conn, &event),
            Effect::Close(conn, reason) => {
                if let Some(entry) = self.conns.get_mut(conn) {
                    entry.flags.clear(Flags::KNOWN);
                }
                self.lingering_close(conn, reason);
            }
            Effect::Move { conn, to, claim, hello } => self.depart(conn, SocketMove::Claimed { to, claim, hello }),
            Effect::Feed(conn, carried) => self.feed(conn, carried),
            Effect::Mail(to, mail) => self.post(to, mail),
            Effect::Store(ticket, op) => self.store.submit(ticket, op),
            Effect::Peer(ticket, op) => self.peers.submit(ticket, op),
            Effect::Upstream(ticket, op) => self.upstreams.submit(ticket, op),
            Effect::LedgerAppend(slot, message) => self.ledger.append(slot, &message),
            Effect::LedgerDead(slot) => self.ledger.dead(slot),
            Effect::ClockFloor(clock) => self.ledger.clock_floor(clock),
            Effect::Wake(data) => (self.wake)(data),
            Effect::Drained => self.control.say_drained(),
        }
    }

    /// Puts a mail into its lane and wakes a parked receiver with the next submission.
    pub(super) fn post(&mut self, to: ShardId, mail: Mail) {
        if self.mailbox.send(to, mail)
            && let Some(hub) = self.mailbox.hub_of(to)
        {
            self.plane.bell(hub);
        }
    }

    /// The machine is done with the last command of this connection.
    pub(super) fn ready(&mut self, conn: ConnId) {
        let since = self.now_ms();
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.flags.clear(Flags::BUSY);
        // A control frame between the fragments of a message does not prolong it. A probe ends no silence.
        if !entry.flags.has(Flags::PARTIAL) && entry.state != State::Frozen {
            entry.since = since;
        }
        if entry.state == State::Open {
            self.resume(conn);
        }
    }

    /// Writes an event on a connection.
    pub(super) fn emit(&mut self, conn: ConnId, event: &Event) {
        if !self.keep_from_peer(conn, event) && !self.probe(conn, event) {
            self.write_event(conn, event);
        }
    }

    /// Writes an event, also on a frozen connection.
    pub(super) fn write_event(&mut self, conn: ConnId, event: &Event) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if !matches!(entry.state, State::Open | State::Apart | State::Frozen) {
            return;
        }
        if !self.may_emit(conn, event) {
            return;
        }
        if event.is_refusal() {
            self.conns.set_standing(conn, Standing::Refused);
        }
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let emission = event.emission();
        if let Some(emission) = emission
            && entry.flags.has(Flags::BLOCKED)
        {
            // Emitted before the machine heard that the socket is blocked.
            self.stats.unsent_notifications += 1;
            self.inputs.push_back(Input::Unsent { conn, emission });
            return;
        }
        let Some(codec) = entry.codec.as_mut() else { return };
        let out = &mut self.buffer_pool.entry(&mut entry.buffers, entry.port).out;
        let emitted = self.edge.emit(self.now, codec, event, out.tail());
        out.end_frame(emission);
        if emitted == crate::ports::Emitted::Last {
            entry.flags.set(Flags::LAST);
        }
        let waiting = out.len();
        self.mark_dirty(conn);
        if waiting > super::send::OUTBOX_BYTES_MAX {
            self.flush_now();
        }
    }

    fn read_controls(&mut self) -> bool {
        for at in 0..CONTROLS_PER_TURN {
            match self.control.receive() {
                None => return at > 0,
                Some(ControlMessage::Drain { rate }) => {
                    self.accepting.end();
                    self.inputs.push_back(Input::Drain { rate });
                    if let Some(hibernator) = &mut self.hibernator {
                        hibernator.begin_drain();
                    }
                }
                Some(ControlMessage::Broadcasts(values)) => {
                    self.inputs.push_back(Input::Broadcasts(values));
                    if let Some(hibernator) = &mut self.hibernator {
                        hibernator.know_broadcasts(self.now.mono);
                    }
                }
                Some(ControlMessage::ReadStorage) => self.inputs.push_back(Input::ReadStorage),
                // It may replace keys.
                Some(ControlMessage::Edge(change)) => wipe::freed(|| change(&mut self.edge)),
                Some(ControlMessage::Hibernate) => {
                    self.accepting.end();
                    let now = self.now.mono;
                    if !self.hibernator.as_mut().is_some_and(|hibernator| hibernator.end(now)) {
                        self.control.say_hibernated();
                    }
                }
                Some(ControlMessage::Stop) => self.stopping = true,
            }
            self.drive();
        }
        true
    }

    fn read_lanes(&mut self) -> bool {
        let mut worked = false;
        for lane in Lane::ALL {
            for _ in 0..MAILS_PER_LANE_AND_TURN {
                let Some(mail) = self.mailbox.receive(lane) else { break };
                worked = true;
                self.inputs.push_back(Input::Mail(mail));
                self.drive();
            }
        }
        worked
    }

    fn read_store(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..REPLIES_PER_TURN {
            let Some((ticket, result)) = self.collected.take().or_else(|| self.store.collect()) else { break };
            worked = true;
            self.inputs.push_back(Input::Stored { ticket, result });
            self.drive();
        }
        worked
    }

    fn read_peers(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..REPLIES_PER_TURN {
            let Some((ticket, reply)) = self.heard.take().or_else(|| self.peers.collect()) else { break };
            worked = true;
            self.inputs.push_back(Input::Peer { ticket, reply });
            self.drive();
        }
        worked
    }

    fn read_upstreams(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..REPLIES_PER_TURN {
            let Some((ticket, reply)) = self.answered.take().or_else(|| self.upstreams.collect()) else { break };
            worked = true;
            self.inputs.push_back(Input::Upstream { ticket, reply });
            self.drive();
        }
        worked
    }

    fn run_timers(&mut self) -> bool {
        let mut worked = false;
        if self.machine.next_timeout().is_some_and(|at| at <= self.now.mono) {
            worked = true;
            self.inputs.extend(self.input_horizon.news().map(|until| Input::HorizonAdvanced { until, late: false }));
            // Pings that wait for thaws have not been sent: their time for the Pong begins later.
            let now = self.now.mono;
            let late = self.hibernator.as_mut().and_then(|hibernator| hibernator.late_since(now));
            self.inputs.extend(late.map(|until| Input::HorizonAdvanced { until, late: true }));
            self.inputs.push_back(Input::Timeout);
            self.drive();
        }
        worked |= self.end_overdue_closes();
        worked |= self.end_idle_http();
        worked |= self.end_stuck_websockets();
        if worked {
            self.drive();
        }
        worked
    }

    /// The lines had their turn: tells the machine of the input horizon if the shard was late.
    fn tell_lateness(&mut self) {
        if let Some(until) = self.input_horizon.served(self.now.mono) {
            self.inputs.push_back(Input::HorizonAdvanced { until, late: true });
            self.drive();
        }
    }
}
