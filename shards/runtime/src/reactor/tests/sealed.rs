//! TLS connections, with a toy in the place of TLS: handshakes in bounds, records in order, moves, ends.

use std::time::{Duration, Instant};

use crate::reactor::PlaneLimits;
use crate::ring::{PendingOutput, SocketMove};
use crate::tls::Tls as _;
use machine::ids::{Claim, EmissionId, ShardId, Uaid};
use machine::limits::{TLS_FLIGHT_BYTES_MAX, TLS_HANDSHAKES_MAX};
use machine::time::TimeSpan;
use machine::{CloseReason, Hello};

use super::bench::{Bench, Client, run};
use super::toy_tls::{ToyClient, ToyTls};
use super::turns::REQUESTS_PER_TURN;

impl Bench {
    /// A client that is through its handshake and upgraded.
    pub(super) fn tls_websocket(&mut self) -> ToyClient {
        let mut client = ToyClient::new(Client::connect(self.websocket_tls));
        client.socket.say(&ToyClient::flights());
        client.say(b"UP\n");
        self.until("upgrade", |_| client.heard() == b"101\n");
        client.forget();
        client
    }

    pub(super) fn tls_stats(&mut self, shard: usize) -> crate::tls::TlsStats {
        self.shards[shard].tls.stats().clone()
    }
}

#[test]
fn a_handshake_and_records_are_read_at_every_split() {
    run(|| {
        let mut bench = Bench::one();
        let mut sample = ToyClient::new(Client::connect(bench.websocket_tls));
        let mut stream = ToyClient::flights();
        for line in ["UP\n", "E\nE", "\nP\n"] {
            stream.extend(sample.sealed(line.as_bytes()));
        }
        for split in 1..stream.len() {
            let mut client = ToyClient::new(Client::connect(bench.websocket_tls));
            client.socket.say(&stream[..split]);
            bench.settle();
            client.socket.say(&stream[split..]);
            bench.until("all answers", |_| client.heard() == b"101\npong\npong\nat once\n");
        }
        let mut client = ToyClient::new(Client::connect(bench.websocket_tls));
        for byte in &stream {
            client.socket.say(&[*byte]);
            bench.turn();
        }
        bench.until("all answers", |_| client.heard() == b"101\npong\npong\nat once\n");
    });
}

/// The commands of one record are carried out one after the other, and records behind a held command wait unopened.
#[test]
fn ciphertext_behind_a_command_waits() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.tls_websocket();
        client.say(b"H\nE\n");
        bench.until("held", |bench| !bench.shards[0].machine.held.is_empty());
        client.say(b"P\n");
        let half = client.sealed(b"E\n");
        client.socket.say(&half[..3]);
        bench.settle();
        assert_eq!(client.heard(), b"");
        bench.shards[0].machine.release();
        bench.until("answers", |_| client.heard() == b"pong\npong\nat once\n");
        client.socket.say(&half[3..]);
        bench.until("the last", |_| client.heard().ends_with(b"at once\npong\n"));
        assert_eq!(bench.shards[0].buffer_pool.used(), 0);
    });
}

#[test]
fn a_record_longer_than_a_span_is_opened_when_it_is_whole() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.tls_websocket();
        let mut line = vec![b'.'; 16_000];
        line[0] = b'E';
        line.push(b'\n');
        client.say(&line);
        bench.until("an answer", |_| client.heard() == b"pong\n");
        assert_eq!((bench.shards[0].buffer_pool.used(), bench.shards[0].buffer_pool.unfinished().used()), (0, 0));
    });
}

/// Sends are short at many places. Records come in order, and each notification comes once.
#[test]
fn a_slow_reader_finds_every_record_whole_and_in_order() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.tls_websocket();
        client.say(b"N 100\n");
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        let lines = |client: &mut ToyClient| client.heard_so_far().iter().filter(|byte| **byte == b'\n').count();
        let mut portion = 1;
        bench.until("all notes", |_| {
            client.socket.hear(portion);
            portion = portion % 9_000 + 701;
            lines(&mut client) == 100
        });
        let heard = String::from_utf8(client.heard().to_vec()).unwrap();
        let mut notes: Vec<u32> =
            heard.lines().filter_map(|line| line.strip_prefix("note ")?.split(' ').next()?.parse().ok()).collect();
        notes.sort_unstable();
        assert_eq!(notes, (0..100).collect::<Vec<_>>());
        assert!(bench.shards[0].stats.unsent_notifications > 0, "the socket took everything: nothing was tested");
    });
}

