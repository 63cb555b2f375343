//! Notifications that a node owes another one when it ends (decision 0037).

use super::*;

/// A node with a session, another one that does not reach it and has stored a message for its user, and that session.
async fn owing(dirs: &[tempfile::TempDir; 2]) -> (RunningNode, RunningNode, Agent) {
    database().await;
    let (papers, strange) = (TestCertificates::of(&["127.0.0.1"]), TestCertificates::of(&["127.0.0.1"]));
    let tls = [
        "node.tls.listen=127.0.0.1:0".to_owned(),
        format!("node.tls.cert={}", papers.cert().display()),
        format!("node.tls.key={}", papers.key().display()),
    ];
    let first = shared(dirs[0].path(), &tls.each_ref().map(String::as_str));
    let second = shared(dirs[1].path(), &[&format!("node.ca={}", strange.ca().display())]);
    let (a, b) = (blocking(move || start(&first).unwrap()).await, blocking(move || start(&second).unwrap()).await);
    let (mut at_a, _) = hello(&a, "");
    let endpoint = register(&mut at_a);
    assert!(post_at(&endpoint, &b).starts_with("HTTP/1.1 201 "));
    eventually("word is owed", || stats(&b)["island"]["peer_owed"] == 1).await;
    (a, b, at_a)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_message_comes_after_the_orderly_end_of_the_node_that_could_not_notify() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (a, b, mut at_a) = owing(&dirs).await;
    assert_eq!(blocking(move || b.stop().unwrap()).await, StopOutcome::InOrder);
    assert_eq!(hear(&mut at_a)["messageType"], "notification");
    eventually("the round is counted", || a.total("storage_rounds") == 1).await;
    drop(at_a);
    blocking(move || a.stop().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_message_comes_after_the_death_of_the_node_that_could_not_notify() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (a, b, mut at_a) = owing(&dirs).await;
    // It ends as if killed.
    blocking(move || drop(b)).await;
    let until = std::time::Instant::now() + 3 * PATIENCE;
    let came = loop {
        match at_a.receive(PATIENCE) {
            Ok(Received::Message(message)) => break message,
            other => assert!(std::time::Instant::now() < until, "{other:?}"),
        }
    };
    assert_eq!(came["messageType"], "notification");
    drop(at_a);
    blocking(move || a.stop().unwrap()).await;
}
