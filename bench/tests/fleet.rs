//! The swarm of user agents against a real server, with rings so small that everything crosses their borders.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, SILENCE, World};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use murre_bench::fleet::{AgentEvent, End, Leave, Plan};
use murre_bench::metrics;
use murre_bench::post::{PostSpec, PostWriter, Signing};
use murre_bench::process::own_address;
use murre_bench::scenario::Driver;
use murre_bench::target::Ramp;
use murre_bench::target::Target;

/// Agents of each ring.
const TABLE: u32 = 600;

fn plan(channels: usize) -> Plan {
    Plan { channels, ack: true, ..Plan::default() }
}

struct Fleet {
    driver: Driver,
    target: Target,
    /// Messages that were POSTed.
    posted: u64,
}

impl Fleet {
    fn new(world: &World, sessions: usize, plan: Plan) -> Fleet {
        let target = Target {
            ws: vec![world.server.websocket().into()],
            sources: Some(3),
            ca: None,
            no_ml_kem: false,
            tls_name: String::new(),
            endpoint: world.server.endpoint().into(),
            admin: None,
            admin_token: None,
            sessions,
            ramp: Ramp { ramp: 128, ramp_rate: None },
            pids: Vec::new(),
            json: None,
            label: "murre".into(),
        };
        Fleet::of(target, plan)
    }

    fn of(target: Target, plan: Plan) -> Fleet {
        Fleet { driver: Driver::with_table(&target, plan, 256, TABLE).unwrap(), target, posted: 0 }
    }

    /// Turns until this many of the happenings, those that wait included, are of the wanted kind; returns all of them.
    fn until(&mut self, count: usize, wanted: impl Fn(&AgentEvent) -> bool) -> Vec<AgentEvent> {
        let mut all: Vec<AgentEvent> = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while all.iter().filter(|one| wanted(one)).count() < count {
            assert!(Instant::now() < deadline, "{} of {count}: {:?}", all.len(), all.last());
            self.driver.turn(Duration::from_millis(20)).unwrap();
            all.append(&mut self.driver.happenings);
        }
        all
    }

    /// Returns the happenings of a moment in which there should be none.
    fn silence(&mut self) -> Vec<AgentEvent> {
        self.driver.idle(SILENCE).unwrap();
        std::mem::take(&mut self.driver.happenings)
    }

    /// Turns until the server reports this many sessions, and so has read all frames of the others.
    fn until_server_has(&mut self, world: &World, sessions: usize) {
        let told = || {
            let metrics = metrics::Metrics::read(world.server.admin()).unwrap();
            metrics.named("murre_sessions").map(|(_, value)| value as usize).sum::<usize>()
        };
        let deadline = Instant::now() + PATIENCE;
        while told() != sessions {
            assert!(Instant::now() < deadline, "the server has {} sessions, not {sessions}", told());
            self.driver.turn(Duration::from_millis(50)).unwrap();
        }
    }

    /// Ends all sessions when the server has read their acks.
    fn leave(&mut self, world: &World) {
        self.silence();
        // Waits for the full count first: a report of zero sessions means something only after it.
        self.until_server_has(world, self.target.sessions);
        self.driver.agents.disconnect_all();
        self.until_server_has(world, 0);
    }

    /// Turns until every launched agent is idle or has failed.
    fn settle(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.driver.agents.settled() {
            assert!(Instant::now() < deadline, "{} sessions, then no progress", self.driver.agents.connected());
            self.driver.turn(Duration::from_millis(10)).unwrap();
        }
    }

    /// Checks that the last message to each agent came to it, once, and nothing else came.
    fn check_notified(&self, happenings: &[AgentEvent]) {
        let count = self.target.sessions;
        let first = self.posted - count as u64;
        let mut counts = vec![0; count];
        for happening in happenings {
            if let AgentEvent::Notified { agent, sequence, .. } = happening {
                assert_eq!(*sequence, Some(first + *agent as u64), "it is an earlier one, or another agent's");
                counts[*agent] += 1;
            }
        }
        assert_eq!(counts, vec![1; count]);
    }

