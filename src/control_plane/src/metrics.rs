//! The metrics of everything on the boards, and of the process.

mod bridges;
mod format;
mod health;

mod labelled;

mod process;

mod strangers;

pub(super) use format::Format;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use machine::stats::{Board, Histogram, HistogramMeaning, Kind, Meaning, bound_us};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use store::latencies::{BOUNDS_US, LatencyHistograms};

use super::acme::{OrderBook, Outcome};
use super::own::Own;
use super::peer_client::{PeerSnapshot, PeerSnapshots, PeerStatus};
use super::{CertificatesInUse, MetricSources};
use bridges::BridgeStats;
use health::HealthStats;
use labelled::{Labels, line};
use process::{PrivateMemory, ProcessMetrics};
use strangers::StrangerStats;

/// Every metric: those of murre with the prefix `murre_`, those of the process with the names that every process has.
pub(super) struct Metrics {
    murre: Registry,
    process: Registry,
}

impl Metrics {
    /// Every number of the shards, the store, the control plane and the process.
    pub fn new(sources: Arc<MetricSources>, own: &Own) -> Metrics {
        let (mut murre, mut process) = (Registry::with_prefix("murre"), Registry::default());
        murre.register_collector(Box::new(BuildInfo));
        murre.register_collector(Box::new(Certificates(Arc::clone(&sources.certificates))));
        murre.register_collector(Box::new(Orders(own.orders.clone())));
        murre.register_collector(Box::new(BridgeStats(own.profiles.clone())));
        murre.register_collector(Box::new(StrangerStats(sources.strangers.clone())));
        murre.register_collector(Box::new(HealthStats(Arc::clone(&sources.conditions))));
        murre.register_collector(Box::new(Boards { sources, control_plane: own.boards.clone() }));
        murre.register_collector(Box::new(Nodes(own.nodes.clone())));
        murre.register_collector(Box::new(PrivateMemory));
        process.register_collector(Box::new(ProcessMetrics));
        Metrics { murre, process }
    }

    /// All of them in this format.
    ///
    /// # Errors
    /// None that a text can cause.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        let mut open = String::new();
        encode_registry(&mut open, &self.murre)?;
        encode_registry(&mut open, &self.process)?;
        encode_eof(&mut open)?;
        Ok(format.of(open))
    }
}

/// Version and commit as labels, by convention: `murre_build_info{..} 1`.
#[derive(Debug)]
struct BuildInfo;

impl Collector for BuildInfo {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let (version, commit) = (version::VERSION, version::build().commit);
        let help = "Version and commit of this process; the value is always 1.";
        let mut family = encoder.encode_descriptor("build_info", help, None, MetricType::Gauge)?;
        ConstGauge::new(1).encode(family.encode_family(&[("version", version), ("commit", commit)])?)
    }
}

/// Time that is left for each name of the certificates in use.
#[derive(Debug)]
struct Certificates(Arc<CertificatesInUse>);

impl Collector for Certificates {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let left = self.0.seconds_left(SystemTime::now());
        if left.is_empty() {
            return Ok(());
        }
        let help = "Seconds until the certificate for this name ends; negative after its end.";
        let mut family = encoder.encode_descriptor("tls_certificate_expiry_seconds", help, None, MetricType::Gauge)?;
        for (name, seconds) in left {
            ConstGauge::new(seconds).encode(family.encode_family(&[("name", name)])?)?;
        }
        Ok(())
    }
}

/// Orders of certificates.
#[derive(Debug)]
struct Orders(Option<Arc<OrderBook>>);

impl Collector for Orders {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(book) = &self.0 else { return Ok(()) };
        let help = "Orders of certificates that ended, by outcome.";
        let mut family = encoder.encode_descriptor("acme_orders", help, None, MetricType::Counter)?;
        for outcome in Outcome::ALL {
            let labels = [("outcome", outcome.name())];
            ConstCounter::new(book.orders(outcome)).encode(family.encode_family(&labels)?)?;
        }
        let Some(seconds) = book.next_seconds(SystemTime::now()) else { return Ok(()) };
        let help = "Seconds until the next order of a certificate; 0 if it is due.";
        let gauge = ConstGauge::new(i64::try_from(seconds).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor("acme_next_renewal_seconds", help, None, MetricType::Gauge)?)
    }
}

struct Boards {
    sources: Arc<MetricSources>,
    control_plane: Vec<Arc<Board>>,
}

type Lines = Vec<(Labels, u64)>;

impl fmt::Debug for Boards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Boards({})", self.sources.shards.len())
    }
}

