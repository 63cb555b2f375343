//! The Prometheus text of everything on the boards, and of the process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use shards::stats::{Board, Kind, Meaning};

use super::Exhibits;
use super::peers::{Showcase, Shown, Standing};
use super::process::Process;
use crate::store::latencies::{BOUNDS_US, Latencies};

/// Every number of the shards, the store and the island, as the metrics `murre_*`.
pub(super) fn registry(exhibits: Arc<Exhibits>, island: Vec<Arc<Board>>, nodes: Option<Arc<Showcase>>) -> Registry {
    let mut registry = Registry::with_prefix("murre");
    registry.register_collector(Box::new(Boards { exhibits, island }));
    registry.register_collector(Box::new(Nodes(nodes)));
    registry.register_collector(Box::new(ProcessGauges));
    registry
}

struct Boards {
    exhibits: Arc<Exhibits>,
    island: Vec<Arc<Board>>,
}

/// Shard and value.
type Lines = Vec<(usize, u64)>;

impl fmt::Debug for Boards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Boards({})", self.exhibits.shards.len())
    }
}

impl Collector for Boards {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        // One metric family per name, one line per shard: the format wants all lines of a family together.
        let mut families: BTreeMap<&str, (Meaning, Lines)> = BTreeMap::new();
        for (shard, board) in self.exhibits.shards.iter().enumerate() {
            for (meaning, value) in board.read() {
                families.entry(meaning.name).or_insert((meaning, Vec::new())).1.push((shard, value));
            }
        }
        for (meaning, lines) in families.values() {
            let mut family = encoder.encode_descriptor(meaning.name, meaning.help, None, kind(*meaning))?;
            for (shard, value) in lines {
                encode(family.encode_family(&[("shard", shard.to_string())])?, *meaning, *value)?;
            }
        }
        if let Some(store) = &self.exhibits.store {
            encode_store(store, &mut encoder)?;
        }
        if let Some(statements) = &self.exhibits.statements {
            encode_statements(statements, &mut encoder)?;
        }
        for (meaning, value) in self.island.iter().flat_map(|board| board.read()) {
            encode(encoder.encode_descriptor(meaning.name, meaning.help, None, kind(meaning))?, meaning, value)?;
        }
        Ok(())
    }
}

/// The store's numbers get its name in front, so that none is taken for a shard's.
fn encode_store(store: &Board, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    for (meaning, value) in store.read() {
        let name = format!("store_{}", meaning.name.trim_start_matches("store_"));
        encode(encoder.encode_descriptor(&name, meaning.help, None, kind(meaning))?, meaning, value)?;
    }
    Ok(())
}

/// One histogram for each kind of statement, in seconds as Prometheus wants them.
fn encode_statements(statements: &Latencies, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Time of statements sent to the shared store, answered or given up.";
    let mut family = encoder.encode_descriptor("store_statement_seconds", help, None, MetricType::Histogram)?;
    for taken in statements.read() {
        let bounds = BOUNDS_US.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(taken.counts).collect();
        let count = taken.counts.iter().sum();
        let labels = [("statement", taken.name)];
        let mut one = family.encode_family(&labels)?;
        one.encode_histogram::<NoLabelSet>(seconds(taken.sum_us), count, &buckets, None)?;
    }
    Ok(())
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn kind(meaning: Meaning) -> MetricType {
    match meaning.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
    }
}

fn encode(
    encoder: prometheus_client::encoding::MetricEncoder<'_>,
    meaning: Meaning,
    value: u64,
) -> Result<(), fmt::Error> {
    match meaning.kind {
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        // A gauge of the format is signed; nothing of ours comes near 2^63.
        Kind::Gauge => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
    }
}

/// The other nodes of a cluster, one line for each of those that were called lately: `peers::NODES_MAX` at most. How
/// their calls ended is not among them, since every node that ever was would leave seven series more behind; the page
/// and `/stats` show it.
struct Nodes(Option<Arc<Showcase>>);

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nodes")
    }
}

