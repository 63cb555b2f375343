//! Metrics that have a new name. Both are shown for one minor version, the old one with the HELP text "Deprecated: use
//! NEW". The next minor version removes the old names from the counters and from this table.

use machine::stats::{Kind, Meaning};

use super::labelled::HANDSHAKES;

/// A metric of a board whose name is deprecated.
pub(super) struct Renamed {
    /// The name on the board, without `murre_`.
    pub old: &'static str,
    /// The new name, without `murre_`.
    pub new: &'static str,
    /// Divides the value: a million makes seconds of microseconds.
    pub divisor: f64,
    /// The help of the new name.
    pub help: &'static str,
}

const fn renamed(old: &'static str, new: &'static str, divisor: f64, help: &'static str) -> Renamed {
    Renamed { old, new, divisor, help }
}

/// Every new name of a metric that has an old one on a board.
pub(super) const RENAMED: &[Renamed] = &[
    renamed(
        "looks",
        "presence_lookups",
        1.0,
        "Reads of the store to find a user's node for a POST that landed on another.",
    ),
    renamed("doubts", "presence_checks", 1.0, "Reads of the store because a notification stayed unacked."),
    renamed("enters", "ring_submits", 1.0, "System calls that submitted to the rings."),
    renamed("store_sync_microseconds", "store_sync_seconds", 1e6, "Time spent committing and syncing."),
];

/// The new metric that replaces this one, if its name is deprecated.
pub(super) fn successor(meaning: Meaning) -> Option<String> {
    let name = meaning.name;
    if let Some(renamed) = RENAMED.iter().find(|renamed| renamed.old == name) {
        let suffix = if meaning.kind == Kind::Counter { "_total" } else { "" };
        return Some(format!("murre_{}{suffix}", renamed.new));
    }
    if matches!(name, "tls_handshakes_resumed" | "tls_handshakes_tls_1_2") {
        return Some(format!("murre_{}_total", HANDSHAKES.0));
    }
    let of_calls = name == "peer_answer_microseconds" || name.starts_with("peer_answers_within_");
    let of_statements = name.ends_with("_p50_microseconds") || name.ends_with("_p99_microseconds");
    match (of_calls, of_statements) {
        (true, _) => Some("murre_peer_call_duration_seconds".to_owned()),
        (_, true) => Some("murre_store_statement_seconds".to_owned()),
        _ => None,
    }
}
