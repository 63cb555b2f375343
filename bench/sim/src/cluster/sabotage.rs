//! Broken clusters: each breaks a rule of decision 0017, or one about bridged users, where the surroundings of the
//! machine can break it, and the oracle must notice.

use std::sync::Arc;

use machine::ids::Clock;
use machine::message::Message;
use machine::time::UnixSeconds;
use machine::upstream::{BridgeOutcome, Bridged};
use machine::{PeerOp, PeerReply, RowKey, StoreError, StoreOp, StoreReply, UserRow};

use super::parts::{Behind, Breakage, Pending};
use super::world::Cluster;
use crate::shared::Late;

impl Cluster {
    /// Operation of the store as a broken cluster would ask for it.
    pub(super) fn op_broken(&mut self, node: usize, op: StoreOp) -> StoreOp {
        match (self.breakage, op) {
            (Some(Breakage::UnsureIsPlain), StoreOp::Save { messages }) if messages.len() == 1 => {
                let message = Arc::clone(&messages[0]);
                let held = self.nodes[node].shards.iter().flat_map(|shard| shard.ledger.values());
                let waits = self.identify(&message).is_ok_and(|post| self.posts[post].seen.is_none());
                if waits && !held.into_iter().any(|one| one.stamp == message.stamp) {
                    StoreOp::Publish { message, checked: true }
                } else {
                    StoreOp::Save { messages }
                }
            }
            (
                Some(Breakage::RowRidesOnce),
                StoreOp::Register { uaid, chid, key, at, seen, contact, presence: Some(presence), maker },
            ) => {
                let presence = self.rode.insert(uaid).then_some(presence);
                StoreOp::Register { uaid, chid, key, at, seen, contact, presence, maker }
            }
            (_, op) => op,
        }
    }

    /// The answer that a broken cluster gives instead of carrying an operation out.
    pub(super) fn answer_broken(
        &mut self,
        (node, shard): (usize, usize),
        op: &StoreOp,
        behind: Behind,
    ) -> Option<Result<StoreReply, StoreError>> {
        let machine = &self.nodes[node].shards[shard].machine;
        let second_look = matches!(behind, Behind::Write(_));
        match (self.breakage?, op) {
            (Breakage::PresenceLate, StoreOp::SetPresence { .. }) => {
                let at = self.now + self.rng.store.below(5_000_000_000);
                self.late.push(Late { at, op: op.clone() });
                Some(Ok(StoreReply::Done))
            }
            (Breakage::LooksOnce, StoreOp::Locate { .. }) if second_look => {
                Some(self.user_without(op, |user| user.presence.clear()))
            }
            (Breakage::SavedAgainUntold, StoreOp::Locate { .. }) if behind == Behind::SaveAgain => {
                Some(self.user_without(op, |user| user.presence.clear()))
            }
            (Breakage::NeverRefreshed, StoreOp::Touch { .. }) if self.calm => Some(Err(StoreError::Transient)),
            (Breakage::NeverDoubts, StoreOp::LoadUser { uaid }) if machine.is_resident(*uaid) => {
                Some(Err(StoreError::Transient))
            }
            (Breakage::PassedRowUndoubted, StoreOp::LoadUser { .. }) if behind == Behind::Page => {
                Some(Err(StoreError::Transient))
            }
            (Breakage::LackUnnoticed, StoreOp::LoadUser { .. }) if behind == Behind::Page => {
                Some(self.user_without(op, |user| user.channels.clear()))
            }
            (Breakage::BelowLowWaterStays, StoreOp::Locate { .. }) if second_look => {
                Some(self.user_without(op, |user| user.low_water = Clock(0)))
            }
            _ => None,
        }
    }

    /// The user that storage has, changed.
    fn user_without(&mut self, op: &StoreOp, change: impl FnOnce(&mut UserRow)) -> Result<StoreReply, StoreError> {
        let mut reply = self.store.apply(op);
        if let Ok(StoreReply::User(Some(user))) = &mut reply {
            change(user);
        }
        reply
    }

