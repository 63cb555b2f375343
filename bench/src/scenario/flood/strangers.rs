//! Connections that pipeline one request without end, and read the answers away.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::{Events, Poll};

use super::{Flood, Options};
use crate::publishers::{self, Connection};

/// Bytes of requests that a connection writes at a time.
const CHUNK: usize = 16 * 1024;

struct Stranger {
    connection: Connection,
    /// Bytes of the chunk that were written.
    written: usize,
}

/// Sends `request` on every connection as often as the server takes it. A connection that ends is opened again.
pub(super) fn pipeline(options: &Options, request: &[u8], flood: &Flood) -> io::Result<()> {
    let (address, tls) = (options.target.endpoint.address, publishers::tls(options.target.tls()?)?);
    let chunk = request.repeat(CHUNK.div_ceil(request.len()));
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1_024);
    let open = |at: usize, poll: &Poll| -> io::Result<Stranger> {
        let connection = publishers::open(address, tls.as_ref(), at, poll.registry())?;
        Ok(Stranger { connection, written: 0 })
    };
    let mut strangers = (0..options.connections).map(|at| open(at, &poll)).collect::<io::Result<Vec<_>>>()?;
    let mut scratch = vec![0; 64 * 1024];
    while !flood.stop.load(Ordering::Relaxed) {
        poll.poll(&mut events, Some(Duration::from_millis(50)))?;
        for event in &events {
            let at = event.token().0 - publishers::TOKEN_BASE;
            let Some(stranger) = strangers.get_mut(at) else { continue };
            match stranger.go_on(&chunk, &mut scratch) {
                Ok(answered) => _ = flood.answered.fetch_add(answered, Ordering::Relaxed),
                Err(_) => *stranger = open(at, &poll)?,
            }
        }
    }
    Ok(())
}

impl Stranger {
    /// Reads and writes what there is. Returns the number of answers.
    fn go_on(&mut self, chunk: &[u8], scratch: &mut [u8]) -> io::Result<u64> {
        let mut answered = 0;
        loop {
            match self.connection.read(scratch) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => answered += scratch[..len].windows(9).filter(|nine| *nine == b"HTTP/1.1 ").count() as u64,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => break,
                Err(error) => return Err(error),
            }
        }
        loop {
            match self.connection.write(&chunk[self.written..]) {
                Ok(len) => self.written = (self.written + len) % chunk.len(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(answered)
    }
}