impl Collector for Nodes {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(nodes) = &self.0 else { return Ok(()) };
        type Gauge = (&'static str, &'static str, fn(&Shown) -> u64);
        let gauges: [Gauge; 4] = [
            ("peer_node_circuit_open", "1 while the node does not answer.", |node| {
                u64::from(node.state == Standing::Open)
            }),
            ("peer_node_connections", "Connections to the node.", |node| node.connections as u64),
            ("peer_node_waiting", "Calls that wait for a connection to the node.", |node| node.waiting as u64),
            ("peer_node_owed", "Notifications owed to the node.", |node| node.owed as u64),
        ];
        let nodes = nodes.look().clone();
        for (name, help, value) in gauges {
            let meaning = Meaning { name, kind: Kind::Gauge, help };
            let mut family = encoder.encode_descriptor(name, help, None, kind(meaning))?;
            for node in &nodes {
                encode(family.encode_family(&[("node", &*node.url)])?, meaning, value(node))?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct ProcessGauges;

impl Collector for ProcessGauges {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let process = Process::read();
        let mut gauge = |name: &str, help: &str, value: u64| {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        gauge("process_resident_bytes", "Physical memory mapped.", process.resident_bytes)?;
        gauge("process_private_bytes", "Memory that nobody shares and that was written.", process.private_bytes)?;
        gauge("process_threads", "Threads.", process.threads)?;
        gauge("process_open_fds", "Open file descriptors, without the sockets in the rings.", process.open_fds)?;
        let cpu = ConstCounter::new(process.cpu_seconds);
        cpu.encode(encoder.encode_descriptor(
            "process_cpu_seconds",
            "User and system time.",
            None,
            cpu.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::peers::Ends;
    use super::*;
    use shards::counters;
    use shards::stats::Counters;

    counters! {
        /// Of a shard.
        pub struct Numbers { counter hellos: "Hellos answered.", gauge sessions: "Sessions held.", }
    }

    #[test]
    fn a_family_has_one_line_per_shard_and_its_help_once() {
        let boards: Vec<_> = (0..2).map(|_| Arc::new(Board::new(&[Numbers::MEANINGS]))).collect();
        Numbers { hellos: 3, sessions: 1 }.write_to(&boards[0], 0);
        Numbers { hellos: 5, sessions: 2 }.write_to(&boards[1], 0);
        let store = Some(Arc::new(Board::new(&[Numbers::MEANINGS])));
        let mut text = String::new();
        let nodes = Arc::<Showcase>::default();
        let url = "http://n:8081".into();
        nodes.look().push(Shown {
            url,
            state: Standing::Open,
            connections: 2,
            under_way: 1,
            waiting: 3,
            owed: 4,
            ends: Ends::default(),
            quantiles: Default::default(),
        });
        let latencies = Latencies::new(&["read", "write"]);
        for took in [250, 700, 6_000_000] {
            latencies.record(1, took);
        }
        let statements = Some(Arc::new(latencies));
        let registry = registry(Arc::new(Exhibits { shards: boards, store, statements }), vec![], Some(nodes));
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        let wanted = "# HELP murre_hellos Hellos answered.\n# TYPE murre_hellos counter\n\
                      murre_hellos_total{shard=\"0\"} 3\nmurre_hellos_total{shard=\"1\"} 5\n";
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains("murre_sessions{shard=\"1\"} 2\n"), "{text}");
        assert!(text.contains("murre_store_hellos_total 0\n"), "{text}");
        assert!(text.contains("murre_process_resident_bytes "), "{text}");
        assert!(text.contains("murre_peer_node_circuit_open{node=\"http://n:8081\"} 1\n"), "{text}");
        assert!(text.contains("murre_peer_node_owed{node=\"http://n:8081\"} 4\n"), "{text}");
        let wanted = "# TYPE murre_store_statement_seconds histogram\n\
                      murre_store_statement_seconds_sum{statement=\"read\"} 0.0\n\
                      murre_store_statement_seconds_count{statement=\"read\"} 0\n";
        assert!(text.contains(wanted), "{text}");
        for (line, value) in [
            ("sum{statement=\"write\"}", "6.00095"),
            ("count{statement=\"write\"}", "3"),
            ("bucket{le=\"0.00025\",statement=\"write\"}", "1"),
            ("bucket{le=\"0.0005\",statement=\"write\"}", "1"),
            ("bucket{le=\"0.001\",statement=\"write\"}", "2"),
            ("bucket{le=\"5.0\",statement=\"write\"}", "2"),
            ("bucket{le=\"+Inf\",statement=\"write\"}", "3"),
        ] {
            assert!(text.contains(&format!("murre_store_statement_seconds_{line} {value}\n")), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