impl Collector for Boards {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        // One metric family per name, one line per shard: the format requires all lines of a family together.
        let mut families: BTreeMap<&str, (Meaning, Lines)> = BTreeMap::new();
        for (shard, board) in self.sources.shards.iter().enumerate() {
            for (meaning, value) in board.read() {
                let (name, labels) = line(meaning.name, shard);
                families.entry(name).or_insert((Meaning { name, ..meaning }, Vec::new())).1.push((labels, value));
            }
        }
        for (meaning, lines) in families.values() {
            let mut family = encoder.encode_descriptor(meaning.name, meaning.help, None, kind(*meaning))?;
            for (labels, value) in lines {
                encode(family.encode_family(labels)?, *meaning, *value)?;
            }
        }
        encode_histograms(self.sources.shards.iter().chain(&self.control_plane), &mut encoder)?;
        if let Some(store) = &self.sources.store {
            encode_store(store, &mut encoder)?;
        }
        if let Some(statements) = &self.sources.statements {
            encode_statements(statements, &mut encoder)?;
        }
        for (meaning, value) in self.control_plane.iter().flat_map(|board| board.read()) {
            encode(encoder.encode_descriptor(meaning.name, meaning.help, None, kind(meaning))?, meaning, value)?;
        }
        Ok(())
    }
}

/// The histograms of these boards, summed by name and label: 27 series for each, with any number of shards.
fn encode_histograms<'a>(
    boards: impl Iterator<Item = &'a Arc<Board>>,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let mut families: BTreeMap<&str, Vec<(HistogramMeaning, Histogram)>> = BTreeMap::new();
    for (meaning, histogram) in boards.flat_map(|board| board.histograms()) {
        let family = families.entry(meaning.name).or_default();
        match family.iter_mut().find(|(known, _)| known.label == meaning.label) {
            Some((_, sum)) => sum.add(&histogram),
            None => family.push((meaning, histogram)),
        }
    }
    for (name, histograms) in families {
        let help = histograms.first().map_or("", |(meaning, _)| meaning.help);
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (meaning, histogram) in histograms {
            let bounds = (0..).map(|at| bound_us(at).map_or(f64::INFINITY, seconds));
            let buckets: Vec<(f64, u64)> = bounds.zip(histogram.counts).collect();
            let (sum, count) = (seconds(histogram.sum_us), histogram.counts.iter().sum());
            match meaning.label {
                Some(label) => {
                    let labels = [label];
                    family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
                None => family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?,
            }
        }
    }
    Ok(())
}

/// The store's numbers get its name in front, so that none is taken for a shard's.
fn encode_store(store: &Board, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    for (meaning, value) in store.read() {
        let name = format!("store_{}", meaning.name.trim_start_matches("store_"));
        // A board counts microseconds; Prometheus expects seconds.
        if let Some(base) = name.strip_suffix("_microseconds") {
            let name = format!("{base}_seconds");
            let encoder = encoder.encode_descriptor(&name, meaning.help, None, kind(meaning))?;
            ConstCounter::new(seconds(value)).encode(encoder)?;
            continue;
        }
        encode(encoder.encode_descriptor(&name, meaning.help, None, kind(meaning))?, meaning, value)?;
    }
    Ok(())
}

/// One histogram for each kind of statement, in seconds as Prometheus expects them.
fn encode_statements(statements: &LatencyHistograms, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
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

fn encode(encoder: MetricEncoder<'_>, meaning: Meaning, value: u64) -> Result<(), fmt::Error> {
    match meaning.kind {
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        // A gauge of the format is signed; no number here comes near 2^63.
        Kind::Gauge => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
    }
}

/// The other nodes of a cluster, one line for each of those that were called lately: `peers::NODES_MAX` at most. How
/// their calls ended is not among them, since every node that ever was would leave seven series more behind; the page
/// and `/stats` show it.
struct Nodes(Option<Arc<PeerSnapshots>>);

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nodes")
    }
}