    /// Connects all of them and carries out the plan.
    fn connect(&mut self) {
        self.driver.agents.launch(0..self.target.sessions);
        self.settle();
        let complaints = self.driver.agents.complaints();
        assert_eq!(self.driver.agents.connected(), self.target.sessions, "{complaints:?}");
    }

    /// POSTs one message to each agent and waits for the answers; message ids. The numbers of the messages follow each
    /// other in the order of agents, and none is used twice.
    fn post_to_each(&mut self) -> Vec<String> {
        if self.driver.publishers.is_none() {
            self.driver.open_publishers(&self.target, 32).unwrap();
        }
        let count = self.target.sessions;
        let first = self.posted;
        self.posted += count as u64;
        let (mut posted, mut answered, mut ids) = (0, 0, vec![String::new(); count]);
        let mut letters = PostWriter::new(Signing::None);
        let deadline = Instant::now() + PATIENCE;
        while answered < count {
            assert!(Instant::now() < deadline, "{answered} of {count} answers");
            let publishers = self.driver.publishers.as_mut().unwrap();
            while posted < count && publishers.has_idle() {
                let url = self.driver.agents.endpoint(posted, 0).unwrap();
                let number = first + posted as u64;
                let letter = PostSpec { url: &url, ttl: 600, topic: None, urgency: None, body_bytes: 58, number };
                publishers.post(letters.write(&letter).unwrap(), letter.number).unwrap();
                posted += 1;
            }
            self.driver.turn(Duration::from_millis(20)).unwrap();
            for answer in self.driver.answers.drain(..) {
                assert_eq!(answer.status, 201);
                ids[(answer.tag - first) as usize] = answer.id;
                answered += 1;
            }
        }
        ids
    }
}

fn notified(happening: &AgentEvent) -> bool {
    matches!(happening, AgentEvent::Notified { .. })
}

fn ended(happening: &AgentEvent) -> bool {
    matches!(happening, AgentEvent::Ended { .. })
}

#[test]
fn two_thousand_sessions_over_four_rings_do_all_that_user_agents_do() {
    let world = World::start();
    let mut fleet = Fleet::new(&world, 2_000, plan(2));
    let begun = Instant::now();
    fleet.connect();
    let ready = fleet.until(2_000, |one| matches!(one, AgentEvent::Ready { .. }));
    for happening in &ready {
        let AgentEvent::Ready { hello, .. } = happening else { panic!("{happening:?}") };
        assert!(*hello > Duration::ZERO && *hello < begun.elapsed());
    }
    let uaids: Vec<Option<String>> = (0..2_000).map(|agent| fleet.driver.agents.uaid(agent)).collect();
    assert!((0..2_000).all(|agent| fleet.driver.agents.endpoints(agent).len() == 2));
    fleet.post_to_each();
    let came = fleet.until(2_000, notified);
    fleet.check_notified(&came);

    // All leave while no ack is under way, and return: nothing comes again, no user is forgotten.
    fleet.leave(&world);
    assert_eq!((fleet.driver.agents.connected(), fleet.driver.agents.in_flight()), (0, 0));
    assert!(fleet.silence().is_empty(), "who leaves on purpose is not told so");
    fleet.driver.agents.set_plan(plan(0));
    fleet.driver.agents.set_in_flight_max(2_000);
    fleet.connect();
    assert!(!fleet.silence().iter().any(notified), "something acked came again");
    assert_eq!(fleet.driver.agents.renamed_count(), 0);
    assert!((0..2_000).all(|agent| fleet.driver.agents.uaid(agent) == uaids[agent]));

    // Stored while all are away.
    fleet.leave(&world);
    fleet.post_to_each();
    fleet.connect();
    let came = fleet.until(2_000, notified);
    fleet.check_notified(&came);
}

/// Makes the files of a certificate for localhost and its key.
fn certificate() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let papers = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|file| directory.path().join(file));
    let pem =
        |what: &str, der: &[u8]| format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", STANDARD.encode(der));
    std::fs::write(&cert, pem("CERTIFICATE", papers.cert.der())).unwrap();
    std::fs::write(&key, pem("PRIVATE KEY", papers.signing_key.serialized_der())).unwrap();
    (directory, cert, key)
}

