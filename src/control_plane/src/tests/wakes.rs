//! Wake-up calls: every push is one POST to the one URL, or is counted.

use std::time::Duration;

use super::super::wake_up::WakeUpSender;
use super::*;
use fixtures::{Fake, answer};

fn caller(url: &str) -> (WakeUpSender, Arc<WakeUpQueue>) {
    let wake_ups = Arc::new(WakeUpQueue::new().unwrap());
    (WakeUpSender::new(HttpUrl::parse(url).unwrap(), Arc::clone(&wake_ups), Arc::new(HttpClient::new())), wake_ups)
}

fn number(board: &Board, name: &str) -> u64 {
    board.read().find(|(meaning, _)| meaning.name == format!("wake_calls_{name}")).unwrap().1
}

/// Waits until a number is this.
async fn until(board: &Board, name: &str, wanted: u64) {
    let reached = async {
        while number(board, name) != wanted {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let late = tokio::time::timeout(Duration::from_secs(60), reached).await;
    late.unwrap_or_else(|_| panic!("{name} is {}, not {wanted}", number(board, name)));
}

#[tokio::test]
async fn every_push_of_every_thread_is_one_post() {
    let fake = Fake::start(|_| answer("204 Woken", "", ""));
    let (caller, wake_ups) = caller(&fake.url("/wake?key=k"));
    let board = caller.board();
    let calling = tokio::spawn(caller.run());
    let push = |thread: u8| {
        let wake_ups = Arc::clone(&wake_ups);
        // One at a time finds the control plane asleep, many at a time find it awake.
        let body = move || (0..20).for_each(|n| wake_ups.push(format!("ip=192.0.2.{thread}&port={n}").into()));
        std::thread::spawn(body)
    };
    let threads: Vec<_> = (0..4).map(push).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    until(&board, "ok", 80).await;
    wake_ups.push("ip=192.0.2.9&port=9".into());
    until(&board, "ok", 81).await;
    let heard = fake.heard();
    let mut bodies: Vec<&str> = heard.iter().map(|request| request.split_once("\r\n\r\n").unwrap().1).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!((bodies.len(), bodies[0]), (81, "ip=192.0.2.0&port=0"));
    assert!(heard[0].starts_with("post /wake?key=k http/1.1\r\n"), "{}", heard[0]);
    assert!(heard[0].contains("\r\ncontent-type: application/x-www-form-urlencoded\r\n"), "{}", heard[0]);
    assert!(!calling.is_finished());
}

#[tokio::test]
async fn a_wake_up_server_that_asks_for_a_pause_gets_one() {
    let fake = Fake::start(|_| answer("503 Busy", "retry-after: 1\r\n", ""));
    let (caller, wake_ups) = caller(&fake.url("/"));
    let board = caller.board();
    tokio::spawn(caller.run());
    wake_ups.push("ip=192.0.2.1&port=1".into());
    until(&board, "status", 1).await;
    fake.answer_now(|_| answer("200 OK", "", ""));
    // From before the pause began, as far as this test can tell.
    let counted = std::time::Instant::now();
    wake_ups.push("ip=192.0.2.2&port=2".into());
    until(&board, "ok", 1).await;
    assert!(counted.elapsed() >= Duration::from_millis(900), "{:?}", counted.elapsed());
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_bad_answers_are_counted() {
    let other = Fake::start(|_| answer("200 OK", "", ""));
    let target = other.url("/");
    let fake = Fake::start(move |_| answer("307 Away", &format!("location: {target}\r\n"), ""));
    let (mut caller, wake_ups) = caller(&fake.url("/"));
    caller.patience = Duration::from_secs(5);
    let board = caller.board();
    tokio::spawn(caller.run());
    wake_ups.push("ip=192.0.2.1".into());
    until(&board, "status", 1).await;
    fake.answer_now(|_| answer("500 Down", "", ""));
    wake_ups.push("ip=192.0.2.1".into());
    until(&board, "status", 2).await;
    fake.answer_now(|_| None);
    wake_ups.push("ip=192.0.2.1".into());
    until(&board, "timeout", 1).await;
    fake.answer_now(|_| Some(String::new()));
    wake_ups.push("ip=192.0.2.1".into());
    until(&board, "connect", 1).await;
    assert_eq!(number(&board, "ok"), 0);
    assert!(other.heard().is_empty(), "whoever answers there does not choose whom this host calls");
}

#[tokio::test]
async fn a_server_that_hangs_takes_a_few_calls_and_the_rest_waits() {
    let fake = Fake::start(|_| None);
    let (mut caller, wake_ups) = caller(&fake.url("/"));
    caller.patience = Duration::from_secs(3600);
    let board = caller.board();
    tokio::spawn(caller.run());
    (0..40).for_each(|n| wake_ups.push(format!("port={n}").into()));
    until(&board, "waiting", 24).await;
    assert_eq!(number(&board, "under_way"), 16);
    let heard = tokio::time::timeout(Duration::from_secs(60), async {
        while fake.heard().len() < 16 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    heard.await.expect("16 calls");
    assert_eq!((fake.heard().len(), number(&board, "waiting")), (16, 24));
}

#[tokio::test]
async fn more_than_may_wait_and_more_than_a_call_may_say_is_dropped_and_counted() {
    let fake = Fake::start(|_| None);
    let (mut caller, wake_ups) = caller(&fake.url("/"));
    caller.patience = Duration::from_secs(3600);
    let board = caller.board();
    (0..4096 + 10).for_each(|_| wake_ups.push("port=1".into()));
    wake_ups.push("x".repeat(513).into());
    tokio::spawn(caller.run());
    until(&board, "waiting", 4096 - 16).await;
    assert_eq!(number(&board, "dropped"), 11);
}
