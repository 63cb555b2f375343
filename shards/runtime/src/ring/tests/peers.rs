//! Facts about addresses of peers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use crate::poll::PollPlane;
use crate::ports::Port;
use crate::ring::{Completion, Family, PlaneConfig, RingPlane, eventfd, listen, local_address, peer_address};
use machine::ids::ConnId;
use machine::limits::BACKLOG_DEFAULT;

use super::TestPlane;

/// Result of the question for the peer of a connection to `listener`, made to `to`. It is there when its submission
/// returns: the span is written in no later one.
fn asked<P: TestPlane>(listener: &str, to: Option<IpAddr>, family: Family) -> (SocketAddr, Result<IpAddr, i32>) {
    let event = eventfd().unwrap();
    let mut plane = P::open(PlaneConfig { rings: 1, table: 16, sq: 8, cq: 16 }, event.as_fd());
    let socket = listen(listener.parse().unwrap(), Port::WebSocket, BACKLOG_DEFAULT).unwrap();
    let address = local_address(&socket).unwrap();
    plane.accept(0, 0, 0, socket.as_fd());
    plane.enter();
    let client = TcpStream::connect(SocketAddr::new(to.unwrap_or(address.ip()), address.port())).unwrap();
    let slot = loop {
        plane.enter();
        if let Some(Completion::Accepted { result, .. }) = plane.next() {
            break result as u32;
        }
    };
    assert!(plane.ask_peer(ConnId { slot, generation: 0 }, family));
    plane.enter();
    let Some(Completion::Peer { span, result, .. }) = plane.next() else { panic!("not over") };
    let answer = match usize::try_from(result) {
        Ok(len) => Ok(peer_address(plane.arena().bytes(&span, len)).unwrap()),
        Err(_) => Err(result),
    };
    plane.arena().free(span);
    (client.local_addr().unwrap(), answer)
}

#[test]
fn the_address_of_a_peer_is_known_in_both_families() {
    both_families::<RingPlane>();
    both_families::<PollPlane>();
}

fn both_families<P: TestPlane>() {
    let (client, answer) = asked::<P>("127.0.0.1:0", None, Family::V4);
    assert_eq!(answer, Ok(client.ip()));
    let (client, answer) = asked::<P>("[::1]:0", None, Family::V6);
    assert_eq!((client.ip(), answer), (Ipv6Addr::LOCALHOST.into(), Ok(client.ip())));
    // One listener for both: the kernel maps the address into IPv6.
    let (client, answer) = asked::<P>("[::]:0", Some("127.0.0.1".parse().unwrap()), Family::V6);
    assert_eq!(answer, Ok(client.ip()));
}

#[test]
fn the_length_must_be_that_of_the_family() {
    other_family::<RingPlane>();
    other_family::<PollPlane>();
}

fn other_family<P: TestPlane>() {
    assert_eq!(asked::<P>("127.0.0.1:0", None, Family::V6).1, Err(-libc::EINVAL));
}