#[test]
fn sessions_and_posts_go_over_tls() {
    let (_directory, cert, key) = certificate();
    let ip = own_address();
    let [ws, endpoint] = [8443, 8445].map(|port| SocketAddr::from((ip, port)));
    let settings = [
        format!("websocket.tls.listen={ws}"),
        format!("endpoint.tls.listen={endpoint}"),
        format!("tls.cert={}", cert.display()),
        format!("tls.key={}", key.display()),
    ];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting.as_str()]).collect();
    let world = World::with(&arguments);
    let plain = Fleet::new(&world, 200, plan(2)).target;
    let target = Target {
        ws: vec![ws.into()],
        endpoint: endpoint.into(),
        ca: Some(cert),
        tls_name: "localhost".into(),
        ..plain
    };
    let mut fleet = Fleet::of(target, plan(2));
    fleet.connect();
    fleet.post_to_each();
    let happenings = fleet.until(200, notified);
    fleet.check_notified(&happenings);
    fleet.until_server_has(&world, 200);
    let metrics = metrics::Metrics::read(world.server.admin()).unwrap();
    let handshakes: f64 = metrics.named("murre_tls_handshakes_total").map(|(_, value)| value).sum();
    assert!(handshakes >= 200.0, "{handshakes} handshakes");
    fleet.leave(&world);
}

/// A port for everything public, with user agents and app servers on one address.
#[test]
fn one_public_port_serves_sessions_and_posts() {
    let (_directory, cert, key) = certificate();
    let public = SocketAddr::from((own_address(), 8447));
    let settings = [
        format!("public.listen={public}"),
        "public.domain=localhost".to_owned(),
        "public.http_listen=none".to_owned(),
        // All user agents have one address here.
        "strangers.exempt=127.0.0.0/8".to_owned(),
        format!("tls.cert={}", cert.display()),
        format!("tls.key={}", key.display()),
    ];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting.as_str()]).collect();
    let world = World::with(&arguments);
    let plain = Fleet::new(&world, 200, plan(2)).target;
    let target = Target {
        ws: vec![public.into()],
        endpoint: public.into(),
        ca: Some(cert),
        tls_name: "localhost".into(),
        ..plain
    };
    let mut fleet = Fleet::of(target, plan(2));
    fleet.connect();
    fleet.post_to_each();
    let happenings = fleet.until(200, notified);
    fleet.check_notified(&happenings);
    fleet.until_server_has(&world, 200);
    fleet.leave(&world);
}

#[test]
fn sessions_whose_server_is_killed_end_and_come_back() {
    let mut world = World::start();
    let mut fleet = Fleet::new(&world, 2_000, plan(1));
    fleet.connect();
    fleet.driver.happenings.clear();
    world.server.kill().unwrap();
    let ends = fleet.until(2_000, ended);
    assert!(
        ends.iter()
            .all(|end| matches!(end, AgentEvent::Ended { reason: End::Finished | End::Reset, was_ready: true, .. }))
    );
    fleet.driver.agents.launch(0..2_000);
    let refused = fleet.until(2_000, ended);
    assert!(refused.iter().all(|end| matches!(end, AgentEvent::Ended { reason: End::Refused, was_ready: false, .. })));
    assert!(fleet.driver.agents.settled());
    world.server.start_again().unwrap();
    fleet.driver.agents.set_plan(plan(0));
    fleet.connect();
    assert_eq!(fleet.driver.agents.renamed_count(), 0);
    assert!(world.restart_is_told(&mut fleet), "a server that stops says so");
}

impl World {
    /// Stops the server in good order; returns true if every session got a close frame.
    fn restart_is_told(&mut self, fleet: &mut Fleet) -> bool {
        fleet.driver.happenings.clear();
        assert_eq!(self.server.terminate().unwrap(), Some(0), "{}", self.server.log());
        let ends = fleet.until(2_000, ended);
        ends.iter().all(|end| matches!(end, AgentEvent::Ended { reason: End::Closed(_), was_ready: true, .. }))
    }
}

