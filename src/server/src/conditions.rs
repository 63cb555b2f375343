//! The conditions of a node, one declaration each. Health pages, metrics, the page and the log show them all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use machine::stats::Board;
use runtime::process_clock::ProcessClock;
use store::nodes::{NodeTable, RENEW_INTERVAL};

use super::certificates::NodeTls;
use super::storage::Storage;
use control_plane::{Condition, Conditions, Trouble, Turns};

/// The parts of the node that the conditions are read from.
pub(super) struct Signs {
    pub draining: Arc<AtomicBool>,
    /// Board of the store; memory has none.
    pub store: Option<Arc<Board>>,
    pub tls: NodeTls,
    pub process_clock: Arc<ProcessClock>,
    /// The database, on a shared store.
    pub nodes: Option<Arc<dyn NodeTable>>,
    /// Board of the lease, if this node has one.
    pub lease: Option<Arc<Board>>,
    /// Reason why hibernation is off although it is configured.
    pub hibernation_off: Option<String>,
}

impl Signs {
    /// The signs of a node with this store. It is neither draining, nor has it a lease.
    pub fn new(storage: &Storage, tls: &NodeTls, process_clock: &Arc<ProcessClock>) -> Signs {
        Signs {
            draining: Arc::default(),
            store: storage.board(),
            tls: tls.clone(),
            process_clock: Arc::clone(process_clock),
            nodes: storage.nodes(),
            lease: None,
            hibernation_off: None,
        }
    }
}

/// Every condition of a node. The first of equals is named where there is room for one.
pub(super) fn of_node(signs: Signs) -> Conditions {
    let Signs { draining, store, tls, process_clock, nodes, lease, hibernation_off } = signs;
    let (store_of_circuit, lease_of_age) = (store.clone(), lease.clone());
    Conditions::new(vec![
        condition("drain", Turns::Balancer, move || {
            draining.load(Ordering::Relaxed).then(|| Trouble::new("the node was told to stop"))
        }),
        // Ended by the node itself. A node that does not end is restarted by what asks for its liveness.
        condition("lease", Turns::Liveness, move || {
            let lost = gauge(lease.as_ref(), "lease_lost") > 0;
            lost.then(|| Trouble::new("the table of nodes says that this boot is over"))
        }),
        condition("clock", Turns::Balancer, move || {
            process_clock.is_stopped().then(|| stopped_clock(nodes.as_ref().map_or(0, |nodes| nodes.clock_count())))
        }),
        // A restart heals neither a stalled disk nor a database that is away, and all nodes share the database.
        condition("store_circuit", Turns::Nothing, move || {
            let open = gauge(store_of_circuit.as_ref(), "store_circuit_open") > 0;
            open.then(|| Trouble::new("storage takes nothing"))
        }),
        // Connected users are served, and no other node has room in this store.
        condition("store_room", Turns::Nothing, move || {
            let sentence = match gauge(store.as_ref(), "store_room") {
                0 => return None,
                1 => "the store is full: messages are refused",
                2 => "the store is full: messages and registers are refused",
                3 => "the store is full: only deletes are taken",
                _ => "the disk is full: nothing is written",
            };
            Some(Trouble::new(sentence))
        }),
        // Until others may find this boot gone, only its silence is known, and the database may be away for all nodes.
        condition("lease_age", Turns::Nothing, move || {
            let age = gauge(lease_of_age.as_ref(), "lease_age_seconds");
            let late = age > LEASES_MISSED_MAX * RENEW_INTERVAL.as_secs();
            late.then(|| Trouble::new(format!("the lease of this node was last renewed {age} s ago")))
        }),
        // All nodes have certificates of the same names, and those without TLS serve on.
        condition("certificate", Turns::Nothing, move || tls.trouble(SystemTime::now()).map(Trouble::new)),
        // Sessions go on without it.
        condition("hibernation", Turns::Nothing, move || {
            let off = hibernation_off.as_ref()?;
            Some(Trouble::new(format!("hibernation is off: {off}")))
        }),
    ])
}

fn condition(
    name: &'static str,
    turns: Turns,
    check: impl Fn() -> Option<Trouble> + Send + Sync + 'static,
) -> Condition {
    Condition { name, turns, check: Box::new(check) }
}

/// A gauge of this board; 0 without one.
fn gauge(board: Option<&Arc<Board>>, name: &str) -> u64 {
    let read = |board: &Arc<Board>| board.read().find(|(meaning, _)| meaning.name == name).map(|(_, value)| value);
    board.and_then(read).unwrap_or(0)
}

/// Trouble of a node that stamps nothing. The median of few clocks may be wrong as well as that of the node, and then
/// every node of the cluster has stopped.
fn stopped_clock(clocks: usize) -> Trouble {
    let sentence = "the time of this node is too far from the clocks of the database; messages are refused";
    if clocks >= CLOCKS_MIN { Trouble::new(sentence) } else { Trouble::shared(sentence) }
}

/// Clocks of the database, of which most are right if one is wrong.
const CLOCKS_MIN: usize = 3;
/// Renewals of the lease that may fail in a row without a trouble.
const LEASES_MISSED_MAX: u64 = 3;
