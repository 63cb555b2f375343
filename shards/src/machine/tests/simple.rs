//! SimplePush: version updates, of which only the newest counts; acks by version; waking who is away (BEHAVIOUR.md
//! 1.12, 2.10).

use proptest::prelude::*;

use super::*;
use crate::simple::{Contact, Update};

fn update_on(uaid: Uaid, chid: Chid, version: u64) -> Message {
    Update { version, data: "d" }.to_message(uaid, chid, UnixSeconds(0), 3_600)
}

fn update(uaid: Uaid, version: u64) -> Message {
    update_on(uaid, CHANNEL, version)
}

impl Mesh {
    /// A SimplePush session that has said hello and everything has come to rest.
    fn simple(&mut self, shard: usize, uaid: Option<Uaid>) -> Socket {
        self.simple_with(shard, uaid, None)
    }

    fn simple_with(&mut self, shard: usize, uaid: Option<Uaid>, wake: Option<&str>) -> Socket {
        let socket = self.open(shard);
        self.say_hello_as(socket, uaid, Reach::Simple, wake);
        self.run();
        socket
    }

    /// A user that storage knows as one of SimplePush.
    fn simple_user(&mut self, shard: usize, wake: Option<&str>) -> Uaid {
        let uaid = self.known_user(shard);
        let wake = wake.and_then(WakeData::new);
        self.store.contacts.insert(uaid, Contact { mode: Reach::Simple, wake });
        uaid
    }

    fn ack_version(&mut self, socket: Socket, version: u64) {
        self.command(socket, Command::AckVersions(vec![AckVersion { chid: CHANNEL, version }]));
        self.run();
    }

    /// Whether nothing of this user is left anywhere.
    fn nothing_left(&self, uaid: Uaid) -> bool {
        self.ledger.is_empty() && self.store.rows_of(uaid).is_empty()
    }
}

#[test]
fn a_live_session_gets_an_update_at_once_and_its_ack_ends_it() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.simple(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.register(socket, CHANNEL);
    assert_eq!(mesh.store.contact_of(uaid).mode, Reach::Simple, "written with the first register");
    let sent = mesh.accept(0, update(uaid, 7), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [sent]);
    mesh.ack_version(socket, 6);
    assert_eq!(mesh.ledger.len(), 1, "a lower version ends nothing");
    mesh.ack_version(socket, 7);
    assert!(mesh.nothing_left(uaid));
}

#[test]
fn an_ack_of_a_higher_version_ends_the_lower_one_of_its_channel_only() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    mesh.accept(0, update(uaid, 7), Disposition::Direct);
    let other = mesh.accept(0, update_on(uaid, OTHER, 3), Disposition::Direct);
    mesh.ack_version(socket, 100);
    let left: Vec<Stamp> = mesh.ledger.values().map(|message| message.stamp).collect();
    assert_eq!(left, [other]);
}

#[test]
fn of_what_was_stored_only_the_highest_version_is_delivered() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.simple_user(1, None);
    mesh.accept(0, update(uaid, 5), Disposition::Stored);
    let newest = mesh.accept(1, update(uaid, 9), Disposition::Stored);
    mesh.accept(0, update(uaid, 9), Disposition::Stored);
    mesh.accept(0, update(uaid, 8), Disposition::Stored);
    let other = mesh.accept(0, update_on(uaid, OTHER, 1), Disposition::Stored);
    let socket = mesh.simple(0, Some(uaid));
    assert_eq!(mesh.shard_of(socket), 1, "its mode goes with the socket to its owner");
    assert_eq!(mesh.notifications(socket), [newest, other]);
    mesh.command(
        socket,
        Command::AckVersions(vec![AckVersion { chid: CHANNEL, version: 9 }, AckVersion { chid: OTHER, version: 1 }]),
    );
    mesh.run();
    assert!(mesh.nothing_left(uaid));
}

#[test]
fn a_version_that_is_not_higher_than_the_one_sent_is_accepted_and_screened_out() {
    for wait in [0, 12, 302] {
        let mut mesh = Mesh::with(1, |config| config.ping_interval = Span(0));
        let uaid = mesh.simple_user(0, None);
        let socket = mesh.simple(0, Some(uaid));
        mesh.accept(0, update(uaid, 5), Disposition::Direct);
        mesh.pass(wait);
        let before = mesh.notifications(socket).len();
        for version in [5, 4] {
            mesh.accept(0, update(uaid, version), Disposition::Stored);
        }
        assert_eq!(mesh.notifications(socket).len(), before, "after {wait} s");
        assert_eq!(mesh.machines[0].stats().updates_screened, 2);
        mesh.ack_version(socket, 5);
        assert!(mesh.nothing_left(uaid));
    }
}

