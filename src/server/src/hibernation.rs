//! Hibernation of a node: its gate, the records of an earlier process, and the part of each shard. A host that cannot
//! freeze runs without.

mod left;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hibernate::{Gate, Ports, Prober, Record, RecordDir, Unfit, self_test};
use machine::placement::Placement;
use machine::stats::Board;
use machine::time::TimeSpan;
use ring::digest::{SHA256, digest};
use runtime::ledger;
use runtime::ports::{Hibernation, Port, Probes, Records};
use runtime::ring as rings;
use runtime::session_record;
use runtime::thread::{self, ShardSetup, Shards, ShardsHandle};

use super::data_dir::{DataDir, PlacementKey};
use super::error::NodeError;
use super::fence;
use super::ledgers::no_ledger;
use super::plan::Plan;
use config::Config;
use control_plane::{Address, ControlPlaneBuilder, Signal};
use edge::PushEdge;
pub(super) use left::Found;
pub use left::{Note, tables_in_the_way, waits};

/// The gate of a node, and the directory of its records. Dropped when its shards have ended.
#[derive(Default)]
pub(super) struct NodeGate {
    gate: Option<Gate>,
    records: Option<RecordDir>,
    /// Data directory in which is written down what the process may leave.
    noted_in: Option<PathBuf>,
    /// Reason why hibernation is off although it is configured.
    off: Option<String>,
}

impl NodeGate {
    /// Every shard has the records of the earlier process in files of its own: the old ones must go before any of them
    /// seals a byte, because keys in a record must not be used again.
    ///
    /// # Errors
    /// Those of the file system, in a sentence.
    pub fn taken_over(&self) -> io::Result<()> {
        let Some(records) = &self.records else { return Ok(()) };
        let sentence = |error| format!("records of an earlier process stay in hibernate.dir ({error}): remove them");
        records.remove_earlier().map_err(|error| io::Error::other(sentence(error)))
    }

    /// Reason why hibernation is off although it is configured: a condition of the node shows it.
    pub fn off(&self) -> Option<&str> {
        self.off.as_deref()
    }

    /// Returns true if frozen sessions outlive this process.
    pub fn outlives(&self) -> bool {
        self.records.is_some()
    }

    /// Ends hibernation with the process: nothing is left to a next one.
    pub fn close(self) {
        if let Some(gate) = self.gate {
            gate.remove_rules();
        }
        if let Some(Err(error)) = self.records.map(|records| records.remove_all()) {
            tracing::warn!(%error, "records left behind in hibernate.dir; remove them");
        }
        if let Some(data) = self.noted_in {
            Note::remove(&data);
        }
    }
}

/// The shards of a node, and the gate that goes after them.
pub(super) struct HibernatingShards {
    pub shards: Shards<PushEdge>,
    pub gate: NodeGate,
    /// State of the fence of rings ([`fence::close`]).
    pub fence: String,
}

impl HibernatingShards {
    pub fn handle(&self) -> ShardsHandle<PushEdge> {
        self.shards.handle()
    }

    pub fn boards(&self) -> &[Arc<Board>] {
        self.shards.boards()
    }
}

/// Finds what an earlier process has left. Before anything listens: new connections would wait as long.
///
/// # Errors
/// As [`Found::look`]; [`NodeError::Stopped`] if a signal ends the wait for another process.
pub(super) fn look(
    config: &Config,
    data: &DataDir,
    PlacementKey(key): PlacementKey,
    builder: &mut ControlPlaneBuilder,
) -> Result<Found, NodeError> {
    let stopped = || {
        let left = ledger::replay(&data.ledger()).map_err(no_ledger)?;
        Err(NodeError::Stopped { messages: left.messages.len() })
    };
    Found::look(config, data, owner(key), |pause| match builder.signal_within(pause) {
        Some(Signal::Stop) => stopped(),
        _ => Ok(()),
    })
}

/// Starts the shards, and lets them hibernate where that is possible. What `found` has and these shards do not take
/// over is undone. Closes the fence of rings before any shard begins.
///
/// # Errors
/// [`NodeError::Shards`].
pub(super) fn start(
    plan: &Plan<'_>,
    addresses: &[Address],
    found: Found,
    setups: Vec<ShardSetup<PushEdge>>,
    is_process: bool,
) -> Result<HibernatingShards, NodeError> {
    let (gate, hibernations) = open(plan.config, plan.edge.placement, addresses, found);
    let mut hibernations = hibernations.into_iter();
    let equip = |setup| ShardSetup { hibernation: hibernations.next(), ..setup };
    let setups = setups.into_iter().map(equip).collect();
    let mut fence = String::new();
    let ready = |around| -> io::Result<()> {
        gate.taken_over()?;
        fence = fence::close(around, is_process);
        Ok(())
    };
    let shards = thread::start(setups, ready).map_err(|error| NodeError::Shards(error.to_string()))?;
    Ok(HibernatingShards { shards, gate, fence })
}

