//! Phases of a race, which its threads share.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// State of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Racing,
    /// Peers have stopped sending; everything must be acknowledged.
    Settling,
    Over,
}

/// State that the threads of a race share.
#[derive(Default)]
pub struct Progress {
    phase: AtomicU8,
    pub accepted: AtomicBool,
    /// True in the last phase.
    pub over: AtomicBool,
}

impl Progress {
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Racing,
            1 => Phase::Settling,
            _ => Phase::Over,
        }
    }

    /// Moves to a later phase.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.over.store(self.phase() == Phase::Over, Ordering::Release);
    }
}
