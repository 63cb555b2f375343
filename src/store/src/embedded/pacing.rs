//! Compactions that wait for their turn and for room on the disk: the filter that fjall hands every row to.
//!
//! Lives on: threads of fjall, and the keeper's compaction.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};
use runtime::process_clock::ProcessClock;

use super::database::KEYSPACES;
use super::room::Space;
use super::rows;

/// Rows that a compaction copies between two looks at the disk: a megabyte or two.
const ROWS_PER_LOOK: u32 = 256;

/// Makes the filters of one keyspace's compactions.
pub(super) struct Pacing {
    space: AssertUnwindSafe<Arc<Space>>,
    /// The clock for the expiry of message rows; none for other keyspaces, and without a sweep.
    process_clock: Option<AssertUnwindSafe<Arc<ProcessClock>>>,
    nth: usize,
}

impl Pacing {
    /// Creates the factory of the keyspace of this name.
    pub(super) fn of(
        name: &str,
        space: &Arc<Space>,
        process_clock: Option<&Arc<ProcessClock>>,
    ) -> Option<Arc<dyn Factory>> {
        let nth = KEYSPACES.iter().position(|known| *known == name)?;
        let process_clock = process_clock.filter(|_| name == "messages");
        let process_clock = process_clock.map(|process_clock| AssertUnwindSafe(Arc::clone(process_clock)));
        Some(Arc::new(Pacing { space: AssertUnwindSafe(Arc::clone(space)), process_clock, nth }))
    }
}

impl Factory for Pacing {
    fn name(&self) -> &str {
        "murre"
    }

    // fjall holds locks here; the first row is looked at without them.
    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        let process_clock = self.process_clock.as_ref().map(|process_clock| Arc::clone(process_clock));
        Box::new(Pace {
            space: Arc::clone(&self.space),
            process_clock,
            nth: self.nth,
            begun: false,
            rows: 0,
            copied: (0, 0),
        })
    }
}

/// One compaction: waits for its turn and until it fits, waits again when others take its room, and leaves expired
/// rows behind.
struct Pace {
    space: Arc<Space>,
    process_clock: Option<Arc<ProcessClock>>,
    nth: usize,
    /// True once the compaction has its turn.
    begun: bool,
    rows: u32,
    /// Bytes copied, and the part of them that `Space` has counted.
    copied: (u64, u64),
}

impl Drop for Pace {
    fn drop(&mut self) {
        if self.begun {
            self.space.give_turn();
        }
        self.space.copied.fetch_sub(self.copied.1, Ordering::Relaxed);
    }
}

impl CompactionFilter for Pace {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        if self.rows == 0 {
            self.rows = ROWS_PER_LOOK;
            if self.begun {
                self.space.wait_for_room()?;
            } else {
                self.space.take_turn(self.space.compaction(self.nth))?;
                self.begun = true;
            }
            self.space.copied.fetch_add(self.copied.0 - self.copied.1, Ordering::Relaxed);
            self.copied.1 = self.copied.0;
        }
        self.rows -= 1;
        let value = item.value()?;
        let expired = |process_clock: &Arc<ProcessClock>| {
            rows::peek(&value).is_some_and(|peek| peek.expires <= process_clock.unix())
        };
        // A row that its user's record counts goes through the committer.
        let counted = || rows::parse_message_key(item.key()).is_none_or(|(_, stamp, _)| rows::is_counted(stamp));
        if self.process_clock.as_ref().is_some_and(expired) && !counted() {
            return Ok(Verdict::Remove);
        }
        self.copied.0 += (item.key().len() + value.len()) as u64;
        Ok(Verdict::Keep)
    }
}
