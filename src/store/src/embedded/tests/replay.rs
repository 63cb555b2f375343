//! A replay saves what it can of the ledgers, and names the rest.

use super::*;

#[test]
fn a_replay_saves_what_it_can_and_names_the_rest() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut port = port(&store);
    [1, 2, 3].iter().for_each(|user| port.register(*user, 2));
    store.damage_record(uaid(2));
    let messages: Vec<_> = [1, 2, 3].iter().map(|user| Arc::new(message(*user, 2, 40 + u64::from(*user)))).collect();
    let unsaved = store.save_all(&messages).expect_err("a message that was not saved is told");
    assert_eq!((port.clocks(uaid(1)), port.clocks(uaid(3))), (vec![41], vec![43]), "the others are saved");
    assert_eq!(unsaved.messages, [Arc::clone(&messages[1])]);
    assert!(unsaved.reason.starts_with("a row of its user cannot be read"), "{}", unsaved.reason);
}

#[test]
fn a_replay_into_a_store_that_fails_names_all_of_its_group_and_the_next_ones() {
    let dir = tempfile::tempdir().expect("a directory");
    let failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&failing);
    let options = Options {
        fatal: Arc::new(|_| {}),
        before_commit: Some(Arc::new(move || {
            let failed = std::io::Error::from_raw_os_error(5);
            if fails.load(Ordering::Relaxed) { Err(fjall::Error::Io(failed)) } else { Ok(()) }
        })),
        ..patient()
    };
    let store = Embedded::open(dir.path(), options).expect("it opens");
    port(&store).register(1, 2);
    failing.store(true, Ordering::Relaxed);
    let messages: Vec<_> = (1..=600).map(|clock| Arc::new(message(1, 2, clock))).collect();
    let unsaved = store.save_all(&messages).expect_err("nothing is promised");
    assert_eq!(unsaved.messages.len(), 600);
}
