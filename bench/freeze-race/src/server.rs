//! The server of the race: one thread owns all connections and freezes them in batches, others read the packet queues.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::epoll::Epoll;
use crate::filter::{attach, detach, load_drop_all, load_listener_guard};
use crate::freeze::Form;
use crate::netfilter::Queue;
use crate::stream::byte_at;
use crate::stuck;
use hibernate::sys::{get, grace_period, set, unsent};
use hibernate::{Buffers, Frozen, Refusal, Tuple, check, set_live};

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
    pub frozen_at_flush: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The connections of a server.
pub struct Server {
    pub form: Form,
    listener: TcpListener,
    address: Ipv4Addr,
    filter: Option<OwnedFd>,
    pub connections: Vec<OnceLock<Mutex<Connection>>>,
    by_peer: Mutex<HashMap<SocketAddrV4, usize>>,
    epoll: Epoll,
    /// For each queue: its reader has found it empty since the last batch.
    pub queues_empty: Vec<AtomicBool>,
    pub counts: Counts,
}

/// Reads a shared value even after a panic of another thread: the test then fails by its counts.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Listens in the network namespace of the calling thread.
    pub fn new(
        form: Form,
        listen: SocketAddrV4,
        address: Ipv4Addr,
        (capacity, queues): (usize, usize),
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        rustix::net::listen(&listener, 4096)?;
        listener.set_nonblocking(true)?;
        let filter = if form == Form::Filter { Some(load_drop_all()?) } else { None };
        let connections = (0..capacity).map(|_| OnceLock::new()).collect();
        let (by_peer, epoll) = (Mutex::default(), Epoll::new()?);
        let (counts, queues_empty) = (Counts::default(), (0..queues).map(|_| AtomicBool::new(true)).collect());
        Ok(Self { form, listener, address, filter, connections, by_peer, epoll, queues_empty, counts })
    }

    /// Accepts what waits; returns how many connections there are.
    pub fn accept(&self) -> io::Result<usize> {
        loop {
            let (stream, peer) = match self.listener.accept() {
                Ok((stream, SocketAddr::V4(peer))) => (stream, peer),
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(lock(&self.by_peer).len()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let local = SocketAddrV4::new(self.address, self.listener.local_addr()?.port());
            let tuple = Tuple::new(local.into(), peer.into());
            if self.form == Form::Mark {
                set_live(&stream, true)?;
            }
            let base = receive_next(&stream)?;
            let mut by_peer = lock(&self.by_peer);
            let key = by_peer.len();
            let Some(slot) = self.connections.get(key) else { return Err(io::Error::other("too many connections")) };
            self.epoll.add(&stream, key as u64)?;
            let live = Some(stream);
            slot.get_or_init(|| {
                Mutex::new(Connection { tuple, peer, live, frozen: None, base, received: 0, told: 0, ended: false })
            });
            by_peer.insert(peer, key);
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

    /// Attaches the guard to the listener: segments of frozen connections are dropped while the packet rules are gone.
    pub fn guard_listener(&self) -> io::Result<()> {
        attach(&self.listener, &load_listener_guard()?)
    }

    /// Returns true if every queue was empty since the last batch. A batch that does not wait for that adds segments
    /// faster than a reader without its share of a core judges them: the queue fills up and the kernel drops the rest.
    pub fn queues_were_empty(&self) -> bool {
        self.queues_empty.iter().all(|empty| empty.load(Ordering::Acquire))
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
        self.queues_empty.iter().for_each(|empty| empty.store(false, Ordering::Release));
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
        match (self.form, &self.filter) {
            (Form::Mark, _) => set_live(stream, !apart),
            (Form::Filter, Some(filter)) if apart => attach(stream, filter),
            (Form::Filter, _) => detach(stream),
            (Form::Naive, _) => Ok(()),
        }
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
        if self.form == Form::Mark {
            set_live(&stream, true)?;
        }
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

    /// Judges one waiting segment: thaws its connection if it is frozen, and lets the segment in.
    pub fn judge(&self, queue: &mut Queue, timeout_ms: u32) -> io::Result<bool> {
        let Some(waiting) = queue.next(timeout_ms)? else { return Ok(false) };
        count(&self.counts.segments_queued);
        let key = lock(&self.by_peer).get(&waiting.peer).copied();
        let Some((key, connection)) = key.and_then(|key| Some((key, self.connections[key].get()?))) else {
            queue.accept(waiting.id)?;
            return Ok(true);
        };
        let mut connection = lock(connection);
        if connection.frozen.is_some() {
            if self.thaw(key, &mut connection).is_err() {
                // The record stays. The peer sends the segment again.
                count(&self.counts.thaw_failures);
                queue.drop(waiting.id)?;
                return Ok(true);
            }
            count(&self.counts.thaws_by_segment);
        }
        queue.accept(waiting.id)?;
        Ok(true)
    }

    /// Describes this end of the connection to a peer with this port.
    pub fn end(&self, port: u16) -> String {
        let key = lock(&self.by_peer).iter().find(|(peer, _)| peer.port() == port).map(|(_, key)| *key);
        let Some(connection) = key.and_then(|key| self.connections[key].get()) else { return "unknown".to_owned() };
        let connection = lock(connection);
        let Connection { base, received, told, ended, frozen, live, .. } = &*connection;
        let end = match live {
            Some(stream) => stuck::end(stream).map_or_else(|error| error.to_string(), |end| end.to_string()),
            None => format!("{frozen:?}"),
        };
        let next = base.wrapping_add(*received as u32);
        format!("read {received} up to {next}, told {told}, ended {ended}, {end}")
    }

    /// Returns how many connections are frozen.
    pub fn frozen(&self) -> usize {
        self.connections.iter().filter_map(OnceLock::get).filter(|c| lock(c).frozen.is_some()).count()
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
