//! Records of an established connection: cut, changed, repeated and exchanged. The server opens what the client sealed,
//! in its order, and nothing else.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (mut server, mut client) = fuzz::established();
    let mut edits = input.iter().copied();
    let (mut said, mut intact, mut earlier) = (Vec::new(), true, Vec::new());
    while let Some(len) = edits.next() {
        let plain: Vec<u8> = (0..usize::from(len) * 80).map(|at| at as u8 ^ len).collect();
        let mut record = Vec::new();
        client.seal(0, &plain, &mut record);
        let sealed = record.clone();
        match edits.next().unwrap_or(0) {
            // A record of before comes again in the place of this one.
            0 => record.clone_from(&earlier),
            1 => record.clear(),
            2..=15 => _ = fuzz::edit(&mut record, &mut edits),
            _ => {}
        }
        intact &= record == sealed;
        said.extend_from_slice(&plain);
        earlier = sealed;
        let cut = usize::from(edits.next().unwrap_or(0)) * record.len() / 256;
        let alive = server.receive(&record[..cut]) && server.receive(&record[cut..]);
        assert!(alive || !intact, "a record that nothing was done to is opened");
        assert!(said.starts_with(&server.heard), "the server has heard what was not said in this order");
        assert!(!intact || server.heard == said);
        if !alive {
            return;
        }
    }
});