/// Opens the gate of the ports of user agents, if `hibernate.after` is set and connections can be frozen here. Returns
/// what each shard needs, in shard order; nothing where hibernation is off.
fn open(
    config: &Config,
    placement: Placement,
    addresses: &[Address],
    mut found: Found,
) -> (NodeGate, Vec<Hibernation>) {
    let config::Hibernate { after, queue, .. } = &config.hibernate;
    let opened = after.map(|after| {
        let ports = agent_ports(addresses);
        let opened = open_gate(&ports, *queue, placement, &mut found);
        opened.inspect(|(gate, _)| {
            let outlives = gate.outlives();
            tracing::info!(after_seconds = after.as_secs(), queue, ?ports, outlives, "hibernation on");
        })
    });
    let (gate, parts) = match opened {
        Some(Ok(opened)) => opened,
        Some(Err(reason)) => {
            tracing::warn!(reason, "hibernation off; idle connections stay in the kernel");
            (NodeGate { off: Some(reason), ..NodeGate::default() }, Vec::new())
        }
        None => Default::default(),
    };
    let ports: Vec<u16> = addresses.iter().map(|address| address.address.port()).collect();
    let adopts = gate.records.as_ref().map(RecordDir::path);
    let undone = found.undo(&ports, adopts);
    if let Some(sessions) = undone.filter(|_| adopts.is_none()) {
        tracing::warn!(sessions, "frozen sessions of an earlier process given up; their peers are reset");
    }
    let after = TimeSpan(after.unwrap_or_default().as_nanos() as u64);
    let with_probes = |(gate, records)| Hibernation { after, gate, records, probes: probes(config) };
    (gate, parts.into_iter().map(with_probes).collect())
}

/// Returns what a shard needs for probes, if they are switched on and possible.
fn probes(config: &Config) -> Option<Probes> {
    let ping_after = config.hibernate.ping_interval;
    if ping_after.is_zero() {
        return None;
    }
    let prober = Prober::open().inspect_err(|error| {
        tracing::warn!(%error, "probes off; every Ping thaws its session: give the process CAP_NET_RAW");
    });
    let span = |duration: Duration| TimeSpan(duration.as_nanos() as u64);
    // The Ping that follows has the rest of the time for its Pong.
    let answer_within = span(config.websocket.auto_ping_timeout / 3);
    Some(Probes { prober: prober.ok()?, ping_after: span(ping_after), answer_within })
}

type ShardPart = (hibernate::ShardGate, Option<Records>);

fn open_gate(
    ports: &[u16],
    queue: u16,
    placement: Placement,
    found: &mut Found,
) -> Result<(NodeGate, Vec<ShardPart>), String> {
    let unusable = |error: io::Error| format!("hibernate.dir cannot be used: {error}");
    if let Some(dir) = &found.held {
        let dir = dir.display();
        return Err(format!(
            "another process has had the frozen sessions in {dir} for 60 s: stop it, or set another hibernate.dir"
        ));
    }
    try_here().map_err(|unfit| unfit.to_string())?;
    let records = match found.open_own() {
        Some(records) => Some(records.map_err(unusable)?),
        None => None,
    };
    let shards = placement.shard_count();
    let of_shards = match &records {
        Some(dir) => take_over(dir, placement).map_err(unusable)?,
        None => (0..shards).map(|_| None).collect(),
    };
    if let Some(records) = &records {
        let noted = Note::new(queue, ports, records.path()).and_then(|note| note.write(&found.data));
        noted.map_err(|error| format!("data_dir does not take the note of hibernation: {error}"))?;
    }
    let opened = Gate::open(Ports::To(ports), queue, shards, records.is_some());
    let (gate, gates) = opened.map_err(|error| Unfit::of_gate(queue, error).to_string())?;
    let noted_in = records.is_some().then(|| found.data.clone());
    let gate = NodeGate { gate: Some(gate), records, noted_in, off: None };
    Ok((gate, gates.into_iter().zip(of_shards).collect()))
}

/// Reads the records of earlier processes, and gives each to the shard that owns its user.
fn take_over(dir: &RecordDir, placement: Placement) -> io::Result<Vec<Option<Records>>> {
    let mut earlier: Vec<Vec<Record>> = (0..placement.shard_count()).map(|_| Vec::new()).collect();
    let mut damaged = 0;
    let unusable = |path: &Path| {
        tracing::warn!(path = %path.display(), "records of another version or boot ignored; their peers are reset");
    };
    let each = |record: Record| match session_record::uaid(&record.session.0) {
        Some(uaid) => earlier[usize::from(placement.owner(uaid).0)].push(record),
        None => damaged += 1,
    };
    let unread = dir.read(each, unusable)?;
    damaged += unread;
    let sessions: usize = earlier.iter().map(Vec::len).sum();
    if damaged > 0 {
        tracing::warn!(damaged, "damaged records of frozen sessions skipped; their peers are reset");
    }
    if sessions > 0 {
        tracing::info!(sessions, "frozen sessions of an earlier process taken over");
    }
    let of_shard = |(shard, earlier)| {
        let files = dir.shard(shard).inspect_err(|error| {
            tracing::warn!(%error, shard, "records cannot be written to hibernate.dir; frozen sessions end with the process");
        });
        Some(Records { files: files.ok(), earlier })
    };
    Ok((0..).zip(earlier).map(of_shard).collect())
}

/// TCP ports of user agents.
fn agent_ports(addresses: &[Address]) -> Vec<u16> {
    let of_agents = addresses.iter().filter(|address| matches!(address.port, Port::WebSocket | Port::Public));
    let mut ports: Vec<u16> = of_agents.map(|address| address.address.port()).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Name of the data directory in the records, from which its key cannot be found.
fn owner(key: [u8; 16]) -> [u8; 16] {
    let text = [&b"murre frozen"[..], &key].concat();
    let mut owner = [0; 16];
    owner.copy_from_slice(&digest(&SHA256, &text).as_ref()[..16]);
    owner
}

/// Freezes and thaws a connection of its own.
///
/// # Errors
/// [`Unfit`]: this host or this process cannot.
pub fn try_here() -> Result<(), Unfit> {
    match rings::takes_sockets_out() {
        Ok(true) => self_test(),
        Ok(false) => Err(Unfit::Kernel("io_uring cannot take sockets out (Linux 6.8)")),
        Err(_) => Err(Unfit::Kernel("io_uring is not there")),
    }
}
