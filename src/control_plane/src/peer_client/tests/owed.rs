//! Notifications without an answer: they are called again until the node answers, or its run is over.

use machine::peers::DebtRow;

use super::*;

#[test]
fn an_owed_notification_is_delivered_when_the_node_is_there() {
    let url = nobody();
    let mut kit = Kit::new();
    let row = RowKey::of(&message(2));
    assert_eq!(kit.ask(notify(&url, 1)), PeerReply::Unreachable);
    let unsure = PeerOp::Notify { to: to(&url), uaid: Uaid([2; 16]), unsure: Some(row) };
    assert_eq!(kit.ask(unsure.clone()), PeerReply::Unreachable);
    // Once is enough, however often it is asked for.
    assert_eq!(kit.ask(unsure), PeerReply::Unreachable);
    kit.await_number("peer_owed", 2);
    assert_eq!(kit.peers.unsettled(), 2);
    let node = FakeNode::at(&url, "200 OK", "");
    eventually("all is settled", || kit.peers.unsettled() == 0);
    kit.await_number("peer_owed_answered", 2);
    kit.await_number("peer_owed", 0);
    let mut told: Vec<_> = node
        .credentials_version()
        .into_iter()
        .filter(|credentials_version| credentials_version.head.starts_with("PUT"))
        .map(|credentials_version| credentials_version.body)
        .collect();
    told.sort();
    assert_eq!(told.len(), 2);
    let unsure = |body: &[u8]| read_told(Uaid([2; 16]), body, &ids()).unwrap().unsure;
    assert!(told.iter().any(|body| unsure(body) == Some(row)));
    assert!(kit.lane.collect().is_none());
}

#[test]
fn no_answer_leaves_a_debt_and_any_answer_ends_it() {
    for (status, fields) in [("200 OK", ""), ("404 Not Found", "murre-session: none\r\n")] {
        let node = FakeNode::answering(status, fields);
        node.hang_up_always();
        let mut kit = Kit::new();
        assert_eq!(kit.ask(notify(&node.url(), 1)), PeerReply::NoAnswer);
        assert_eq!(kit.peers.unsettled(), 1);
        node.hang_up_never();
        eventually("all is settled", || kit.peers.unsettled() == 0);
    }
}

#[test]
fn a_notification_that_is_answered_ends_the_debt_of_the_same() {
    let node = FakeNode::answering("200 OK", "");
    node.hang_up_always();
    let mut kit = Kit::new();
    assert_eq!(kit.ask(notify(&node.url(), 1)), PeerReply::NoAnswer);
    node.hang_up_never();
    assert_eq!(kit.ask(notify(&node.url(), 1)), PeerReply::Done);
    eventually("all is settled", || kit.peers.unsettled() == 0);
}

#[test]
fn word_without_a_shard_is_carried_too() {
    let url = nobody();
    let kit = Kit::new();
    kit.peers.tell(to(&url), Uaid([1; 16]));
    kit.await_number("peer_owed", 1);
    let node = FakeNode::at(&url, "200 OK", "");
    eventually("all is settled", || kit.peers.unsettled() == 0);
    assert!(node.credentials_version().iter().any(|credentials_version| {
        credentials_version.head.starts_with("PUT /notif/01010101010101010101010101010101 ")
    }));
}

#[test]
fn a_debt_to_a_run_that_is_over_is_dropped() {
    for (row, over) in [
        (NodeRow { boot: BOOT, left: true, silent: None }, true),
        (NodeRow { boot: BOOT + 1, left: false, silent: None }, true),
        (NodeRow { boot: BOOT, left: false, silent: None }, false),
    ] {
        let url = nobody();
        let mut kit = Kit::new();
        assert_eq!(kit.ask(notify(&url, 1)), PeerReply::Unreachable);
        kit.await_number("peer_owed", 1);
        kit.table.answers().row = Some(row);
        for _ in 0..3 {
            // The circuit opens, and whether the node has left is looked up.
            let _ = kit.ask(push(&url));
        }
        if over {
            kit.await_number("peer_owed_over", 1);
            eventually("all is settled", || kit.peers.unsettled() == 0);
            assert_eq!(kit.ask(push(&url)), PeerReply::NotHere);
            assert_eq!(kit.ask(notify(&url, 2)), PeerReply::NotHere);
        } else {
            kit.await_number("peer_circuits_open", 1);
            assert_eq!(kit.ask(push(&url)), PeerReply::Unreachable);
            assert_eq!(kit.peers.unsettled(), 1);
        }
    }
}

#[test]
fn who_has_no_island_settles_what_can_be_settled() {
    let node = FakeNode::answering("200 OK", "");
    let keys = EdgeKeys { crypto: vec![CRYPTO.to_owned()], node: vec!["node-key".to_owned()] };
    let peers = Arc::new(PeerQueue::new(keys).unwrap());
    let table = Arc::<FakeNodes>::default();
    let calls = PeerCalls {
        peers: Arc::clone(&peers),
        nodes: Arc::clone(&table) as Arc<dyn NodeTable>,
        connections_max: 4,
        connect_timeout: PATIENCE,
        request_timeout: PATIENCE,
        id: 7_000,
        unwritten: None,
        retry_queue_max: machine::peers::RETRY_QUEUE_MAX,
        gone_time: Duration::ZERO,
        trust: TrustRoots::read(None).unwrap(),
    };
    for n in 0..40 {
        peers.tell(to(&node.url()), Uaid([n; 16]));
    }
    assert_eq!(settle(calls.clone(), PATIENCE).unwrap(), 0);
    assert_eq!(node.credentials_version().len(), 40);
    // A node that does not answer is told in the database that it must read storage.
    let url = nobody();
    peers.tell(to(&url), Uaid([1; 16]));
    assert_eq!(settle(calls, Duration::from_millis(300)).unwrap(), 0);
    let debts = table.answers().debts.clone();
    assert_eq!(debts.iter().map(|(to, row)| (&**to, row.id, row.said_us)).collect::<Vec<_>>(), [(&*url, 7_000, 0)]);
}

