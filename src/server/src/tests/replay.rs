//! Earlier ledgers that cannot all be saved: the node does not start, and removes none of them.

use std::sync::Arc;

use machine::StoreOp;
use machine::ids::{Chid, KeyDigest, LedgerSlot, Stamp, StoreTicket};
use machine::message::{Message, Urgency};
use machine::time::UnixSeconds;
use store::embedded::{Embedded, Options};

use super::*;

const CHANNEL: Chid = Chid([2; 16]);

fn message(user: u8) -> Message {
    Message {
        uaid: Uaid([user; 16]),
        chid: CHANNEL,
        stamp: Stamp { clock: Clock(u64::from(user)), origin: Origin(6) },
        ttl: 60,
        accepted: UnixSeconds(4_000_000_000),
        urgency: Urgency::Normal,
        topic: None,
        receipt: false,
        tries: Default::default(),
        payload: b"body".as_slice().into(),
    }
}

fn ask(store: &Embedded, op: StoreOp) -> machine::StoreReply {
    let mut port = store.port(Arc::new(|| {}));
    port.submit(StoreTicket { index: 0, generation: 0 }, op);
    loop {
        if let Some((_, answer)) = port.collect() {
            return answer.unwrap();
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_message_that_cannot_be_saved_keeps_the_ledger_and_the_node_down() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &[]);
    start(&config).unwrap().stop().unwrap();
    let store = Embedded::open(&dir.path().join("store"), Options::default()).unwrap();
    for user in [1, 2, 3] {
        let (uaid, seen) = (Uaid([user; 16]), UnixSeconds(4_000_000_000));
        let (chid, at, key, contact, presence) = (CHANNEL, Clock(1), None::<KeyDigest>, None, None);
        ask(&store, StoreOp::Register { uaid, chid, key, at, seen, contact, presence, maker: None });
    }
    store.damage_record(Uaid([2; 16]));
    store.close();
    let ledgers = dir.path().join("ledger");
    let mut log = Log::create(&ledgers, ShardId(0), Origin(6), 4 << 20, Clock(0)).unwrap();
    for user in [1, 2, 3] {
        runtime::ports::Ledger::append(&mut log, LedgerSlot(user.into()), &message(user));
    }
    drop(log);

    let (said, exit) = refusal(&config);
    assert!(said.starts_with("cannot save 1 of the 3 messages that earlier runs left in the ledger: "), "{said}");
    assert_eq!(exit, status::LEDGER_LEFT);
    let fault = replay_ledgers(&config).unwrap_err();
    assert_eq!((fault.to_string(), fault.status()), (said, status::LEDGER_LEFT));
    assert_eq!(ledger::replay(&ledgers).unwrap().messages.len(), 3, "the log is there");

    let store = Embedded::open(&dir.path().join("store"), Options::default()).unwrap();
    for user in [1, 3] {
        let (uaid, now) = (Uaid([user; 16]), UnixSeconds(4_000_000_000));
        let op = StoreOp::Messages { uaid, after: Stamp::default(), limit: 9, now };
        let machine::StoreReply::Page(page) = ask(&store, op) else { panic!("a page") };
        assert_eq!(page.messages.len(), 1, "what can be saved is saved");
    }
}
