//! User agents against faulty servers: each ends with a reason, none with a panic.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use murre_bench::fleet::{AgentEvent, Agents, End, Leave, Options, Plan};
use socket2::SockRef;

const PATIENCE: Duration = Duration::from_secs(60);
const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";

/// A listener that applies `what` to each connection, and sends the address of each peer.
fn serve(what: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> (SocketAddr, Receiver<IpAddr>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = sender.send(stream.peer_addr().unwrap().ip());
            let what = what.clone();
            thread::spawn(move || what(stream));
        }
    });
    (address, receiver)
}

fn read_request(stream: &mut TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        request.push(byte[0]);
    }
}

fn text(json: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    murre_bench::frame::push_header(&mut frame, 0x81, json.len(), 0);
    frame.extend_from_slice(json.as_bytes());
    frame
}

fn hello() -> Vec<u8> {
    text(&format!(r#"{{"messageType":"hello","uaid":"{}","status":200}}"#, "ab".repeat(16)))
}

fn swarm(servers: Vec<SocketAddr>, count: usize, plan: Plan) -> Agents {
    let options = Options { servers, sources: Some(4), count, in_flight_max: 64, table: 3, tls: None };
    Agents::new(&options, plan).unwrap()
}

/// Steps until `count` happenings.
fn until(swarm: &mut Agents, count: usize) -> Vec<AgentEvent> {
    let (mut happenings, begin) = (Vec::new(), Instant::now());
    while happenings.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{happenings:?}");
        swarm.step(&mut happenings).unwrap();
        if swarm.quiet() {
            thread::sleep(Duration::from_millis(1));
        }
        swarm.awake();
    }
    happenings
}

/// Ends of ten agents when a server sends this after their request.
fn ends_of(answer: Vec<u8>) -> Vec<End> {
    let (address, _) = serve(move |mut stream| {
        read_request(&mut stream);
        // The agent may be gone before it has received all.
        let _ = stream.write_all(&answer);
        let _ = stream.read(&mut [0; 4096]);
        thread::sleep(Duration::from_millis(50));
    });
    let mut swarm = swarm(vec![address], 10, Plan { channels: 1, ..Plan::default() });
    swarm.launch(0..10);
    let mut ends: Vec<End> = until(&mut swarm, 10)
        .iter()
        .map(|happening| match happening {
            AgentEvent::Ended { reason, .. } => *reason,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(swarm.settled() && swarm.connected() == 0 && swarm.complaints().len() <= 16);
    ends.dedup();
    ends
}

#[test]
fn answers_that_are_no_protocol_end_the_connection() {
    let after_101 = |bytes: &[u8]| [SWITCHING, bytes].concat();
    let mut masked = hello();
    masked[1] |= 0x80;
    for (what, answer) in [
        ("mail", b"220 ESMTP\r\n\r\n".to_vec()),
        ("a head without an end", vec![b'x'; 40_000]),
        ("a masked frame", after_101(&masked)),
        ("a fragment", after_101(b"\x01\x01{")),
        ("no text", after_101(b"\x81\x02\xff\xfe")),
        ("an array", after_101(&text("[1,2,3]"))),
        ("a hello without a UAID", after_101(&text(r#"{"messageType":"hello","status":200}"#))),
        ("an answer to nothing", after_101(&text(r#"{"messageType":"register","status":200}"#))),
        ("a binary frame", after_101(b"\x82\x01x")),
        ("a long ping", after_101(&[&b"\x89\x7e\x00\x80"[..], &[0; 128]].concat())),
        ("a frame longer than memory", after_101(&[&b"\x81\x7f"[..], &[255; 8], &vec![b'x'; 2 << 20]].concat())),
        ("a register refused", after_101(&[hello(), text(r#"{"messageType":"register","status":500}"#)].concat())),
    ] {
        assert_eq!(ends_of(answer), [End::Nonsense], "{what}");
    }
}

#[test]
fn ends_have_their_reasons() {
    assert_eq!(ends_of(b"HTTP/1.1 503 Busy\r\n\r\n".to_vec()), [End::Rejected(503)]);
    assert_eq!(ends_of([SWITCHING, b"\x88\x02\x12\xa6"].concat()), [End::Closed(4774)]);
    assert_eq!(ends_of([SWITCHING, b"\x88\x00"].concat()), [End::Closed(1005)]);
    // On an address where no other test gets the port in between.
    let nobody = TcpListener::bind("127.255.255.3:0").unwrap().local_addr().unwrap();
    let (finishes, _) = serve(|mut stream| read_request(&mut stream));
    let (resets, _) = serve(|mut stream| {
        read_request(&mut stream);
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let mut swarm = swarm(vec![nobody, finishes, resets], 9, Plan::default());
    swarm.launch(0..9);
    for happening in until(&mut swarm, 9) {
        let AgentEvent::Ended { agent, reason, was_ready: false } = happening else { panic!("{happening:?}") };
        assert_eq!(reason, [End::Refused, End::Finished, End::Reset][agent % 3]);
    }
}

#[test]
fn bytes_may_come_in_any_pieces() {
    let (address, _) = serve(|mut stream| {
        stream.set_nodelay(true).unwrap();
        read_request(&mut stream);
        let note = r#"{"messageType":"notification","channelID":"c","version":"v","data":"AAAAAAAAAAc_____"}"#;
        let pings = [b"\x89\x03abc".to_vec(), text("{}"), text(&format!("{{{}}}", " ".repeat(10_000)))].concat();
        let all = [SWITCHING.to_vec(), hello(), text(note), pings].concat();
        for piece in all[..400].chunks(7) {
            stream.write_all(piece).unwrap();
            thread::sleep(Duration::from_micros(300));
        }
        stream.write_all(&all[400..]).unwrap();
        let mut heard = Vec::new();
        let mut buffer = [0; 1024];
        while !heard.windows(2).any(|two| two == [0x8a, 0x83]) {
            let n = stream.read(&mut buffer).unwrap();
            assert!(n > 0, "it left before its pong");
            heard.extend_from_slice(&buffer[..n]);
        }
        stream.write_all(&text("{}")).unwrap();
        let _ = stream.read(&mut buffer);
    });
    let mut swarm = swarm(vec![address], 5, Plan { ack: true, ..Plan::default() });
    swarm.launch(0..5);
    // Ready, notified, a ping and two pongs of the server.
    let happenings = until(&mut swarm, 25);
    let notified =
        happenings.iter().filter(|one| matches!(one, AgentEvent::Notified { sequence: Some(7), .. })).count();
    let pongs = happenings.iter().filter(|one| matches!(one, AgentEvent::Pong { .. })).count();
    assert_eq!((notified, pongs, swarm.pings(), swarm.connected()), (5, 10, 5, 5), "{happenings:?}");
}

#[test]
fn a_server_that_reads_slowly_gets_every_byte_in_order() {
    const TEXTS: usize = 15;
    const BYTES: usize = 50_000;
    let (done, all_read) = channel();
    let (address, _) = serve(move |mut stream| {
        SockRef::from(&stream).set_recv_buffer_size(64 * 1024).unwrap();
        read_request(&mut stream);
        stream.write_all(&[SWITCHING.to_vec(), hello()].concat()).unwrap();
        let mut inbox = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        let (mut seen, mut greeted) = (0, false);
        while seen < TEXTS {
            thread::sleep(Duration::from_millis(1));
            let n = stream.read(&mut buffer).unwrap();
            assert!(n > 0, "it ended after {seen}");
            inbox.extend_from_slice(&buffer[..n]);
            while let Some((payload, used)) = unmasked(&inbox) {
                if greeted {
                    assert!(payload == vec![b'a' + seen as u8 % 26; BYTES]);
                    seen += 1;
                }
                greeted = true;
                inbox.drain(..used);
            }
        }
        done.send(()).unwrap();
    });
    let mut swarm = swarm(vec![address], 1, Plan::default());
    swarm.launch([0]);
    until(&mut swarm, 1);
    let mut happenings = Vec::new();
    for number in 0..TEXTS {
        let text = String::from_utf8(vec![b'a' + number as u8 % 26; BYTES]).unwrap();
        assert!(swarm.send_text(0, &text));
        if number % 7 == 0 {
            swarm.step(&mut happenings).unwrap();
        }
    }
    let begin = Instant::now();
    while all_read.try_recv().is_err() {
        assert!(begin.elapsed() < PATIENCE && happenings.is_empty(), "{happenings:?} {:?}", swarm.complaints());
        swarm.step(&mut happenings).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_server_that_does_not_read_is_left() {
    let (address, _) = serve(|mut stream| {
        SockRef::from(&stream).set_recv_buffer_size(64 * 1024).unwrap();
        read_request(&mut stream);
        stream.write_all(&[SWITCHING.to_vec(), hello()].concat()).unwrap();
        thread::sleep(PATIENCE);
    });
    let mut swarm = swarm(vec![address], 1, Plan::default());
    swarm.launch([0]);
    until(&mut swarm, 1);
    let text = "x".repeat(60_000);
    for _ in 0..200 {
        assert!(swarm.send_text(0, &text));
    }
    let end = until(&mut swarm, 1);
    assert!(matches!(end[..], [AgentEvent::Ended { reason: End::Nonsense, was_ready: true, .. }]), "{end:?}");
    assert!(swarm.complaints()[0].contains("does not read") && !swarm.is_connected(0));
}

/// The payload of a masked frame of 16-bit length or less, and the frame's length.
fn unmasked(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (start, len) = match bytes.get(1)? & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
        short => (2, usize::from(short)),
    };
    let mask: [u8; 4] = bytes.get(start..start + 4)?.try_into().unwrap();
    let masked = bytes.get(start + 4..start + 4 + len)?;
    Some((masked.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect(), start + 4 + len))
}

#[test]
fn agents_come_from_several_addresses_and_go_to_all_listeners() {
    let keep = |mut stream: TcpStream| {
        read_request(&mut stream);
        stream.write_all(&[SWITCHING.to_vec(), hello()].concat()).unwrap();
        while stream.read(&mut [0; 4_096]).is_ok_and(|n| n > 0) {}
    };
    let (one, peers_of_one) = serve(keep);
    let (two, peers_of_two) = serve(keep);
    let mut swarm = swarm(vec![one, two], 16, Plan::default());
    swarm.launch(0..16);
    let happenings = until(&mut swarm, 16);
    assert_eq!(swarm.connected(), 16, "{happenings:?}");
    let one: Vec<IpAddr> = peers_of_one.try_iter().collect();
    let two: Vec<IpAddr> = peers_of_two.try_iter().collect();
    assert_eq!((one.len(), two.len()), (8, 8));
    assert_eq!(one.iter().chain(&two).collect::<HashSet<_>>().len(), 4);
    swarm.disconnect(0..16, Leave::Close);
    assert_eq!((swarm.connected(), swarm.settled()), (0, true));
}

#[test]
fn an_agent_can_leave_whatever_it_waits_for() {
    // The listener never accepts and its queue is short, so that connects hang; others hang in the upgrade.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(1).unwrap();
    let full_address = full.local_addr().unwrap().as_socket().unwrap();
    let (mute, _) = serve(|mut stream| while stream.read(&mut [0; 4_096]).is_ok_and(|n| n > 0) {});
    let mut swarm = swarm(vec![full_address, mute], 40, Plan::default());
    let mut happenings = Vec::new();
    for how in [Leave::Fin, Leave::Reset, Leave::Close, Leave::Fin] {
        swarm.launch(0..40);
        for _ in 0..20 {
            swarm.step(&mut happenings).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(swarm.in_flight(), 40);
        swarm.disconnect(0..40, how);
        assert!(swarm.settled());
    }
    swarm.step(&mut happenings).unwrap();
    assert!(happenings.is_empty(), "{happenings:?}");
}

#[test]
fn what_cannot_work_is_refused_at_once() {
    let server: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let options = |servers: &[SocketAddr], table| Options {
        servers: servers.to_vec(),
        sources: None,
        count: 1,
        in_flight_max: 1,
        table,
        tls: None,
    };
    assert!(Agents::new(&options(&[], 10), Plan::default()).is_err());
    assert!(Agents::new(&options(&[server], 0), Plan::default()).is_err());
    let mut greedy = Agents::new(&options(&[server], u32::MAX), Plan::default()).unwrap();
    greedy.launch([0]);
    assert!(greedy.step(&mut Vec::new()).is_err(), "no process may have such a table");
}
