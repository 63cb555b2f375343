//! App servers in the same wait as the user agents: keep-alive connections with one POST each under way.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token, event::Event};

use client::http;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::target::ClientTls;

/// Tokens of publishers start here.
pub const TOKEN_BASE: usize = 1 << 40;

/// The answer to one POST.
#[derive(Debug)]
pub struct Answer {
    /// Tag that the caller gave to `Publishers::post`.
    pub tag: u64,
    /// Status; 0 when the connection ended instead.
    pub status: u16,
    /// The tail of `Location`: the message id.
    pub id: String,
}

struct Publisher {
    stream: Connection,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Tag of the POST under way.
    tag: Option<u64>,
}

/// Connection of an app server.
pub enum Connection {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// TLS of all of them.
pub type Tls = (Arc<ClientConfig>, ServerName<'static>);

/// A pool of app server connections.
pub struct Publishers {
    address: SocketAddr,
    tls: Option<Tls>,
    pool: Vec<Publisher>,
    idle: Vec<usize>,
    scratch: Vec<u8>,
}

impl Publishers {
    /// Opens `count` connections.
    pub fn connect(
        address: SocketAddr,
        tls: Option<ClientTls>,
        count: usize,
        registry: &Registry,
    ) -> io::Result<Publishers> {
        let (tls, idle) = (self::tls(tls)?, (0..count).collect());
        let mut publishers = Publishers { address, tls, pool: Vec::new(), idle, scratch: vec![0; 64 * 1024] };
        for index in 0..count {
            let stream = open(address, publishers.tls.as_ref(), index, registry)?;
            publishers.pool.push(Publisher { stream, inbox: Vec::new(), outbox: Vec::new(), tag: None });
        }
        Ok(publishers)
    }

    /// Returns true if a connection is free.
    pub fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// POSTs under way.
    pub fn busy(&self) -> usize {
        self.pool.len() - self.idle.len()
    }

    /// Sends one request on a free connection; false when there is none.
    pub fn post(&mut self, request: &[u8], tag: u64) -> io::Result<bool> {
        let Some(index) = self.idle.pop() else { return Ok(false) };
        let publisher = &mut self.pool[index];
        publisher.tag = Some(tag);
        let sent = match publisher.stream.write(request) {
            Ok(n) => n,
            // Not connected yet, full, or gone: the next event shows the case.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => 0,
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => 0,
            Err(error) => return Err(error),
        };
        publisher.outbox.extend_from_slice(&request[sent..]);
        Ok(true)
    }

    /// Reacts to readiness of one connection. One that ended is replaced.
    pub fn ready(&mut self, event: &Event, registry: &Registry, answers: &mut Vec<Answer>) -> io::Result<()> {
        let index = event.token().0 - TOKEN_BASE;
        let publisher = &mut self.pool[index];
        let alive = match publisher.flush(event.is_writable()) {
            Ok(()) => publisher.read(&mut self.scratch),
            Err(_) => false,
        };
        let answer = publisher.answer();
        if let Some(answer) = answer {
            answers.push(answer);
            self.idle.push(index);
        }
        if !alive {
            if let Some(tag) = publisher.tag.take() {
                answers.push(Answer { tag, status: 0, id: String::new() });
                self.idle.push(index);
            }
            publisher.stream = open(self.address, self.tls.as_ref(), index, registry)?;
            publisher.inbox = Vec::new();
            publisher.outbox = Vec::new();
        }
        Ok(())
    }
}

impl Publisher {
    fn flush(&mut self, writable: bool) -> io::Result<()> {
        if !writable || self.outbox.is_empty() {
            return Ok(());
        }
        match self.stream.write(&self.outbox) {
            Ok(n) => {
                self.outbox.drain(..n);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads all there is; false when the connection has ended.
    fn read(&mut self, scratch: &mut [u8]) -> bool {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return false,
                Ok(n) => {
                    self.inbox.extend_from_slice(&scratch[..n]);
                    // A read of TLS ends with a record, not with the socket.
                    if n < scratch.len() && matches!(self.stream, Connection::Plain(_)) {
                        return true;
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => return true,
                Err(_) => return false,
            }
        }
    }

    fn answer(&mut self) -> Option<Answer> {
        let (response, used) = http::parse(&self.inbox).ok()??;
        self.inbox.drain(..used);
        let id = response.message_id().unwrap_or_default().to_owned();
        Some(Answer { tag: self.tag.take()?, status: response.status, id })
    }
}

/// TLS of a client, and the name of the server.
pub fn tls(of: Option<ClientTls>) -> io::Result<Option<Tls>> {
    let tls = of.map(|tls| -> io::Result<Tls> {
        Ok((Arc::new(tls.config()?), ServerName::try_from(tls.name).map_err(io::Error::other)?))
    });
    tls.transpose()
}

/// Opens a connection whose token is [`TOKEN_BASE`] and `index`.
pub fn open(address: SocketAddr, tls: Option<&Tls>, index: usize, registry: &Registry) -> io::Result<Connection> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    registry.register(&mut stream, Token(TOKEN_BASE + index), Interest::READABLE | Interest::WRITABLE)?;
    let Some((config, name)) = tls else { return Ok(Connection::Plain(stream)) };
    let client = ClientConnection::new(Arc::clone(config), name.clone()).map_err(io::Error::other)?;
    Ok(Connection::Tls(Box::new(StreamOwned::new(client, stream))))
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Plain(stream) => stream.read(bytes),
            Connection::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Plain(stream) => stream.write(bytes),
            Connection::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Plain(stream) => stream.flush(),
            Connection::Tls(stream) => stream.flush(),
        }
    }
}
