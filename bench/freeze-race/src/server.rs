//! The server of the race: one thread owns all connections and freezes them in batches, another reads the packet queue.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::epoll::Epoll;
use crate::freeze::Form;
use crate::stream::byte_at;
use crate::stuck;
use hibernate::sys::{get, grace_period, set, unsent};
use hibernate::{Buffers, Frozen, Queue, Refusal, Tuple, Verdicts, Waiting, check, set_live};

/// State of one connection. Its lock is the one owner of the tuple: it is held from the check to the close, and from
/// the look at a waiting segment to the verdict.
pub struct Connection {
    tuple: Tuple,
    peer: SocketAddrV4,
    live: Option<TcpStream>,
    frozen: Option<Frozen>,
    /// Position of the peer's stream at byte 0.
    base: u32,
    received: u64,
    /// Total that the peer has been told.
    told: u64,
    ended: bool,
}

/// Sizes of the buffers of a thawed socket: those with which a kernel begins.
const BUFFERS: Buffers = Buffers { send: 16 << 10, receive: 64 << 10 };

/// Counts of the server.
#[derive(Default, Debug)]
pub struct Counts {
    pub freezes: AtomicU64,
    pub batches: AtomicU64,
    pub unread: AtomicU64,
    pub unsent: AtomicU64,
    pub owed_ack: AtomicU64,
    pub other: AtomicU64,
    pub thaws_by_segment: AtomicU64,
    pub thaws_by_send: AtomicU64,
    pub thaw_failures: AtomicU64,
    pub corrupt: AtomicU64,
    pub segments_queued: AtomicU64,
    pub queue_dropped: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The connections of a server.
pub struct Server {
    pub form: Form,
    listener: TcpListener,
    address: Ipv4Addr,
    pub connections: Vec<OnceLock<Mutex<Connection>>>,
    by_tuple: Mutex<HashMap<Tuple, usize>>,
    epoll: Epoll,
    /// The reader of the queue has found it empty since the last batch. A batch that does not wait for that adds
    /// segments faster than a reader without its share of a core judges them: the queue fills up, and the kernel drops
    /// the rest.
    pub queue_was_empty: AtomicBool,
    pub counts: Counts,
}

/// Reads a shared value even after a panic of another thread: the test then fails by its counts.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Listens in the network namespace of the calling thread.
    pub fn new(form: Form, listen: SocketAddrV4, address: Ipv4Addr, capacity: usize) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        rustix::net::listen(&listener, 4096)?;
        listener.set_nonblocking(true)?;
        let connections = (0..capacity).map(|_| OnceLock::new()).collect();
        let (by_tuple, epoll) = (Mutex::default(), Epoll::new()?);
        let (counts, queue_was_empty) = (Counts::default(), AtomicBool::new(true));
        Ok(Self { form, listener, address, connections, by_tuple, epoll, queue_was_empty, counts })
    }

    /// Accepts what waits; returns how many connections there are.
    pub fn accept(&self) -> io::Result<usize> {
        loop {
            let (stream, peer) = match self.listener.accept() {
                Ok((stream, SocketAddr::V4(peer))) => (stream, peer),
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(lock(&self.by_tuple).len()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let local = SocketAddrV4::new(self.address, self.listener.local_addr()?.port());
            let tuple = Tuple::new(local.into(), peer.into());
            set_live(&stream, true)?;
            let base = receive_next(&stream)?;
            let mut by_tuple = lock(&self.by_tuple);
            let key = by_tuple.len();
            let Some(slot) = self.connections.get(key) else { return Err(io::Error::other("too many connections")) };
            self.epoll.add(&stream, key as u64)?;
            let live = Some(stream);
            slot.get_or_init(|| {
                Mutex::new(Connection { tuple, peer, live, frozen: None, base, received: 0, told: 0, ended: false })
            });
            by_tuple.insert(tuple, key);
        }
    }

    /// Reads what has arrived.
    pub fn serve(&self, keys: &mut Vec<u64>, timeout_ms: u32, reply_after: u64) -> io::Result<()> {
        let mut timeout_ms = timeout_ms;
        loop {
            self.epoll.wait(keys, timeout_ms)?;
            for key in keys.iter() {
                let Some(connection) = self.connections[*key as usize].get() else { continue };
                self.read(&mut lock(connection), reply_after)?;
            }
            if keys.len() < Epoll::EVENTS_MAX {
                return Ok(());
            }
            timeout_ms = 0;
        }
    }

    fn read(&self, connection: &mut Connection, reply_after: u64) -> io::Result<()> {
        let mut buffer = [0; 16_384];
        let Some(mut stream) = connection.live.as_ref() else { return Ok(()) };
        match stream.read(&mut buffer) {
            Ok(length) if length > 0 => {
                let port = connection.peer.port();
                let wrong = buffer[..length].iter().zip(connection.received..).any(|(b, at)| *b != byte_at(port, at));
                self.counts.corrupt.fetch_add(wrong.into(), Ordering::Relaxed);
                connection.received += length as u64;
                set(stream, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &[1])?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            _ => {
                connection.ended = true;
                connection.live = None;
                return Ok(());
            }
        }
        if connection.received - connection.told >= reply_after {
            tell(connection)?;
        }
        Ok(())
    }

    /// Freezes a batch of live connections; returns how many were candidates. Less than a whole batch is not tried.
    pub fn freeze_batch(&self, batch: usize, cursor: &mut usize) -> io::Result<usize> {
        let total = self.connections.len();
        let mut candidates = Vec::with_capacity(batch);
        for step in 0..total {
            let key = (*cursor + step) % total;
            let Some(connection) = self.connections[key].get() else { continue };
            if lock(connection).live.as_ref().is_some_and(|stream| unsent(stream).is_ok_and(|bytes| bytes == 0)) {
                candidates.push(key);
                if candidates.len() == batch {
                    break;
                }
            }
        }
        if candidates.len() < batch {
            return Ok(0);
        }
        *cursor = candidates.last().map_or(0, |key| key + 1) % total;
        self.queue_was_empty.store(false, Ordering::Release);
        for key in &candidates {
            self.set_apart(*key, true)?;
        }
        if self.form != Form::Naive {
            grace_period()?;
        }
        for key in &candidates {
            self.freeze(*key)?;
        }
        count(&self.counts.batches);
        Ok(candidates.len())
    }

    fn set_apart(&self, key: usize, apart: bool) -> io::Result<()> {
        let Some(connection) = self.connections[key].get() else { return Ok(()) };
        let connection = lock(connection);
        let Some(stream) = &connection.live else { return Ok(()) };
        if self.form == Form::Mark { set_live(stream, !apart) } else { Ok(()) }
    }

    /// Checks, records and closes one connection that was set apart.
    fn freeze(&self, key: usize) -> io::Result<()> {
        let Some(connection) = self.connections[key].get() else { return Ok(()) };
        let mut connection = lock(connection);
        if self.form != Form::Naive {
            self.read(&mut connection, u64::MAX)?;
        }
        let Some(stream) = connection.live.take() else { return Ok(()) };
        match check(OwnedFd::from(stream), connection.tuple) {
            Ok(checked) => {
                let expected = connection.base.wrapping_add(connection.received as u32);
                let is_wrong = expected != checked.frozen().receive_next();
                self.counts.corrupt.fetch_add(is_wrong.into(), Ordering::Relaxed);
                connection.frozen = Some(checked.close());
                count(&self.counts.freezes);
            }
            Err((socket, refusal)) => {
                connection.live = Some(TcpStream::from(socket));
                count(match refusal {
                    Refusal::Unread => &self.counts.unread,
                    Refusal::Unsent => &self.counts.unsent,
                    Refusal::OwedAck => &self.counts.owed_ack,
                    Refusal::System(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    _ => &self.counts.other,
                });
                drop(connection);
                self.set_apart(key, false)?;
            }
        }
        Ok(())
    }

    fn thaw(&self, key: usize, connection: &mut Connection) -> io::Result<()> {
        let Some(frozen) = &connection.frozen else { return Ok(()) };
        let stream = TcpStream::from(frozen.thaw(BUFFERS)?);
        set_live(&stream, true)?;
        self.epoll.add(&stream, key as u64)?;
        connection.live = Some(stream);
        connection.frozen = None;
        Ok(())
    }

    /// Sends the total to the peer of one connection that it does not know yet, and thaws the connection for that.
    pub fn tell_one(&self, key: usize) -> io::Result<()> {
        let Some(connection) = self.connections[key].get() else { return Ok(()) };
        let mut connection = lock(connection);
        if connection.received == connection.told || connection.ended {
            return Ok(());
        }
        if connection.frozen.is_some() {
            match self.thaw(key, &mut connection) {
                Ok(()) => count(&self.counts.thaws_by_send),
                Err(_) => {
                    count(&self.counts.thaw_failures);
                    return Ok(());
                }
            }
        }
        tell(&mut connection)
    }

    /// Judges one waiting segment: thaws its connection if it is frozen, and lets the segment in. False if none waits.
    pub fn judge(&self, queue: &Queue) -> io::Result<bool> {
        let (id, tuple) = match queue.next(&mut [0; 4_096])? {
            Waiting::Segment(segment) => (segment.id, Some(segment.tuple)),
            Waiting::Unreadable(id) => (id, None),
            Waiting::Nothing => return Ok(false),
        };
        count(&self.counts.segments_queued);
        let key = tuple.and_then(|tuple| lock(&self.by_tuple).get(&tuple).copied());
        // The lock is held until the kernel has the verdict.
        let mut connection = key.and_then(|key| self.connections[key].get()).map(lock);
        let mut verdicts = Verdicts::default();
        match (key, connection.as_deref_mut()) {
            (Some(key), Some(connection)) if connection.frozen.is_some() => match self.thaw(key, connection) {
                Ok(()) => {
                    count(&self.counts.thaws_by_segment);
                    queue.accept(id, &mut verdicts);
                }
                // The record stays. The peer sends the segment again.
                Err(_) => {
                    count(&self.counts.thaw_failures);
                    queue.drop(id, &mut verdicts);
                }
            },
            _ => queue.accept(id, &mut verdicts),
        }
        queue.send(&mut verdicts)?;
        Ok(true)
    }

    /// Describes this end of the connection to a peer with this port.
    pub fn end(&self, port: u16) -> String {
        let mut connections = self.connections.iter().filter_map(OnceLock::get).map(lock);
        let Some(connection) = connections.find(|connection| connection.peer.port() == port) else {
            return "unknown".to_owned();
        };
        let Connection { base, received, told, ended, frozen, live, .. } = &*connection;
        let end = match live {
            Some(stream) => stuck::end(stream).map_or_else(|error| error.to_string(), |end| end.to_string()),
            None => format!("{frozen:?}"),
        };
        let next = base.wrapping_add(*received as u32);
        format!("read {received} up to {next}, told {told}, ended {ended}, {end}")
    }
}

/// Sends the total to the peer. A total fits into the send buffer of every connection that reads.
fn tell(connection: &mut Connection) -> io::Result<()> {
    let Some(mut stream) = connection.live.as_ref() else { return Ok(()) };
    match stream.write(&connection.received.to_le_bytes()) {
        Ok(8) => connection.told = connection.received,
        Ok(_) => return Err(io::Error::other("part of a total was sent")),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(_) => {
            connection.ended = true;
            connection.live = None;
        }
    }
    Ok(())
}

/// Returns the next stream position that the kernel expects, minus what it holds unread: nothing was read yet.
fn receive_next(stream: &TcpStream) -> io::Result<u32> {
    set(stream, libc::IPPROTO_TCP, libc::TCP_REPAIR, &[1])?;
    set(stream, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, &[1])?;
    let [next] = get(stream, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)?;
    set(stream, libc::IPPROTO_TCP, libc::TCP_REPAIR, &[u32::MAX])?;
    Ok(next)
}
