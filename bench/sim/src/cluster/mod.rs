//! Several nodes on one store: the real machines of each node, calls between them over a network that fails, and one
//! [`Model`](machine::model::Model) under all of them.
//!
//! The clients of the calls between nodes are those of the server (`machine::peers`). The other surroundings of the
//! machine are here in their plainest form: `wire` is the network, `debts` carries out what clients decide, `link` is
//! each node's way to the store, `nodes` starts and stops as `server`, `keeper` renews leases, declares silent boots
//! over and asks about clocks. `phones` and `service` are the users of mobile bridges and what carries their
//! notifications, and `bridged` has the promises to them. Sockets never refuse a frame, and there is no relay: worlds
//! of one node have those. Read in this order: `plan`, `world`, `oracle`.

mod agents;
mod phones;
mod service;
mod bridged;
mod quiesce;
mod debts;
mod effects;
mod keeper;
mod link;
mod nodes;
mod oracle;
mod parts;
mod plan;
mod app_servers;
mod sabotage;
mod sock;
mod wire;
mod world;

pub(crate) use parts::Breakage;
pub(crate) use world::Cluster;
