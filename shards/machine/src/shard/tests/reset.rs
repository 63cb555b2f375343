//! Users who start over: too many stored messages, an old record, channels that differ; and low water of a user's rows.

use super::*;

/// Returns messages of an absent user, one second apart, and an hour of waiting.
fn stored(mesh: &mut Mesh, uaid: Uaid, count: usize) -> Vec<Stamp> {
    let mut stamps = Vec::new();
    for _ in 0..count {
        stamps.push(mesh.accept(0, message(uaid), Disposition::Stored));
        mesh.now.unix_us += 1_000_000;
        mesh.now.mono = mesh.now.mono.after(TimeSpan::from_secs(1));
    }
    stamps
}

fn wait_long(mesh: &mut Mesh) {
    mesh.now.unix_us += 600_000_000;
    mesh.now.mono = mesh.now.mono.after(TimeSpan::from_secs(600));
}

fn ack_all(mesh: &mut Mesh, socket: Socket) {
    let mut acked = 0;
    while let Some(stamp) = mesh.notifications(socket).get(acked).copied()
        && mesh.closed(socket).is_none()
    {
        mesh.ack(socket, stamp);
        acked += 1;
    }
}

#[test]
fn more_stored_messages_than_the_limit_reset_the_user() {
    let mut mesh = Mesh::with(2, |config| config.msg_limit = 20);
    let uaid = mesh.known_user(0);
    stored(&mut mesh, uaid, 25);
    let socket = mesh.session(0, Some(uaid));
    ack_all(&mut mesh, socket);
    let first_page = usize::from(limits::PAGE_ROWS_MIN);
    assert_eq!(mesh.notifications(socket).len(), first_page, "the page that crossed the line is not sent");
    assert_eq!(mesh.closed(socket), Some(CloseReason::Reset));
    assert_eq!(mesh.store.channels_of(uaid), None);
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert_eq!(mesh.post(0, message(uaid)), Published::NoSubscription);
    let again = mesh.session(1, Some(uaid));
    assert_ne!(mesh.uaid_on(again), uaid, "the next hello gets a new UAID");
    let stats = mesh.machines[0].stats();
    assert_eq!((stats.resets_too_many, stats.reset_discarded), (1, 25), "a page unacked, a page not sent");
}

#[test]
fn messages_sent_again_do_not_count_to_the_limit() {
    let mut mesh = Mesh::with(1, |config| config.msg_limit = 12);
    let uaid = mesh.known_user(0);
    let stamps = stored(&mut mesh, uaid, 10);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), stamps);
    // Each nudge reads storage anew while nothing is acked; each minute everything is sent again.
    for _ in 0..3 {
        mesh.request(0, notify(uaid));
        mesh.pass(61);
    }
    assert_eq!(mesh.closed(socket), None);
    assert_eq!(mesh.notifications(socket).len(), 40, "sent once and three times more");
    for stamp in stamps {
        mesh.ack(socket, stamp);
    }
    // Deliveries before an empty storage do not count either.
    let more: Vec<Stamp> = stored(&mut mesh, uaid, 0);
    assert!(more.is_empty());
    for _ in 0..13 {
        let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
        mesh.ack(socket, stamp);
    }
    assert_eq!(mesh.closed(socket), None);
}

/// Something is written for its user all the time, so one check follows the other.
#[test]
fn checks_behind_each_other_do_not_add_up_to_the_limit() {
    let mut mesh = Mesh::with(1, |config| (config.msg_limit, config.ledger_bytes_max) = (10, 0));
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Held;
    let mut acked = 0;
    for _ in 0..40 {
        let under_way = mesh.store.held.len();
        mesh.start_post(0, message(uaid));
        for _ in 0..under_way {
            mesh.store.release_one();
            mesh.run();
        }
        for stamp in mesh.notifications(socket).split_off(acked) {
            assert_eq!(mesh.closed(socket), None, "after {acked} messages");
            mesh.ack(socket, stamp);
            acked += 1;
        }
    }
    assert!(acked > 30, "{acked} messages, closed: {:?}", mesh.closed(socket));
}

#[test]
fn an_old_record_is_reset_when_everything_is_delivered() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.store.record_version = 0;
    let stamps = stored(&mut mesh, uaid, 3);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.uaid_on(socket), uaid, "served normally");
    assert_eq!(mesh.notifications(socket), stamps);
    mesh.ack(socket, stamps[0]);
    mesh.ack(socket, stamps[1]);
    assert_eq!(mesh.closed(socket), None);
    mesh.ack(socket, stamps[2]);
    assert_eq!(mesh.closed(socket), Some(CloseReason::Reset));
    assert_eq!(mesh.store.channels_of(uaid), None);
}

#[test]
fn an_idle_old_record_is_reset_at_once() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.store.record_version = 0;
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.said(socket), [Said::Hello(uaid), Said::Closed(CloseReason::Reset)]);
    assert_eq!(mesh.store.channels_of(uaid), None);
    assert_eq!(mesh.machines[0].stats().resets_old_record, 1);
}