#[test]
fn a_higher_version_ends_the_lower_one_wherever_it_is() {
    for wait in [0, 12, 302] {
        let mut mesh = Mesh::with(1, |config| config.ping_interval = Span(0));
        let uaid = mesh.simple_user(0, None);
        let socket = mesh.simple(0, Some(uaid));
        mesh.accept(0, update(uaid, 5), Disposition::Direct);
        mesh.pass(wait);
        let newest = mesh.accept(0, update(uaid, 6), Disposition::Direct);
        mesh.close(socket);
        let again = mesh.simple(0, Some(uaid));
        assert_eq!(mesh.notifications(again), [newest], "after {wait} s");
        assert!(mesh.ledger.is_empty());
    }
}

#[test]
fn an_unacked_version_is_saved_when_the_session_ends_and_a_lower_one_does_not_replace_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    let highest = mesh.accept(0, update(uaid, 9), Disposition::Direct);
    mesh.store.mode = Mode::Failing;
    mesh.close(socket);
    mesh.store.mode = Mode::Prompt;
    // The save is tried again behind this one.
    let lower = mesh.start_post(0, update(uaid, 2));
    mesh.pass(3);
    assert!(matches!(mesh.answer_to(lower), Some(Published::Accepted { .. })));
    let again = mesh.simple(0, Some(uaid));
    assert_eq!(mesh.notifications(again), [highest]);
    mesh.ack_version(again, 9);
    assert!(mesh.nothing_left(uaid));
}

#[test]
fn versions_that_come_behind_a_full_window_are_stored_and_the_highest_comes_out() {
    let mut mesh = Mesh::with(1, |config| config.window = 1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    let first = mesh.accept(0, update_on(uaid, OTHER, 1), Disposition::Direct);
    mesh.accept(0, update(uaid, 5), Disposition::Stored);
    let highest = mesh.accept(0, update(uaid, 6), Disposition::Stored);
    mesh.accept(0, update(uaid, 4), Disposition::Stored);
    mesh.command(socket, Command::AckVersions(vec![AckVersion { chid: OTHER, version: 1 }]));
    mesh.run();
    assert_eq!(mesh.notifications(socket), [first, highest]);
}

#[test]
fn a_version_acked_while_storage_is_read_is_not_sent_again() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    mesh.accept(0, update(uaid, 5), Disposition::Stored);
    let socket = mesh.open(0);
    mesh.say_hello_as(socket, Some(uaid), Reach::Simple, None);
    // The hello is answered, and the page is still at storage.
    let (shard, ticket, result) = mesh.store.replies.pop_front().expect("the user was read");
    mesh.step(shard, Input::Stored { ticket, result });
    mesh.command(socket, Command::AckVersions(vec![AckVersion { chid: CHANNEL, version: 5 }]));
    mesh.run();
    assert!(mesh.notifications(socket).is_empty());
    assert!(mesh.nothing_left(uaid));
    // What comes later is new, whatever its version.
    let lower = mesh.accept(0, update(uaid, 3), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [lower]);
}

#[test]
fn neither_mode_is_sent_what_is_for_the_other() {
    let mut mesh = Mesh::new(2);
    let (simple, webpush) = (mesh.simple_user(0, None), mesh.known_user(0));
    for connected in [false, true] {
        let sockets = connected.then(|| (mesh.simple(0, Some(simple)), mesh.session(0, Some(webpush))));
        for ttl in [0, 60] {
            assert_eq!(mesh.post(1, lasting(simple, ttl)), Published::OtherMode);
        }
        assert_eq!(mesh.post(1, update(webpush, 1)), Published::OtherMode);
        if let Some((simple, webpush)) = sockets {
            assert!(mesh.notifications(simple).is_empty() && mesh.notifications(webpush).is_empty());
        }
    }
    let node_push = NodePush { message: Arc::new(message(simple)), stored: false };
    assert_eq!(mesh.request(0, Command::NodePush(Box::new(node_push))), "Busy");
    assert!(mesh.nothing_left(simple) && mesh.nothing_left(webpush));
}

