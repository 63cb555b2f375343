//! A node on a file system that others fill: messages are refused, sessions stay, and it goes on by itself.

use super::*;
use crate::data_dir::fault;
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

/// 24 MiB are enough to open a store, and not for the ledger log of one shard.
#[test]
#[ignore = "needs root and mount: bench/check test"]
fn a_start_on_a_full_disk_says_so_and_its_status_is_not_that_of_damage() {
    let disk = SmallDisk::mount(256);
    let full = config(&disk.path(), &["shards.count=1", "delivery.ledger_bytes=32MiB"]);
    for left in [24 << 20, 8 << 20, 0] {
        let filler = disk.fill_up_to(left);
        let (said, code) = refusal(&full);
        assert!(said.contains("free disk space there") && !said.contains("damaged"), "{left} bytes free: {said}");
        assert_eq!(code, status::STORAGE, "{left} bytes free: {said}");
        std::fs::remove_file(filler).unwrap();
    }
    start(&full).unwrap().stop().unwrap();
}

#[test]
#[ignore = "needs root and mount: bench/check test"]
fn a_backup_to_a_full_disk_says_so() {
    let disk = SmallDisk::mount(256);
    let running = start(&config(&disk.path(), &[])).unwrap();
    let _filler = disk.fill_up_to(4 << 10);
    let refused = control_plane::Host::backup(&*running.stage, "one").unwrap_err();
    assert_eq!(refused.kind, store::fault::FaultKind::Full, "{}", refused.said);
    assert!(refused.said.contains("free disk space"), "{}", refused.said);
    running.stop().unwrap();
}

#[test]
fn a_ledger_that_cannot_be_read_is_no_damage_unless_its_header_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    start(&config(dir.path(), &[])).unwrap().stop().unwrap();
    let ledger = dir.path().join("ledger");
    std::fs::remove_dir_all(&ledger).unwrap();
    std::fs::write(&ledger, "a file").unwrap();
    let (said, code) = refusal(&config(dir.path(), &[]));
    assert!(said.starts_with("cannot list the ledger log "), "{said}");
    assert_eq!(code, status::DATA_DIR);
    // `a_corrupt_ledger_is_refused_with_its_file` has the header.
}

#[test]
fn an_error_of_the_data_directory_keeps_its_kind_and_its_advice() {
    use std::io::Error;

    let path = Path::new("data");
    // ENOSPC and EDQUOT, EACCES and EROFS, EIO and EMFILE.
    for (errno, status, advice) in [
        (28, status::STORAGE, "; free disk space there"),
        (122, status::STORAGE, "; free disk space there"),
        (13, status::DATA_DIR, "; make data_dir writable for this user, or set another with --data-dir"),
        (30, status::DATA_DIR, "; make data_dir writable for this user, or set another with --data-dir"),
        (5, status::STORAGE, "(os error 5)"),
        (24, status::STORAGE, "(os error 24)"),
    ] {
        let fault = fault(path, "write", Error::from_raw_os_error(errno));
        assert!(fault.to_string().ends_with(advice), "{fault}");
        assert_eq!(fault.status(), status, "{fault}");
    }
}
