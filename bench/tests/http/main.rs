//! The HTTP conformance table of the endpoint port, over real sockets (RFC 9112, RFC 9110, PROTOCOL.md 2).

#[path = "../common/mod.rs"]
mod common;

mod connections;

mod framing;

mod answers;

use std::io::{Read, Write};
use std::net::TcpStream;

use common::{PATIENCE, Subscription, UserAgent, World};
use murre::client::http::{self, Response};

const GOOD: &str = "TTL: 60\r\nContent-Encoding: aes128gcm\r\n";

/// One connection of an app server, byte by byte.
struct Wire {
    stream: TcpStream,
    inbox: Vec<u8>,
}

impl Wire {
    fn open(world: &World) -> Wire {
        let stream = TcpStream::connect(world.server.endpoint()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Wire { stream, inbox: Vec::new() }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Wire {
        // The server may have said no and closed before the last byte.
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    /// The next response; `None` at the end of the stream. A HEAD's must be read with [`Wire::rest`].
    fn next(&mut self) -> Option<Response> {
        loop {
            if let Some((response, used)) = http::parse(&self.inbox).unwrap() {
                self.inbox.drain(..used);
                return Some(response);
            }
            match http::read_more(&mut self.stream, &mut self.inbox) {
                Ok(0) => {
                    assert!(self.inbox.is_empty(), "half a response: {:?}", String::from_utf8_lossy(&self.inbox));
                    return None;
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer in {PATIENCE:?}: {error}"),
            }
        }
    }

    fn status(&mut self) -> u16 {
        self.next().expect("a response").status
    }

    /// Statuses until the server ends the connection.
    fn until_the_end(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.next()).map(|response| response.status).collect()
    }

    /// The server has ended the connection, and said nothing more.
    fn is_over(&mut self) {
        assert_eq!(self.until_the_end(), [0u16; 0]);
    }

    /// Everything until the end of the stream.
    fn rest(&mut self) -> String {
        let mut bytes = std::mem::take(&mut self.inbox);
        self.stream.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

fn path(subscription: &Subscription) -> &str {
    subscription.url.strip_prefix("http://push.test").unwrap()
}

/// A POST with these header lines beside the usual ones.
fn post(to: &Subscription, lines: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {} HTTP/1.1\r\nHost: h\r\n{GOOD}Content-Length: {length}\r\n{lines}\r\n{body}", path(to))
}

fn post_chunked(to: &Subscription, body: &str) -> String {
    format!("POST {} HTTP/1.1\r\nHost: h\r\n{GOOD}Transfer-Encoding: chunked\r\n\r\n{body}", path(to))
}

fn receive(agent: &mut UserAgent, texts: &[&str]) {
    let mut notes = Vec::new();
    for text in texts {
        notes.push(agent.note());
        assert_eq!(notes.last().unwrap().text(), *text);
    }
    agent.ack(&notes);
}
