//! Established connections that move to another shard.

use runtime::ports::Port;
use runtime::tls::{Next, Stage, Tls as _};
use tls::ShardTls;

use crate::peer::{Pair, Papers, SLOT, SUITES};
use crate::raw::{Raw, alert, data, key_update};

/// Moves the server's side to another shard, with bytes behind its state as in a mail.
fn relocate(pair: &mut Pair, limit: u64) {
    let mut state = pair.server.export(SLOT);
    assert_eq!(pair.server.stage(SLOT), Stage::Failed, "nothing is left behind");
    assert_eq!(pair.server.stats().tls_connections, 0);
    let len = state.len();
    state.extend_from_slice(&[7; 40]);
    pair.server = ShardTls::with_limit(None, None, limit);
    assert_eq!(pair.server.import(SLOT, Port::WebSocket, &mut state), Some(len));
    assert!(state[..len].iter().all(|byte| *byte == 0), "the state is overwritten");
    assert_eq!(pair.server.stats().tls_connections, 1);
}

#[test]
fn a_connection_moves_while_a_record_is_half_received() {
    for suite in SUITES {
        let mut pair = Pair::established(suite);
        pair.assert_alive();
        pair.client.refresh_traffic_keys().unwrap();
        pair.client_says(b"asks for a new key");
        std::io::Write::write_all(&mut pair.client.writer(), b"in two halves").unwrap();
        let record = pair.sent_by_client();
        let _ = pair.give(&record[..record.len() / 2]);
        relocate(&mut pair, u64::MAX);
        assert_eq!(pair.give(&record[record.len() / 2..]), (Next::More, Vec::new()));
        assert!(pair.heard.ends_with(b"in two halves"));
        pair.assert_alive();
        assert_eq!(pair.server.stats().tls_key_updates_sent, 1, "owed when it moved");
    }
}

/// The documented layout, and with it the numbers at which rustls leaves the two directions.
#[test]
fn sequence_numbers_go_on_where_the_handshake_ended() {
    let numbers = |state: &[u8]| {
        let each = (state.len() - 3) / 2;
        let number = |at: usize| u64::from_be_bytes(state[at..at + 8].try_into().unwrap());
        (state.len(), number(3), number(3 + each))
    };
    for (suite, len) in SUITES.into_iter().zip([83, 115, 83]) {
        let papers = Papers::local();
        let with =
            |tickets: &[u8]| Pair::established_with(ShardTls::new(Some(papers.server(tickets)), None), &papers, suite);
        assert_eq!(numbers(&with(&[1]).server.export(SLOT)), (len, 0, 1), "one ticket was sealed");
        assert_eq!(numbers(&with(&[]).server.export(SLOT)), (len, 0, 0));
        let mut pair = with(&[]);
        pair.assert_alive();
        pair.client_says(b"one more");
        assert_eq!(numbers(&pair.server.export(SLOT)), (len, 2, 1));
    }
}

#[test]
fn counts_and_requests_move_along() {
    let mut raw = Raw::new();
    for _ in 0..32 {
        let record = raw.seal(&key_update(0));
        assert_eq!(raw.give(&record), (Next::More, Vec::new()));
        raw.update();
    }
    relocate(&mut raw.pair, u64::MAX);
    let record = raw.seal(&data(b""));
    assert_eq!(raw.give(&record), (Next::Failed, vec![alert(10)]));

    let mut raw = Raw::new();
    relocate(&mut raw.pair, 8);
    let mut wire = Vec::new();
    let records: Vec<u8> = (0..4).flat_map(|_| raw.seal(&data(b"x"))).collect();
    assert_eq!(raw.give(&records), (Next::More, vec![key_update(1)]));
    relocate(&mut raw.pair, 8);
    raw.pair.server.control(SLOT, &mut wire);
    assert!(wire.is_empty(), "the request was made before the move");

    let mut raw = Raw::new();
    let record = raw.seal(&[1, 0, 21]);
    assert_eq!(raw.give(&record).0, Next::More);
    relocate(&mut raw.pair, u64::MAX);
    assert!(raw.pair.server.peer_closed(SLOT));
}

#[test]
#[should_panic(expected = "1 records to take back of 0")]
fn nothing_from_before_a_move_is_taken_back() {
    let mut pair = Pair::established(SUITES[0]);
    pair.server.seal(SLOT, b"a", &mut Vec::new());
    relocate(&mut pair, u64::MAX);
    pair.server.rewind(SLOT, 1);
}
