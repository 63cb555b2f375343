//! Histograms of delivery latency.

use super::*;

#[test]
fn the_time_from_acceptance_to_ack_is_counted_by_where_the_message_was() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let direct = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.pass(3);
    mesh.ack(socket, direct);
    let absent = mesh.known_user(0);
    let stored = mesh.accept(0, message(absent), Disposition::Stored);
    mesh.pass(60);
    let socket = mesh.session(0, Some(absent));
    mesh.ack(socket, stored);
    // Acks of messages outside the window count nothing.
    mesh.ack(socket, stored);
    let times = mesh.machines[0].delivery_times();
    let seconds = |sum_us: u64| sum_us.div_ceil(1_000_000);
    assert_eq!((times.direct.counts.iter().sum::<u64>(), seconds(times.direct.sum_us)), (1, 3));
    assert_eq!((times.stored.counts.iter().sum::<u64>(), seconds(times.stored.sum_us)), (1, 60));
}
