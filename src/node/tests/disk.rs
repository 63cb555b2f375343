//! A node on a file system that others fill: messages are refused, sessions stay, and it goes on by itself.

use super::*;
use store::testing::disk::SmallDisk;

/// Posts until the answer begins like this.
fn post_until(endpoint: &str, running: &RunningNode, wanted: &str) {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let answer = post(endpoint, running);
        if answer.starts_with(wanted) {
            return;
        }
        assert!(std::time::Instant::now() < until, "{wanted}: {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs root and mount: bench/check test"]
fn a_full_disk_refuses_messages_and_keeps_every_session() {
    let disk = SmallDisk::mount(256);
    let running = start(&config(&disk.path(), &[])).unwrap();
    let (mut here, _) = hello(&running, "");
    let of_here = register(&mut here);
    let (mut away, away_uaid) = hello(&running, "");
    let of_away = register(&mut away);
    // Unacked when its session ends, so that it has to be saved.
    let (mut leaves, leaves_uaid) = hello(&running, "");
    let of_leaves = register(&mut leaves);
    drop(away);
    post_until(&of_away, &running, "HTTP/1.1 201 ");

    let filler = disk.fill_up_to(64 << 10);
    post_until(&of_away, &running, "HTTP/1.1 503 ");
    assert!(post(&of_here, &running).starts_with("HTTP/1.1 201 "), "who is there is reached");
    let notified = hear(&mut here);
    assert_eq!(notified["messageType"], "notification");
    assert!(post(&of_leaves, &running).starts_with("HTTP/1.1 201 "));
    let unacked = hear(&mut leaves)["version"].clone();
    drop(leaves);
    // A hello is answered also while the user's unacked messages cannot be saved.
    let (mut leaves, again) = hello(&running, &leaves_uaid);
    assert_eq!(again, leaves_uaid);
    let (mut away, again) = hello(&running, &away_uaid);
    assert_eq!(again, away_uaid);
    assert_eq!(hear(&mut away)["messageType"], "notification", "what was stored is read");

    std::fs::remove_file(filler).unwrap();
    assert_eq!(hear(&mut leaves)["version"], unacked, "it is saved, and the session hears of it");
    say(&mut here, json!({}));
    assert_eq!(hear(&mut here), json!({}), "the session of before is there");
    drop(away);
    post_until(&of_away, &running, "HTTP/1.1 201 ");
    running.stop().unwrap();
}
