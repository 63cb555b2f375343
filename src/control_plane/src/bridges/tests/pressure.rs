//! Bounds, breaker, guard and reload.

use upstream::{PROJECT, Script, Service};

use super::*;

fn always(answer: &str) -> Script {
    Script { always: [(Service::Fcm, answer.to_owned())].into(), ..Script::default() }
}

#[tokio::test]
async fn calls_beyond_the_bounds_are_refused_at_once_and_the_others_are_answered_by_their_deadline() {
    let sets = ["bridge.max_in_flight=2", "bridge.queue=3", "bridge.fcm.timeout=2"];
    let mut kit = Kit::start(&sets).await;
    kit.profile(|profile| profile.ages.token.is_some()).await;
    kit.upstream.state.set(always("silence"));
    let device = user(BridgeKind::Fcm, "firefox", "device");
    let tickets: Vec<StoreTicket> = (0..6).map(|n| kit.submit(&device, &of_user(n))).collect();
    let (ticket, outcome) = kit.reply().await;
    assert_eq!((ticket, outcome), (tickets[5], failed(BridgeFailure::Unavailable { retry_after: 10 })));
    kit.profile(|profile| (profile.in_flight, profile.waiting) == (2, 3)).await;
    for _ in 0..5 {
        assert_eq!(kit.reply().await.1, failed(BridgeFailure::NoAnswer));
    }
    let profile = kit.profile(|profile| profile.in_flight == 0).await;
    assert_eq!((profile.waiting, profile.waiting_bytes), (0, 0));
}

/// A stranger that posts to its own device on very many connections, each again as soon as it is answered.
#[tokio::test]
async fn a_flood_for_one_device_refuses_no_call_for_another() {
    let mut kit = Kit::start(&[]).await;
    kit.profile(|profile| profile.ages.token.is_some()).await;
    kit.upstream.state.set(always("ok;delay=50"));
    let (hot, other) = (user(BridgeKind::Fcm, "firefox", "hot"), user(BridgeKind::Fcm, "firefox", "other"));
    for _ in 0..1_800 {
        kit.submit(&hot, &of_user(1));
    }
    let (mut outcomes, mut shed) = (Vec::new(), 0);
    for _ in 0..40 {
        let own = kit.submit(&other, &of_user(2));
        loop {
            let (ticket, outcome) = kit.reply().await;
            if ticket == own {
                outcomes.push(outcome);
                break;
            }
            shed += usize::from(outcome != BridgeOutcome::Sent);
            kit.submit(&hot, &of_user(1));
        }
    }
    assert!(shed > 0, "the flood was beyond its share");
    assert_eq!(outcomes, [BridgeOutcome::Sent; 40]);
}

#[tokio::test]
async fn waiting_bytes_have_a_bound_for_all_profiles() {
    let sets = ["bridge.max_in_flight=1", "bridge.queue_bytes=64KiB"];
    let mut kit = Kit::start(&sets).await;
    kit.profile(|profile| profile.ages.token.is_some()).await;
    kit.upstream.state.set(always("silence"));
    let headers = Encryption { encoding: Some(b"aes128gcm"), ..Encryption::default() };
    let (device, large) = (user(BridgeKind::Fcm, "firefox", "device"), message(&headers, &[0; 3_000]));
    for n in 0..30 {
        kit.submit(&device, &Arc::new(Message { uaid: Uaid([n; 16]), ..large.clone() }));
    }
    assert_eq!(kit.reply().await.1, failed(BridgeFailure::Unavailable { retry_after: 10 }));
    let profile = kit.profile(|profile| profile.waiting > 0).await;
    assert!(profile.waiting_bytes <= 64 << 10 && profile.waiting_bytes > 56 << 10, "{profile:?}");
}

#[tokio::test]
async fn twenty_failures_open_the_breaker_and_calls_are_refused_without_one_of_the_service() {
    let mut kit = Kit::start(&[]).await;
    kit.upstream.state.set(always("internal"));
    for _ in 0..20 {
        assert_eq!(kit.send("device").await, failed(BridgeFailure::Unavailable { retry_after: 120 }));
    }
    match kit.send("device").await {
        BridgeOutcome::Failed(BridgeFailure::Unavailable { retry_after }) => assert!((10..=12).contains(&retry_after)),
        other => panic!("{other:?}"),
    }
    assert_eq!(kit.upstream.state.count(Service::Fcm), 20);
    kit.profile(|profile| profile.is_breaker_open).await;
}

#[tokio::test]
async fn tokens_refused_beyond_a_fifth_of_fifty_answers_are_not_believed() {
    let mut kit = Kit::start(&[]).await;
    kit.upstream.state.set(always("not_found"));
    for _ in 0..49 {
        assert_eq!(kit.send("device").await, BridgeOutcome::Doubted);
    }
    for _ in 0..3 {
        assert_eq!(kit.send("device").await, failed(BridgeFailure::Configuration));
    }
    kit.profile(|profile| profile.is_guard_active).await;
    kit.upstream.state.set(always("unregistered"));
    assert_eq!(kit.send("device").await, BridgeOutcome::Gone, "this row is of no fault of ours");
}

#[tokio::test]
async fn records_without_a_profile_or_a_token_have_their_rows() {
    let mut kit = Kit::start(&[]).await;
    for (app, token, outcome) in [
        ("other", "device", failed(BridgeFailure::Configuration)),
        ("", "device", BridgeOutcome::Gone),
        ("other", "", BridgeOutcome::Gone),
        ("firefox", "", BridgeOutcome::Gone),
    ] {
        let ticket = kit.submit(&user(BridgeKind::Fcm, app, token), &small());
        assert_eq!(kit.reply().await, (ticket, outcome), "{app:?} {token:?}");
    }
    assert_eq!(kit.upstream.state.count(Service::Fcm), 0);
}

