//! Hibernation: an idle TCP connection leaves the kernel and comes back when either side speaks
//! ([decision 0033](../../docs/decisions/0033-hibernation-go-or-no-go.md),
//! [decision 0034](../../docs/decisions/0034-hibernation-in-process.md)).
//!
//! [`freeze`] reads a connection out with TCP_REPAIR and closes its socket in silence; [`Frozen::thaw`] makes the
//! socket again. In between the [`Gate`] holds the segments of the peer: packet rules send every segment that has no
//! live socket into a queue, one thread reads that queue, and the shard that owns the connection decides.
//!
//! One thread owns a connection: its shard sets it apart, freezes it, thaws it, and writes the verdict on its segments.
//! So no lock is needed between the check and the close, nor between the look at a record and the verdict.
//!
//! [`sys`], [`Rules`] and [`Queue`] are public for the tests in `tests/`.
//!
//! Lives on: [`freeze`], [`Frozen`] and [`ShardGate`] on the thread of a shard; the gate has two threads of its own.

mod error;
#[cfg(feature = "gate")]
mod gate;
#[cfg(not(feature = "gate"))]
#[path = "absent_gate.rs"]
mod gate;
mod netlink;
mod news;
mod probe;
mod queue;
mod records;
mod repair;
mod rules;
#[cfg(feature = "gate")]
mod self_test;
pub mod sys;
#[cfg_attr(not(feature = "gate"), expect(dead_code, reason = "the gate alone looks connections up"))]
mod table;
mod tuple;

pub use error::Unfit;
#[cfg(not(feature = "gate"))]
pub use gate::self_test;
pub use gate::{Gate, ShardGate};
pub use news::{GateStats, News};
pub use probe::Prober;
pub use queue::{Queue, Segment, Verdicts, Waiting};
pub use records::{
    HeldDir, Place, Record, RecordDir, RecordFile, RecordFiles, SESSION_BYTES_MAX, Session, boot_of_host,
};
pub use repair::{Buffers, Checked, Frozen, LIVE_MARK, Refusal, check, freeze, set_live};
pub use rules::{LeftTable, Ports, Rules, left_tables, namespace_cookie, remove_table, table_of};
#[cfg(feature = "gate")]
pub use self_test::self_test;
pub use table::ConnName;
pub use tuple::Tuple;
