//! Deliveries to members: a frame that never left is none (decision 0021); and members that have no channel.

use super::*;

fn deliveries(mesh: &Mesh, uaid: Uaid) -> Vec<u8> {
    mesh.store.rows_of(uaid).iter().map(|message| message.tries.deliveries()).collect()
}

#[test]
fn what_is_on_its_way_to_a_relay_that_ends_is_no_delivery() {
    let mut mesh = Mesh::new(2);
    let member = mesh.known_user(1);
    let relay = mesh.relay(0);
    mesh.attach(relay, Some(member));
    mesh.accept(1, lasting(member, 900), Disposition::Direct);
    mesh.hold_mail = true;
    mesh.start_post(1, lasting(member, 900));
    mesh.run();
    // The notification of it and the end of the relay cross each other.
    mesh.close(relay);
    mesh.hold_mail = false;
    mesh.run();
    assert_eq!(deliveries(&mesh, member), [1, 0], "the first was heard, the second was not");
}

/// Its retry is on its way: the delivery before was one.
#[test]
fn a_retry_that_is_on_its_way_to_a_relay_that_ends_leaves_the_delivery_before() {
    let mut mesh = Mesh::with(2, |config| config.retry_after = TimeSpan::from_secs(2));
    let member = mesh.known_user(1);
    let relay = mesh.relay(0);
    mesh.attach(relay, Some(member));
    mesh.accept(1, lasting(member, 900), Disposition::Direct);
    mesh.hold_mail = true;
    mesh.pass(3);
    assert!(!mesh.mail.is_empty(), "it is sent again");
    mesh.close(relay);
    mesh.hold_mail = false;
    mesh.run();
    assert_eq!(deliveries(&mesh, member), [1]);
}

/// A relay brings its members back.
#[test]
fn a_member_without_a_channel_stays_when_it_leaves() {
    for owner in 0..2 {
        let mut mesh = Mesh::new(2);
        let member = mesh.known_user(owner);
        let relay = mesh.relay(0);
        for ends in [Mesh::leave, |mesh: &mut Mesh, relay, _| mesh.close(relay)] {
            mesh.attach(relay, Some(member));
            for chid in [CHANNEL, OTHER] {
                mesh.ask_for(relay, member, SessionCommand::Unregister { chid, code: 200 });
            }
            ends(&mut mesh, relay, member);
            assert_eq!(mesh.store.channels_of(member), Some(vec![]));
        }
    }
}
