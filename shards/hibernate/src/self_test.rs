//! The self-test: one connection over loopback is frozen, woken by a segment, and thawed, with rules of its own.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::error::Unfit;
use crate::gate::{Gate, ShardGate};
use crate::news::News;
use crate::repair::{Buffers, freeze, set_live};
use crate::rules::Ports;
use crate::sys::get;
use crate::table::ConnName;
use crate::tuple::Tuple;

/// Longest wait for each step. All of it takes some 100 ms on an idle host.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

const BUFFERS: Buffers = Buffers { send: 16 << 10, receive: 16 << 10 };

/// Numbers of packet queues for the test. A server uses another one: its rules, also those that were left to it, are
/// not touched.
const QUEUES: std::ops::Range<u16> = 65_400..65_432;

/// Returns an error if connections cannot be frozen in the network namespace of the calling thread. Takes some 100 ms.
/// Opens a packet queue of [`QUEUES`] for that time, and a port of loopback that the kernel chooses.
///
/// # Errors
/// Reason, with what to do.
pub fn self_test() -> Result<(), Unfit> {
    let mut result = Ok(());
    for queue in QUEUES {
        result = test_with(queue);
        if !matches!(result, Err(Unfit::QueueTaken(_))) {
            break;
        }
    }
    result
}

fn test_with(queue: u16) -> Result<(), Unfit> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Unfit::at("listening on loopback"))?;
    let port = listener.local_addr().map_err(Unfit::at("listening on loopback"))?.port();
    let (gate, mut gates) =
        Gate::open(Ports::To(&[port]), queue, 1, false).map_err(|error| Unfit::of_gate(queue, error))?;
    let shard = gates.pop().unwrap_or_else(|| unreachable!("the gate was opened for one shard"));
    let (waker, woken) = channel();
    shard.attach(Vec::new(), move || {
        // The test is over when nobody listens.
        let _ = waker.send(());
    });
    let result = Test { shard, woken }.run(&listener);
    drop(gate);
    result
}

struct Test {
    shard: ShardGate,
    woken: Receiver<()>,
}

impl Test {
    fn run(mut self, listener: &TcpListener) -> Result<(), Unfit> {
        let connect = || -> io::Result<(TcpStream, TcpStream)> {
            let client = TcpStream::connect(listener.local_addr()?)?;
            client.set_read_timeout(Some(STEP_TIMEOUT))?;
            Ok((client, listener.accept()?.0))
        };
        let (mut client, mut server) = connect().map_err(Unfit::at("connecting over loopback"))?;
        set_live(&server, true).map_err(Unfit::at("marking a socket"))?;
        exchange(&mut client, &mut server).map_err(Unfit::at("exchanging bytes"))?;
        let mss = segment_size(&server)?;

        // Freeze.
        let name = ConnName { slot: 0, generation: 0 };
        let tuple = Tuple::of(&server).map_err(Unfit::at("reading the addresses of a connection"))?;
        set_live(&server, false).map_err(Unfit::at("marking a socket"))?;
        self.shard.set_apart(vec![(tuple, name)]);
        match self.news()? {
            News::GraceOver => {}
            News::Segment(..) => return Err(Unfit::Differs("a segment came that nobody sent")),
        }
        let frozen = freeze(OwnedFd::from(server), tuple).map_err(|(_, refusal)| match refusal {
            crate::Refusal::System(errno) => Unfit::Step("reading a connection", io::Error::from_raw_os_error(errno)),
            _ => Unfit::Differs("an idle connection was taken for a busy one"),
        })?;

        // Wake and thaw.
        client.write_all(b"wake").map_err(Unfit::at("exchanging bytes"))?;
        let News::Segment(woken, segment, _) = self.news()? else {
            return Err(Unfit::Differs("a grace period ended twice"));
        };
        if woken != name || !frozen.takes(segment.position, segment.acknowledged, segment.syn) {
            return Err(Unfit::Differs("its segment is taken for that of another"));
        }
        let thawed = frozen.thaw(BUFFERS).map_err(Unfit::at("making a connection again"))?;
        set_live(&thawed, true).map_err(Unfit::at("marking a socket"))?;
        self.shard.accept(segment);
        self.shard.send_verdicts();
        self.shard.live(tuple, name);
        let mut server = TcpStream::from(thawed);
        let both = server.set_nonblocking(false).and_then(|()| server.set_read_timeout(Some(STEP_TIMEOUT)));
        let mut word = [0; 4];
        both.and_then(|()| server.read_exact(&mut word)).map_err(Unfit::at("reading from a thawed connection"))?;
        if &word != b"wake" {
            return Err(Unfit::Differs("it has other bytes"));
        }
        exchange(&mut client, &mut server).map_err(Unfit::at("exchanging bytes over a thawed connection"))?;
        if segment_size(&server)? != mss {
            return Err(Unfit::Differs("its segments have another size"));
        }
        Ok(())
    }

    fn news(&self) -> Result<News, Unfit> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            if let Some(news) = self.shard.next() {
                return Ok(news);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.woken.recv_timeout(left).is_err() {
                return Err(Unfit::Differs("the packet queue is silent"));
            }
        }
    }
}

/// Sends bytes both ways, until both sides have no byte that is not acknowledged.
fn exchange(client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
    let mut word = [0; 4];
    client.write_all(b"ping")?;
    server.read_exact(&mut word)?;
    server.write_all(b"pong")?;
    client.read_exact(&mut word)?;
    // An acknowledgement that the kernel delays would refuse the freeze.
    client.write_all(b"done")?;
    server.read_exact(&mut word)?;
    crate::sys::set(&*server, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &[1])
}

/// Size of a full segment. Loopback has larger ones than a thawed connection takes.
fn segment_size(socket: &TcpStream) -> Result<u32, Unfit> {
    let [size] =
        get(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG).map_err(Unfit::at("reading the size of a segment"))?;
    Ok(size.min(16_384))
}