impl Collector for Nodes {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(nodes) = &self.0 else { return Ok(()) };
        type Gauge = (&'static str, &'static str, fn(&PeerSnapshot) -> u64);
        let gauges: [Gauge; 4] = [
            ("peer_node_circuit_open", "1 while the node does not answer.", |node| {
                u64::from(node.state == PeerStatus::Open)
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

#[cfg(test)]
mod tests {
    use super::super::peer_client::OutcomeCounts;
    use super::*;
    use machine::counters;
    use machine::stats::Counters;

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
        let nodes = Arc::<PeerSnapshots>::default();
        let url = "http://n:8081".into();
        nodes.look().push(PeerSnapshot {
            url,
            state: PeerStatus::Open,
            connections: 2,
            in_flight: 1,
            waiting: 3,
            owed: 4,
            ends: OutcomeCounts::default(),
            quantiles: Default::default(),
        });
        let latencies = LatencyHistograms::new(&["read", "write"]);
        for took in [250, 700, 6_000_000] {
            latencies.record(1, took);
        }
        let statements = Some(Arc::new(latencies));
        let own = Own { nodes: Some(nodes), ..Own::default() };
        let metrics = Metrics::new(
            Arc::new(MetricSources { shards: boards, store, statements, ..MetricSources::default() }),
            &own,
        );
        let text = metrics.encode(Format::Open).unwrap();
        let wanted = "# HELP murre_hellos Hellos answered.\n# TYPE murre_hellos counter\n\
                      murre_hellos_total{shard=\"0\"} 3\nmurre_hellos_total{shard=\"1\"} 5\n";
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains("murre_sessions{shard=\"1\"} 2\n"), "{text}");
        assert!(text.contains("murre_store_hellos_total 0\n"), "{text}");
        assert!(text.contains("murre_process_private_bytes "), "{text}");
        for name in
            ["resident_memory_bytes", "open_fds", "max_fds", "threads", "cpu_seconds_total", "start_time_seconds"]
        {
            assert!(text.contains(&format!("\nprocess_{name} ")), "{name}: {text}");
        }
        let build = format!("murre_build_info{{version=\"{}\",commit=\"", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&build), "{text}");
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
        let text = metrics.encode(Format::Text).unwrap();
        assert!(text.contains("# TYPE murre_hellos_total counter\nmurre_hellos_total{shard=\"0\"} 3\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn orders_are_shown_by_outcome_where_there_are_any() {
        let own = Own { orders: Some(Arc::default()), ..Own::default() };
        let text = Metrics::new(Arc::default(), &own).encode(Format::Open).unwrap();
        for outcome in ["issued", "refused", "unreachable", "timeout", "failed"] {
            assert!(text.contains(&format!("murre_acme_orders_total{{outcome=\"{outcome}\"}} 0\n")), "{text}");
        }
        let text = Metrics::new(Arc::default(), &Own::default()).encode(Format::Open).unwrap();
        assert!(!text.contains("acme") && !text.contains("certificate"), "{text}");
    }

    counters! {
        /// Of a store.
        pub struct Times { counter store_sync_microseconds: "Time.", }
    }

    #[test]
    fn times_of_a_store_are_shown_in_seconds() {
        let board = Arc::new(Board::new(&[Times::MEANINGS]));
        Times { store_sync_microseconds: 1_500_000 }.write_to(&board, 0);
        let sources = MetricSources { store: Some(board), ..MetricSources::default() };
        let text = Metrics::new(Arc::new(sources), &Own::default()).encode(Format::Text).unwrap();
        assert!(text.contains("\nmurre_store_sync_seconds_total 1.5\n") && !text.contains("microseconds"), "{text}");
    }

    #[test]
    fn histograms_of_all_shards_are_one_series_for_each_label() {
        const MEANINGS: &[HistogramMeaning] = &[
            HistogramMeaning { name: "took_seconds", label: Some(("kind", "a")), help: "Time." },
            HistogramMeaning { name: "took_seconds", label: Some(("kind", "b")), help: "Time." },
        ];
        let board = || {
            let board = Board::new(&[]).with_histograms(&[MEANINGS]);
            let mut histogram = Histogram::default();
            [100, 200, 5_000_000_000].into_iter().for_each(|us| histogram.record(us));
            board.set_histogram(0, &histogram);
            Arc::new(board)
        };
        let sources = MetricSources { shards: vec![board(), board()], ..MetricSources::default() };
        let text = Metrics::new(Arc::new(sources), &Own::default()).encode(Format::Open).unwrap();
        for (line, value) in [
            ("bucket{le=\"0.000128\",kind=\"a\"}", "2"),
            ("bucket{le=\"0.000256\",kind=\"a\"}", "4"),
            ("bucket{le=\"1073.741824\",kind=\"a\"}", "4"),
            ("bucket{le=\"+Inf\",kind=\"a\"}", "6"),
            ("count{kind=\"a\"}", "6"),
            ("sum{kind=\"a\"}", "10000.0006"),
            ("count{kind=\"b\"}", "0"),
        ] {
            assert!(text.contains(&format!("murre_took_seconds_{line} {value}\n")), "{line}: {text}");
        }
    }
}
