//! Sockets that take no bytes (ring/RULES.md rule 6).

use super::*;

#[test]
fn refused_frames_go_out_again_in_order_when_the_socket_takes_bytes() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let sent: Vec<Stamp> = (0..3).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect();
    mesh.block(socket);
    mesh.unsend(socket, 2);
    let late = mesh.accept(0, message(uaid), Disposition::Stored);
    assert_eq!(mesh.notifications(socket), sent, "nothing goes to a blocked socket");
    mesh.unblock(socket);
    let expected = [sent[0], sent[1], sent[2], sent[1], sent[2], late];
    assert_eq!(mesh.notifications(socket), expected);
}

#[test]
fn refused_rows_go_out_again() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamps: Vec<Stamp> = (0..3).map(|_| mesh.accept(0, message(uaid), Disposition::Stored)).collect();
    let socket = mesh.session(0, Some(uaid));
    mesh.block(socket);
    mesh.unsend(socket, 2);
    mesh.unblock(socket);
    assert_eq!(mesh.notifications(socket), [stamps[0], stamps[1], stamps[2], stamps[1], stamps[2]]);
    for stamp in stamps {
        mesh.ack(socket, stamp);
    }
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn refused_rows_are_not_overtaken_by_a_direct_behind_them() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    let direct = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.block(socket);
    mesh.unsend(socket, 2);
    mesh.unblock(socket);
    assert_eq!(mesh.notifications(socket), [stored, direct, stored, direct]);
}

#[test]
fn what_spills_unsent_is_not_overtaken_by_what_came_later() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let first = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.block(socket);
    mesh.unsend(socket, 1);
    mesh.pass(6);
    let second = mesh.accept(0, message(uaid), Disposition::Stored);
    mesh.pass(6);
    assert!(mesh.ledger.is_empty(), "it has spilled");
    let third = mesh.accept(0, message(uaid), Disposition::Stored);
    mesh.unblock(socket);
    assert_eq!(mesh.notifications(socket), [first, first, second, third]);
    for stamp in [first, second, third] {
        mesh.ack(socket, stamp);
    }
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_page_that_comes_while_the_socket_is_blocked_is_read_again() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.open(0);
    mesh.say_hello(socket, Some(uaid));
    mesh.store.mode = Mode::Held;
    mesh.run();
    mesh.block(socket);
    mesh.store.release();
    mesh.run();
    assert!(mesh.notifications(socket).is_empty());
    mesh.unblock(socket);
    assert_eq!(mesh.notifications(socket), [stored]);
}

#[test]
fn a_socket_that_never_reads_ends_at_its_pong_timeout() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.block(socket);
    mesh.unsend(socket, 1);
    mesh.pass(330);
    assert_eq!(mesh.closed(socket), Some(CloseReason::PongTimeout));
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(again), [stamp]);
}

#[test]
fn a_frame_refused_after_its_spill_is_not_overtaken() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let first = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.store.mode = Mode::Held;
    mesh.pass(11);
    mesh.store.release();
    // The frame goes out again just before the save is confirmed, and the socket refuses it after that.
    mesh.block(socket);
    mesh.unsend(socket, 1);
    mesh.unblock(socket);
    let second = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.block(socket);
    mesh.unsend(socket, 2);
    mesh.unblock(socket);
    assert_eq!(mesh.notifications(socket), [first, first, second, first, second]);
}

/// A refused row without a body in memory is read from storage, and the entries behind it wait.
#[test]
fn a_row_refused_late_is_not_overtaken_by_a_direct_behind_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    mesh.pass(2);
    assert_eq!(bodies(&mesh), 0);
    let direct = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.block(socket);
    mesh.unsend(socket, 2);
    mesh.store.mode = Mode::Failing;
    mesh.unblock(socket);
    mesh.pass(3);
    assert_eq!(mesh.notifications(socket), [stored, direct], "nothing overtakes what cannot be read");
    mesh.store.mode = Mode::Prompt;
    mesh.pass(2);
    assert_eq!(mesh.notifications(socket), [stored, direct, stored, direct]);
    for stamp in [stored, direct] {
        mesh.ack(socket, stamp);
    }
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert_eq!(mesh.machines[0].row_memory.bytes(), 0);
}

#[test]
fn rows_refused_late_are_not_overtaken_by_rows_that_wait_for_their_turn() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let ttl = |n| if n == 0 { 10 } else { 1 << 20 };
    let stamps: Vec<Stamp> = (0..60).map(|n| mesh.accept(0, lasting(uaid, ttl(n)), Disposition::Stored)).collect();
    let socket = mesh.session(0, Some(uaid));
    mesh.pass(2);
    assert_eq!(mesh.notifications(socket), stamps);
    mesh.block(socket);
    mesh.unsend(socket, 60);
    // The first of them is gone when it is its turn.
    mesh.pass(12);
    mesh.unblock(socket);
    mesh.pass(3);
    assert_eq!(mesh.notifications(socket)[60..], stamps[1..]);
    for stamp in &stamps[1..] {
        mesh.ack(socket, *stamp);
    }
    assert_eq!(mesh.machines[0].row_memory.bytes(), 0);
}

#[test]
fn a_row_refused_late_is_read_when_the_memory_has_room() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    mesh.pass(2);
    mesh.block(socket);
    mesh.unsend(socket, 1);
    // Other sessions keep more than the bound of all.
    mesh.machines[0].row_memory.add(limits::ROW_BYTES_MAX as u32 + 1);
    mesh.unblock(socket);
    mesh.pass(3);
    assert_eq!(mesh.notifications(socket), [stored]);
    mesh.machines[0].row_memory.remove(limits::ROW_BYTES_MAX as u32 + 1);
    mesh.pass(2);
    assert_eq!(mesh.notifications(socket), [stored, stored]);
}

