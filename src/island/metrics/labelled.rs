//! Metrics with a label besides that of the shard. A board has one number for each value of the label: its name is that
//! of the metric with the value behind it.

/// Labels of one line.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Metrics and their labels.
const LABELLED: [(&str, &str); 2] = [labelled("tls_alerts_sent", "alert"), labelled("tls_handshakes_failed", "reason")];

const fn labelled(metric: &'static str, label: &'static str) -> (&'static str, &'static str) {
    (metric, label)
}

/// Returns the metric of a number of this shard and the labels of its line.
pub(super) fn line(name: &'static str, shard: usize) -> (&'static str, Labels) {
    let shard = ("shard", shard.to_string());
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
    use shards::tls::TlsStats;

    use super::super::super::Exhibits;
    use super::super::super::own::Own;
    use super::super::{Format, Metrics};

    #[test]
    fn alerts_and_failed_handshakes_are_one_metric_each_with_a_label() {
        let board = Arc::new(Board::new(&[TlsStats::MEANINGS]));
        let stats = TlsStats {
            tls_alerts_sent_bad_record_mac: 3,
            tls_handshakes_failed_version: 2,
            node_tls_handshakes_failed: 1,
            ..TlsStats::default()
        };
        stats.write_to(&board, 0);
        let exhibits = Arc::new(Exhibits { shards: vec![board], ..Exhibits::default() });
        let text = Metrics::new(exhibits, &Own::default()).encode(Format::Text).unwrap();
        for line in [
            "murre_tls_alerts_sent_total{alert=\"bad_record_mac\",shard=\"0\"} 3",
            "murre_tls_alerts_sent_total{alert=\"decode_error\",shard=\"0\"} 0",
            "murre_tls_handshakes_failed_total{reason=\"version\",shard=\"0\"} 2",
            "murre_node_tls_handshakes_failed_total{shard=\"0\"} 1",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
        for metric in ["alerts_sent", "handshakes_failed"] {
            assert_eq!(text.matches(&format!("# TYPE murre_tls_{metric}_total counter\n")).count(), 1, "{text}");
        }
    }
}