    /// The store as a broken cluster would have it.
    pub(super) fn effect_broken(&mut self, breakage: Breakage, op: &StoreOp) -> Result<StoreReply, StoreError> {
        let uaid = op.uaid();
        match (breakage, op) {
            (Breakage::PresenceUnwritten, StoreOp::SetPresence { .. }) => return Ok(StoreReply::Done),
            (Breakage::NothingIsCleared, StoreOp::ClearPresence { .. }) => return Ok(StoreReply::Done),
            (Breakage::ClearedRowStays, StoreOp::SetPresence { .. }) if self.withholds => return Ok(StoreReply::Done),
            (Breakage::RowUnrenewed, StoreOp::SetPresence { .. }) if self.refreshing => return Ok(StoreReply::Done),
            (Breakage::SettledRowStays, StoreOp::Settle { rows, low_water, durable }) => {
                let told = |row: &RowKey| self.by_stamp.get(&row.stamp).is_some_and(|post| self.posts[*post].told);
                let rows: Vec<RowKey> = rows.iter().copied().filter(|row| !told(row)).collect();
                if rows.is_empty() {
                    return Ok(StoreReply::Done);
                }
                return self.store.apply(&StoreOp::Settle { rows, low_water: *low_water, durable: *durable });
            }
            (Breakage::UpdateIgnored, StoreOp::SetBridge { .. })
            | (Breakage::RemovalIgnored, StoreOp::DropUser { .. })
            | (Breakage::SubscribeIgnored, StoreOp::Subscribe { .. }) => return Ok(StoreReply::Done),
            (Breakage::LowerVersionWins, StoreOp::Publish { message, .. }) if message.simple_version().is_some() => {
                let slot = (message.chid, message.topic);
                let user = self.store.user(uaid);
                let higher = user.and_then(|user| user.messages().find(|kept| (kept.chid, kept.topic) == slot));
                let rows: Vec<RowKey> = higher.map(|kept| RowKey::of(kept)).into_iter().collect();
                if !rows.is_empty() {
                    let _ = self.store.apply(&StoreOp::Settle { rows, low_water: None, durable: true });
                }
            }
            (Breakage::AnyTokenEnds, StoreOp::DropBridged { .. }) => {
                return self.store.apply(&StoreOp::DropUser { uaid });
            }
            (Breakage::MarkTooOld, StoreOp::MarkRefused { registered, at, .. }) => {
                let at = UnixSeconds(at.0 - 60);
                return self.store.apply(&StoreOp::MarkRefused { uaid, registered: *registered, at });
            }
            (Breakage::MarkStays, StoreOp::SetBridge { bridge, .. }) => {
                let had = self.store.user(uaid).and_then(|user| user.row().contact.bridge);
                let refused = had.and_then(|bridge| bridge.refused);
                let bridge = Box::new(Bridged { refused, ..Bridged::clone(bridge) });
                return self.store.apply(&StoreOp::SetBridge { uaid, bridge });
            }
            (Breakage::ClearsAnyVersion, StoreOp::ClearPresence { uaid, presence }) => {
                let rows = self.store.user(*uaid).map(|user| user.row().presence).unwrap_or_default();
                for row in rows.into_iter().filter(|row| row.node.url == presence.node.url) {
                    let _ = self.store.apply(&StoreOp::ClearPresence { uaid: *uaid, presence: row });
                }
            }
            _ => {}
        }
        self.store.apply(op)
    }

    /// Answer of a service as a machine of a broken cluster is told it, if it is told.
    pub(super) fn outcome_broken(&self, outcome: BridgeOutcome) -> Option<BridgeOutcome> {
        match (self.breakage, outcome) {
            (Some(Breakage::AnswerLost), BridgeOutcome::Failed(_)) => None,
            (Some(Breakage::SentAlone), BridgeOutcome::Failed(_)) => Some(BridgeOutcome::Sent),
            (_, outcome) => Some(outcome),
        }
    }

