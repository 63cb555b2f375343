//! Sets, subscriptions and pushes of broadcasts.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn version(id: &str, version: &str) -> BroadcastVersion {
    BroadcastVersion { id: id.into(), version: version.into() }
}

#[test]
fn sessions_of_the_empty_set_are_not_counted() {
    let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
    for _ in 0..3 {
        let unknown = version(&"x".repeat(limits::BROADCAST_TEXT_BYTES_MAX + 1), "1");
        assert_eq!(broadcasts.subscribe(0, &[unknown]).0, 0);
    }
    assert_eq!(broadcasts.sets[0].sessions, 0);
}

#[test]
fn strangers_cannot_fill_the_table_of_ids() {
    let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
    for n in 0..2 * limits::BROADCAST_IDS_AWAITED_MAX {
        let (_, delta) = broadcasts.subscribe(0, &[version(&n.to_string(), "1")]);
        assert_eq!(delta.unknown.len(), 1);
    }
    assert_eq!(broadcasts.values.len(), limits::BROADCAST_IDS_AWAITED_MAX + limits::BROADCAST_IDS_EXPECTED.len());
    assert_eq!(broadcasts.refused(), limits::BROADCAST_IDS_AWAITED_MAX as u64);
    assert!(broadcasts.set(&[version("real", "1"), version("3", "1")]));
    // A place is free again.
    broadcasts.subscribe(0, &[version("another", "1")]);
    assert_eq!(broadcasts.values.len(), limits::BROADCAST_IDS_AWAITED_MAX + limits::BROADCAST_IDS_EXPECTED.len() + 2);
    // The operator's ids have places of their own.
    let real: Vec<_> = (2..limits::BROADCAST_IDS_MAX).map(|n| version(&format!("real{n}"), "1")).collect();
    assert!(broadcasts.set(&real));
    let (_, delta) = broadcasts.subscribe(0, &[version("real9", "0"), version("real1023", "0")]);
    assert_eq!((delta.changed.len(), delta.unknown.len()), (2, 0));
    assert!(!broadcasts.set(&[version("one too many", "1")]));
}

/// 64 sessions that wait for 8 invented ids each.
#[test]
fn invented_ids_leave_room_for_the_first_id_of_a_session_and_for_those_that_are_expected() {
    let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
    let invent = |broadcasts: &mut Broadcasts, session: usize, ids: usize| {
        let named: Vec<_> = (0..ids).map(|n| version(&format!("{session}/{n}"), "1")).collect();
        broadcasts.subscribe(0, &named).0
    };
    for session in 0..64 {
        invent(&mut broadcasts, session, limits::BROADCAST_IDS_AWAITED_OF_SESSION_MAX);
    }
    let (mut good, delta) = broadcasts.open(&[version("another", "0")]);
    assert_eq!((delta.unknown.len(), broadcasts.refused()), (1, 64 * 8 - broadcasts.awaited as u64 + 1));
    broadcasts.push(Instant(0), &[version("another", "1")], 0);
    assert_eq!(broadcasts.news(&mut good).map(|delta| delta.changed), Some(vec![version("another", "1")]));
    // A crowd that takes every place does not take those of the ids that are expected.
    for session in 64..64 + limits::BROADCAST_IDS_AWAITED_MAX {
        invent(&mut broadcasts, session, 1);
    }
    assert_eq!(broadcasts.awaited, limits::BROADCAST_IDS_AWAITED_MAX);
    let id = limits::BROADCAST_IDS_EXPECTED[0];
    let (mut firefox, delta) = broadcasts.open(&[version(id, "0"), version("strange", "0")]);
    assert_eq!(delta.unknown.len(), 2, "neither has a value");
    broadcasts.push(Instant(0), &[version(id, "1")], 0);
    assert_eq!(broadcasts.news(&mut firefox).map(|delta| delta.changed), Some(vec![version(id, "1")]));
}

