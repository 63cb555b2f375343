//! Changes of message rows.

use machine::ids::Clock;
use machine::message::Message;

use super::super::client::StatementContext;
use super::super::rows::{self, RowLocation, micros};
use super::super::statements::Change;

/// Writes a message to this place, at its clock.
pub(in super::super) fn write(context: &StatementContext<'_>, message: &Message, place: RowLocation) -> Change {
    let ttl = context.client.ttl(message.expires());
    Change::MessagePut { place, value: rows::value(message), at: micros(message.stamp.clock), ttl }
}

/// Says that there are saved rows, for as long as any message may live: no row of it outlives this one.
pub(in super::super) fn late(context: &StatementContext<'_>) -> Change {
    let at = micros(Clock(context.process_clock()));
    Change::MessagePut { place: RowLocation::late(), value: Vec::new(), at, ttl: super::users::USER_TTL }
}

/// Deletes exactly the version with this clock.
pub(super) fn delete(place: RowLocation, clock: Clock) -> Change {
    Change::MessageDelete { place, at: micros(clock) }
}