#[test]
fn a_connection_that_ends_gets_its_last_words_and_close_notify() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.tls_websocket();
        client.say(b"X\n");
        bench.until("the end", |_| client.heard() == b"bye Superseded\n" && client.socket.end == Some(Ok(())));
        assert_eq!(client.last, Some(b'C'));
        drop(client);
        bench.until("closed", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!(bench.tls_stats(0).tls_connections, 0);
    });
}

#[test]
fn close_notify_of_the_client_is_its_end_and_is_answered() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.tls_websocket();
        client.say(b"E\n");
        client.socket.say(&ToyClient::close_notify());
        bench.until("the end", |_| client.heard() == b"pong\n" && client.socket.end == Some(Ok(())));
        assert_eq!(client.last, Some(b'C'));
        assert!(bench.log(0).contains(&"gone PeerClosed".to_owned()));
    });
}

/// The end of the socket is not signed: a request that is not whole by then is cut, and nothing of it is carried out.
#[test]
fn a_request_that_is_not_whole_at_the_end_of_the_socket_is_not_carried_out() {
    run(|| {
        let mut bench = Bench::one();
        let half_request = |client: &mut ToyClient| client.sealed(b"E");
        let awaited_body = |client: &mut ToyClient| client.sealed(b"BODY\nE");
        let half_record = |client: &mut ToyClient| client.sealed(b"E\n")[..5].to_vec();
        for (gone, request) in [half_request, awaited_body, half_record].into_iter().enumerate() {
            let mut client = ToyClient::new(Client::connect(bench.endpoint_tls));
            client.socket.say(&ToyClient::flights());
            let bytes = request(&mut client);
            client.socket.say(&bytes);
            bench.settle();
            client.socket.finish();
            bench.until("the end", |_| client.heard() == b"" && client.socket.end == Some(Ok(())));
            assert_eq!(client.last, Some(b'C'));
            let stats = &bench.shards[0].stats;
            assert_eq!((stats.commands, stats.peers_gone), (0, gone as u64 + 1));
            assert_eq!(bench.shards[0].buffer_pool.unfinished().used(), 0);
        }
    });
}

#[test]
fn a_record_out_of_order_ends_the_connection_with_an_alert_only() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.tls_websocket();
        let skipped = client.sealed(b"E\n");
        client.say(b"E\n");
        bench.until("the end", |_| client.heard() == b"" && client.socket.end == Some(Ok(())));
        assert_eq!(client.last, Some(b'A'));
        assert!(bench.log(0).contains(&"gone TlsFailed".to_owned()));
        assert_eq!(bench.shards[0].closes.close_tls_failed, 1);
        assert_eq!(skipped.len(), 6);
        // The shard polls for the end.
        bench.settle();
        drop(client);
        bench.until("closed", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!(bench.shards[0].stats.goodbyes_cut, 0, "its end was heard");
    });
}

/// TLS 1.2 has no other key.
#[test]
fn a_connection_whose_key_is_used_up_ends_behind_its_next_answer() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.tls_websocket();
        client.use_up_key();
        client.say(b"E\n");
        bench.until("the end", |_| client.heard().starts_with(b"pong\n") && client.socket.end == Some(Ok(())));
        assert_eq!(client.last, Some(b'C'));
        assert!(bench.log(0).contains(&"gone BudgetExhausted".to_owned()));
        assert_eq!(bench.shards[0].closes.close_budget_exhausted, 1);
    });
}

#[test]
fn a_session_moves_with_its_records_and_half_of_one() {
    run(|| {
        let mut bench = Bench::new(2, PlaneLimits::new(100));
        let mut client = bench.tls_websocket();
        let mut stream = client.sealed(b"M 1\nE\nP\nE");
        stream.extend(client.sealed(b"\nE\n"));
        let last = client.sealed(b"P\n");
        stream.extend_from_slice(&last[..3]);
        client.socket.say(&stream);
        bench.until("moved", |bench| bench.shards[1].stats.sockets_received == 1);
        client.socket.say(&last[3..]);
        bench.until("answers of the target", |_| client.heard() == b"pong\npong\nat once\npong\npong\nat once\n");
        assert_eq!((bench.tls_stats(0).tls_connections, bench.tls_stats(1).tls_connections), (0, 1));
        drop(client);
        bench.until("the target hears the end", |bench| bench.log(1).contains(&"gone PeerClosed".to_owned()));
    });
}

