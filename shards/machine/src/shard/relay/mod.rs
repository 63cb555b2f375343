//! Relay sessions: one connection that speaks for several user agents (PROTOCOL.md 13).
//!
//! The socket of a relay stays on the shard where it was opened, its *home*. Whom it speaks for are its *members*. The
//! session of a member lives with the owner of its UAID as any session does, on a *seat*: a connection by name only.
//! [`home`] is what is done where the socket is, to relays and members as in [`table`], [`pings`] of the connection
//! beside it; [`owner`] is what is done for seats, of which [`super::components::conns`] has the table.
//!
//! Home and owner talk by mail under reply credit, also when they are one shard: then without the mail. The
//! words are in [`super::member`]. A `MemberRequest` causes `MemberEvent`s and its reply, a `MemberEvent` causes its
//! reply only.
//!
//! **A notification that the socket refuses.** The home refuses everything of that member's *round* from there on,
//! also what is still on its way, so nothing overtakes what was refused. It counts how often its socket took bytes
//! again and tells every owner it refused; a refusal carries the count at the first of its round. The owner begins
//! its next round when it has heard of a greater count and each notification it sent is answered: then it knows all
//! that was refused, and sends it in order.

mod home;
mod owner;
mod pings;
pub(super) mod table;
