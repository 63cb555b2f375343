//! Places of the connections of a server for operators, by their age.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The places: a fixed number.
pub(super) struct Places {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    by_age: BTreeMap<u64, Arc<Place>>,
}

/// The place of one connection.
#[derive(Default)]
pub(super) struct Place {
    /// True while its request is answered. Before and after that it waits for its caller.
    is_busy: AtomicBool,
    evicted: Notify,
}

impl Places {
    /// This many places.
    pub fn new(max: usize) -> Places {
        Places { max, open: Mutex::default() }
    }

    /// Takes a place, perhaps that of the oldest connection that waits for its caller; true if so. `None` if there is
    /// none.
    pub fn take(&self) -> Option<(u64, Arc<Place>, bool)> {
        let mut open = self.open();
        let is_full = open.by_age.len() >= self.max;
        if is_full {
            let waits = |(_, place): &(&u64, &Arc<Place>)| !place.is_busy.load(Ordering::Relaxed);
            let oldest = open.by_age.iter().find(waits).map(|(number, _)| *number)?;
            if let Some(place) = open.by_age.remove(&oldest) {
                place.evicted.notify_one();
            }
        }
        let (number, place) = (open.next, Arc::<Place>::default());
        open.next += 1;
        open.by_age.insert(number, Arc::clone(&place));
        Some((number, place, is_full))
    }

    /// Gives the place of this number back.
    pub fn give(&self, number: u64) {
        self.open().by_age.remove(&number);
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Says if the connection waits for its caller, or answers a request.
    pub fn waits_for_caller(&self, waits: bool) {
        self.is_busy.store(!waits, Ordering::Relaxed);
    }

    /// Waits until another connection has taken the place.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_that_waits_for_its_caller_gives_way() {
        let places = Places::new(3);
        let taken: Vec<_> = (0..3).map(|_| places.take().unwrap()).collect();
        assert_eq!(taken.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        taken[0].1.waits_for_caller(false);
        let (number, newest, has_evicted) = places.take().unwrap();
        assert!(has_evicted && number == 3);
        let left = || places.open().by_age.keys().copied().collect::<Vec<_>>();
        assert_eq!(left(), [0, 2, 3], "the first has a request under way");
        [&taken[2].1, &newest].iter().for_each(|place| place.waits_for_caller(false));
        assert!(places.take().is_none(), "each has a request under way");
        places.give(2);
        assert!(places.take().is_some_and(|(.., has_evicted)| !has_evicted));
    }
}
