//! Directs that ended sessions left unacked, until storage has them. Their ledger records stay live and count.
//!
//! One save of a user is at storage at a time. A save that failed is tried again without what was released meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{Chid, LedgerSlot, Stamp, Uaid};
use crate::message::Message;

use super::super::store::StoreError;

/// A direct that a session left, and its ledger record.
pub(in crate::shard) struct Unsaved {
    pub message: Arc<Message>,
    pub slot: LedgerSlot,
}

/// The departures of one shard, one per user.
#[derive(Default)]
pub(in crate::shard) struct PendingSaves {
    users: BTreeMap<Uaid, PendingSave>,
}

/// Directs that an ended session left, and the state of their save.
struct PendingSave {
    messages: Vec<Unsaved>,
    saving: bool,
    failed: bool,
    /// The last save was refused because storage is full: the next session of the user does not wait.
    full: bool,
    /// An unregister is at storage: only its answer tells which messages are left to save.
    unregistering: Option<Chid>,
}

/// A save that must be submitted.
pub(in crate::shard) struct Save {
    pub messages: Vec<Arc<Message>>,
    /// After a pause: the last one failed.
    pub later: bool,
}

/// Result of the answer to a save.
pub(in crate::shard) enum Saved {
    /// Storage has everything: these records are over, and so is the departure.
    Over(Vec<Unsaved>),
    /// Storage did not take it, `full` because it has no room. [`PendingSaves::begin_save`] is next.
    Failed { full: bool },
}

impl PendingSaves {
    /// A session has ended and left this. `unregistering`: the channel whose unregister is at storage.
    pub fn add(&mut self, uaid: Uaid, messages: Vec<Unsaved>, unregistering: Option<Chid>) {
        let pending_save = PendingSave { messages, saving: false, failed: false, full: false, unregistering };
        let before = self.users.insert(uaid, pending_save);
        assert!(before.is_none(), "no direct is accepted before what an earlier session left is saved");
    }

    /// Nothing is left to save.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Returns true if a session of this user left something that is not saved yet.
    pub fn contains(&self, uaid: Uaid) -> bool {
        self.users.contains_key(&uaid)
    }

    /// Returns true if a hello of this user waits until the directs of its last session are saved. A full storage takes
    /// them when it has room again, and the session is told then.
    pub fn goes_first(&self, uaid: Uaid) -> bool {
        self.users.get(&uaid).is_some_and(|pending_save| !pending_save.full)
    }

    /// Returns true if this message waits to be saved.
    pub fn holds(&self, uaid: Uaid, stamp: Stamp) -> bool {
        let pending_save = self.users.get(&uaid);
        pending_save.is_some_and(|pending_save| pending_save.messages.iter().any(|left| left.message.stamp == stamp))
    }

    /// Takes out the messages of a user that have ended otherwise. A save that is tried again leaves them out.
    pub fn release(&mut self, uaid: Uaid, which: impl Fn(&Message) -> bool) -> Vec<Unsaved> {
        match self.users.get_mut(&uaid) {
            Some(pending_save) => pending_save.messages.extract_if(.., |left| which(&left.message)).collect(),
            None => Vec::new(),
        }
    }

    /// The unregister that was under way when the session ended is answered. False when nothing waited for that.
    pub fn unregistered(&mut self, uaid: Uaid) -> bool {
        let pending_save = self.users.get_mut(&uaid);
        pending_save.map(|pending_save| pending_save.unregistering = None).is_some()
    }

    /// Returns true if a departure has nothing left to save and no save at storage: it ends now.
    pub fn is_over(&self, uaid: Uaid) -> bool {
        self.users.get(&uaid).is_some_and(|pending_save| pending_save.messages.is_empty() && !pending_save.saving)
    }

    /// Begins a save of the directs that a user's session left. `None` while one is at storage, while an unregister has
    /// to go first, and when nothing is left.
    pub fn begin_save(&mut self, uaid: Uaid) -> Option<Save> {
        let waits = |pending_save: &&mut PendingSave| !pending_save.saving && pending_save.unregistering.is_none();
        let pending_save =
            self.users.get_mut(&uaid).filter(waits).filter(|pending_save| !pending_save.messages.is_empty())?;
        pending_save.saving = true;
        let messages = pending_save.messages.iter().map(|left| left.message.clone()).collect();
        Some(Save { messages, later: pending_save.failed })
    }

