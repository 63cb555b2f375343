//! Counters with one writer: plain `u64` fields on a shard, copied now and then to a board others may read.
//!
//! `counters!` declares a struct whose fields are counters and gauges, each with the sentence that becomes
//! its help text. Fields are named like the metric they become, without the prefix `murre_`.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a number means over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows. Its metric gets the suffix `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Name, meaning and help of one number.
#[derive(Clone, Copy, Debug)]
pub struct Meaning {
    /// Field name.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// One sentence.
    pub help: &'static str,
}

/// A struct of counters.
pub trait Counters {
    /// What its numbers mean, in the order of `write_to`.
    const MEANINGS: &'static [Meaning];

    /// Copies every number to `board`, starting at `at`; returns where the next struct starts.
    fn write_to(&self, board: &Board, at: usize) -> usize;
}

/// Declares a struct of counters: `counters! { /// doc  pub struct Name { counter field: "help", gauge field:
/// "help" } }`.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $name:ident { $($kind:ident $field:ident : $help:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default)]
        pub struct $name { $(#[doc = $help] pub $field: u64),+ }

        impl $crate::stats::Counters for $name {
            const MEANINGS: &'static [$crate::stats::Meaning] = &[$($crate::stats::Meaning {
                name: stringify!($field),
                kind: $crate::counters!(@kind $kind),
                help: $help,
            }),+];

            fn write_to(&self, board: &$crate::stats::Board, at: usize) -> usize {
                let mut next = at;
                $( board.set(next, self.$field); next += 1; )+
                next
            }
        }
    };
    (@kind counter) => { $crate::stats::Kind::Counter };
    (@kind gauge) => { $crate::stats::Kind::Gauge };
}

/// Numbers of one shard as others may see them: written by the shard about once a second, read by the admin page.
pub struct Board {
    meanings: Vec<Meaning>,
    values: Vec<AtomicU64>,
}

impl Board {
    /// A board for these structs of counters, in this order.
    pub fn new(parts: &[&'static [Meaning]]) -> Board {
        let meanings: Vec<Meaning> = parts.concat();
        let values = meanings.iter().map(|_| AtomicU64::new(0)).collect();
        Board { meanings, values }
    }

    /// Sets number `at`; a place behind the end is ignored.
    pub fn set(&self, at: usize, value: u64) {
        if let Some(place) = self.values.get(at) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// Every number with its meaning.
    pub fn read(&self) -> impl Iterator<Item = (Meaning, u64)> + '_ {
        self.meanings.iter().copied().zip(self.values.iter().map(|v| v.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        /// Two numbers.
        pub struct Pair { counter seen: "How many were seen.", gauge open: "How many are open." }
    }

    #[test]
    fn a_board_shows_what_was_written_to_it() {
        let board = Board::new(&[Pair::MEANINGS, Pair::MEANINGS]);
        let next = Pair { seen: 3, open: 1 }.write_to(&board, 0);
        Pair { seen: 5, open: 2 }.write_to(&board, next);
        let read: Vec<_> = board.read().map(|(m, v)| (m.name, m.kind, v)).collect();
        assert_eq!(read[0], ("seen", Kind::Counter, 3));
        assert_eq!(read[3], ("open", Kind::Gauge, 2));
    }
}