    /// Call to another node as a broken cluster would make it.
    pub(super) fn call_broken(&self, op: PeerOp) -> PeerOp {
        match (self.breakage, op) {
            (Some(Breakage::UnsureIsForgotten), PeerOp::Notify { to, uaid, .. }) => {
                PeerOp::Notify { to, uaid, unsure: None }
            }
            (_, op) => op,
        }
    }

    /// Message of a push as a machine is given it. A machine that has forgotten a refusal takes it for another one.
    pub(super) fn copy_broken(&mut self, to: usize, post: usize, message: &Message) -> Arc<Message> {
        let mut copy = Message::clone(message);
        let boot = self.nodes[to].id.boot;
        if self.posts[post].refused_by.is_some_and(|(by, _, stamp)| by == boot && stamp == copy.stamp) {
            self.marks.hit("call: copy of a push that was refused");
            copy.stamp.clock.0 -= u64::from(self.breakage == Some(Breakage::RefusalForgotten));
        }
        Arc::new(copy)
    }

    /// Returns true if a broken cluster does not make this call and takes it for answered.
    pub(super) fn call_left_out(&self, op: &PeerOp) -> bool {
        let PeerOp::Notify { unsure: Some(row), .. } = op else { return false };
        let post = self.by_stamp.get(&row.stamp).copied();
        // Its POST was answered, and not with 201.
        let failed = |post: usize| {
            let waits = self.pending.values().any(|(pending, _)| matches!(pending, Pending::Post(one) if *one == post));
            self.posts[post].seen.is_none() && !waits
        };
        self.breakage == Some(Breakage::FailureUntold) && post.is_some_and(failed)
    }

