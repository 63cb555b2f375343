//! The ledger logs of all shards: the server's own code on memory, beside a list of what must be in each.

use std::collections::BTreeSet;

use machine::Effect;
use machine::ids::{Clock, LedgerSlot, Stamp};
use machine::limits;
use machine::message::Message;
use runtime::ledger::Medium;
use runtime::ports::Ledger;

use crate::sabotage::Sabotage;
use crate::shard_log::{HEADER_BYTES, LOG_BYTES_MIN, ShardLog};
use crate::shared::Verdict;
use crate::world::World;

/// Contents of all logs after the end of a process.
#[derive(Default)]
pub(crate) struct Recovered {
    pub(crate) messages: Vec<Message>,
    pub(crate) floor: Clock,
}

impl World {
    /// `Effect::LedgerAppend`.
    pub(crate) fn append(&mut self, shard: usize, slot: LedgerSlot, message: &Message) -> Verdict {
        self.sighted(shard, message)?;
        if message.ttl == 0 {
            return Err(format!("TTL 0 in the ledger: {message:?}"));
        }
        self.oracle.ledgered(message);
        self.marks.hit("ledger: append");
        let post = self.oracle.identify(message)?;
        let reserved = message.encoded_len() as u64 + u64::from(limits::LEDGER_RECORD_OVERHEAD_BYTES);
        let log = &mut self.shards[shard].log;
        if log.live.insert(slot.0, (post, reserved)).is_some() {
            return Err(format!("{slot:?} of shard {shard} is used twice"));
        }
        log.reserved += reserved;
        if log.reserved > self.plan.ledger_bytes_max {
            return Err(format!("shard {shard} has {} bytes in its ledger", log.reserved));
        }
        log.log.append(slot, message);
        Ok(())
    }

    /// `Effect::LedgerDead`: were the process to die now, the message must be held elsewhere or have ended.
    pub(crate) fn ledger_dead(&mut self, shard: usize, slot: LedgerSlot) -> Verdict {
        let log = &mut self.shards[shard].log;
        let Some((post, reserved)) = log.live.remove(&slot.0) else {
            return Err(format!("{slot:?} of shard {shard} died twice"));
        };
        log.reserved -= reserved;
        log.log.dead(slot);
        self.still_held(post, "when its ledger record died")
    }

    /// `Effect::ClockFloor`.
    pub(crate) fn clock_floor(&mut self, shard: usize, clock: Clock) {
        let shard = &mut self.shards[shard];
        shard.floor = shard.floor.max(clock);
        shard.log.log.clock_floor(clock);
    }

    /// The process dies while it carries this out. Notes the message that may be in the log or not.
    pub(crate) fn torn(&mut self, shard: usize, effect: Option<Effect>) -> Verdict {
        let log = &mut self.shards[shard].log;
        log.log.medium().watch();
        match effect {
            Some(Effect::LedgerAppend(slot, message)) => {
                self.marks.hit("kill: in an append");
                self.oracle.torn = Some(self.oracle.identify(&message)?);
                log.log.append(slot, &message);
            }
            Some(Effect::LedgerDead(slot)) => {
                self.marks.hit("kill: while a record dies");
                self.oracle.torn = log.live.remove(&slot.0).map(|(post, _)| post);
                log.log.dead(slot);
            }
            Some(Effect::ClockFloor(clock)) => log.log.clock_floor(clock),
            _ => {}
        }
        log.log.medium().tear(&mut self.rng.faults);
        Ok(())
    }

    /// Reads every log as the next start does. Each must hold exactly what was appended and did not die.
    pub(crate) fn recover(&mut self) -> Result<Recovered, String> {
        let mut all = Recovered::default();
        let torn = self.oracle.torn.take();
        for shard in 0..self.shards.len() {
            if self.store.sabotage == Some(Sabotage::LedgerLost) {
                let floor = self.shards[shard].floor;
                self.shards[shard].log = ShardLog::new(LOG_BYTES_MIN, shard as u16, 1, floor);
            }
            let refused = |why| format!("a start refuses the ledger log of shard {shard}: {why}");
            let (messages, floor) = self.shards[shard].log.read().map_err(refused)?;
            let found: BTreeSet<usize> = messages.iter().filter_map(|m| self.oracle.identify(m).ok()).collect();
            let live: BTreeSet<usize> = self.shards[shard].log.posts().collect();
            if let Some(post) = live.difference(&found).next().filter(|post| Some(**post) != torn) {
                return Err(format!("message {post} is not in the log of shard {shard}, which holds it"));
            }
            if let Some(post) = found.difference(&live).next().filter(|post| Some(**post) != torn) {
                return Err(format!("message {post} is in the log of shard {shard} although it died there"));
            }
            if torn.is_none() && floor < self.shards[shard].floor {
                return Err(format!("the log of shard {shard} says {floor:?}, its clock floor is higher"));
            }
            let (messages, floor) = self.damaged(shard, (messages, floor))?;
            all.floor = all.floor.max(floor);
            all.messages.extend(messages);
        }
        Ok(all)
    }

    /// Sometimes a kill is worse: a bit of the file is another, or the host lost power.
    fn damaged(&mut self, shard: usize, before: (Vec<Message>, Clock)) -> Result<(Vec<Message>, Clock), String> {
        let rng = &mut self.rng.faults;
        let memory = self.shards[shard].log.log.medium();
        let mut spots = 1;
        if self.oracle.power_cut {
            self.marks.hit("kill: power lost");
            memory.lose_power(rng);
            spots = usize::MAX;
        } else if rng.permille(self.plan.faults.damage) {
            self.marks.hit("kill: log damaged");
            let ring = memory.bytes().len() - HEADER_BYTES;
            // Mostly among the records: the first bytes of a log are used most.
            let within = 1 + rng.index(ring);
            let at = HEADER_BYTES + rng.index(within);
            memory.damage(at, rng.below(8) as u32);
        } else {
            return Ok(before);
        }
        let refused = |why| format!("a start refuses the damaged ledger log of shard {shard}: {why}");
        let after = self.shards[shard].log.read().map_err(refused)?;
        let stamps = |of: &[Message]| of.iter().map(|message| message.stamp).collect::<BTreeSet<Stamp>>();
        let (had, has) = (stamps(&before.0), stamps(&after.0));
        if has.difference(&had).next().is_some() {
            return Err(format!("damage brings messages back in the log of shard {shard}"));
        }
        let missing: Vec<Stamp> = had.difference(&has).copied().collect();
        if missing.len() > spots {
            return Err(format!("one damaged bit hides {missing:?}"));
        }
        for stamp in missing {
            self.marks.hit("kill: damaged record");
            if let Some(post) = self.oracle.by_stamp.get(&stamp) {
                self.oracle.posts[*post].damaged = true;
            }
        }
        Ok(after)
    }
}
