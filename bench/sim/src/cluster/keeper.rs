//! Watch over the nodes: the lease of each boot, the burial of a boot that is silent, and the clock that the database
//! confirms. In the server these are `lease.rs`, `peer_client` and `clock_monitor.rs` of the control plane.

use machine::Input;
use machine::time::Instant;

use super::parts::{Breakage, Burial};
use super::world::Cluster;
use crate::shared::{SECOND, Verdict};

/// Time between two renewals of a lease, and between two questions to the clocks of the database.
const KEEP_INTERVAL: u64 = 30 * SECOND;
/// Age, in microseconds, at which a lease has lapsed.
pub(super) const SILENT_US: u64 = 600_000_000;
/// Time for which the address of a silent boot must not answer either.
pub(super) const GONE_TIME: u64 = 60 * SECOND;
/// The longest time that the write of a burial takes.
pub(super) const BURY_TIME: u64 = 20 * SECOND;
/// `store.max_skew`, microseconds.
const SKEW_US: u64 = 15_000_000;

impl Cluster {
    /// Does what is due on every node.
    pub(super) fn keep(&mut self) -> Verdict {
        for n in 0..self.nodes.len() {
            self.rights_clock(n);
            self.renews(n)?;
            self.looks_for_debts(n)?;
        }
        for n in 0..self.nodes.len() {
            self.looks_for_silent(n);
        }
        self.burials_land()
    }

    /// Renews the lease of a node and asks about its clock. A boot that was declared over ends.
    fn renews(&mut self, n: usize) -> Verdict {
        if !self.awake(n) || !self.has_store(n) || self.nodes[n].kept_at > self.now {
            return Ok(());
        }
        self.nodes[n].kept_at = self.now + KEEP_INTERVAL;
        let boot = self.nodes[n].id.boot;
        let (last, left) = self.table[n];
        // A node that is told to stop says by itself that it leaves.
        if (left || last != boot) && self.nodes[n].stopping.is_none() && self.breakage != Some(Breakage::BuriedGoesOn) {
            if !self.buried.contains(&(n, boot)) {
                return Err(format!("boot {boot} of node {n} was declared over and was never silent"));
            }
            self.marks.hit("node: ends, declared over");
            return self.kill(n);
        }
        self.seen[n] = self.time(n).unix_us;
        self.asks_clock(n)
    }

    /// Compares the clock of a node with the database's: beyond `store.max_skew` its shards stamp nothing.
    fn asks_clock(&mut self, n: usize) -> Verdict {
        let stopped = self.offset_us(n).unsigned_abs() > SKEW_US;
        if stopped == self.nodes[n].clock_stopped || self.breakage == Some(Breakage::ClockUnasked) {
            return Ok(());
        }
        if stopped {
            self.marks.hit("node: clock stopped");
            self.disorder = true;
            let longest = self.rng.faults.pick(&[120, 1_200]);
            self.nodes[n].righted_at = self.now + self.rng.faults.below(longest * SECOND);
        }
        self.nodes[n].clock_stopped = stopped;
        for s in 0..self.nodes[n].shards.len() {
            self.step(n, s, Input::ClockStopped(stopped))?;
        }
        Ok(())
    }

    /// Sets the clock of a stopped node right after a while.
    fn rights_clock(&mut self, n: usize) {
        if self.nodes[n].clock_stopped && self.nodes[n].righted_at <= self.now {
            self.set_clock_right(n);
        }
    }

    /// Sets a clock right for good.
    pub(super) fn set_clock_right(&mut self, n: usize) {
        let now = self.now;
        let node = &mut self.nodes[n];
        (node.offset_us, node.drift, node.drift_since, node.runs_away) = (0, 0, now, false);
    }

    /// Notes which other boots are silent and do not answer, and declares those over that were so for long enough.
    fn looks_for_silent(&mut self, n: usize) {
        if !self.awake(n) || !self.has_store(n) || self.nodes[n].clock_stopped {
            self.nodes[n].silent_since.clear();
            return;
        }
        let wall = self.time(n).unix_us;
        for other in (0..self.nodes.len()).filter(|other| *other != n) {
            let (boot, left) = self.table[other];
            let lapsed = wall.saturating_sub(self.seen[other]) >= SILENT_US;
            let answers = self.awake(other) && self.reaches(n, other);
            if !lapsed || left || answers {
                self.nodes[n].silent_since.remove(&other);
                continue;
            }
            let since = *self.nodes[n].silent_since.entry(other).or_insert(self.now);
            if self.now - since >= GONE_TIME && !self.burials.iter().any(|burial| burial.boot == boot) {
                self.nodes[n].silent_since.remove(&other);
                let by = (n, self.nodes[n].id.boot);
                let at = self.now + self.rng.faults.below(BURY_TIME);
                self.burials.push(Burial { at, by, node: other, boot, asked: None });
            }
        }
    }

    /// Burials that were written long enough ago take effect. A boot that entered since keeps its row.
    fn burials_land(&mut self) -> Verdict {
        while let Some(at) = self.burials.iter().position(|burial| burial.at <= self.now) {
            let Burial { by: (by, by_boot), node, boot, asked, .. } = self.burials.swap_remove(at);
            self.log(None, format_args!("boot {boot} of node {node} is declared over by node {by}"));
            let same = self.table[node].0 == boot;
            if same || self.breakage == Some(Breakage::BurialHitsNewerRun) {
                self.marks.hit("node: declared over");
                self.table[node].1 = true;
            } else {
                self.marks.hit("node: declared over too late");
            }
            self.buried.insert((node, boot));
            self.disorder = true;
            if self.nodes[by].up
                && self.nodes[by].id.boot == by_boot
                && let Some((url, boots, row)) = asked
            {
                self.nodes[by].client.buried(&url, &boots, row, true, Instant(self.now));
                self.carry_out_calls(by)?;
            }
        }
        Ok(())
    }

    /// Time of a store that judges what a node writes: the later one, where the node knows that its own is wrong.
    pub(super) fn judged_us(&self, n: usize) -> u64 {
        let own = self.time(n).unix_us;
        if self.nodes[n].clock_stopped { own.max(self.right_us()) } else { own }
    }
}
