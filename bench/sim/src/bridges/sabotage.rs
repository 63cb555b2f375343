//! Broken worlds: each breaks a rule about bridged users where the surroundings of the machine can break it, and the
//! oracle must notice.

use machine::time::UnixSeconds;
use machine::upstream::{BridgeOutcome, Bridged};
use machine::{StoreError, StoreOp, StoreReply};

use super::parts::BrokenRule;
use super::world::Bridges;

impl Bridges {
    /// The store, perhaps as a broken world has it.
    pub(super) fn apply_broken(&mut self, op: &StoreOp) -> Result<StoreReply, StoreError> {
        let uaid = op.uaid();
        let Some(broken) = self.broken else { return self.store.apply(op) };
        let had = self.store.user(uaid).map(|user| user.row());
        match (broken, op) {
            (BrokenRule::AnyTokenEnds, StoreOp::DropBridged { .. }) => self.store.apply(&StoreOp::DropUser { uaid }),
            (BrokenRule::MarkTooOld, StoreOp::MarkRefused { registered, at, .. }) => {
                let at = UnixSeconds(at.0 - 60);
                self.store.apply(&StoreOp::MarkRefused { uaid, registered: *registered, at })
            }
            (BrokenRule::MarkStays, StoreOp::SetBridge { bridge, .. }) => {
                let refused = had.and_then(|user| user.contact.bridge).and_then(|bridge| bridge.refused);
                let bridge = Box::new(Bridged { refused, ..Bridged::clone(bridge) });
                self.store.apply(&StoreOp::SetBridge { uaid, bridge })
            }
            (BrokenRule::UpdateIgnored, StoreOp::SetBridge { .. })
            | (BrokenRule::RemovalIgnored, StoreOp::DropUser { .. }) => Ok(StoreReply::Done),
            (BrokenRule::RegisterIgnored, op) => {
                let before = self.store.clone();
                let reply = self.store.apply(op);
                let has = self.store.user(uaid).map(|user| user.row());
                if let (Some(had), Some(has)) = (had, has)
                    && has.channels.len() > had.channels.len()
                {
                    self.store = before;
                }
                reply
            }
            (_, op) => self.store.apply(op),
        }
    }

    /// Answer of the service as a machine is told it, if it is told.
    pub(super) fn told_broken(&self, outcome: BridgeOutcome) -> Option<BridgeOutcome> {
        match (self.broken, outcome) {
            (Some(BrokenRule::AnswerLost), BridgeOutcome::Failed(_)) => None,
            (Some(BrokenRule::SentAlone), BridgeOutcome::Failed(_)) => Some(BridgeOutcome::Sent),
            (_, outcome) => Some(outcome),
        }
    }

    /// Returns true if refusals are believed although the guard is active.
    pub(super) fn ignores_guard(&self) -> bool {
        self.broken == Some(BrokenRule::GuardIgnored)
    }
}

#[cfg(test)]
mod tests {
    use super::BrokenRule;
    use crate::run::{Options, run_bridges};

    /// The first failure that this breakage causes; every one must cause some.
    fn found(broken: BrokenRule) -> String {
        let options = Options::default();
        // A seed that fails without the planted fault says nothing about it.
        let is_sound = |seed: &u64| run_bridges(*seed, &options, None).is_ok();
        let failure =
            (0..1_000).find_map(|seed| run_bridges(seed, &options, Some(broken)).err().filter(|_| is_sound(&seed)));
        failure.unwrap_or_else(|| panic!("no seed notices {broken:?}")).to_string()
    }

    #[test]
    fn a_refusal_that_removes_any_token_is_noticed() {
        let what = found(BrokenRule::AnyTokenEnds);
        assert!(what.contains("its token was refused at []"), "{what}");
    }

    #[test]
    fn two_refusals_within_a_minute_are_noticed() {
        let what = found(BrokenRule::MarkTooOld);
        assert!(what.contains("its token was refused at"), "{what}");
    }

    #[test]
    fn a_201_without_the_service_is_noticed() {
        let what = found(BrokenRule::SentAlone);
        assert!(what.contains("was answered Accepted"), "{what}");
    }

    #[test]
    fn a_refusal_that_the_guard_did_not_stop_is_noticed() {
        let what = found(BrokenRule::GuardIgnored);
        assert!(what.contains("without a refusal") || what.contains("its token was refused at"), "{what}");
    }

    #[test]
    fn a_post_without_an_answer_is_noticed() {
        assert!(found(BrokenRule::AnswerLost).contains("no answer within 60 s"));
    }

    #[test]
    fn a_new_token_with_an_old_mark_is_noticed() {
        assert!(found(BrokenRule::MarkStays).contains("begins with a mark"));
    }

    #[test]
    fn a_new_token_that_is_not_stored_is_noticed() {
        let what = found(BrokenRule::UpdateIgnored);
        assert!(what.contains("asked: Update") && what.contains("was answered"), "{what}");
    }

    #[test]
    fn a_channel_that_is_not_stored_is_noticed() {
        let what = found(BrokenRule::RegisterIgnored);
        assert!(what.contains("asked: Subscribe") && what.contains("was answered Registered"), "{what}");
    }

    #[test]
    fn a_removal_that_is_not_stored_is_noticed() {
        let what = found(BrokenRule::RemovalIgnored);
        assert!(what.contains("asked: Remove") && what.contains("was answered Done"), "{what}");
    }
}
