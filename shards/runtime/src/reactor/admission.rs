//! Admission: the one place at which users and channels are let in, whatever their callers speak.
//!
//! A command reaches the machine only as [`Admitted`], which [`Reactor::admit_command`] alone makes. What a command
//! creates, it says itself ([`Command::creates`]); so do the events, because only the owner shard knows that a user is
//! new. Each is charged to the address of its caller (`crate::strangers`): `strangers.new_users` and
//! `strangers.registers`. A relay takes a place that its shard has few of. Rules about callers (`access.*`) are read by
//! the edge, before there is a command.

use crate::ports::Edge;
use crate::strangers::{Limit, Stranger};
use machine::ids::ConnId;
use machine::time::TimeSpan;
use machine::{CloseReason, Command, Creates, Event, Input, RegistrationAnswer};

use super::{Machine, Reactor};

/// A command that the machine may carry out. Made by [`Reactor::admit_command`] alone.
pub(super) struct Admitted(Command);

/// Refusal of a command whose caller may create nothing more now.
pub(super) enum Refusal {
    /// The connection ends for this reason.
    Close(CloseReason),
    /// The connection goes on after this answer.
    Answer(Event),
}

/// Returns the limits of which something that is created takes one each.
fn limits_of(creates: Creates) -> &'static [Limit] {
    match creates {
        Creates::Nothing | Creates::Relay => &[],
        Creates::Channel => &[Limit::Registers],
        Creates::User => &[Limit::NewUsers],
        Creates::UserWithChannel => &[Limit::NewUsers, Limit::Registers],
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Admits a command, if the address of its caller may create what the command creates.
    pub(super) fn admit_command(&mut self, conn: ConnId, mut command: Command) -> Result<Admitted, Refusal> {
        let creates = command.creates();
        if creates == Creates::Nothing {
            return Ok(Admitted(command));
        }
        // A session was counted for the address that its upgrade named; a request names its own.
        let is_request = matches!(command, Command::Registration(_));
        let named = if is_request { self.edge.forwarded() } else { None };
        let stranger = self.stranger(conn, named);
        // The store charges what is kept for the user to it.
        if let Some(address) = stranger.and_then(Stranger::address) {
            command.set_caller(address);
        }
        if creates == Creates::Relay && !self.take_relay(conn, stranger) {
            return Err(Refusal::Close(CloseReason::AddressLimit));
        }
        match self.take_of(stranger, limits_of(creates)) {
            Ok(()) => Ok(Admitted(command)),
            Err(wait) if is_request => Err(Refusal::Answer(too_many(wait))),
            Err(_) => Err(Refusal::Close(CloseReason::AddressLimit)),
        }
    }

    /// Hands a command to the machine.
    pub(super) fn submit_command(&mut self, conn: ConnId, Admitted(command): Admitted) {
        self.inputs.push_back(Input::Command { conn, command });
    }

    /// Hands a command of the reactor itself to the machine.
    pub(super) fn command(&mut self, conn: ConnId, command: impl Into<Command>) {
        let command = command.into();
        // Invariant: the reactor makes hellos and pongs, and registers nothing.
        assert!(command.creates() == Creates::Nothing, "what is created is admitted");
        self.submit_command(conn, Admitted(command));
    }

    /// Returns false, and ends the connection, if this event gives a UAID to a caller beyond its limit. Such a user is
    /// stored with its first register, so nothing is left of it.
    pub(super) fn may_emit(&mut self, conn: ConnId, event: &Event) -> bool {
        let creates = event.creates();
        if creates == Creates::Nothing || self.take_of(self.stranger(conn, None), limits_of(creates)).is_ok() {
            return true;
        }
        self.forget(conn, CloseReason::AddressLimit);
        self.lingering_close(conn, CloseReason::AddressLimit);
        false
    }
}

fn too_many(wait: TimeSpan) -> Event {
    RegistrationAnswer::TooMany { retry_after: wait.seconds_ceil() }.into()
}
