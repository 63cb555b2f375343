//! Components of the state machine: each owns private state that only its own file can reach.
//!
//! No file here knows [`super::ShardMachine`] (`walls` in `bench/tidy/src/rust.rs` refuses it). A component
//! gets what it needs as arguments: the time, values of the configuration, ids, the parts of a session that are its
//! own, and what the composer has read from its siblings. It answers with values or with a closed enum of actions, and
//! the composer carries them out. Counters are an output like effects: a component only adds to them.

pub(super) mod active_session;
pub(super) mod active_sessions;
pub(super) mod broadcasts;
pub(super) mod conns;
pub(super) mod dead_endpoints;
pub(super) mod dropped_users;
pub(super) mod pending_saves;
pub(super) mod pending_hellos;
pub(super) mod hello_timer;
pub(super) mod keepalive;
pub(super) mod ledger_room;
pub(super) mod queue;
pub(super) mod rate_limits;
pub(super) mod receipts;
pub(super) mod refresh;
pub(super) mod registering;
pub(super) mod relays;
pub(super) mod requests;
pub(super) mod row_memory;
pub(super) mod session;
pub(super) mod settling;
pub(super) mod shutdown;
pub(super) mod simplepush;
pub(super) mod storage_room;
pub(super) mod backlog_state;
pub(super) mod storage_round;
pub(super) mod sweep;
pub(super) mod tickets;
pub(super) mod upstream_calls;
pub(super) mod user_index;
pub(super) mod window;
pub(super) mod writes;
