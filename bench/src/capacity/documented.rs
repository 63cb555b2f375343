//! The constants of docs/CAPACITY.md, the only set that predictions use beside measurements.
//!
//! A test compares each with the document.

use crate::result::names;

/// User bytes of an idle session.
pub(super) const SESSION_USER_BYTES: f64 = 160.0;
/// Kernel bytes of an idle connection, the server's end.
pub(super) const SESSION_KERNEL_BYTES: f64 = 4_170.0;
/// User bytes of a frozen connection, beside those of its session.
pub(super) const FROZEN_USER_BYTES: f64 = 120.0;
/// Kernel bytes of a frozen connection.
pub(super) const FROZEN_KERNEL_BYTES: f64 = 200.0;
/// Bytes of the process before its first session.
pub(super) const PROCESS_BYTES: f64 = 3e6;
/// Bytes of the arenas and lanes of one warm shard.
pub(super) const SHARD_WARM_BYTES: f64 = 2e6;
/// Bytes of the same when every span of the arenas was used.
pub(super) const SHARD_BYTES_MAX: f64 = 5.0 * MIB;
/// Bytes of the ledger log of one shard: the default of `delivery.ledger_bytes`.
pub(super) const LEDGER_BYTES: f64 = 32.0 * MIB;
/// Bytes of the tables of the rings for each of `max_connections`: 8 in a table with a twentieth to spare, which also
/// holds the reserves of the endpoint and node ports, a sixteenth and a 64th.
pub(super) const RING_BYTES: f64 = 9.1;
/// Bytes of the store at most: the default of `store.cache`, and the write buffers of the five tables of the embedded
/// store (`src/store/src/embedded/database.rs`).
pub(super) const STORE_BYTES: f64 = (32 + 8 + 32 + 16 + 16 + 8) as f64 * MIB;
/// Bytes of the secrets of a TLS connection.
pub(super) const TLS_CONNECTION_BYTES: f64 = 224.0;
/// Bytes of the handshakes that a shard has under way at a time, at most: 1,024.
pub(super) const TLS_HANDSHAKES_BYTES: f64 = 5.0 * MIB;
/// Bytes for everything else on the host.
pub(super) const SYSTEM_BYTES: f64 = 1024.0 * MIB;
/// Share of all bytes that a host has beside them, for the buffers of a bad minute.
pub(super) const SPARE_SHARE: f64 = 0.25;

const MIB: f64 = 1024.0 * 1024.0;

/// Server CPU in microseconds of each operation, for an operation that was not measured.
pub(super) const OPERATIONS: &[(&str, f64)] = &[
    (names::CPU_NOTIFICATION, 20.0),
    (names::CPU_STORE, 60.0),
    (names::CPU_DRAIN, 20.0),
    (names::CPU_HELLO, 35.0),
    (names::CPU_RETURN, 80.0),
    (names::CPU_PING, 80.0),
];

/// Server CPU in microseconds of the signature check of a VAPID token that was not seen before.
pub(super) const FRESH_TOKEN_US: f64 = 52.0;

/// Server CPU in microseconds of a thaw and the freeze behind it.
pub(super) const THAW_US: f64 = 90.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_is_the_one_of_the_document() {
        let constants = [
            ("an idle session, user memory", SESSION_USER_BYTES, 1.0, "B"),
            ("an idle connection, kernel memory", SESSION_KERNEL_BYTES, 1.0, "B"),
            ("a frozen connection, user memory beside its session", FROZEN_USER_BYTES, 1.0, "B"),
            ("a frozen connection, kernel memory", FROZEN_KERNEL_BYTES, 1.0, "B"),
            ("the process at start", PROCESS_BYTES, 1e6, "MB"),
            ("a shard, once warm", SHARD_WARM_BYTES, 1e6, "MB"),
            ("a shard, at most", SHARD_BYTES_MAX, MIB, "MiB"),
            ("the ledger log of a shard", LEDGER_BYTES, MIB, "MiB"),
            ("tables of the rings, for each of `--max-connections`", RING_BYTES, 1.0, "B"),
            ("the store, at most", STORE_BYTES, MIB, "MiB"),
            ("the secrets of a TLS connection", TLS_CONNECTION_BYTES, 1.0, "B"),
            ("TLS handshakes of a shard, at most", TLS_HANDSHAKES_BYTES, MIB, "MiB"),
            ("the system", SYSTEM_BYTES, 1024.0 * MIB, "GiB"),
            ("the signature check of a VAPID token never seen", FRESH_TOKEN_US, 1.0, "us"),
            ("thaw and freeze", THAW_US, 1.0, "us"),
        ];
        let operations = OPERATIONS.iter().map(|(name, us)| (name.trim_start_matches(names::CPU_PER), *us, 1.0, "us"));
        let page = include_str!("../../../docs/CAPACITY.md");
        for (what, value, unit, name) in constants.into_iter().chain(operations) {
            let row = format!("| {what} | {} {name} |", value / unit);
            assert!(page.contains(&row), "docs/CAPACITY.md has no row {row}");
        }
    }
}