#[test]
fn a_set_of_one_known_id_always_has_a_place() {
    let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
    let real: Vec<_> = (0..16).map(|n| version(&n.to_string(), "1")).collect();
    broadcasts.set(&real);
    // Every subset of more than one id is a set.
    let subsets = (1_usize..1 << real.len()).filter(|bits| bits.count_ones() > 1);
    let mut sets = Vec::new();
    for bits in subsets.take(limits::BROADCAST_SETS_MAX) {
        let named: Vec<_> = (0..real.len()).filter(|n| bits >> n & 1 == 1).map(|n| real[n].clone()).collect();
        sets.push(broadcasts.subscribe(0, &named).0);
    }
    assert_eq!((broadcasts.refused(), broadcasts.counted_sets), (0, limits::BROADCAST_SETS_MAX));
    let expected = version(limits::BROADCAST_IDS_EXPECTED[0], "0");
    for _ in 0..3 {
        let (one, delta) = broadcasts.open(&[version("7", "0"), expected.clone()]);
        assert_eq!((delta.changed.len(), delta.unknown.len()), (1, 1), "one of the two, in the place of both");
        let (other, _) = broadcasts.open(std::slice::from_ref(&expected));
        assert!(one.set != 0 && other.set != 0);
        broadcasts.close(one);
        broadcasts.close(other);
        // The places that they left are not for others.
        let all = broadcasts.open(&[real.clone(), vec![expected.clone()]].concat());
        assert_eq!((all.1.unknown.len(), broadcasts.counted_sets), (real.len(), limits::BROADCAST_SETS_MAX));
        broadcasts.close(all.0);
    }
    sets.into_iter().for_each(|set| broadcasts.release(set));
    assert_eq!((broadcasts.counted_sets, broadcasts.by_set.len()), (0, 0));
}

#[test]
fn what_one_client_names_is_bounded_by_number_and_length() {
    let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
    let real: Vec<_> = (0..limits::BROADCAST_SUBSCRIPTIONS_MAX + 1).map(|n| version(&n.to_string(), "1")).collect();
    broadcasts.set(&real);
    let (mut set, long) = (0, "x".repeat(limits::BROADCAST_TEXT_BYTES_MAX));
    for n in 0..real.len() {
        let (next, delta) = broadcasts.subscribe(set, &real[n..=n]);
        assert_eq!(delta.unknown.len(), usize::from(n == real.len() - 1), "the last of them is refused");
        set = next;
    }
    assert_eq!((broadcasts.sets[usize::from(set)].ids.len(), broadcasts.by_set.len()), (real.len() - 1, 1));
    let strange: Vec<_> = (0..real.len() - 1).map(|n| version(&format!("strange{n}"), "1")).collect();
    let (strangers, delta) = broadcasts.subscribe(0, &strange);
    assert_eq!(delta.unknown.len(), strange.len());
    assert_eq!(broadcasts.awaited, limits::BROADCAST_IDS_AWAITED_OF_SESSION_MAX);
    broadcasts.release(strangers);
    assert_eq!(broadcasts.awaited, 0, "nobody waits for them any more");
    let refused = broadcasts.refused();
    let (_, delta) = broadcasts.subscribe(0, &[version(&long, "1"), version(&(long.clone() + "x"), "1")]);
    assert_eq!((delta.unknown.len(), broadcasts.awaited, broadcasts.refused()), (2, 1, refused + 1));
}

