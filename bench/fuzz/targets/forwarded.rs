//! `X-Forwarded-For` and `Forwarded`: bytes that a caller puts on the left never change the address that a trusted
//! proxy puts on the right.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use protocol::wire::forwarded::{Kind, client};

fuzz_target!(|input: &[u8]| {
    let trusted = |address: IpAddr| address.is_loopback();
    let (plain, named) = ("192.0.2.1, 127.0.0.1", "for=192.0.2.1, for=\"[::1]\"");
    for (kind, honest) in [(Kind::XForwardedFor, plain), (Kind::Forwarded, named)] {
        let lines = || input.split(|byte| *byte == b'\n');
        // Alone, any result will do that comes to an end.
        client(kind, lines(), trusted);
        let forged = [input, b", ", honest.as_bytes()].concat();
        let found = client(kind, [forged.as_slice()].into_iter(), trusted);
        assert_eq!(found, Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))), "{kind:?}");
        let found = client(kind, lines().chain([honest.as_bytes()]), trusted);
        assert_eq!(found, Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))), "{kind:?}");
    }
});