#[test]
fn some_leave_while_others_connect_and_the_server_knows_how_many_are_there() {
    let world = World::start();
    let mut fleet = Fleet::new(&world, 1_500, plan(1));
    fleet.driver.agents.launch(0..1_500);
    // In the midst of their handshakes, each in its own way.
    for (at, how) in [(100, Leave::Fin), (700, Leave::Reset), (1_300, Leave::Close)] {
        fleet.until(50, |one| matches!(one, AgentEvent::Ready { .. }));
        fleet.driver.agents.disconnect(at..at + 100, how);
    }
    fleet.settle();
    let there = fleet.driver.agents.connected();
    assert!(fleet.silence().iter().all(|one| matches!(one, AgentEvent::Ready { .. })), "nobody else ended");
    assert_eq!((0..1_500).filter(|&agent| fleet.driver.agents.is_connected(agent)).count(), there);
    fleet.until_server_has(&world, there);
    fleet.connect();
    for how in [Leave::Close, Leave::Reset, Leave::Fin] {
        fleet.driver.agents.disconnect(0..1_500, how);
        fleet.connect();
    }
    assert_eq!(fleet.driver.agents.renamed_count(), 0);
}

#[test]
fn each_action_has_its_answer() {
    let world = World::start();
    let token = world.server.admin_token().unwrap();
    metrics::set_broadcast(world.server.admin(), &token, "test/fleet", "v1").unwrap();
    let broadcast = Some("test/fleet".to_owned());
    let mut fleet = Fleet::new(&world, 700, Plan { broadcast, ..plan(1) });
    assert!(!fleet.driver.agents.ping(0) && !fleet.driver.agents.register(0), "nobody is there");
    fleet.connect();
    fleet.driver.happenings.clear();
    assert!((0..700).all(|agent| fleet.driver.agents.ping(agent)));
    fleet.until(700, |one| matches!(one, AgentEvent::Pong { .. }));
    assert_eq!(fleet.driver.agents.pongs(), 700);

    let first = fleet.driver.agents.endpoint(650, 0).unwrap();
    assert!(fleet.driver.agents.register(650) && !fleet.driver.agents.register(650), "one at a time");
    fleet.until(1, |one| matches!(one, AgentEvent::Registered { agent: 650, status: 200 }));
    assert_eq!(fleet.driver.agents.endpoints(650).len(), 2);
    assert!(fleet.driver.agents.unregister(650, 0) && !fleet.driver.agents.unregister(650, 1));
    fleet.until(1, |one| matches!(one, AgentEvent::Unregistered { agent: 650, status: 200 }));
    assert_ne!(fleet.driver.agents.endpoint(650, 0).unwrap(), first);
    let ids = fleet.post_to_each();
    let came = fleet.until(700, notified);
    fleet.check_notified(&came);

    let subscribe = r#"{"messageType":"broadcast_subscribe","broadcasts":{"test/fleet":"other"}}"#;
    assert!(fleet.driver.agents.send_text(3, subscribe));
    fleet.until(1, |one| matches!(one, AgentEvent::Broadcast { agent: 3 }));
    let nack = format!(r#"{{"messageType":"nack","version":"{}","code":301}}"#, ids[4]);
    assert!(fleet.driver.agents.send_text(4, &nack));
    assert!(fleet.driver.agents.send_text(5, r#"{"messageType":"strange"}"#));
    let end = fleet.until(1, ended);
    assert!(matches!(end[..], [AgentEvent::Ended { agent: 5, reason: End::Closed(1011), .. }]), "{end:?}");
}

#[test]
fn who_acks_does_not_get_it_again_and_who_does_not_ack_does() {
    let world = World::start();
    let mut fleet = Fleet::new(&world, 700, plan(1));
    fleet.connect();
    fleet.driver.happenings.clear();
    let ids = fleet.post_to_each();
    fleet.until(700, notified);
    fleet.leave(&world);
    fleet.driver.agents.set_plan(Plan { ack: false, ..plan(0) });
    fleet.connect();
    assert!(!fleet.silence().iter().any(notified), "something acked came again");
    let again = fleet.post_to_each();
    assert!(ids.iter().all(|id| !again.contains(id)));
    fleet.until(700, notified);
    fleet.leave(&world);
    fleet.driver.agents.set_plan(plan(0));
    fleet.connect();
    let came = fleet.until(700, notified);
    fleet.check_notified(&came);
}
