//! One deadline for every blocking call: no server, however slow or silent, keeps the probe longer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A moment after which nothing is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// That long from now.
    pub fn after(span: Duration) -> Deadline {
        Deadline(Instant::now() + span)
    }

    /// What is left, never zero (sockets take zero for "for ever").
    ///
    /// # Errors
    /// `TimedOut` when nothing is left.
    pub fn left(self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Connects to the first address of `host:port` that answers.
    ///
    /// # Errors
    /// The last address's, with the address in its text.
    pub fn connect(self, authority: &str) -> io::Result<Timed> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{authority} has no address"));
        let named = |address: SocketAddr, error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
        for address in authority.to_socket_addrs().map_err(|e| io::Error::new(e.kind(), format!("{authority}: {e}")))? {
            match TcpStream::connect_timeout(&address, self.left()?) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Timed { stream, deadline: self });
                }
                Err(error) => last = named(address, error),
            }
        }
        Err(last)
    }
}

/// A socket each of whose calls ends at the deadline.
#[derive(Debug)]
pub struct Timed {
    stream: TcpStream,
    deadline: Deadline,
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.deadline.left()?))?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.left()?))?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
