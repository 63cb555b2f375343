//! The number of nodes: one where one can hold the sessions, else several that share them.

use config::{MAX_CONNECTIONS_MAX, SHARDS_MAX};

use super::memory::mib;
use super::{Basis, Mix, cpu, memory};

/// Nodes and the part of the load that one of them takes.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Nodes of one cluster.
    pub nodes: u64,
    /// The load of one node.
    pub each: Mix,
    /// The bounds that one node would not keep, in sentences.
    pub why: Vec<String>,
}

/// The most nodes that are planned: the calls between more are not bounded (docs/LIMITS.md, `NODES_MAX`).
pub(super) const NODES_MAX: u64 = 256;

impl Plan {
    /// The fewest nodes of which each keeps every bound.
    ///
    /// # Errors
    /// A sentence, when not even [`NODES_MAX`] nodes do.
    pub fn new(basis: &Basis<'_>, mix: &Mix) -> Result<Plan, String> {
        let broken = |nodes: u64| broken(basis, &mix.part(nodes));
        let why = broken(1);
        let fewest = (1..=NODES_MAX).find(|nodes| broken(*nodes).is_empty());
        match fewest {
            Some(nodes) => Ok(Plan { nodes, each: mix.part(nodes), why }),
            None => Err(format!(
                "cannot plan {} sessions: each of {NODES_MAX} nodes {}; give larger hosts",
                mix.sessions,
                self::broken(basis, &mix.part(NODES_MAX)).join(", and "),
            )),
        }
    }

    /// Prints it.
    pub fn show(&self, sessions: u64) {
        let max_connections = self.each.max_connections();
        if self.nodes == 1 {
            println!("one node with --max-connections {max_connections} holds {sessions} sessions");
            return;
        }
        println!(
            "{} nodes with --max-connections {max_connections} hold {sessions} sessions, {} each",
            self.nodes, self.each.sessions
        );
        for why in &self.why {
            println!("  One node {why}.");
        }
        println!(
            "  They share a database (store.kind = scylla), whose cost and whose calls are not in the figures below. When one \
             node fails, its sessions go to the others: {} nodes hold them all then.",
            self.nodes + 1
        );
        println!("  What follows is for one of these nodes.");
    }
}

/// The bounds that a node with this load would not keep, each continuing "one node".
fn broken(basis: &Basis<'_>, each: &Mix) -> Vec<String> {
    let mut broken = Vec::new();
    if each.max_connections() > u64::from(MAX_CONNECTIONS_MAX) {
        broken.push(format!(
            "would need --max-connections {}, and the server takes {MAX_CONNECTIONS_MAX} at most",
            each.max_connections()
        ));
    } else if each.max_connections() < each.sessions {
        broken.push(format!("with --max-connections {} cannot hold {}", each.max_connections(), each.sessions));
    }
    let cores = cpu::Prediction::new(basis, each).cores_wanted(each);
    let (given, from) = match each.cores {
        0 => (u64::from(SHARDS_MAX), "the server has no more than 256 shards"),
        given => (given, "--cores says how many a host has"),
    };
    if cores > given as f64 {
        broken.push(format!("would need {cores:.1} cores, and {from}"));
    }
    if let Some(gib) = each.memory {
        let bytes = memory::Prediction::best(basis, each).0.host_bytes();
        if bytes > gib * f64::from(1 << 30) {
            broken.push(format!("would need {} of memory, and --memory gives {gib} GiB", mib(bytes)));
        }
    }
    broken
}
