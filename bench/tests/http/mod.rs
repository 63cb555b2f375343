//! The HTTP conformance table of the endpoint port, over real sockets (RFC 9112, RFC 9110, PROTOCOL.md 2).

mod connections;

mod framing;

mod answers;

mod senders;

use crate::common::wire::Wire;
use crate::common::{Subscription, UserAgent};

const GOOD: &str = "TTL: 60\r\nContent-Encoding: aes128gcm\r\n";

impl Wire {
    fn status(&mut self) -> u16 {
        self.response().status
    }

    /// Statuses until the server ends the connection.
    fn until_the_end(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.next()).map(|response| response.status).collect()
    }

    /// Checks that the server has ended the connection and sent nothing more.
    fn is_over(&mut self) {
        assert_eq!(self.until_the_end(), [0u16; 0]);
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