#[test]
fn who_comes_back_in_the_other_mode_starts_over() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.simple(0, Some(uaid));
    assert_eq!(mesh.uaid_on(socket), uaid);
    assert!(mesh.notifications(socket).is_empty() && mesh.nothing_left(uaid));
    assert_eq!(mesh.store.contact_of(uaid).mode, Reach::Simple);
    mesh.accept(0, update(uaid, 1), Disposition::Direct);
    mesh.close(socket);
    let back = mesh.session(0, Some(uaid));
    assert!(mesh.notifications(back).is_empty() && mesh.nothing_left(uaid));
    assert_eq!(mesh.store.contact_of(uaid), Contact::default());
    assert_eq!(mesh.machines[0].stats().rows_other_mode, 2);
}

#[test]
fn acks_of_versions_mean_nothing_to_webpush_and_to_who_has_nothing() {
    let mut mesh = Mesh::new(1);
    let (simple, webpush) = (mesh.simple_user(0, None), mesh.known_user(0));
    let (idle, socket) = (mesh.simple(0, Some(simple)), mesh.session(0, Some(webpush)));
    mesh.accept(0, message(webpush), Disposition::Direct);
    mesh.ack_version(socket, u64::MAX);
    mesh.ack_version(idle, u64::MAX);
    assert_eq!((mesh.ledger.len(), mesh.machines[0].stats().acks_unknown), (1, 2));
}

#[test]
fn an_update_for_who_is_away_wakes_it_once_in_a_while() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.simple_user(1, Some("ip=203.0.113.7&port=1"));
    mesh.accept(0, update(uaid, 1), Disposition::Stored);
    assert_eq!(mesh.woken, [WakeData::new("ip=203.0.113.7&port=1").expect("it fits")]);
    mesh.accept(0, update(uaid, 2), Disposition::Stored);
    assert_eq!(mesh.woken.len(), 1, "not at once again");
    mesh.pass(limits::WAKE_PAUSE_SECONDS);
    mesh.accept(0, update(uaid, 3), Disposition::Stored);
    assert_eq!(mesh.woken.len(), 2);
    // Refused, here, or without an address: nobody is called.
    mesh.pass(limits::WAKE_PAUSE_SECONDS);
    assert_eq!(mesh.post(0, message(uaid)), Published::OtherMode);
    let socket = mesh.simple_with(0, Some(uaid), Some("ip=203.0.113.7&port=1"));
    mesh.accept(0, update(uaid, 4), Disposition::Direct);
    mesh.ack_version(socket, 4);
    mesh.close(socket);
    let nowhere = mesh.simple_user(1, None);
    mesh.accept(0, update(nowhere, 1), Disposition::Stored);
    assert_eq!(mesh.woken.len(), 2);
}

#[test]
fn each_hello_says_how_to_wake() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.simple_with(0, None, Some("first"));
    let uaid = mesh.uaid_on(socket);
    assert_eq!(mesh.store.seen, Vec::<&str>::new(), "nothing is written before the first register");
    mesh.register(socket, CHANNEL);
    mesh.close(socket);
    let wake = |mesh: &Mesh| mesh.store.contact_of(uaid).wake;
    assert_eq!(wake(&mesh), WakeData::new("first"));
    for (said, written) in [(Some("first"), false), (Some("second"), true), (None, true), (None, false)] {
        mesh.store.seen.clear();
        let socket = mesh.simple_with(0, Some(uaid), said);
        assert_eq!(wake(&mesh), said.and_then(WakeData::new));
        assert_eq!(mesh.store.seen.contains(&"contact"), written, "only what changes is written");
        mesh.close(socket);
    }
}

#[test]
fn a_hello_whose_address_is_not_taken_is_closed() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.open(0);
    mesh.say_hello_as(socket, Some(uaid), Reach::Simple, Some("new"));
    mesh.store.mode = Mode::Failing;
    mesh.run();
    assert_eq!(mesh.closed(socket), Some(CloseReason::StorageDown));
    assert_eq!(mesh.machines[0].stats().contacts_failed, 1);
}

