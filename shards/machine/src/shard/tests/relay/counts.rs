//! Deliveries to members: a frame that never left is none (decision 0021).

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