proptest! {
    /// Sets and places are counted: a set that no session has is gone, and a session has the ids that it asked for.
    #[test]
    fn sets_live_as_long_as_a_session_has_them(
        ops in prop::collection::vec((0usize..5, prop::collection::vec(0usize..12, 0..4), any::<bool>()), 0..60),
    ) {
        let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
        broadcasts.set(&(0..6).map(|n| version(&n.to_string(), "1")).collect::<Vec<_>>());
        let mut sessions: Vec<(u16, BTreeSet<usize>)> = vec![Default::default(); 5];
        for (which, ids, ends) in ops {
            let (set, model) = &mut sessions[which];
            if ends {
                broadcasts.release(*set);
                (*set, *model) = Default::default();
                continue;
            }
            let wanted: Vec<_> = ids.iter().map(|n| version(&n.to_string(), "1")).collect();
            *set = broadcasts.subscribe(*set, &wanted).0;
            model.extend(ids);
        }
        for (set, model) in &sessions {
            let ids = &broadcasts.sets[usize::from(*set)].ids;
            let named = ids.iter().map(|at| broadcasts.values[usize::from(*at)].id.parse().unwrap());
            prop_assert_eq!(&named.collect::<BTreeSet<usize>>(), model);
        }
        let distinct: BTreeSet<_> = sessions.iter().map(|(_, model)| model).filter(|m| !m.is_empty()).collect();
        prop_assert_eq!(broadcasts.by_set.len(), distinct.len());
        prop_assert_eq!(broadcasts.sets.len() - 1 - broadcasts.free_sets.len(), distinct.len());
        let awaited: BTreeSet<_> = sessions.iter().flat_map(|(_, model)| model).filter(|n| **n >= 6).collect();
        prop_assert_eq!(broadcasts.awaited, awaited.len());
    }
}

#[test]
fn a_session_is_told_each_change_once() {
    let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
    broadcasts.push(Instant(0), &[version("a", "1")], 0);
    let (mut session, delta) = broadcasts.open(&[version("a", "1")]);
    assert_eq!((delta, broadcasts.news(&mut session)), (BroadcastDelta::default(), None));
    broadcasts.push(Instant(0), &[version("a", "2")], 0);
    let news = broadcasts.news(&mut session).map(|delta| delta.changed);
    assert_eq!(news, Some(vec![version("a", "2")]));
    assert_eq!(broadcasts.news(&mut session), None);
    assert_eq!(broadcasts.add_to(&mut session, &[version("a", "2")]), None, "the user agent has it");
    broadcasts.close(session);
    assert!(broadcasts.by_set.is_empty());
}

proptest! {
    /// A push visits each session that was there when the change came, also when another change comes meanwhile.
    #[test]
    fn a_push_visits_every_session(end in 1u32..20_000, again in 0u32..40) {
        let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
        let mut now = Instant(0);
        prop_assert!(broadcasts.push(now, &[version("a", "0")], end));
        let mut visited = BTreeSet::new();
        let mut beats = 0;
        while let Some(due) = broadcasts.due() {
            now = due;
            let mut beat = broadcasts.begin_beat(now, end).unwrap();
            visited.extend(std::iter::from_fn(|| beat.next()));
            broadcasts.end_beat(now, &beat);
            beats += 1;
            if beats == again {
                broadcasts.push(now, &[version("a", "1")], end);
                visited.clear();
            }
        }
        prop_assert_eq!(visited.len() as u32, end);
    }
}

#[test]
fn a_set_is_told_what_changed_since_it_looked() {
    let mut broadcasts = Broadcasts::new(TimeSpan::from_secs(1));
    assert!(broadcasts.set(&[version("a", "1"), version("b", "1")]));
    assert!(!broadcasts.set(&[version("a", "1")]));
    let (set, delta) = broadcasts.subscribe(0, &[version("a", "0"), version("b", "1")]);
    assert_eq!((delta.changed, delta.unknown), (vec![version("a", "1")], vec![]));
    let seen = broadcasts.change;
    assert_eq!(broadcasts.delta(set, seen), None);
    broadcasts.set(&[version("b", "2")]);
    assert_eq!(broadcasts.delta(set, seen).map(|d| d.changed), Some(vec![version("b", "2")]));
    assert_eq!(broadcasts.subscribe(0, &[version("b", "2"), version("a", "1")]).0, set, "sets are interned");
}