#[test]
fn who_can_be_woken_is_ended_when_idle_and_nobody_else() {
    let mut mesh = Mesh::with(1, |config| {
        config.wake_timeout = Span::from_secs(30);
        config.ping_interval = Span(0);
    });
    let users: Vec<Uaid> = (0..3).map(|_| mesh.simple_user(0, None)).collect();
    let idle = mesh.simple_with(0, Some(users[0]), Some("a"));
    let stays = mesh.simple(0, Some(users[1]));
    let busy = mesh.simple_with(0, Some(users[2]), Some("b"));
    let webpush = mesh.session(0, None);
    for _ in 0..3 {
        mesh.pass(20);
        mesh.accept(0, update(users[2], mesh.now.unix().0), Disposition::Direct);
        mesh.ack_version(busy, u64::MAX);
    }
    assert_eq!(mesh.closed(idle), Some(CloseReason::IdledOut));
    for socket in [stays, busy, webpush] {
        assert_eq!(mesh.closed(socket), None);
        assert!(!mesh.said(socket).contains(&Said::Ping), "pings are off");
    }
    mesh.pass(40);
    assert_eq!(mesh.closed(busy), Some(CloseReason::IdledOut));
    assert_eq!(mesh.machines[0].stats().idled_out, 2);
}

#[test]
fn durable_keeps_only_the_newest_too() {
    let mut mesh = Mesh::with(1, |config| config.durable = true);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    mesh.store.mode = Mode::Held;
    mesh.start_post(0, update(uaid, 9));
    mesh.start_post(0, update(uaid, 4));
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.notifications(socket).len(), 1, "the lower version is not sent behind the higher");
    mesh.ack_version(socket, 9);
    assert!(mesh.nothing_left(uaid));
}

#[test]
fn a_channel_that_is_registered_again_has_seen_no_version() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = Span(0));
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    mesh.accept(0, update(uaid, 9), Disposition::Direct);
    // It was retried in vain and waits in storage for the next session.
    mesh.pass(302);
    mesh.command(socket, Command::Unregister { chid: CHANNEL, code: 0 });
    mesh.run();
    mesh.register(socket, CHANNEL);
    let lower = mesh.accept(0, update(uaid, 1), Disposition::Direct);
    assert_eq!(mesh.notifications(socket).last(), Some(&lower));
}

/// What happens to one user.
#[derive(Clone, Debug)]
enum Step {
    Put {
        chid: Chid,
        version: u64,
    },
    /// Acks what was sent on a channel, less so much.
    Ack {
        chid: Chid,
        less: u64,
    },
    Come {
        wake: bool,
    },
    Leave,
    Pass(u64),
    Storage(Mode),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let chid = || prop::sample::select(vec![CHANNEL, OTHER]);
    let modes = vec![Mode::Prompt, Mode::Prompt, Mode::Failing, Mode::Lossy];
    let step = prop_oneof![
        6 => (chid(), 1u64..9).prop_map(|(chid, version)| Step::Put { chid, version }),
        4 => (chid(), 0u64..3).prop_map(|(chid, less)| Step::Ack { chid, less }),
        3 => any::<bool>().prop_map(|wake| Step::Come { wake }),
        1 => Just(Step::Leave),
        2 => prop::sample::select(vec![1u64, 12, 65, 310]).prop_map(Step::Pass),
        2 => prop::sample::select(modes).prop_map(Step::Storage),
    ];
    prop::collection::vec(step, 1..40)
}

/// One user and what it was sent.
struct Life {
    mesh: Mesh,
    uaid: Uaid,
    socket: Option<Socket>,
    /// Every update that was PUT, and where its answer is.
    puts: Vec<((usize, u32), Chid, u64)>,
}

impl Life {
    fn new(window: u16, durable: bool) -> Life {
        let mut mesh = Mesh::with(1, |config| (config.window, config.durable) = (window, durable));
        let uaid = mesh.simple_user(0, None);
        Life { mesh, uaid, socket: None, puts: Vec::new() }
    }