#[tokio::test]
async fn a_reload_takes_other_profiles_and_calls_under_way_end_with_the_old_ones() {
    let mut kit = Kit::start(&[]).await;
    kit.profile(|profile| profile.ages.token.is_some()).await;
    kit.upstream.state.answer(Service::Fcm, &["ok;delay=500"]);
    let old = kit.submit(&user(BridgeKind::Fcm, "firefox", "device"), &small());
    kit.profile(|profile| profile.in_flight == 1).await;
    assert!(kit.read(&["bridge.fcm.credentials=/nowhere"]).err().unwrap().contains("cannot read /nowhere"));
    let file = kit.directory.path().join(FCM_CREDENTIALS);
    let text = std::fs::read_to_string(&file).unwrap().replace("firefox", "nightly");
    std::fs::write(&file, text).unwrap();
    kit.queue.reload(kit.read(&[]).unwrap());
    assert_eq!(kit.reply().await, (old, BridgeOutcome::Sent));
    let ticket = kit.submit(&user(BridgeKind::Fcm, "nightly", "device"), &small());
    assert_eq!(kit.reply().await, (ticket, BridgeOutcome::Sent));
    assert_eq!(kit.send("device").await, failed(BridgeFailure::Configuration));
}

#[tokio::test]
async fn a_reload_keeps_guard_breaker_and_counters_of_profiles_that_stay() {
    let mut kit = Kit::start(&[]).await;
    kit.upstream.state.set(always("not_found"));
    for _ in 0..49 {
        assert_eq!(kit.send("device").await, BridgeOutcome::Doubted);
    }
    kit.queue.reload(kit.read(&[]).unwrap());
    assert_eq!(kit.send("device").await, failed(BridgeFailure::Configuration), "the fiftieth answer");
    kit.queue.reload(kit.read(&[]).unwrap());
    assert_eq!(kit.send("device").await, failed(BridgeFailure::Configuration), "the guard is still active");
    kit.profile(|profile| profile.is_guard_active && profile.stats.errors.values().eq(&[51])).await;

    kit.upstream.state.set(always("internal"));
    let mut failures = 0;
    while !matches!(kit.send("device").await, BridgeOutcome::Failed(BridgeFailure::Unavailable { retry_after: ..=12 }))
    {
        failures += 1;
        assert!(failures <= 60, "the breaker opens");
    }
    let before = kit.upstream.state.count(Service::Fcm);
    kit.queue.reload(kit.read(&[]).unwrap());
    let outcome = kit.send("device").await;
    assert!(
        matches!(outcome, BridgeOutcome::Failed(BridgeFailure::Unavailable { retry_after: 10..=12 })),
        "the breaker is still open: {outcome:?}"
    );
    assert_eq!(kit.upstream.state.count(Service::Fcm), before);
}

/// Guard and breaker were of the project before.
#[tokio::test]
async fn a_reload_to_another_project_starts_afresh_and_keeps_the_counters() {
    let mut kit = Kit::start(&[]).await;
    let project = |kit: &Kit, from: &str, to: &str| {
        let file = kit.directory.path().join(FCM_CREDENTIALS);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&file, text.replace(from, to)).unwrap();
        kit.queue.reload(kit.read(&[]).unwrap());
    };
    let (one, other) = (format!("\"{PROJECT}\""), "\"another-project\"");
    kit.upstream.state.set(always("not_found"));
    for _ in 0..49 {
        assert_eq!(kit.send("device").await, BridgeOutcome::Doubted);
    }
    assert_eq!(kit.send("device").await, failed(BridgeFailure::Configuration));
    project(&kit, &one, other);
    assert_eq!(kit.send("device").await, BridgeOutcome::Doubted, "the guard was of the other project");
    kit.profile(|profile| !profile.is_guard_active && profile.stats.errors.values().eq(&[51])).await;

    project(&kit, other, &one);
    kit.upstream.state.set(always("internal"));
    while !matches!(kit.send("device").await, BridgeOutcome::Failed(BridgeFailure::Unavailable { retry_after: ..=12 }))
    {
        assert!(kit.upstream.state.count(Service::Fcm) < 120, "the breaker opens");
    }
    project(&kit, &one, other);
    // The stand-in knows one project only.
    assert_eq!(kit.send("device").await, BridgeOutcome::Doubted, "the breaker was of the other project");
}

#[tokio::test]
async fn access_tokens_that_expire_soon_are_not_fetched_without_end() {
    let kit = Kit::start(&[]).await;
    kit.profile(|profile| profile.ages.token.is_some()).await;
    kit.upstream.state.set(Script { expires_in: 60, ..Script::default() });
    kit.queue.reload(kit.read(&[]).unwrap());
    let before = kit.upstream.state.count(Service::Token);
    let began = Instant::now();
    while kit.upstream.state.count(Service::Token) == before {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(kit.upstream.state.count(Service::Token), before + 1, "it lives for another half of its time");

    kit.upstream.state.set(Script { expires_in: 1, ..Script::default() });
    kit.queue.reload(kit.read(&[]).unwrap());
    let before = kit.upstream.state.count(Service::Token);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let fetched = kit.upstream.state.count(Service::Token) - before;
    assert!((2..=5).contains(&fetched), "{fetched} fetches in three seconds");
}