#[test]
fn a_reset_that_storage_refuses_loses_nothing() {
    let mut mesh = Mesh::with(1, |config| config.msg_limit = 5);
    let uaid = mesh.known_user(0);
    stored(&mut mesh, uaid, 6);
    mesh.store.mode = Mode::Held;
    let socket = mesh.open(0);
    mesh.say_hello(socket, Some(uaid));
    while mesh.closed(socket).is_none() {
        let (shard, ticket, op) = mesh.store.held.pop_front().expect("a reset comes of it");
        mesh.store.mode = if matches!(op, StoreOp::DropUser { .. }) { Mode::Failing } else { Mode::Prompt };
        mesh.store.submit(shard, ticket, op);
        mesh.store.mode = Mode::Held;
        let (shard, ticket, result) = mesh.store.replies.pop_front().expect("answered");
        mesh.step(shard, Input::Stored { ticket, result });
    }
    mesh.store.held.clear();
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.store.rows_of(uaid).len(), 6, "the drop did not happen, and neither did anything else");
}

#[test]
fn channels_only_the_server_knows_are_unregistered() {
    for owner in [0, 1] {
        let mut mesh = Mesh::with(2, |config| config.reconcile = true);
        let uaid = mesh.known_user(owner);
        let mut other = message(uaid);
        other.chid = OTHER;
        mesh.accept(0, other, Disposition::Stored);
        mesh.channels = Some([CHANNEL].into());
        let socket = mesh.session(0, Some(uaid));
        assert_eq!(mesh.uaid_on(socket), uaid);
        assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
        assert_eq!(mesh.notifications(socket), [], "its messages went with it");
        let mut late = message(uaid);
        late.chid = OTHER;
        assert_eq!(mesh.post(1, late), Published::NoSubscription);
        mesh.accept(1, message(uaid), Disposition::Direct);
    }
}

#[test]
fn a_channel_the_server_lacks_gives_a_fresh_uaid() {
    for owner in [0, 1] {
        let mut mesh = Mesh::with(2, |config| config.reconcile = true);
        let uaid = mesh.known_user(owner);
        mesh.channels = Some([CHANNEL, OTHER, Chid([0xc3; 16])].into());
        let socket = mesh.session(0, Some(uaid));
        assert_ne!(mesh.uaid_on(socket), uaid);
        assert_eq!(mesh.store.channels_of(uaid), None);
        assert_eq!(mesh.machines[owner].stats().resets_reconciled, 1);
    }
}

#[test]
fn without_reconcile_the_channels_of_a_hello_are_ignored() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.channels = Some([Chid([0xc3; 16])].into());
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.uaid_on(socket), uaid);
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL, OTHER]));
}

#[test]
fn low_water_follows_the_lowest_unacked_row() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamps = stored(&mut mesh, uaid, 4);
    wait_long(&mut mesh);
    let socket = mesh.session(0, Some(uaid));
    let low = |mesh: &Mesh| mesh.store.low_water_of(uaid);
    mesh.ack(socket, stamps[1]);
    let first = low(&mesh);
    assert!(first > Clock(0), "what lies before the first row is settled");
    assert!(first < stamps[0].clock, "the first row is not acked");
    mesh.ack(socket, stamps[0]);
    let second = low(&mesh);
    assert!(second >= stamps[1].clock && second < stamps[2].clock);
    mesh.ack(socket, stamps[2]);
    mesh.ack(socket, stamps[3]);
    let last = low(&mesh);
    assert!(last >= stamps[3].clock);
    // Never nearer to now than a slow write may be.
    assert!(last.0 + 60_000_000 <= mesh.now.unix_us);
}

#[test]
fn low_water_stays_behind_by_the_time_of_a_write_and_twice_the_skew() {
    for skew_seconds in [1, 15] {
        let mut mesh = Mesh::with(1, |config| config.max_skew = TimeSpan::from_secs(skew_seconds));
        let uaid = mesh.known_user(0);
        let stamps = stored(&mut mesh, uaid, 1);
        wait_long(&mut mesh);
        let socket = mesh.session(0, Some(uaid));
        mesh.ack(socket, stamps[0]);
        let low = mesh.store.low_water_of(uaid);
        let behind = mesh.now.unix_us - low.0;
        let lag = (30 + 2 * skew_seconds) * 1_000_000;
        assert!((lag..lag + 5_000_000).contains(&behind), "{behind} us at a skew of {skew_seconds} s");
    }
}

#[test]
fn low_water_follows_time_where_that_was_set_back() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamps = stored(&mut mesh, uaid, 1);
    wait_long(&mut mesh);
    // The check of another user's storage shows the clock a time that is found to be wrong.
    let other = mesh.known_user(0);
    mesh.now.unix_us += 3_600_000_000;
    mesh.session(0, Some(other));
    mesh.now.unix_us -= 3_600_000_000;
    let socket = mesh.session(0, Some(uaid));
    mesh.ack(socket, stamps[0]);
    let low = mesh.store.low_water_of(uaid);
    assert!(low >= stamps[0].clock && low.0 + 60_000_000 <= mesh.now.unix_us);
}

