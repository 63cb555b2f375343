//! Calls of a fake node over loopback: every answer and the lack of one, connections, circuits, debts.

mod fake;

mod owed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use machine::ids::{Chid, Clock, Origin, Stamp, StoreTicket, Uaid};
use machine::message::{Message, Topic, Urgency};
use machine::simplepush::Update;
use machine::stats::Board;
use machine::time::UnixSeconds;
use machine::{NodeId, PeerOp, PeerReply, RowKey};

use super::*;
use edge::EdgeKeys;
use fake::FakeNode;
use protocol::webpush::message_id::MessageIds;
use protocol::webpush::node_call::{NotifyCall, read_push, read_told};
use store::nodes::{NodeRow, NodeTable};
use store::testing::nodes::FakeNodes;

const CRYPTO: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
const BOOT: u64 = 0x0123_4567_89ab_cdef;
/// Longer than anything takes that goes well.
const PATIENCE: Duration = Duration::from_secs(60);

/// A caller on a thread of its own, and a shard's port.
struct Kit {
    peers: Arc<PeerQueue>,
    lane: Box<dyn runtime::ports::Peers>,
    table: Arc<FakeNodes>,
    board: Arc<Board>,
    snapshots: Arc<PeerSnapshots>,
    woken: mpsc::Receiver<()>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    submitted: u32,
}

