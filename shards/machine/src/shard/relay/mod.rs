//! Relay sessions: one connection that speaks for several user agents (PROTOCOL.md 13).
//!
//! The socket of a relay stays on the shard where it was opened, its *home*. The user agents that it speaks for are its
//! *members*. The session of a member lives with the owner of its UAID as any session does, on a *virtual connection*:
//! a connection by name only. [`home`] handles relays and members where the socket is, and [`pings`] the pings of the
//! connection; [`super::components::relays`] holds their state. [`owner`] handles virtual
//! connections, and [`carry`] brings what their sessions say to the home; [`super::components::conns`] has their table.
//!
//! Home and owner exchange mail under reply credit; when they are one shard, they call each other without mail.
//! [`super::member`] has the messages. A `MemberRequest` causes `MemberEvent`s and its reply, a `MemberEvent` causes
//! its reply only.
//!
//! **A notification that the socket refuses.** From that notification on, the home refuses everything of that member's
//! *round*, also what is still on its way, so nothing overtakes it. The home counts how often its socket took bytes
//! again and sends the count to every owner that it refused; a refusal carries the count at the first of its round. The
//! owner begins its next round when it has received a greater count and each notification that it sent is answered.
//! Then it knows all refused notifications, and sends them in order.

mod home;
mod pings;
mod owner;
mod carry;
