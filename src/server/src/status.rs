//! Statuses this binary exits with; docs/OPERATIONS.md explains them. Those above 63 are of `sysexits.h`.

use store::fault::FaultKind;

/// Returns the status of a process that ends with a fault of this kind in its data directory or its store.
pub fn of(kind: FaultKind) -> u8 {
    match kind {
        FaultKind::Full | FaultKind::Passing => STORAGE,
        FaultKind::Denied => DATA_DIR,
        FaultKind::Damaged => DAMAGED,
        FaultKind::Lasting => CONFIG,
    }
}

/// All is done.
pub const DONE: u8 = 0;
/// The command failed for a reason that was printed.
pub const FAILED: u8 = 1;
/// Wrong usage of the command line.
pub const USAGE: u8 = 2;
/// A file of the data directory is damaged.
pub const DAMAGED: u8 = 65;
/// This host cannot run murre: too old a kernel, limits too low, or no io_uring where a setting needs it.
pub const UNAVAILABLE: u8 = 69;
/// The server went down with an error of its own.
pub const SOFTWARE: u8 = 70;
/// An address cannot be bound, or another node has `node.url`.
pub const ADDRESS: u8 = 71;
/// The data directory cannot be made, written or locked.
pub const DATA_DIR: u8 = 73;
/// The store failed a sync or a write, and murre stopped, because it could no longer keep the messages that it
/// accepts (`store::embedded` exits with it). Or at start the disk was too full or failed, or the database did not
/// answer. A restart can help.
pub const STORAGE: u8 = 74;
/// The server stopped with messages in the ledger logs that the store did not take: the next start saves them.
pub const LEDGER_LEFT: u8 = 75;
/// The configuration is refused.
pub const CONFIG: u8 = 78;
