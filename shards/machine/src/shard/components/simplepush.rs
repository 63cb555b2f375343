//! State of sessions in SimplePush mode beside their entry, and the user agents that were woken lately.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{Chid, Uaid};
use crate::limits;
use crate::simplepush::WakeData;
use crate::time::{Instant, TimeSpan};

/// Side tables of one shard.
#[derive(Default)]
pub(in crate::shard) struct SimplePushTable {
    /// By index of the session, for those that have anything to keep.
    sessions: BTreeMap<u32, SimplePushSession>,
    woken: RecentWakeUps,
}

#[derive(Default)]
struct SimplePushSession {
    /// Written with each register, since the user may not be stored yet.
    wake: Option<WakeData>,
    /// Time of the last message, in either direction.
    active: Instant,
    /// Versions acked while storage was read: the same version may come out of it a moment later. Only of registered
    /// channels.
    acked: BTreeMap<Chid, u64>,
}

/// Decision on a request to wake a user agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum WakeUp {
    Granted,
    /// It was woken a moment ago.
    TooSoon,
    /// Too many user agents were woken a moment ago.
    TooMany,
}

impl SimplePushTable {
    /// A session begins, of a user that is woken by `wake`.
    pub fn begin(&mut self, session: u32, uaid: Uaid, wake: Option<WakeData>, now: Instant) {
        self.woken.came_back(uaid);
        if wake.is_some() {
            self.sessions.insert(session, SimplePushSession { wake, active: now, acked: BTreeMap::new() });
        }
    }

    pub fn end(&mut self, session: u32) {
        self.sessions.remove(&session);
    }

    pub fn wake_data(&self, session: u32) -> Option<WakeData> {
        self.sessions.get(&session)?.wake.clone()
    }

    /// Something was said on this session.
    pub fn said(&mut self, session: u32, now: Instant) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.active = now;
        }
    }

    /// Returns true if a session that can be woken has been silent for `limit`; never if that is 0.
    pub fn idled_out(&self, session: u32, now: Instant, limit: TimeSpan) -> bool {
        let state = self.sessions.get(&session).filter(|state| limit > TimeSpan(0) && state.wake.is_some());
        state.is_some_and(|state| now.since(state.active) >= limit)
    }

    /// A version was acked while storage is read.
    pub fn ack(&mut self, session: u32, chid: Chid, version: u64) {
        let acked = self.sessions.entry(session).or_default().acked.entry(chid).or_default();
        *acked = version.max(*acked);
    }

    /// Returns true if this version of a channel or a higher one was acked while storage was read.
    pub fn is_acked(&self, session: u32, chid: Chid, version: u64) -> bool {
        let acked = self.sessions.get(&session).and_then(|state| state.acked.get(&chid));
        acked.is_some_and(|acked| version <= *acked)
    }

    /// A channel is no more: what was acked of it says nothing about the next subscription under its name.
    pub fn forget_channel(&mut self, session: u32, chid: Chid) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.acked.remove(&chid);
        }
    }

    /// Storage was read to its end: what comes out of it from now on was stored behind the acks.
    pub fn forget_acks(&mut self, session: u32) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.acked.clear();
            if state.wake.is_none() {
                self.end(session);
            }
        }
    }

    /// Decides on a wake-up call for a user that is away.
    pub fn wake(&mut self, now: Instant, uaid: Uaid) -> WakeUp {
        self.woken.ask(now, uaid)
    }
}

/// User agents that were woken lately: app servers must not make us call more often than that.
#[derive(Default)]
struct RecentWakeUps {
    order: VecDeque<(Instant, Uaid)>,
    known: BTreeSet<Uaid>,
}

impl RecentWakeUps {
    /// A user is there: the next call is for another absence.
    fn came_back(&mut self, uaid: Uaid) {
        if self.known.remove(&uaid) {
            self.order.retain(|(_, woken)| *woken != uaid);
        }
    }

    fn ask(&mut self, now: Instant, uaid: Uaid) -> WakeUp {
        while let Some((at, uaid)) = self.order.front().copied()
            && now.since(at) >= TimeSpan::from_secs(limits::WAKE_PAUSE_SECONDS)
        {
            self.order.pop_front();
            self.known.remove(&uaid);
        }
        if self.known.contains(&uaid) {
            return WakeUp::TooSoon;
        }
        if self.order.len() >= limits::WOKEN_MAX {
            return WakeUp::TooMany;
        }
        self.known.insert(uaid);
        self.order.push_back((now, uaid));
        WakeUp::Granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acked_version_is_known_until_storage_was_read() {
        let (mut simple, chid) = (SimplePushTable::default(), Chid([3; 16]));
        simple.ack(7, chid, 5);
        simple.ack(7, chid, 4);
        assert!(simple.is_acked(7, chid, 5) && !simple.is_acked(7, chid, 6) && !simple.is_acked(8, chid, 5));
        simple.forget_acks(7);
        assert!(!simple.is_acked(7, chid, 5) && simple.sessions.is_empty());
    }

    #[test]
    fn only_a_session_that_can_be_woken_idles_out() {
        let (mut simple, limit) = (SimplePushTable::default(), TimeSpan::from_secs(5));
        simple.begin(1, Uaid([1; 16]), WakeData::new("ip=203.0.113.7"), Instant(0));
        simple.begin(2, Uaid([2; 16]), None, Instant(0));
        let now = Instant(0).after(limit);
        assert!(simple.idled_out(1, now, limit) && !simple.idled_out(2, now, limit));
        assert!(!simple.idled_out(1, now, TimeSpan(0)));
        simple.said(1, now);
        assert!(!simple.idled_out(1, now, limit));
        assert!(simple.wake_data(1).is_some());
        simple.end(1);
        assert!(simple.wake_data(1).is_none());
    }

    #[test]
    fn a_user_is_woken_once_in_a_while_and_not_all_users_at_once() {
        let mut woken = RecentWakeUps::default();
        let user = |n: usize| Uaid((n as u128).to_be_bytes());
        let later = |seconds| Instant(0).after(TimeSpan::from_secs(seconds));
        for n in 0..limits::WOKEN_MAX {
            assert!(matches!(woken.ask(later(0), user(n)), WakeUp::Granted));
        }
        assert!(matches!(woken.ask(later(9), user(0)), WakeUp::TooSoon));
        assert!(matches!(woken.ask(later(9), user(limits::WOKEN_MAX)), WakeUp::TooMany));
        assert!(matches!(woken.ask(later(10), user(0)), WakeUp::Granted));
        assert_eq!((woken.order.len(), woken.known.len()), (1, 1));
    }
}
