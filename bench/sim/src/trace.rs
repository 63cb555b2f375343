//! Events of a world, as one hash and, when asked for, one line per event.

use std::fmt::{self, Write};

use crate::coverage::CoverageMarks;

/// The record of one seed that ended well.
#[derive(Clone, Debug)]
pub struct Trace {
    pub seed: u64,
    /// Inputs that machines were given.
    pub steps: u64,
    /// Hash over every input and every effect, in order. Equal for equal seeds and equal code.
    pub hash: u64,
    pub marks: CoverageMarks,
    /// One line per event, when `Options::lines` was set: step, milliseconds, shard, what.
    pub lines: Vec<String>,
}

/// Takes down the events of a world.
pub(crate) struct Recorder {
    hash: u64,
    keep: bool,
    lines: Vec<String>,
}

impl Recorder {
    /// A recorder that keeps lines, or only the hash.
    pub(crate) fn new(keep: bool) -> Recorder {
        Recorder { hash: 0xcbf2_9ce4_8422_2325, keep, lines: Vec::new() }
    }

    /// Takes down one event of a shard (or of the world around them).
    pub(crate) fn line(&mut self, step: u64, ms: u64, shard: Option<usize>, what: fmt::Arguments<'_>) {
        // Invariant: writing to the hash and to a String cannot fail.
        let _ = self.write_fmt(what);
        self.hash = (self.hash ^ step ^ (ms << 20)).wrapping_mul(PRIME);
        if self.keep {
            let shard = shard.map_or("-".to_owned(), |s| s.to_string());
            self.lines.push(format!("{step:>6} {ms:>9} {shard:>2}  {what}"));
        }
    }

    /// The hash so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines kept.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}

impl fmt::Write for Recorder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(PRIME);
        }
        Ok(())
    }
}

const PRIME: u64 = 0x0000_0100_0000_01b3;