#[test]
fn low_water_stays_below_young_rows_and_those_sent_to_nobody() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamps = stored(&mut mesh, uaid, 2);
    wait_long(&mut mesh);
    let young = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [stamps[0], stamps[1], young]);
    // The socket refuses the second row after all: only storage has it.
    mesh.pass(2);
    mesh.block(socket);
    mesh.unsend(socket, 2);
    mesh.ack(socket, stamps[0]);
    let low = mesh.store.low_water_of(uaid);
    assert!(low < stamps[1].clock, "unsent rows are not settled");
    mesh.unblock(socket);
    assert_eq!(mesh.notifications(socket)[3..], [stamps[1], young], "read again");
    mesh.ack(socket, young);
    mesh.ack(socket, stamps[1]);
    let low = mesh.store.low_water_of(uaid);
    assert!(low >= stamps[1].clock && low < young.clock, "a young row ends by its own delete");
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_user_whose_drop_storage_refuses_does_not_start_over() {
    for owner in [0, 1] {
        let mut mesh = Mesh::with(2, |config| config.reconcile = true);
        let uaid = mesh.known_user(owner);
        mesh.channels = Some([CHANNEL, Chid([0xc3; 16])].into());
        let socket = mesh.open(0);
        mesh.store.mode = Mode::Held;
        mesh.say_hello(socket, Some(uaid));
        mesh.run();
        // The user is read; its drop fails.
        let (shard, ticket, op) = mesh.store.held.pop_front().expect("the user is looked up");
        mesh.store.mode = Mode::Prompt;
        mesh.store.submit(shard, ticket, op);
        mesh.store.mode = Mode::Failing;
        mesh.run();
        mesh.store.mode = Mode::Prompt;
        assert_eq!(mesh.said(socket), [Said::Closed(CloseReason::StorageDown)], "no other UAID");
        mesh.accept(0, message(uaid), Disposition::Stored);
        let again = mesh.session(1, Some(uaid));
        assert_ne!(mesh.uaid_on(again), uaid);
        assert_eq!(mesh.post(0, message(uaid)), Published::NoSubscription);
    }
}

/// A hello that leaves out `OTHER` is answered, and its unregister fails.
fn left_out_in_vain(mesh: &mut Mesh, uaid: Uaid, then: impl Fn(&mut Mesh, Socket)) -> Socket {
    mesh.channels = Some([CHANNEL].into());
    let socket = mesh.open(0);
    mesh.store.mode = Mode::Held;
    mesh.say_hello(socket, Some(uaid));
    mesh.store.release_one();
    mesh.run();
    then(mesh, socket);
    for (shard, ticket, op) in std::mem::take(&mut mesh.store.held) {
        mesh.store.mode = if matches!(op, StoreOp::Unregister { .. }) { Mode::Failing } else { Mode::Prompt };
        mesh.store.submit(shard, ticket, op);
    }
    mesh.store.mode = Mode::Prompt;
    mesh.run();
    socket
}

#[test]
fn a_left_out_channel_that_storage_keeps_at_first_is_unregistered_later() {
    let mut mesh = Mesh::with(1, |config| config.reconcile = true);
    let uaid = mesh.known_user(0);
    let socket = left_out_in_vain(&mut mesh, uaid, |_, _| {});
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL, OTHER]));
    mesh.pass(2);
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
    assert!(mesh.machines[0].is_quiet() && mesh.closed(socket).is_none());
}

#[test]
fn a_left_out_channel_that_is_registered_meanwhile_stays() {
    let mut mesh = Mesh::with(1, |config| config.reconcile = true);
    let uaid = mesh.known_user(0);
    left_out_in_vain(&mut mesh, uaid, |mesh, socket| mesh.register(socket, OTHER));
    mesh.pass(3);
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL, OTHER]));
    mesh.accept(0, Message { chid: OTHER, ..message(uaid) }, Disposition::Direct);
}

#[test]
fn the_unregister_of_a_left_out_channel_ends_with_its_session() {
    let mut mesh = Mesh::with(1, |config| config.reconcile = true);
    let uaid = mesh.known_user(0);
    left_out_in_vain(&mut mesh, uaid, |mesh, socket| mesh.close(socket));
    mesh.pass(3);
    assert!(mesh.machines[0].is_quiet());
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL, OTHER]));
    mesh.session(0, Some(uaid));
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]), "the next hello says it again");
}

#[test]
fn a_post_under_way_does_not_bring_a_left_out_channel_back() {
    let mut mesh = Mesh::with(1, |config| config.reconcile = true);
    let uaid = mesh.known_user(0);
    mesh.channels = Some([CHANNEL].into());
    let other = Message { chid: OTHER, ..message(uaid) };
    let socket = mesh.open(0);
    mesh.store.mode = Mode::Held;
    mesh.say_hello(socket, Some(uaid));
    let post = mesh.start_post(0, other.clone());
    // The user is read; the write of the message and the unregister of its channel are under way.
    mesh.store.release_one();
    mesh.run();
    mesh.store.release();
    mesh.run();
    let accepted = mesh.answer_to(post);
    assert!(matches!(accepted, Some(Published::Accepted { .. })), "written before the unregister: {accepted:?}");
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
    assert_eq!(mesh.post(0, other), Published::NoSubscription);
}
