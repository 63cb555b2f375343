//! Effects of a machine, carried out in the simulated world.

use machine::Effect;

use super::world::Bridges;
use crate::shared::{Verdict, lane_of};

impl Bridges {
    pub(super) fn carry_out(&mut self, n: usize, s: usize, effect: Effect) -> Verdict {
        self.log(Some(n), format_args!("{s} -> {effect:?}"));
        match effect {
            Effect::Ready(_) => Ok(()),
            Effect::Emit(conn, event) => self.answered((n, s, conn.slot), event),
            Effect::Mail(to, mail) => {
                self.nodes[n].shards[usize::from(to.0)].lanes[lane_of(&mail) as usize].push_back(mail);
                Ok(())
            }
            Effect::Store(ticket, op) => {
                self.submit((n, s), ticket, op);
                Ok(())
            }
            Effect::Upstream(ticket, op) => self.call((n, s), ticket, op),
            Effect::ClockFloor(clock) => {
                self.nodes[n].floor = self.nodes[n].floor.max(clock);
                Ok(())
            }
            Effect::Drained => {
                self.nodes[n].shards[s].drained = true;
                Ok(())
            }
            Effect::Close(..)
            | Effect::Move { .. }
            | Effect::Feed(..)
            | Effect::Peer(..)
            | Effect::LedgerAppend(..)
            | Effect::LedgerDead(_)
            | Effect::Wake(_) => Err("an effect of sessions in a world without sessions".to_owned()),
        }
    }
}
