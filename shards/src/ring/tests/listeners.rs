//! What accepted sockets inherit from their listener.

use std::net::{TcpListener, TcpStream};

use super::{BACKLOG_DEFAULT, Port, listen, local_address};

/// Without it the first notification behind a register waits for the delayed ack of the reply, some 40 ms
/// (BEHAVIOUR.md 12).
#[test]
fn accepted_sockets_do_not_delay_small_segments() {
    for port in [Port::WebSocket, Port::Endpoint, Port::Node] {
        let listener = listen("127.0.0.1:0".parse().unwrap(), port, BACKLOG_DEFAULT).unwrap();
        let address = local_address(&listener).unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let (accepted, _) = TcpListener::from(listener).accept().unwrap();
        assert!(accepted.nodelay().unwrap(), "{port:?}");
    }
}