/// The tail of a record leaves before the descriptor does, and the target goes on with the next number.
#[test]
fn a_blocked_session_moves_when_its_tail_is_out() {
    run(|| {
        let mut bench = Bench::new(2, PlaneLimits::new(100));
        let mut client = bench.tls_websocket();
        client.say(b"N 100\n");
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        let conn = bench.shards[0].machine.opened[0];
        let hello = Box::new(Hello::new(None, Uaid([0; 16])));
        let departure = SocketMove::Claimed { to: ShardId(1), claim: Claim::new(ShardId(0), 77), hello };
        bench.shards[0].depart(conn, departure);
        bench.until("moved", |_| client.heard().ends_with(b"x\npong\n"));
        assert_eq!(bench.shards[1].stats.sockets_received, 1);
    });
}

/// A descriptor without its mail has no keys: nothing is said on it.
#[test]
fn a_socket_that_arrives_without_its_state_is_closed_in_silence() {
    run(|| {
        let mut bench = Bench::new(2, PlaneLimits::new(100));
        let mut client = bench.tls_websocket();
        let conn = bench.shards[0].machine.opened[0];
        let target = bench.shards[0].mailbox.target_ring_of(ShardId(1)).unwrap();
        bench.shards[0].plane.move_claimed(conn, (true, false), target, Claim::new(ShardId(0), 5), true);
        bench.until("arrived", |bench| bench.log(1) == ["arrived"]);
        let there = bench.shards[1].machine.opened[0];
        bench.shards[1].lingering_close(there, machine::CloseReason::MoveFailed);
        bench.until("the end", |_| client.heard() == b"" && client.socket.end.is_some());
        assert_eq!(client.last, Some(b'h'), "nothing came behind the handshake");
    });
}

#[test]
fn a_connection_of_an_app_server_is_dealt_before_its_handshake() {
    run(|| {
        let mut bench = Bench::new(2, PlaneLimits::new(100));
        let mut clients: Vec<ToyClient> = (0..4).map(|_| ToyClient::new(Client::connect(bench.endpoint_tls))).collect();
        for client in &mut clients {
            client.socket.say(&ToyClient::flights());
            client.say(b"E\n");
            bench.until("an answer", |_| client.heard() == b"pong\n");
        }
        let there = [0, 1].map(|shard| bench.tls_stats(shard).tls_connections);
        assert_eq!(there, [2, 2]);
    });
}

#[test]
fn a_handshake_that_takes_too_long_is_closed() {
    run(|| {
        let mut limits = PlaneLimits::new(100);
        limits.handshake_timeout = TimeSpan::from_ms(200);
        let mut bench = Bench::new(1, limits);
        let mut silent = Client::connect(bench.websocket_tls);
        let mut half = Client::connect(bench.websocket_tls);
        half.say(&ToyClient::flights()[..4]);
        let mut through = bench.tls_websocket();
        bench.until("both are closed", |_| {
            silent.heard();
            half.heard();
            silent.end.is_some() && half.end.is_some()
        });
        assert_eq!(bench.tls_stats(0).tls_handshakes_timeout, 2);
        through.say(b"E\n");
        bench.until("an answer", |_| through.heard() == b"pong\n");
    });
}

/// A crowd that begins handshakes and does not finish them: the bound holds in every turn, a turn does few steps, and
/// others wait for a second, not for ever.
#[test]
fn handshakes_beyond_the_bound_wait_and_the_oldest_makes_room() {
    run(|| {
        let mut bench = Bench::new(1, PlaneLimits::new(4_000));
        let beyond = 100;
        let mut crowd = Vec::new();
        for _ in 0..TLS_HANDSHAKES_MAX + beyond {
            crowd.push(Client::connect(bench.websocket_tls));
            // The line of the listener is short.
            bench.turn();
        }
        for client in &mut crowd {
            client.say(&ToyClient::flights()[..4]);
        }
        let mut late = ToyClient::new(Client::connect(bench.websocket_tls));
        let (begun, mut before, mut said) = (Instant::now(), 0, false);
        bench.until("the last one is through", |bench| {
            let now = bench.shards[0].tls.handshakes();
            assert!(now <= TLS_HANDSHAKES_MAX && now <= before + REQUESTS_PER_TURN, "{before}, then {now}");
            let kept = bench.shards[0].buffer_pool.used();
            assert!(kept <= 2 * REQUESTS_PER_TURN, "{kept} connections hold bytes: the others wait in their sockets");
            if !said && now == TLS_HANDSHAKES_MAX {
                said = true;
                late.socket.say(&ToyClient::flights());
                late.say(b"UP\n");
            }
            before = now;
            late.heard() == b"101\n"
        });
        assert!(begun.elapsed() >= Duration::from_secs(1), "it did not wait");
        assert!(bench.tls_stats(0).tls_handshakes_timeout > 0);
        crowd[0].heard();
        assert!(crowd[0].end.is_some(), "the oldest made room");
    });
}

