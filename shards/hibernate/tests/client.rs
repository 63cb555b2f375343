//! A client that freezes its own end: the rules of [`Ports::From`] hold the segments of the server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hibernate::{Buffers, ConnName, Gate, News, Ports, ShardGate, Tuple, freeze, set_live};

const QUEUE: u16 = 41_021;

fn news(shard: &ShardGate) -> News {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        match shard.next() {
            Some(news) => return news,
            None => sleep(Duration::from_millis(1)),
        }
    }
    panic!("the gate is silent");
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_client_whose_end_is_frozen_is_woken_by_its_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (_gate, mut shards) = Gate::open(Ports::From(&[address.port()]), QUEUE, 1, false).unwrap();
    let mut shard = shards.pop().unwrap();
    shard.attach(Vec::new(), || ());
    // The answer to a SYN of an unmarked socket waits in the queue, and belongs to no connection of the gate.
    let client = TcpStream::connect(address).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let (tuple, name) = (Tuple::of(&client).unwrap(), ConnName { slot: 7, generation: 1 });
    shard.set_apart(vec![(tuple, name)]);
    assert!(matches!(news(&shard), News::GraceOver));
    let frozen = freeze(OwnedFd::from(client), tuple).unwrap();

    server.write_all(b"wake").unwrap();
    let News::Segment(woken, segment, _) = news(&shard) else { panic!("a grace period ended twice") };
    assert_eq!((woken, segment.tuple), (name, tuple));
    assert!(frozen.takes(segment.position, segment.acknowledged, segment.syn));
    let thawed = frozen.thaw(Buffers { send: 16 << 10, receive: 16 << 10 }).unwrap();
    set_live(&thawed, true).unwrap();
    shard.live(tuple, name);
    shard.accept(segment);
    shard.send_verdicts();
    let mut client = TcpStream::from(thawed);
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut word = [0; 4];
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"wake");
    client.write_all(b"back").unwrap();
    server.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"back");
}
