//! The handshake driver: the flights of a client, changed and cut at any place, then bytes of any kind. It is
//! established only by flights that nothing was done to.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (mut server, mut client, mut wire) = (fuzz::Server::accepted(), fuzz::client(), Vec::new());
    client.start(0, &mut wire);
    let (mut edits, mut intact) = (input.iter().copied(), true);
    for flight in 0..2 {
        intact &= fuzz::edit(&mut wire, &mut edits);
        let cut = usize::from(edits.next().unwrap_or(0)) * wire.len() / 256;
        if !server.receive(&wire[..cut]) || !server.receive(&wire[cut..]) {
            assert!(!intact, "flight {flight} is what a client sends");
            return;
        }
        wire.clear();
        if client.receive(0, &mut std::mem::take(&mut server.wire), &mut wire).is_none() {
            // The client has heard of the change.
            assert!(!intact);
            break;
        }
    }
    let rest: Vec<u8> = edits.collect();
    server.receive(&rest);
    assert!(server.heard.is_empty(), "nothing was sealed");
});
