//! `hello.reconcile`: the user agent's list of channels is the truth (BEHAVIOUR.md 8, item 20; off by default).
//!
//! A channel that only the server knows is unregistered: its user agent will never take its messages. A channel that
//! the server lacks cannot be made up here, since its endpoint is locked to nobody: the user starts over under a fresh
//! UAID, which makes the user agent subscribe anew.

use crate::ids::{Chid, Uaid};

use super::input::Effect;
use super::store::{StoreOp, UserRow};
use super::tickets::Work;
use super::{ShardMachine, Turn};

impl ShardMachine {
    /// Whether a hello names a channel that nobody registered; if so, the user is dropped and counts as unknown.
    pub(super) fn starts_over(
        &mut self,
        turn: &mut Turn<'_>,
        uaid: Uaid,
        said: Option<&[Chid]>,
        user: &UserRow,
    ) -> bool {
        let Some(said) = said.filter(|_| self.config.reconcile) else { return false };
        if said.iter().all(|chid| user.channels.contains(chid)) {
            return false;
        }
        self.stats.resets_reconciled += 1;
        self.submit(turn, Work::Reset { uaid }, StoreOp::DropUser { uaid });
        true
    }

    /// Unregisters what a hello left out, and takes it from the user's channels.
    pub(super) fn forget_channels(
        &mut self,
        turn: &mut Turn<'_>,
        uaid: Uaid,
        said: Option<&[Chid]>,
        user: &mut UserRow,
    ) {
        let Some(said) = said.filter(|_| self.config.reconcile) else { return };
        let forgotten: Vec<Chid> = user.channels.extract_if(.., |chid| !said.contains(chid)).collect();
        for chid in forgotten {
            self.stats.channels_reconciled += 1;
            let at = self.clock.tick(turn.now);
            if let Some(floor) = self.clock.floor_to_persist() {
                turn.effects.push_back(Effect::ClockFloor(floor));
            }
            self.submit(turn, Work::Forget { uaid, chid }, StoreOp::Unregister { uaid, chid, at });
        }
    }
}
