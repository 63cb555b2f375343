//! Bridged users: phones that register, app servers that POST, and a service (FCM or APNs) that fails in every way it
//! may, around the real machines of one node, or of two nodes on one store.
//!
//! The port to the service is here in its plainest form: `service` answers each call once, in any order, at any time
//! within its deadline. The guard of the server (`src/control_plane/bridges/guard.rs`) is an input that is on or off.
//! `storage` is each node's way to the [`Model`](machine::model::Model). No user has a WebSocket: the other worlds have
//! those. Read in this order: `plan`, `world`, `oracle`.

mod clients;
mod effects;
mod nodes;
mod oracle;
mod parts;
mod plan;
mod quiesce;
mod sabotage;
mod service;
mod storage;
mod world;

pub(crate) use parts::BrokenRule;
pub(crate) use world::Bridges;