    fn live(&self) -> Option<Socket> {
        self.socket.filter(|socket| self.mesh.closed(*socket).is_none())
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put { chid, version } => {
                self.puts.push((self.mesh.start_post(0, update_on(self.uaid, chid, version)), chid, version));
                self.mesh.run();
            }
            Step::Ack { chid, less } => self.ack(chid, less),
            Step::Come { wake } if self.live().is_none() => {
                self.socket = Some(self.mesh.simple_with(0, Some(self.uaid), wake.then_some("somewhere")));
            }
            Step::Come { .. } => {}
            Step::Leave => {
                if let Some(socket) = self.live() {
                    self.mesh.close(socket);
                    self.socket = None;
                }
            }
            Step::Pass(seconds) => self.mesh.pass(seconds),
            Step::Storage(mode) => self.mesh.store.mode = mode,
        }
    }

    /// The highest version that was sent on this channel, on whatever session.
    fn sent(&self, chid: Chid) -> u64 {
        let sent = self.mesh.versions.values().filter(|(of, _)| *of == chid);
        sent.map(|(_, version)| *version).max().unwrap_or(0)
    }

    fn ack(&mut self, chid: Chid, less: u64) {
        let Some(socket) = self.live() else { return };
        let stamps = self.mesh.notifications(socket);
        let versions = stamps.iter().filter_map(|stamp| self.mesh.versions.get(stamp));
        let Some(highest) = versions.filter(|(of, _)| *of == chid).map(|(_, version)| *version).max() else { return };
        let version = highest.saturating_sub(less);
        self.mesh.command(socket, Command::AckVersions(vec![AckVersion { chid, version }]));
        self.mesh.run();
    }

    /// Storage is well again, the user agent comes back and acks whatever it gets.
    fn settle(&mut self) {
        self.step(&Step::Storage(Mode::Prompt));
        self.step(&Step::Leave);
        for _ in 0..20 {
            self.step(&Step::Pass(3));
            self.step(&Step::Come { wake: false });
            self.step(&Step::Ack { chid: CHANNEL, less: 0 });
            self.step(&Step::Ack { chid: OTHER, less: 0 });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// The highest version that was accepted is sent, whatever happened on the way, and acks leave nothing behind.
    #[test]
    fn the_highest_version_arrives_and_nothing_stays(
        steps in steps(), window in 1u16..4, durable in prop::bool::weighted(0.2),
    ) {
        let mut life = Life::new(window, durable);
        steps.iter().for_each(|step| life.step(step));
        life.settle();
        for (put, chid, version) in &life.puts {
            let answer = life.mesh.answer_to(*put);
            prop_assert!(answer.is_some(), "every PUT is answered");
            if let Some(Published::Accepted { .. }) = answer {
                prop_assert!(life.sent(*chid) >= *version, "{version} was accepted, {} sent", life.sent(*chid));
            }
        }
        let rows = life.mesh.store.rows_of(life.uaid);
        prop_assert!(rows.is_empty() && life.mesh.ledger.is_empty(), "left: {rows:?}, {:?}", life.mesh.ledger);
    }
}

#[test]
fn who_leaves_an_update_unacked_is_woken_for_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, Some("a"));
    let socket = mesh.simple_with(0, Some(uaid), Some("a"));
    mesh.accept(0, update(uaid, 1), Disposition::Direct);
    mesh.close(socket);
    mesh.pass(20);
    assert_eq!((mesh.store.rows_of(uaid).len(), mesh.woken.len()), (1, 1));
}

#[test]
fn nobody_is_told_to_stay_away_while_an_update_waits_for_its_ack() {
    let mut mesh = Mesh::with(1, |config| config.wake_timeout = Span::from_secs(30));
    let uaid = mesh.simple_user(0, Some("a"));
    let socket = mesh.simple_with(0, Some(uaid), Some("a"));
    mesh.accept(0, update(uaid, 1), Disposition::Direct);
    mesh.pass(45);
    assert_eq!(mesh.closed(socket), None);
    mesh.ack_version(socket, 1);
    mesh.pass(45);
    assert_eq!(mesh.closed(socket), Some(CloseReason::IdledOut));
}

#[test]
fn who_came_back_is_woken_for_the_next_absence_at_once() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, Some("a"));
    mesh.accept(0, update(uaid, 1), Disposition::Stored);
    mesh.pass(2);
    let socket = mesh.simple_with(0, Some(uaid), Some("a"));
    mesh.ack_version(socket, 1);
    mesh.close(socket);
    mesh.accept(0, update(uaid, 2), Disposition::Stored);
    assert_eq!(mesh.woken.len(), 2);
}

#[test]
fn what_was_acked_of_a_channel_says_nothing_when_it_is_registered_anew() {
    let mut mesh = Mesh::with(1, |config| config.window = 1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple_with(0, Some(uaid), Some("a"));
    mesh.accept(0, update(uaid, 5), Disposition::Direct);
    mesh.accept(0, update_on(uaid, OTHER, 1), Disposition::Stored);
    mesh.ack_version(socket, 5);
    assert_eq!(mesh.notifications(socket).len(), 2);
    mesh.command(socket, Command::Unregister { chid: CHANNEL, code: 200 });
    mesh.run();
    mesh.register(socket, CHANNEL);
    let low = mesh.accept(0, update(uaid, 1), Disposition::Stored);
    mesh.command(socket, Command::AckVersions(vec![AckVersion { chid: OTHER, version: 1 }]));
    mesh.run();
    assert_eq!(mesh.notifications(socket).last(), Some(&low));
}