#[test]
fn a_flight_without_end_is_refused() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = Client::connect(bench.websocket_tls);
        let mut endless = [&ToyClient::flights()[..4], &[b'F', 0xff, 0xff, 0]].concat();
        endless.resize(TLS_FLIGHT_BYTES_MAX + 6, 0);
        client.say(&endless);
        bench.until("closed", |_| {
            client.heard();
            client.end.is_some()
        });
        assert_eq!(bench.shards[0].closes.close_tls_failed, 1);
        let stats = bench.tls_stats(0);
        assert_eq!((stats.tls_handshakes_failed_flood, stats.tls_handshakes_failed_left), (1, 0));
    });
}

/// A client that leaves, and one that the shard ends: each has its reason.
#[test]
fn the_end_of_a_handshake_has_the_reason_of_its_end() {
    run(|| {
        let mut bench = Bench::one();
        let mut clients = [(); 2].map(|()| {
            let mut client = Client::connect(bench.websocket_tls);
            client.say(&ToyClient::flights()[..4]);
            bench.until("an answer", |_| !client.heard().is_empty());
            client
        });
        let (conn, _) = *bench.shards[0].handshakes.begun.front().unwrap();
        bench.shards[0].lingering_close(conn, CloseReason::Overloaded);
        bench.until("one is closed", |_| {
            clients.iter_mut().for_each(|client| _ = client.heard());
            clients.iter().any(|client| client.end.is_some())
        });
        let stats = bench.tls_stats(0);
        assert_eq!((stats.tls_handshakes_failed_closed, stats.tls_handshakes_failed_left), (1, 0));
        drop(clients);
        bench.until("the other leaves", |bench| bench.tls_stats(0).tls_connections == 0);
        let stats = bench.tls_stats(0);
        assert_eq!((stats.tls_handshakes_failed_closed, stats.tls_handshakes_failed_left), (1, 1));
    });
}

/// For every short send of an outbox of four records: the peer finds each number once and in order, a notification is
/// wholly on the wire or named, and close_notify is the last record.
#[test]
fn a_short_send_gives_back_exactly_the_records_that_were_not_begun() {
    const SLOT: u32 = 7;
    let sample = || {
        let mut out = PendingOutput::default();
        out.push_wire(b"A\x00\x00\x00");
        out.push(&[b'a'; 20_000]);
        for (id, byte) in [(1, b'b'), (2, b'c')] {
            out.tail().extend_from_slice(&[byte; 7_000]);
            out.end_frame(Some(EmissionId(id)));
        }
        out.push(b"pong");
        out.end_with_close_notify();
        out
    };
    let wire_of = |out: &mut PendingOutput, tls: &mut ToyTls| {
        out.seal(tls, SLOT);
        out.wire_for_test().to_vec()
    };
    let len = wire_of(&mut sample(), &mut ToyTls::established(SLOT)).len();
    for taken in 0..=len {
        let (mut tls, mut out, mut unsent) = (ToyTls::established(SLOT), sample(), Vec::new());
        let mut stream = wire_of(&mut out, &mut tls);
        stream.truncate(taken);
        let untouched = out.keep_sealed_tail(taken, &mut unsent);
        if taken <= b"A\x00\x00\x00".len() {
            assert_eq!((unsent.len(), untouched), (2, 4), "no record was begun");
        }
        tls.rewind(SLOT, untouched);
        stream.extend(wire_of(&mut out, &mut tls));
        let mut plain = Vec::new();
        let (mut at, mut number, mut last) = (0, 0, 0);
        while let Some([kind, high, low, found]) = stream[at..].first_chunk().copied() {
            let end = at + 4 + usize::from(u16::from_be_bytes([high, low]));
            plain.extend(stream[at + 4..end].iter().map(|byte| !byte));
            if kind != b'A' {
                assert_eq!(found, number, "{taken} bytes taken");
                number += 1;
            }
            (at, last) = (end, kind);
        }
        assert_eq!((at, last), (stream.len(), b'C'), "{taken} bytes taken");
        let whole = |id: u32| !unsent.contains(&EmissionId(id));
        let mut expected = vec![b'a'; 20_000];
        for (id, byte) in [(1, b'b'), (2, b'c')] {
            expected.extend(vec![byte; if whole(id) { 7_000 } else { 0 }]);
        }
        expected.extend_from_slice(b"pong");
        assert!(plain == expected, "{taken} bytes taken");
    }
}