#[test]
fn a_notification_without_an_answer_is_answered_when_the_database_knows_the_debt() {
    let url = nobody();
    let mut kit = Kit::new();
    assert_eq!(kit.ask(notify(&url, 1)), PeerReply::Unreachable);
    let debts = kit.table.answers().debts.clone();
    assert_eq!(debts.iter().map(|(to, row)| (&**to, row.id)).collect::<Vec<_>>(), [(&*url, 7_000)]);
    assert_ne!(debts[0].1.said_us, 0, "it will be handed over");
    let _node = FakeNode::at(&url, "200 OK", "");
    eventually("the debt is deleted", || kit.table.answers().debts.is_empty());
    eventually("all is settled", || kit.peers.unsettled() == 0);
}

#[test]
fn nodes_that_never_answer_make_room_for_one_that_does() {
    let mut kit = Kit::new();
    let nodes_max = machine::peers::NODES_MAX;
    let dead = nobody();
    for n in 0..nodes_max {
        let url = format!("{dead}/{n}");
        // The third opens the circuit, and each leaves a debt.
        for user in 0..3 {
            assert_eq!(kit.ask(notify(&url, user)), PeerReply::Unreachable);
        }
    }
    kit.await_number("peer_circuits_open", nodes_max as u64);
    assert_eq!(kit.peers.unsettled(), 3 * nodes_max);
    let node = FakeNode::answering("200 OK", "");
    assert_eq!(kit.ask(notify(&node.url(), 1)), PeerReply::Done);
    kit.await_number("peer_owed_dropped", 3);
    eventually("the database is told", || kit.peers.unsettled() == 3 * (nodes_max - 1));
    let first = format!("{dead}/0");
    let is_told = |debts: &[(Box<str>, DebtRow)]| debts.iter().any(|(url, row)| **url == *first && row.said_us == 0);
    assert!(is_told(&kit.table.answers().debts));
    // The list of nodes is written behind the numbers.
    let is_shown = || kit.snapshots.look().iter().any(|shown| *shown.url == format!("{dead}/0"));
    eventually("the first node is not shown", || !is_shown());
}

#[test]
fn a_notification_that_cannot_be_said_yet_stays_owed() {
    let node = FakeNode::answering("200 OK", "");
    let mut kit = Kit::new();
    let keys = |crypto: &str| EdgeKeys { crypto: vec![crypto.to_owned()], node: vec!["node-key".to_owned()] };
    kit.peers.renew(keys("none"), TrustRoots::read(None).unwrap());
    assert_eq!(kit.ask(notify(&node.url(), 1)), PeerReply::Unreachable);
    assert_eq!(kit.peers.unsettled(), 1);
    assert!(node.credentials_version().is_empty());
    kit.peers.renew(keys(CRYPTO), TrustRoots::read(None).unwrap());
    eventually("all is settled", || kit.peers.unsettled() == 0);
    kit.await_number("peer_owed_answered", 1);
}

#[test]
fn a_run_that_is_silent_and_does_not_answer_is_declared_over() {
    let url = nobody();
    let mut kit = Kit::new();
    let row = NodeRow { boot: BOOT, left: false, silent: Some(Duration::from_secs(600)) };
    kit.table.answers().row = Some(row);
    for _ in 0..3 {
        assert_eq!(kit.ask(push(&url)), PeerReply::Unreachable);
    }
    assert_eq!(kit.ask(notify(&url, 1)), PeerReply::Unreachable);
    kit.await_number("peer_runs_gone", 1);
    assert_eq!(kit.table.answers().row, Some(NodeRow { left: true, ..row }));
    assert_eq!(kit.ask(push(&url)), PeerReply::NotHere);
    assert_eq!(kit.peers.unsettled(), 0);
}

#[test]
fn what_the_database_does_not_take_is_told_by_the_next_boot_on_this_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("debts");
    let url = nobody();
    let mut kit = Kit::with(|calls| calls.unwritten = Some(file.clone()));
    kit.table.answers().takes_debts = false;
    assert_eq!(kit.ask(notify(&url, 1)), PeerReply::Unreachable);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{url}\n"), "before the POST is answered");
    // It ends as if killed.
    drop(kit);
    let next = Kit::with(|calls| calls.unwritten = Some(file.clone()));
    eventually("the node is told", || next.peers.unsettled() == 0);
    let debts = next.table.answers().debts.clone();
    assert_eq!(debts.iter().map(|(to, row)| (&**to, row.said_us)).collect::<Vec<_>>(), [(&*url, 0)]);
    eventually("the file is gone", || !file.exists());
}

#[test]
fn a_debt_that_the_database_takes_late_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("debts");
    let mut kit = Kit::with(|calls| calls.unwritten = Some(file.clone()));
    kit.table.answers().takes_debts = false;
    assert_eq!(kit.ask(notify(&nobody(), 1)), PeerReply::Unreachable);
    assert!(file.exists());
    kit.table.answers().takes_debts = true;
    eventually("the file is gone", || !file.exists());
    assert_eq!(kit.table.answers().debts.len(), 1);
}