/// Bytes of the bodies that the windows of a shard hold.
fn bodies(mesh: &Mesh) -> u64 {
    let bodies = mesh.machines[0].active_sessions.iter().flat_map(|active| active.window.bodies());
    bodies.map(|body| body.payload.len() as u64).sum()
}

/// Each session is sent as much as its ledger can hold, its socket takes none of it, and storage has all of it.
#[test]
fn what_blocked_sockets_keep_in_memory_is_bounded() {
    let bound = limits::ROW_BYTES_MAX;
    let mut mesh = Mesh::with(1, |config| {
        config.ledger_bytes_max = 2 << 20;
        config.ping_interval = TimeSpan(0);
    });
    let mut blocked = Vec::new();
    for n in 0..bound / (100 * limits::PAYLOAD_BYTES_MAX as u64) + 10 {
        let uaid = mesh.known_user(0);
        let socket = mesh.session(0, Some(uaid));
        for _ in 0..100 {
            let payload = vec![0; limits::PAYLOAD_BYTES_MAX].into();
            mesh.accept(0, Message { payload, ttl: 1 << 20, ..message(uaid) }, Disposition::Direct);
        }
        mesh.block(socket);
        // The other half waits for its turn.
        mesh.unsend(socket, usize::from(limits::BURST_MESSAGES));
        mesh.pass(11);
        assert!(mesh.ledger.is_empty(), "they have spilled");
        assert!(bodies(&mesh) <= bound, "{} sessions keep {} bytes", n + 1, bodies(&mesh));
        blocked.push((uaid, socket));
    }
    // Nothing is lost.
    let kept = blocked.iter().position(|(_, socket)| mesh.closed(*socket).is_none()).expect("a session that fitted");
    for (uaid, socket) in [blocked[kept], blocked[blocked.len() - 1]] {
        let socket = if mesh.closed(socket).is_none() { socket } else { mesh.session(0, Some(uaid)) };
        mesh.unblock(socket);
        let stamps = mesh.notifications(socket);
        for stamp in &stamps {
            mesh.ack(socket, *stamp);
        }
        assert!(stamps.len() >= 10);
    }
}

/// A user agent that acks one message a second hears one a second: the rest of its burst waits, and storage has it.
#[test]
fn what_waits_for_its_turn_leaves_the_memory_when_it_is_short() {
    let mut mesh = Mesh::with(1, |config| config.ledger_bytes_max = 2 << 20);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let large = || Message { payload: vec![0; limits::PAYLOAD_BYTES_MAX].into(), ttl: 1 << 20, ..message(uaid) };
    let mut stamps: Vec<_> = (0..100).map(|_| mesh.accept(0, large(), Disposition::Direct)).collect();
    // Other sessions keep as much as the bound of all.
    mesh.machines[0].row_memory.add(limits::ROW_BYTES_MAX as u32);
    for step in 0..120 {
        if step % 4 == 0 {
            mesh.ack(socket, stamps[step / 4]);
        }
        if step % 10 == 9 {
            // It must not keep more.
            let stamp = match mesh.post(0, large()) {
                Published::Accepted { stamp, .. } => stamp,
                refused => panic!("{refused:?}"),
            };
            stamps.push(stamp);
        }
        mesh.pass_step();
    }
    assert!(bodies(&mesh) <= 64 << 10, "{} bytes are kept", bodies(&mesh));
    assert!(mesh.ledger.is_empty());
    mesh.machines[0].row_memory.remove(limits::ROW_BYTES_MAX as u32);
    // The first read comes within a second, and then every ack brings one.
    mesh.pass(1);
    for stamp in &stamps[30..] {
        mesh.ack(socket, *stamp);
        mesh.pass_step();
    }
    assert_eq!(mesh.notifications(socket), stamps, "all of it, once and in order");
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert_eq!(mesh.machines[0].row_memory.bytes(), 0);
}

/// Many sessions look at storage at a time, and storage takes its time.
#[test]
fn room_is_kept_for_pages_that_are_on_their_way() {
    let mut mesh = Mesh::with(1, |config| (config.sessions_max, config.ping_interval) = (2_000, TimeSpan(0)));
    let most = (limits::ROW_BYTES_MAX / u64::from(limits::READ_AHEAD_BYTES)) as usize;
    let users: Vec<Uaid> = (0..most + 100).map(|_| mesh.known_user(0)).collect();
    let sockets: Vec<Socket> = users.iter().map(|uaid| mesh.session(0, Some(*uaid))).collect();
    mesh.store.mode = Mode::Held;
    for (n, uaid) in users.iter().enumerate() {
        let stamp = Stamp { clock: Clock(mesh.now.unix_us + n as u64), origin: Origin(7) };
        mesh.store.put(Arc::new(Message { stamp, accepted: mesh.now.unix(), ..message(*uaid) }));
        mesh.request(0, notify(*uaid));
    }
    let pages = mesh.store.held.iter().filter(|(_, _, op)| matches!(op, StoreOp::Topics { .. })).count();
    assert_eq!(pages, most, "what they may bring fits");
    mesh.store.release();
    mesh.pass(3);
    assert!(sockets.iter().all(|socket| mesh.notifications(*socket).len() == 1));
    assert!(mesh.machines[0].is_quiet());
}
