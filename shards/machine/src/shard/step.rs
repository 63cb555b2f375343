//! One step: the input goes to the file of its subject, and its consequences follow in one order.

use crate::ids::ConnId;
use crate::limits;
use crate::time::Now;

use super::command::Command;
use super::composer::{ShardMachine, StepContext};
use super::input::{EffectQueue, Input};
use super::mail::Mail;

impl ShardMachine {
    /// Applies one input at `now`. Appends at most `limits::EFFECTS_PER_INPUT_MAX` effects.
    pub fn step(&mut self, now: Now, input: Input, effects: &mut EffectQueue) {
        let before = effects.len();
        let cx = &mut StepContext { now, effects, before };
        match input {
            Input::Opened { conn } => self.opened(cx, conn),
            Input::Command { conn, command } => self.command(cx, conn, command),
            Input::Frame { conn } => self.frame(cx, conn),
            Input::Gone { conn, reason: _ } => self.gone(cx, conn),
            Input::Blocked { conn } => self.blocked(conn),
            Input::Unsent { conn, emission } => self.unsent(cx, conn, emission),
            Input::Writable { conn } => self.writable(cx, conn),
            Input::Mail(mail) => self.mail(cx, mail),
            Input::Arrived { conn, claim } => self.descriptor_arrived(cx, conn, claim),
            Input::MoveFailed { conn, to, claim } => self.move_failed(cx, conn, to, claim),
            Input::Stored { ticket, result } => self.stored(cx, ticket, result),
            Input::Peer { ticket, reply } => self.peer_replied(cx, ticket, reply),
            Input::Upstream { ticket, reply } => self.upstream_replied(cx, ticket, reply),
            Input::Timeout => self.timeout(cx),
            Input::HorizonAdvanced { until, late } => self.horizon_advanced(cx, until, late),
            Input::ClockStopped(stopped) => self.clock.stop(stopped),
            Input::Broadcasts(values) => self.set_broadcasts(cx, &values),
            Input::ReadStorage => self.begin_storage_round(cx),
            Input::Drain { rate } => self.begin_drain(cx, rate),
        }
        self.submit_settles(cx);
        self.say_receipts(cx);
        self.carry_to_relays(cx);
        self.say_drained(cx);
        assert!(effects.len() - before <= limits::EFFECTS_PER_INPUT_MAX, "a step keeps within its effects");
    }

    fn timeout(&mut self, cx: &mut StepContext<'_>) {
        self.hello_timeouts(cx);
        self.greeting_timeouts(cx);
        // Ended relays come first: events for their members from here on would be lost and count as delivered.
        self.relay_turn(cx);
        self.active_timeouts(cx);
        self.spread_broadcasts(cx);
        // Clocks first: those whose Pong came in time are removed before the next Pings go out.
        self.pong_timeouts(cx);
        self.sweep_sessions(cx);
        self.storage_round_turn(cx);
        self.receipt_timeouts(cx);
        self.submit_deferred(cx);
        self.drain_turn(cx);
    }

    /// Passes a command to the files of its speaker.
    fn command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, command: Command) {
        match command {
            Command::Agent(command) => self.agent_command(cx, conn, command),
            Command::Relay(command) => self.relay_command(cx, conn, command),
            Command::Sender(command) => self.sender_command(cx, conn, command),
            Command::Registration(command) => self.registration_command(cx, conn, command),
            Command::Node(command) => self.node_command(cx, conn, command),
        }
    }

    /// Passes mail of another shard to the files of its kind.
    fn mail(&mut self, cx: &mut StepContext<'_>, mail: Mail) {
        match mail {
            Mail::Request { from, id, request } => self.work_on(cx, (from, id), request),
            Mail::Reply { id, reply } => self.replied(cx, id, reply),
            Mail::Arrive(arrival) => self.mail_arrived(cx, *arrival),
            Mail::Stayed(claim) => self.stayed(cx, claim),
        }
    }
}
