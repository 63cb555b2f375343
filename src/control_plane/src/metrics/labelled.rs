//! Metrics with labels besides that of the shard. A board has one number for each value of a label.

/// Labels of one line.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Metrics with one label. The name of a number is that of the metric with the value of the label behind it.
const LABELLED: [(&str, &str); 4] = [
    labelled("tls_alerts_sent", "alert"),
    labelled("tls_handshakes_failed", "reason"),
    labelled("tls_key_exchanges", "group"),
    labelled("bridge_users_removed", "reason"),
];

/// The metric of the registration API and its labels. The name of a number is that of the metric with both values.
const REGISTRATIONS: (&str, [&str; 2]) = labelled("bridge_registrations", ["call", "status"]);

/// The metric of completed handshakes and its labels, and its numbers with version and kind.
pub(super) const HANDSHAKES: (&str, [&str; 2]) = labelled("tls_handshakes", ["version", "kind"]);
const COMPLETED: [(&str, &str, &str); 4] = [
    ("tls_handshakes_full_1_3", "1.3", "full"),
    ("tls_handshakes_resumed_1_3", "1.3", "resumed"),
    ("tls_handshakes_full_1_2", "1.2", "full"),
    ("tls_handshakes_resumed_1_2", "1.2", "resumed"),
];

/// A metric and its labels. The rules of the repository look for its name in this call.
const fn labelled<L: Copy>(metric: &'static str, labels: L) -> (&'static str, L) {
    (metric, labels)
}

/// Returns the metric of a number of this shard and the labels of its line.
pub(super) fn line(name: &'static str, shard: usize) -> (&'static str, Labels) {
    let shard = ("shard", shard.to_string());
    if let Some((_, version, kind)) = COMPLETED.iter().find(|(number, ..)| *number == name) {
        let (metric, [of_version, of_kind]) = HANDSHAKES;
        return (metric, vec![(of_version, (*version).to_owned()), (of_kind, (*kind).to_owned()), shard]);
    }
    let (metric, [of_call, of_status]) = REGISTRATIONS;
    let values = name.strip_prefix(metric).and_then(|rest| rest.strip_prefix('_')?.split_once('_'));
    if let Some((call, status)) = values {
        return (metric, vec![(of_call, call.to_owned()), (of_status, status.to_owned()), shard]);
    }
    for (metric, label) in LABELLED {
        if let Some(value) = name.strip_prefix(metric).and_then(|rest| rest.strip_prefix('_')) {
            return (metric, vec![(label, value.to_owned()), shard]);
        }
    }
    (name, vec![shard])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use machine::stats::{Board, Counters as _};
    use runtime::tls::TlsStats;

    use super::super::super::MetricSources;
    use super::super::super::own::Own;
    use super::super::{Format, Metrics};

    #[test]
    fn tls_numbers_are_one_metric_each_with_labels() {
        let board = Arc::new(Board::new(&[TlsStats::MEANINGS]));
        let stats = TlsStats {
            tls_alerts_sent_bad_record_mac: 3,
            tls_handshakes_failed_version: 2,
            node_tls_handshakes_failed: 1,
            tls_handshakes_full_1_3: 4,
            tls_handshakes_resumed_1_3: 5,
            tls_handshakes_full_1_2: 6,
            tls_key_exchanges_x25519mlkem768: 7,
            ..TlsStats::default()
        };
        stats.write_to(&board, 0);
        let sources = Arc::new(MetricSources { shards: vec![board], ..MetricSources::default() });
        let text = Metrics::new(sources, &Own::default()).encode(Format::Text).unwrap();
        for line in [
            "murre_tls_alerts_sent_total{alert=\"bad_record_mac\",shard=\"0\"} 3",
            "murre_tls_alerts_sent_total{alert=\"decode_error\",shard=\"0\"} 0",
            "murre_tls_handshakes_failed_total{reason=\"version\",shard=\"0\"} 2",
            "murre_node_tls_handshakes_failed_total{shard=\"0\"} 1",
            "murre_tls_handshakes_total{version=\"1.3\",kind=\"full\",shard=\"0\"} 4",
            "murre_tls_handshakes_total{version=\"1.3\",kind=\"resumed\",shard=\"0\"} 5",
            "murre_tls_handshakes_total{version=\"1.2\",kind=\"full\",shard=\"0\"} 6",
            "murre_tls_handshakes_total{version=\"1.2\",kind=\"resumed\",shard=\"0\"} 0",
            "murre_tls_key_exchanges_total{group=\"x25519mlkem768\",shard=\"0\"} 7",
            "murre_tls_key_exchanges_total{group=\"x25519\",shard=\"0\"} 0",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
        for metric in ["alerts_sent", "handshakes_failed", "handshakes", "key_exchanges"] {
            assert_eq!(text.matches(&format!("# TYPE murre_tls_{metric}_total counter\n")).count(), 1, "{text}");
        }
    }

    #[test]
    fn registrations_and_removed_users_have_their_labels() {
        for (name, expected) in [
            ("bridge_registrations_unsubscribe_410", "bridge_registrations call=unsubscribe status=410 shard=2"),
            ("bridge_users_removed_requested", "bridge_users_removed reason=requested shard=2"),
            ("registrations", "registrations shard=2"),
        ] {
            let (metric, labels) = super::line(name, 2);
            let labels: String = labels.iter().map(|(label, value)| format!(" {label}={value}")).collect();
            assert_eq!(format!("{metric}{labels}"), expected);
        }
    }
}
