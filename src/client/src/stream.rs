//! Client connections: TCP, or TLS over it, with a limit for every wait.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use control_plane::client_config;
use protocol::wire::url::Origin;

/// Longest wait for bytes that must come. A busy host is no fault of the server.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// TCP, or TLS over it.
pub enum Stream {
    /// `ws://` and `http://`.
    Plain(Timed),
    /// `wss://` and `https://`.
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

/// A socket whose every call ends in time, however slow or silent the server is.
pub struct Timed {
    socket: TcpStream,
    /// Longest wait of one call, if it is shorter than the usual one.
    patience: Option<Duration>,
    /// Instant at which all calls end.
    end: Option<Instant>,
}

impl Timed {
    fn new(socket: TcpStream, end: Option<Instant>) -> io::Result<Timed> {
        socket.set_nodelay(true)?;
        Ok(Timed { socket, patience: None, end })
    }

    /// Connects within the time until `end`, at which all calls end.
    fn connect(address: &SocketAddr, end: Instant) -> io::Result<Timed> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Timed::new(TcpStream::connect_timeout(address, left)?, Some(end))
    }

    /// Longest wait for bytes that must come: all of the time that is left until `end`.
    fn usual_patience(&self) -> Duration {
        self.end.map_or(PATIENCE, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Longest wait of the next call. Never zero, which sockets take for "no limit".
    fn left(&self) -> io::Result<Duration> {
        let usual = self.usual_patience();
        let left = self.patience.map_or(usual, |patience| patience.min(usual));
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Stream {
    /// Connects without TLS.
    ///
    /// # Errors
    /// No connection.
    pub fn connect(address: SocketAddr) -> io::Result<Stream> {
        Stream::of(TcpStream::connect_timeout(&address, PATIENCE)?)
    }

    /// Connects without TLS. All calls end at this instant.
    ///
    /// # Errors
    /// No connection in time.
    pub fn connect_until(address: SocketAddr, end: Instant) -> io::Result<Stream> {
        Ok(Stream::Plain(Timed::connect(&address, end)?))
    }

    /// Wraps a connected socket.
    ///
    /// # Errors
    /// The socket is none of TCP.
    pub fn of(socket: TcpStream) -> io::Result<Stream> {
        Ok(Stream::Plain(Timed::new(socket, None)?))
    }

    /// Sets the longest wait of one call; `None` is [`Stream::usual_patience`].
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        match self {
            Stream::Plain(timed) => timed.patience = patience,
            Stream::Tls(tls) => tls.sock.patience = patience,
        }
    }

    /// Lets calls go on until this instant, if they would end before.
    pub fn prolong(&mut self, until: Instant) {
        let timed = match self {
            Stream::Plain(timed) => timed,
            Stream::Tls(tls) => &mut tls.sock,
        };
        timed.end = timed.end.map(|end| end.max(until));
    }

    /// Longest wait for bytes that must come: the time until the end of all calls, or [`PATIENCE`] without one.
    pub fn usual_patience(&self) -> Duration {
        self.timed().usual_patience()
    }

    /// Returns the certificate of the server in DER, over TLS.
    pub fn certificate(&self) -> Option<&[u8]> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(tls) => Some(tls.conn.peer_certificates()?.first()?),
        }
    }

    pub fn socket(&self) -> &TcpStream {
        &self.timed().socket
    }

    fn timed(&self) -> &Timed {
        match self {
            Stream::Plain(timed) => timed,
            Stream::Tls(tls) => &tls.sock,
        }
    }
}

/// Authorities that the client trusts, and the instant at which its calls end.
pub struct Trust {
    config: Arc<ClientConfig>,
    end: Instant,
}

impl Trust {
    /// Reads the certificates of this file, or takes those of this host.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate.
    pub fn read(ca: Option<&Path>, end: Instant) -> io::Result<Trust> {
        Ok(Trust { config: Arc::new(client_config(ca)?), end })
    }

    /// Connects to the host of `at`, with TLS if its scheme says so. The certificate must name the host of `named`.
    ///
    /// # Errors
    /// No connection, no TLS, or a certificate that is not trusted.
    pub fn connect(&self, at: &Origin, named: &Origin) -> io::Result<Stream> {
        let timed = self.connect_tcp(&at.with_port())?;
        if !at.https {
            return Ok(Stream::Plain(timed));
        }
        let host = if named.https { &named.host } else { &at.host };
        let name = ServerName::try_from(host.clone())
            .map_err(|_| io::Error::other(format!("{host} is no name that a certificate can have")))?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        let mut tls = StreamOwned::new(connection, timed);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock).map_err(|error| refused(host, error))?;
        }
        Ok(Stream::Tls(Box::new(tls)))
    }

    /// Connects to the first address of `host:port` that answers. The error is that of the last address.
    fn connect_tcp(&self, authority: &str) -> io::Result<Timed> {
        let named =
            |what: &dyn std::fmt::Display, error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
        let mut last = io::Error::new(ErrorKind::NotFound, format!("{authority} has no address"));
        for address in authority.to_socket_addrs().map_err(|error| named(&authority, error))? {
            match Timed::connect(&address, self.end) {
                Ok(timed) => return Ok(timed),
                Err(error) => last = named(&address, error),
            }
        }
        Err(last)
    }
}

/// The reason why a handshake failed.
fn refused(host: &str, error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(why)) => io::Error::other(format!(
            "the certificate of {host} is not trusted: {}; name the authority that signed it with --ca",
            tls::distrust(why)
        )),
        Some(why) => io::Error::other(format!("{host} does not speak TLS as expected: {why}")),
        None => error,
    }
}

/// The kernel does not begin a read with a time limit again after an interruption. Work that a ring of the same thread
/// completes is an interruption, and so is a process that was stopped and goes on.
pub(super) fn repeat<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        repeat(|| self.socket.read(into))
    }
}

impl Write for Timed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        repeat(|| self.socket.write(from))
    }

    /// All records of a flight in one segment, and an alert behind another record in the one call that rustls makes.
    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        repeat(|| self.socket.write_vectored(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.read(into),
            Stream::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.write(from),
            Stream::Tls(tls) => tls.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(timed) => timed.flush(),
            Stream::Tls(tls) => tls.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_call_is_repeated() {
        let mut calls = 0;
        let read = repeat(|| {
            calls += 1;
            if calls < 3 { Err(ErrorKind::Interrupted.into()) } else { Ok(calls) }
        });
        assert_eq!(read.unwrap(), 3);
    }
}