    /// Storage has answered a save, or nothing was left to save.
    pub fn saved(&mut self, uaid: Uaid, result: Result<(), StoreError>) -> Saved {
        // Invariant: a departure stays until its save is answered.
        let pending_save = self.users.get_mut(&uaid).expect("a save at storage has its departure");
        pending_save.saving = false;
        if let Err(error) = result
            && !pending_save.messages.is_empty()
        {
            (pending_save.failed, pending_save.full) = (true, error == StoreError::Full);
            return Saved::Failed { full: pending_save.full };
        }
        let pending_save = self.users.remove(&uaid);
        Saved::Over(pending_save.map_or_else(Vec::new, |pending_save| pending_save.messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Clock;
    use crate::message::Urgency;
    use crate::time::UnixSeconds;
    use proptest::prelude::*;

    const USER: Uaid = Uaid([7; 16]);

    fn left(n: u32) -> Unsaved {
        let stamp = Stamp { clock: Clock(u64::from(n)), ..Stamp::default() };
        let message = Message {
            uaid: USER,
            chid: Chid([n as u8 % 2; 16]),
            stamp,
            ttl: 60,
            accepted: UnixSeconds(0),
            urgency: Urgency::Normal,
            topic: None,
            receipt: false,
            tries: Default::default(),
            payload: Box::default(),
        };
        Unsaved { message: Arc::new(message), slot: LedgerSlot(n) }
    }

    proptest! {
        /// Each record is given back exactly once: by a release, or by the save that stored its message.
        #[test]
        fn every_record_is_given_back_once(ops in prop::collection::vec((0u8..4, 0u32..6), 0..40), unregisters: bool) {
            let mut pending_saves = PendingSaves::default();
            pending_saves.add(USER, (0..6).map(left).collect(), unregisters.then_some(Chid([0; 16])));
            let mut back: Vec<u32> = Vec::new();
            let mut saving: Option<Vec<u64>> = None;
            for (op, n) in ops {
                match op {
                    0 => {
                        let left = pending_saves.release(USER, |message| message.stamp.clock.0 == u64::from(n));
                        back.extend(left.iter().map(|one| one.slot.0));
                    }
                    1 if saving.is_none() => {
                        let save = pending_saves.begin_save(USER);
                        prop_assert!(save.is_none() || pending_saves.begin_save(USER).is_none());
                        saving = save.map(|save| save.messages.iter().map(|message| message.stamp.clock.0).collect());
                    }
                    2 | 3 if saving.take().is_some() => {
                        match pending_saves.saved(USER, if op == 2 { Ok(()) } else { Err(StoreError::Full) }) {
                            Saved::Over(left) => back.extend(left.iter().map(|one| one.slot.0)),
                            Saved::Failed { full } => prop_assert!(full && !pending_saves.goes_first(USER)),
                        }
                    }
                    _ => _ = pending_saves.unregistered(USER),
                }
                let held = (0..6).filter(|n| pending_saves.holds(USER, left(*n).message.stamp)).count();
                prop_assert_eq!(held + back.len(), 6);
            }
            back.sort_unstable();
            back.dedup();
            let held = (0..6).filter(|n| pending_saves.holds(USER, left(*n).message.stamp)).count();
            prop_assert_eq!(held + back.len(), 6);
        }
    }

    #[test]
    fn a_save_waits_for_the_unregister_before_it() {
        let mut pending_saves = PendingSaves::default();
        pending_saves.add(USER, vec![left(1)], Some(Chid([1; 16])));
        assert!(pending_saves.goes_first(USER) && pending_saves.begin_save(USER).is_none());
        assert_eq!(pending_saves.release(USER, |message| message.chid == Chid([1; 16])).len(), 1);
        assert!(pending_saves.unregistered(USER) && pending_saves.is_over(USER));
        assert!(matches!(pending_saves.saved(USER, Ok(())), Saved::Over(left) if left.is_empty()));
        assert!(pending_saves.is_empty() && !pending_saves.unregistered(USER));
    }

    #[test]
    fn a_save_that_failed_comes_later() {
        let mut pending_saves = PendingSaves::default();
        pending_saves.add(USER, vec![left(1), left(2)], None);
        assert!(pending_saves.begin_save(USER).is_some_and(|save| !save.later && save.messages.len() == 2));
        assert!(matches!(pending_saves.saved(USER, Err(StoreError::Transient)), Saved::Failed { full: false }));
        assert!(pending_saves.goes_first(USER) && pending_saves.begin_save(USER).is_some_and(|save| save.later));
    }
}
