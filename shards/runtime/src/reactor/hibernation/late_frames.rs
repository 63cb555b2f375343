//! Frames and segments that wait for a thaw: one that waits, and how long they waited.

use std::time::Instant;

use machine::ids::ConnId;
use machine::stats::{Board, Histogram, HistogramMeaning};
use machine::time;

/// Thaws that fail in a row. After them no failed thaw is tried again for a while, because the host most likely has no
/// descriptor or memory for the others either.
pub(in crate::reactor) const FAILURES_IN_A_ROW_MAX: u32 = 16;

/// A frame that waits for the thaw of its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateFrame {
    pub conn: ConnId,
    /// Time at which it was due.
    pub since: Instant,
    /// Start of the turn in which it was due: the machine counts its timeouts from there.
    pub turn: time::Instant,
}

impl LateFrame {
    /// A frame that is due now, in the turn that began at `turn`.
    pub(super) fn new(conn: ConnId, turn: time::Instant) -> LateFrame {
        LateFrame { conn, since: Instant::now(), turn }
    }
}

/// Times of thaws, by cause.
#[derive(Default, Debug)]
pub(in crate::reactor) struct ThawTimes {
    pub by_segment: Histogram,
    pub by_frame: Histogram,
}

const HELP: &str = "Time from the segment or frame that thaws a session until its socket is there again.";

impl ThawTimes {
    pub(in crate::reactor) const MEANINGS: &'static [HistogramMeaning] = &[
        HistogramMeaning { name: "thaw_duration_seconds", label: Some(("cause", "segment")), help: HELP },
        HistogramMeaning { name: "thaw_duration_seconds", label: Some(("cause", "frame")), help: HELP },
    ];

    /// Copies both histograms to the board, from place `at` on.
    pub(in crate::reactor) fn write_to(&self, board: &Board, at: usize) {
        board.set_histogram(at, &self.by_segment);
        board.set_histogram(at + 1, &self.by_frame);
    }
}

#[cfg(test)]
impl ThawTimes {
    /// Thaws by segment and by frame.
    pub(in crate::reactor) fn counts(&self) -> [u64; 2] {
        [&self.by_segment, &self.by_frame].map(|histogram| histogram.counts.iter().sum())
    }
}

/// Microseconds since then.
pub(super) fn us_since(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}
