//! Events from outside the world: a peer acts, time passes, something breaks.

use machine::BroadcastVersion;

use crate::shared::Verdict;
use crate::world::World;

impl World {
    /// One outside action. `idle` says that nothing else could happen.
    pub(crate) fn act(&mut self, idle: bool) -> Verdict {
        self.end_stop()?;
        self.break_something()?;
        match self.rng.schedule.below(100) {
            0..3 => {
                self.relay_acts();
                Ok(())
            }
            3..55 => {
                self.agent_acts();
                Ok(())
            }
            55..85 => self.poster_acts(),
            85..86 => self.new_broadcast(),
            _ => {
                self.pass_time(idle);
                Ok(())
            }
        }
    }

    fn break_something(&mut self) -> Verdict {
        let faults = self.plan.faults.clone();
        if self.rng.faults.permille(faults.kill) {
            self.kill_next = true;
        }
        if self.rng.faults.permille(faults.wall_jump) {
            self.jump();
        }
        if self.rng.faults.permille(faults.shard_stall) {
            let shard = self.rng.faults.index(self.shards.len());
            self.shards[shard].stalled_until = self.now + self.rng.faults.below(12_000_000_000);
            self.marks.hit("fault: shard stalls");
        }
        if self.rng.faults.permille(faults.store_stall) {
            let until = self.now + self.rng.faults.below(40_000_000_000);
            if self.rng.faults.permille(500) {
                self.store.stalled_until = until;
                self.marks.hit("fault: store stalls");
            } else {
                self.store.down_until = until;
                self.marks.hit("fault: store down");
            }
        }
        if self.rng.faults.permille(faults.store_fills) {
            self.store.full_until = self.now + self.rng.faults.below(120_000_000_000);
            self.marks.hit("fault: store stays full");
        }
        if self.rng.faults.permille(faults.drain) { self.stop() } else { Ok(()) }
    }

    /// The wall clock jumps; the monotonic one never does.
    fn jump(&mut self) {
        // Mostly within the skew that is allowed, sometimes hours.
        let span = self.rng.faults.pick(&[20_000_000, 20_000_000, 20_000_000, 7_200_000_000]);
        let by_us = self.rng.faults.below(span);
        if self.rng.faults.permille(500) {
            self.wall_offset_us += by_us;
            self.marks.hit("fault: wall clock jumps ahead");
        } else {
            self.wall_offset_us -= by_us;
            self.marks.hit("fault: wall clock jumps back");
        }
    }

    fn new_broadcast(&mut self) -> Verdict {
        let names = ["a", "b", "c"];
        let name = self.rng.schedule.pick(&names);
        let version: Box<str> = self.steps.to_string().into();
        self.broadcasts.retain(|known| *known.id != *name);
        self.broadcasts.push(BroadcastVersion { id: name.into(), version });
        self.tell_broadcasts()
    }
}
