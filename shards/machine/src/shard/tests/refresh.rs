//! Users who are alive are refreshed: once an interval each, never many at once.

use super::*;
use std::collections::BTreeMap;

const HOUR: TimeSpan = TimeSpan::from_secs(3_600);
const DAY: u64 = 86_400;
const INTERVAL: u64 = limits::REFRESH_INTERVAL_SECONDS;

/// Returns one shard whose sessions need no Pong, with sessions of users that were seen just now.
fn crowd(sessions: usize, tune: impl Fn(&mut MachineConfig)) -> (Mesh, Vec<Socket>) {
    let mut mesh = Mesh::with(1, |config| {
        config.sessions_max = 10_000;
        config.ping_interval = TimeSpan(0);
        config.pong_timeout = TimeSpan(u64::MAX);
        tune(config);
    });
    let sockets = (0..sessions).map(|_| {
        let uaid = mesh.known_user(0);
        mesh.session(0, Some(uaid))
    });
    let sockets = sockets.collect();
    mesh.run();
    (mesh, sockets)
}

/// Lets time pass from timeout to timeout.
fn pass(mesh: &mut Mesh, seconds: u64, mut look: impl FnMut(&mut Mesh)) {
    let end = mesh.now.mono.after(TimeSpan::from_secs(seconds));
    while mesh.now.mono < end {
        let due = mesh.machines[0].next_timeout().unwrap_or(end).clamp(mesh.now.mono.after(TimeSpan(1)), end);
        mesh.now.unix_us += due.since(mesh.now.mono).micros();
        mesh.now.mono = due;
        mesh.step(0, Input::Timeout);
        look(mesh);
        mesh.run();
    }
}

/// Releases the requested refreshes. Returns their users.
fn refreshed(mesh: &mut Mesh) -> Vec<Uaid> {
    let mut users = Vec::new();
    while let Some((_, _, op)) = mesh.store.held.front() {
        let StoreOp::Touch { uaid, .. } = op else { panic!("only refreshes: {op:?}") };
        users.push(*uaid);
        mesh.store.release_one();
    }
    users
}

#[test]
fn midnight_passes_and_few_refreshes_are_in_flight() {
    let (mut mesh, _sockets) = crowd(2_000, |config| config.ping_interval = HOUR);
    mesh.store.mode = script::Mode::Held;
    let mut most = 0;
    pass(&mut mesh, 2 * DAY, |mesh| most = most.max(mesh.store.held.len()));
    assert!((1..=limits::REFRESHES_MAX).contains(&most), "{most} refreshes at storage at once");
    assert!(mesh.machines[0].stats().refreshes_postponed > 0, "the others wait for their turn");
}

#[test]
fn over_an_interval_each_session_is_refreshed_once_and_evenly() {
    let (mut mesh, sockets) = crowd(2_000, |_| {});
    mesh.store.mode = script::Mode::Held;
    let begun = mesh.now.unix().0;
    let (mut count, mut hours) = (BTreeMap::new(), BTreeMap::new());
    pass(&mut mesh, INTERVAL, |mesh| {
        assert!(mesh.store.held.len() <= limits::REFRESHES_MAX);
        for uaid in refreshed(mesh) {
            *count.entry(uaid).or_insert(0) += 1;
            *hours.entry((mesh.now.unix().0 - begun) / 3_600).or_insert(0) += 1;
        }
    });
    // A sweep comes by within minutes of the end of an interval.
    let most = hours.values().max().copied().unwrap_or_default();
    assert!(count.values().all(|count| *count == 1), "none is refreshed twice");
    assert!(count.len() >= sockets.len() - 20, "{} of {}", count.len(), sockets.len());
    assert!(most <= 40, "{most} of 2,000 within one hour of a week");
    pass(&mut mesh, INTERVAL, |mesh| {
        for uaid in refreshed(mesh) {
            *count.entry(uaid).or_insert(0) += 1;
        }
    });
    assert!(count.len() == sockets.len() && count.values().all(|count| (1..=2).contains(count)));
}

#[test]
fn a_user_who_comes_back_often_is_refreshed_once_an_interval() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let mut refreshes = Vec::new();
    for _ in 0..4 * 7 * 6 {
        mesh.store.seen.clear();
        let socket = mesh.session(0, Some(uaid));
        if mesh.store.seen.contains(&"touch") {
            refreshes.push(mesh.now.unix().0);
        }
        mesh.close(socket);
        mesh.now.mono = mesh.now.mono.after(TimeSpan::from_secs(4 * 3_600));
        mesh.now.unix_us += 4 * 3_600_000_000;
    }
    assert_eq!(refreshes.len(), 4, "in four intervals");
    assert!(refreshes.windows(2).all(|two| two[1] - two[0] == INTERVAL), "{refreshes:?}");
}

#[test]
fn a_refresh_that_fails_is_tried_again_in_the_next_round() {
    let (mut mesh, _sockets) = crowd(20, |_| {});
    mesh.store.mode = script::Mode::Failing;
    pass(&mut mesh, INTERVAL + 3_600, |_| {});
    assert!(mesh.machines[0].stats().refreshes_failed >= 20);
    mesh.store.mode = script::Mode::Prompt;
    mesh.store.seen.clear();
    pass(&mut mesh, 3_600, |_| {});
    assert_eq!(mesh.store.seen.iter().filter(|op| **op == "touch").count(), 20);
}

#[test]
fn a_hello_of_a_user_long_not_seen_is_refreshed_whatever_is_in_flight() {
    let (mut mesh, _sockets) = crowd(2_000, |_| {});
    mesh.store.mode = script::Mode::Held;
    pass(&mut mesh, 2 * DAY, |_| {});
    assert_eq!(mesh.store.held.len(), limits::REFRESHES_MAX, "no place is left");
    mesh.store.mode = script::Mode::Prompt;
    let touches = |mesh: &mut Mesh, days: u64| {
        mesh.store.seen.clear();
        let uaid = mesh.user_seen(0, UnixSeconds(mesh.now.unix().0 - days * DAY));
        let socket = mesh.session(0, Some(uaid));
        mesh.close(socket);
        mesh.store.seen.iter().filter(|op| **op == "touch").count()
    };
    assert_eq!(touches(&mut mesh, 8), 0, "its session is swept, and so is the next");
    assert_eq!(touches(&mut mesh, 30), 1, "its rows have half of their time left");
    mesh.store.release();
    mesh.run();
    assert_eq!(touches(&mut mesh, 8), 1);
}