impl Kit {
    fn new() -> Kit {
        Kit::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut PeerCalls)) -> Kit {
        let keys = EdgeKeys { crypto: vec![CRYPTO.to_owned()], node: vec!["node-key".to_owned(), "other".to_owned()] };
        let peers = Arc::new(PeerQueue::new(keys).unwrap());
        let table = Arc::<FakeNodes>::default();
        let mut calls = PeerCalls {
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
        change(&mut calls);
        let caller = PeerDriver::new(calls);
        let (board, snapshots) = (caller.board(), caller.snapshots());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let body = move || {
            runtime.block_on(async {
                tokio::select! {
                    ended = caller.run() => panic!("{ended:?}"),
                    _ = stopped => {}
                }
            });
        };
        let thread = Some(std::thread::spawn(body));
        let (wake, woken) = mpsc::channel();
        let lane = peers.lane(Arc::new(move || {
            // A test that is over listens no more.
            let _ = wake.send(());
        }));
        Kit { peers, lane, table, board, snapshots, woken, stop: Some(stop), thread, submitted: 0 }
    }

    fn submit(&mut self, op: PeerOp) -> StoreTicket {
        self.submitted += 1;
        let ticket = StoreTicket { index: self.submitted, generation: 7 };
        self.lane.submit(ticket, op);
        ticket
    }

    fn collect(&mut self) -> (StoreTicket, PeerReply) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(reply) = self.lane.collect() {
                return reply;
            }
            assert!(Instant::now() < until, "no reply");
            let _ = self.woken.recv_timeout(Duration::from_millis(50));
        }
    }

    fn ask(&mut self, op: PeerOp) -> PeerReply {
        let ticket = self.submit(op);
        let (came, reply) = self.collect();
        assert_eq!(came, ticket);
        reply
    }

    /// One number, as of the last tick.
    fn number(&self, name: &str) -> u64 {
        self.board.read().find(|(meaning, _)| meaning.name == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    /// Waits for a number.
    fn await_number(&self, name: &str, wanted: u64) {
        eventually(name, || self.number(name) == wanted);
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Its panic is printed already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn to(url: &str) -> Arc<NodeId> {
    Arc::new(NodeId { url: url.into(), boot: BOOT })
}

fn message(n: u8) -> Message {
    Message {
        uaid: Uaid([n; 16]),
        chid: Chid([2; 16]),
        stamp: Stamp { clock: Clock(77), origin: Origin(8) },
        ttl: 60,
        accepted: UnixSeconds(1_700_000_000),
        urgency: Urgency::High,
        topic: Topic::new(b"news"),
        receipt: false,
        tries: Default::default(),
        payload: vec![2, 9, 8, 7].into(),
    }
}

fn push(url: &str) -> PeerOp {
    PeerOp::Push { to: to(url), message: Arc::new(message(1)), stored: false }
}

fn notify(url: &str, n: u8) -> PeerOp {
    PeerOp::Notify { to: to(url), uaid: Uaid([n; 16]), unsure: None }
}

fn leave(url: &str) -> PeerOp {
    PeerOp::Leave { to: to(url), uaid: Uaid([1; 16]), connected_at: 1_234 }
}

fn ids() -> MessageIds {
    MessageIds::new(&[CRYPTO.to_owned()]).unwrap()
}

/// URL of a port without a listener. On an address of its own: no other test gets the port in between, and a caller
/// from 127.0.0.1 never connects to itself.
fn nobody() -> String {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = std::net::Ipv4Addr::new(127, 200 + COUNT.fetch_add(1, Ordering::Relaxed) % 40, high, low.max(1));
    let listener = std::net::TcpListener::bind((address, 0)).unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn a_push_says_the_whole_message() {
    let node = FakeNode::answering("200 OK", "");
    let mut kit = Kit::new();
    let pushed = PeerOp::Push { to: to(&node.url()), message: Arc::new(message(1)), stored: true };
    assert_eq!(kit.ask(pushed), PeerReply::Done);
    let credentials_version = node.credentials_version().remove(0);
    assert!(
        credentials_version.head.starts_with("PUT /push/01010101010101010101010101010101 HTTP/1.1\r\n"),
        "{}",
        credentials_version.head
    );
    assert!(credentials_version.head.contains("authorization: Bearer node-key\r\n"), "{}", credentials_version.head);
    let read = read_push(Uaid([1; 16]), &credentials_version.body, &ids()).unwrap();
    assert_eq!((read.message, read.stored, read.boot), (message(1), true, Some(BOOT)));
}

#[test]
fn word_says_whom_it_means_and_which_message() {
    let node = FakeNode::answering("202 Accepted", "");
    let mut kit = Kit::new();
    let row = RowKey::of(&message(1));
    let unsure = PeerOp::Notify { to: to(&node.url()), uaid: Uaid([1; 16]), unsure: Some(row) };
    assert_eq!(kit.ask(unsure), PeerReply::Done);
    assert_eq!(kit.ask(leave(&format!("{}/base", node.url()))), PeerReply::Done);
    let [told, left] = <[fake::Heard; 2]>::try_from(node.credentials_version()).unwrap();
    assert!(told.head.starts_with("PUT /notif/01010101010101010101010101010101 HTTP/1.1\r\n"), "{}", told.head);
    let wanted = NotifyCall { unsure: Some(row), boot: Some(BOOT) };
    assert_eq!(read_told(Uaid([1; 16]), &told.body, &ids()), Ok(wanted));
    let wanted = "DELETE /base/notif/01010101010101010101010101010101/1234?boot=0123456789abcdef HTTP/1.1\r\n";
    assert!(left.head.starts_with(wanted), "{}", left.head);
}

#[test]
fn every_status_has_its_reply() {
    use PeerReply::{Busy, Done, Held, NotHere, Unreachable};
    let [none, busy, held] = ["none", "busy", "held"].map(|said| format!("murre-session: {said}\r\n"));
    let (none, busy, held) = (none.as_str(), busy.as_str(), held.as_str());
    for (status, fields, replies) in [
        ("200 OK", "", [Done, Done, Done]),
        ("202 Accepted", "", [Done, Done, Done]),
        ("404 Not Found", none, [NotHere, NotHere, NotHere]),
        // Of a server that is no node of this cluster.
        ("404 Not Found", "", [Unreachable, Unreachable, Unreachable]),
        ("503 Service Unavailable", busy, [Busy, Unreachable, Unreachable]),
        ("503 Service Unavailable", held, [Held, Unreachable, Unreachable]),
        // Of a node with too many connections.
        ("503 Service Unavailable", "connection: close\r\n", [Unreachable, Unreachable, Unreachable]),
        ("401 Unauthorized", "", [Unreachable, Unreachable, Unreachable]),
        ("400 Bad Request", "", [Unreachable, Unreachable, Unreachable]),
        ("302 Found", "location: http://127.0.0.1:1/\r\n", [Unreachable, Unreachable, Unreachable]),
    ] {
        let node = FakeNode::answering(status, fields);
        let mut kit = Kit::new();
        let url = node.url();
        let came = [push(&url), leave(&url), notify(&url, 1)].map(|op| kit.ask(op));
        assert_eq!(came, [replies[0], replies[1], replies[2]], "{status} {fields}");
        kit.await_number("peer_answers", if replies[2] == Unreachable { kit.number("peer_answers") } else { 3 });
    }
}

#[test]
fn a_version_update_is_not_sent() {
    let node = FakeNode::answering("200 OK", "");
    let mut kit = Kit::new();
    let update = Update { version: 1, data: "" }.to_message(Uaid([1; 16]), Chid([2; 16]), UnixSeconds(1), 9);
    let pushed = PeerOp::Push { to: to(&node.url()), message: Arc::new(update), stored: false };
    assert_eq!(kit.ask(pushed), PeerReply::Unreachable);
    assert!(node.credentials_version().is_empty());
}

#[test]
fn a_url_that_is_none_is_unreachable() {
    let mut kit = Kit::new();
    assert_eq!(kit.ask(push("gopher://n")), PeerReply::Unreachable);
    assert_eq!(kit.ask(push("")), PeerReply::Unreachable);
}

#[test]
fn one_call_after_another_takes_one_connection_and_many_at_once_take_as_many_as_allowed() {
    let node = FakeNode::answering("200 OK", "");
    let mut kit = Kit::new();
    for _ in 0..20 {
        assert_eq!(kit.ask(push(&node.url())), PeerReply::Done);
    }
    assert_eq!(node.connections(), 1);
    // No request is answered until as many connections as are allowed have asked.
    node.hold(4);
    for _ in 0..40 {
        kit.submit(push(&node.url()));
    }
    for _ in 0..40 {
        assert_eq!(kit.collect().1, PeerReply::Done);
    }
    assert_eq!((node.connections(), node.credentials_version().len()), (4, 60));
    assert_eq!(kit.peers.unsettled(), 0);
}

#[test]
fn a_connection_that_the_other_end_has_closed_is_made_anew() {
    let node = FakeNode::answering("200 OK", "");
    let mut kit = Kit::new();
    assert_eq!(kit.ask(push(&node.url())), PeerReply::Done);
    // The next request on it is read and not answered.
    node.hang_up_once();
    assert_eq!(kit.ask(push(&node.url())), PeerReply::Done);
    assert_eq!((node.connections(), node.credentials_version().len()), (2, 3));
}

#[test]
fn a_kept_connection_that_breaks_behind_a_request_is_no_answer_though_no_other_can_be_made() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The port has no listener from now on.
        drop(listener);
        fake::request(&mut stream).unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        // It may have been carried out: the connection ends without an answer.
        fake::request(&mut stream).unwrap();
    });
    let mut kit = Kit::new();
    assert_eq!(kit.ask(push(&url)), PeerReply::Done);
    assert_eq!(kit.ask(push(&url)), PeerReply::NoAnswer);
    serving.join().unwrap();
    assert_eq!(kit.ask(push(&url)), PeerReply::Unreachable);
}

#[test]
fn who_says_close_is_connected_to_again() {
    let node = FakeNode::answering("200 OK", "connection: close\r\n");
    let mut kit = Kit::new();
    for _ in 0..3 {
        assert_eq!(kit.ask(push(&node.url())), PeerReply::Done);
    }
    assert_eq!(node.connections(), 3);
}

#[test]
fn no_answer_in_time_is_no_answer() {
    let node = FakeNode::silent();
    let mut kit = Kit::with(|calls| calls.request_timeout = Duration::from_secs(3));
    assert_eq!(kit.ask(push(&node.url())), PeerReply::NoAnswer);
    assert_eq!(kit.ask(leave(&node.url())), PeerReply::NoAnswer);
    kit.await_number("peer_push_no_answer", 1);
}

#[test]
fn a_connection_that_breaks_before_the_answer_is_no_answer() {
    let node = FakeNode::answering("200 OK", "");
    node.hang_up_always();
    let mut kit = Kit::new();
    assert_eq!(kit.ask(push(&node.url())), PeerReply::NoAnswer);
}

#[test]
fn calls_of_a_node_that_is_not_there_fail_at_once_until_it_answers_a_probe() {
    let url = nobody();
    let mut kit = Kit::new();
    for _ in 0..3 {
        assert_eq!(kit.ask(push(&url)), PeerReply::Unreachable);
    }
    kit.await_number("peer_circuits_open", 1);
    let before = kit.number("peer_connects");
    for _ in 0..100 {
        assert_eq!(kit.ask(push(&url)), PeerReply::Unreachable);
    }
    kit.await_number("peer_push_unreachable", 103);
    let made = kit.number("peer_connects") - before;
    assert!(made < 50, "{made} connections for 100 calls; only a probe a second may make one");
    assert!(kit.snapshots.look().iter().any(|shown| *shown.url == *url && shown.state == PeerStatus::Open));
    let _node = FakeNode::at(&url, "200 OK", "");
    kit.await_number("peer_circuits_open", 0);
    assert_eq!(kit.ask(push(&url)), PeerReply::Done);
}

#[test]
fn what_waits_too_long_for_a_connection_is_unreachable() {
    let node = FakeNode::answering("200 OK", "");
    let mut kit = Kit::with(|calls| {
        calls.connections_max = 1;
        calls.request_timeout = Duration::from_secs(5);
    });
    // Never enough for it to answer.
    node.hold(usize::MAX);
    let first = kit.submit(push(&node.url()));
    let second = kit.submit(push(&node.url()));
    let mut came = [kit.collect(), kit.collect()];
    came.sort_by_key(|(ticket, _)| ticket.index);
    assert_eq!(came[0], (first, PeerReply::NoAnswer));
    // It waited for as long as the first call took, whichever of the two was noticed first.
    assert_eq!(came[1].0, second);
    assert!(matches!(came[1].1, PeerReply::Unreachable | PeerReply::NoAnswer));
}

#[test]
fn no_more_wait_for_a_node_than_there_is_room_for() {
    let node = FakeNode::answering("200 OK", "");
    let mut kit = Kit::with(|calls| calls.connections_max = 1);
    node.hold(usize::MAX);
    kit.submit(push(&node.url()));
    eventually("a call under way", || node.credentials_version().len() == 1);
    for _ in 0..machine::peers::WAITING_MAX {
        kit.submit(push(&node.url()));
    }
    kit.await_number("peer_calls_waiting", machine::peers::WAITING_MAX as u64);
    assert_eq!(kit.ask(push(&node.url())), PeerReply::Unreachable);
    node.hold(0);
    for _ in 0..=machine::peers::WAITING_MAX {
        assert_eq!(kit.collect().1, PeerReply::Done);
    }
}

#[test]
fn keys_change_while_it_runs() {
    let node = FakeNode::answering("200 OK", "");
    let mut kit = Kit::new();
    assert_eq!(kit.ask(push(&node.url())), PeerReply::Done);
    let keys = EdgeKeys { crypto: vec![CRYPTO.to_owned()], node: vec!["newer".to_owned()] };
    kit.peers.renew(keys, TrustRoots::read(None).unwrap());
    assert_eq!(kit.ask(push(&node.url())), PeerReply::Done);
    assert!(node.credentials_version()[1].head.contains("authorization: Bearer newer\r\n"));
}

#[test]
fn a_node_behind_tls_is_called_when_its_authority_is_trusted() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let der = base64::engine::general_purpose::STANDARD.encode(made.cert.der());
    std::fs::write(&ca, format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n")).unwrap();
    let node = FakeNode::tls(&made);
    let url = node.url().replace("http://127.0.0.1", "https://localhost");
    let mut kit = Kit::with(|calls| calls.trust = TrustRoots::read(Some(&ca)).unwrap());
    for _ in 0..3 {
        assert_eq!(kit.ask(push(&url)), PeerReply::Done);
    }
    assert_eq!(node.connections(), 1);
    // A caller without trust cannot reach the node and goes on owing the notification, until it learns whom to trust.
    let mut stranger = Kit::new();
    assert_eq!(stranger.ask(push(&url)), PeerReply::Unreachable);
    assert_eq!(stranger.ask(notify(&url, 1)), PeerReply::Unreachable);
    stranger.await_number("peer_connects_untrusted", 2);
    assert_eq!(stranger.peers.unsettled(), 1);
    let keys = EdgeKeys { crypto: vec![CRYPTO.to_owned()], node: vec!["node-key".to_owned()] };
    stranger.peers.renew(keys, TrustRoots::read(Some(&ca)).unwrap());
    eventually("all is settled", || stranger.peers.unsettled() == 0);
    assert_eq!(stranger.ask(push(&url)), PeerReply::Done);
    // By a name that its certificate does not have.
    assert_eq!(kit.ask(push(&url.replace("localhost", "127.0.0.1"))), PeerReply::Unreachable);
    kit.await_number("peer_connects_untrusted", 1);
}