    /// Outcome of a call, as a machine is told it.
    pub(super) fn reply_broken(&self, op: &PeerOp, reply: PeerReply) -> PeerReply {
        match (self.breakage, op, reply) {
            (Some(Breakage::UnreachedIsGone), _, PeerReply::NoAnswer | PeerReply::Unreachable) => PeerReply::NotHere,
            (Some(Breakage::UnsureIsRefused), _, PeerReply::NoAnswer) => PeerReply::Busy,
            // The machine stores a push that was not taken, and stamps it again only when it was refused.
            (Some(Breakage::RefusedKeepsStamp), PeerOp::Push { .. }, PeerReply::Busy | PeerReply::Held) => {
                PeerReply::Unreachable
            }
            (_, _, reply) => reply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Breakage;
    use crate::run::{Options, run_cluster};

    /// The first failure that this breakage causes; every one must cause some.
    fn found(breakage: Breakage) -> String {
        found_in(breakage, false)
    }

    /// As `found`, in `rare` worlds or common ones.
    fn found_in(breakage: Breakage, rare: bool) -> String {
        found_from(0, breakage, rare)
    }

    /// As `found_in`, from a seed on.
    fn found_from(first: u64, breakage: Breakage, rare: bool) -> String {
        let options = Options { rare, ..Options::default() };
        // A seed that fails without the planted fault says nothing about it.
        let is_sound = |seed: &u64| run_cluster(*seed, &options, None).is_ok();
        let failure = (first..first + 10_000)
            .find_map(|seed| run_cluster(seed, &options, Some(breakage)).err().filter(|_| is_sound(&seed)));
        let failure = failure.unwrap_or_else(|| panic!("no seed notices {breakage:?}"));
        failure.what
    }

    #[test]
    fn a_session_without_its_row_is_not_told() {
        let what = found(Breakage::PresenceUnwritten);
        assert!(what.contains("waits (") || what.contains("no row says so"), "{what}");
    }

    #[test]
    fn a_session_that_looks_before_its_row_is_there_misses_what_comes_between() {
        let what = found(Breakage::PresenceLate);
        assert!(what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_row_that_is_cleared_in_any_version_hides_a_session() {
        let what = found(Breakage::ClearsAnyVersion);
        assert!(what.contains("waits (") || what.contains("no row says so"), "{what}");
    }

    #[test]
    fn a_session_that_comes_between_two_looks_is_not_told() {
        let what = found(Breakage::LooksOnce);
        assert!(what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_node_that_is_taken_for_gone_keeps_its_sessions_waiting() {
        let what = found(Breakage::UnreachedIsGone);
        assert!(what.contains("waits (") || what.contains("lost") || what.contains("no row says so"), "{what}");
    }

    #[test]
    fn a_word_that_is_not_owed_is_not_said() {
        let what = found(Breakage::NothingIsOwed);
        assert!(what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_debt_that_is_not_written_down_ends_with_its_node() {
        let what = found(Breakage::DebtsUnwritten);
        assert!(what.contains("waits (beside its session)"), "{what}");
    }

    #[test]
    fn a_loss_that_is_not_told_hides_messages() {
        let what = found(Breakage::LossUntold);
        assert!(what.contains("waits (beside its session)"), "{what}");
    }

    #[test]
    fn a_debt_that_makes_no_session_read_storage_hides_messages() {
        let what = found(Breakage::DebtUnread);
        assert!(what.contains("waits (beside its session)"), "{what}");
    }

    #[test]
    fn the_holder_of_a_message_that_is_saved_again_is_told() {
        let what = found_in(Breakage::SavedAgainUntold, true);
        assert!(what.contains("its holder is not told"), "{what}");
    }

    #[test]
    fn a_word_that_is_lost_is_not_found_without_a_refresh() {
        let what = found(Breakage::NeverRefreshed);
        assert!(what.contains("(every session was refreshed)") || what.contains("no row says so"), "{what}");
    }

    #[test]
    fn a_new_user_whose_row_rides_once_is_not_found() {
        let what = found(Breakage::RowRidesOnce);
        assert!(what.contains("waits (") || what.contains("no row says so"), "{what}");
    }

    #[test]
    fn a_push_without_an_answer_has_two_names() {
        let what = found(Breakage::UnsureIsRefused);
        assert!(what.contains("another id") || what.contains("said otherwise"), "{what}");
    }

    #[test]
    fn a_row_that_its_session_does_not_know_of_outlives_the_ack() {
        let what = found(Breakage::UnsureIsForgotten);
        assert!(what.contains("was acked and is stored still"), "{what}");
    }

    #[test]
    fn an_unsure_push_that_is_written_as_any_other_lies_in_two_places() {
        let what = found(Breakage::UnsureIsPlain);
        assert!(what.contains("lies in two places"), "{what}");
    }

    #[test]
    fn a_refused_push_that_keeps_its_stamp_is_in_front_of_what_was_sent() {
        let what = found(Breakage::RefusedKeepsStamp);
        assert!(what.contains("is in front of what was sent before"), "{what}");
    }

    #[test]
    fn a_session_that_does_not_doubt_keeps_what_it_was_sent() {
        let what = found(Breakage::NeverDoubts);
        assert!(what.contains("waits (") || what.contains("no row says so"), "{what}");
    }

    #[test]
    fn a_run_that_goes_on_after_its_burial_is_not_told() {
        let what = found(Breakage::BuriedGoesOn);
        assert!(what.contains("waits (") || what.contains("no row says so"), "{what}");
    }

    #[test]
    fn a_late_burial_that_hits_the_next_run_ends_it() {
        let what = found(Breakage::BurialHitsNewerRun);
        assert!(what.contains("was never silent"), "{what}");
    }

    #[test]
    fn a_clock_that_nobody_asks_about_hides_messages() {
        let what = found(Breakage::ClockUnasked);
        assert!(what.contains("lost") || what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_row_behind_a_failed_push_that_nobody_hears_of_outlives_the_ack() {
        let what = found(Breakage::FailureUntold);
        assert!(what.contains("was acked and is stored still"), "{what}");
    }

    #[test]
    fn a_row_of_a_settled_message_that_stays_is_read_again() {
        let what = found(Breakage::SettledRowStays);
        assert!(what.contains("is read although") || what.contains("was acked and is stored still"), "{what}");
    }

    #[test]
    fn a_row_that_was_cleared_by_mistake_and_stays_away_hides_its_session() {
        let what = found(Breakage::ClearedRowStays);
        assert!(what.contains("no row says so"), "{what}");
    }

    #[test]
    fn a_row_that_is_not_renewed_expires() {
        let what = found(Breakage::RowUnrenewed);
        assert!(what.contains("no row says so"), "{what}");
    }

    #[test]
    fn rows_that_lead_nowhere_are_noticed() {
        let what = found(Breakage::NothingIsCleared);
        assert!(what.contains("leads nowhere"), "{what}");
    }

    /// Sessions that pass rows by, and are told of them by nothing else, are in one of some 15,000 rare worlds. The
    /// search begins shortly before the first of them behind 10,000 (21,070 at this writing).
    const PASSED_ROWS: u64 = 21_000;

    #[test]
    fn a_session_that_passes_rows_by_and_does_not_doubt_keeps_them_waiting() {
        let what = found_from(PASSED_ROWS, Breakage::PassedRowUndoubted, true);
        assert!(what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_session_that_lacks_a_channel_and_stays_keeps_its_messages_waiting() {
        let what = found_from(PASSED_ROWS, Breakage::LackUnnoticed, true);
        assert!(what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_message_below_low_water_that_is_not_saved_again_is_noticed() {
        let what = found_in(Breakage::BelowLowWaterStays, true);
        assert!(what.contains("is accepted below low water"), "{what}");
    }

    #[test]
    fn a_lower_version_that_replaces_a_higher_one_is_noticed() {
        let what = found(Breakage::LowerVersionWins);
        assert!(what.contains("is lost ("), "{what}");
    }

    #[test]
    fn a_refusal_that_removes_any_token_is_noticed() {
        let what = found(Breakage::AnyTokenEnds);
        assert!(what.contains("its token was refused at []"), "{what}");
    }

    #[test]
    fn two_refusals_within_a_minute_are_noticed() {
        let what = found(Breakage::MarkTooOld);
        assert!(what.contains("its token was refused at"), "{what}");
    }

    #[test]
    fn a_201_without_the_service_is_noticed() {
        let what = found(Breakage::SentAlone);
        assert!(what.contains("was answered Accepted"), "{what}");
    }

    #[test]
    fn a_refusal_that_the_guard_did_not_stop_is_noticed() {
        let what = found(Breakage::GuardIgnored);
        assert!(what.contains("without a refusal") || what.contains("its token was refused at"), "{what}");
    }

    #[test]
    fn a_post_without_an_answer_is_noticed() {
        assert!(found(Breakage::AnswerLost).contains("no answer within"));
    }

    #[test]
    fn a_new_token_with_an_old_mark_is_noticed() {
        assert!(found(Breakage::MarkStays).contains("begins with a mark"));
    }

    #[test]
    fn a_new_token_that_is_not_stored_is_noticed() {
        let what = found(Breakage::UpdateIgnored);
        assert!(what.contains("asked: Update") && what.contains("was answered"), "{what}");
    }

    #[test]
    fn a_channel_of_a_phone_that_is_not_stored_is_noticed() {
        let what = found(Breakage::SubscribeIgnored);
        assert!(what.contains("asked: Subscribe") && what.contains("was answered Registered"), "{what}");
    }

    #[test]
    fn a_removal_that_is_not_stored_is_noticed() {
        let what = found(Breakage::RemovalIgnored);
        assert!(what.contains("asked: Remove") && what.contains("was answered Done"), "{what}");
    }

    #[test]
    fn a_late_copy_of_a_refused_push_that_is_taken_is_noticed() {
        let what = found_in(Breakage::RefusalForgotten, true);
        assert!(what.contains("late copy of a push that was refused"), "{what}");
    }
}
