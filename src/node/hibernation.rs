//! Hibernation of a node: its gate, and the part of each shard. A host that cannot freeze runs without.

use hibernate::{Gate, Unfit, self_test};
use machine::time::TimeSpan;
use shards::ports::{Hibernation, Port};
use shards::ring;

use super::listeners::Address;
use crate::config::{self, Config};

/// The gate of a node. Dropped when its shards have ended.
pub(super) struct NodeGate {
    _gate: Option<Gate>,
}

/// Opens the gate of the ports of user agents, if `hibernate.after` is set and connections can be frozen here. Returns
/// what each shard needs, in shard order; nothing where hibernation is off.
pub(super) fn open(config: &Config, addresses: &[Address], shards: u16) -> (NodeGate, Vec<Hibernation>) {
    let config::Hibernate { after, queue } = config.hibernate;
    let Some(after) = after else { return (NodeGate { _gate: None }, Vec::new()) };
    let mut ports: Vec<u16> = addresses
        .iter()
        .filter(|address| matches!(address.port, Port::WebSocket | Port::Public))
        .map(|address| address.address.port())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    match open_gate(&ports, queue, shards) {
        Ok((gate, gates)) => {
            tracing::info!(after_seconds = after.as_secs(), queue, ?ports, "hibernation on");
            let after = TimeSpan(after.as_nanos() as u64);
            let shards = gates.into_iter().map(|gate| Hibernation { after, gate });
            (NodeGate { _gate: Some(gate) }, shards.collect())
        }
        Err(reason) => {
            tracing::warn!(reason, "hibernation off; idle connections stay in the kernel");
            (NodeGate { _gate: None }, Vec::new())
        }
    }
}

fn open_gate(ports: &[u16], queue: u16, shards: u16) -> Result<(Gate, Vec<hibernate::ShardGate>), String> {
    try_here(queue).map_err(|unfit| unfit.to_string())?;
    Gate::open(ports, queue, shards).map_err(|error| format!("the packet rules cannot be installed: {error}"))
}

/// Freezes and thaws a connection of its own.
///
/// # Errors
/// [`Unfit`]: this host or this process cannot.
pub fn try_here(queue: u16) -> Result<(), Unfit> {
    match ring::takes_sockets_out() {
        Ok(true) => self_test(queue),
        Ok(false) => Err(Unfit::Kernel("io_uring cannot take sockets out (Linux 6.8)")),
        Err(_) => Err(Unfit::Kernel("io_uring is not there")),
    }
}
