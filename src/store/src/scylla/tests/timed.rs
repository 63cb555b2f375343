//! Time limits of statements and batches, as a ScyllaDB reads them from the wire.

use std::sync::Arc;
use std::time::Duration;

use machine::StoreOp;

use super::Apart;
use super::proxy::Proxy;
use crate::conformance::{BlockingStore, NOW, message, uaid};
use crate::shared::options::Options;
use crate::testing::database::{open_with, shared};
use crate::testing::sample::settle;

/// ScyllaDB ignores the time limits of the statements in a batch, and takes that of the batch. No server of it is at
/// hand, so Cassandra is taken for one, and is spared what it does not know.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn scylla_is_told_the_time_of_every_statement_and_of_every_batch() {
    const BATCH: &str = "BEGIN UNLOGGED BATCH USING TIMEOUT 10000ms";
    const CHANGE: &str = "USING TIMEOUT 10000ms AND TIMESTAMP ?";
    const READ: &str = "USING TIMEOUT 10000ms";
    let proxy = Proxy::new(shared().nodes[0].parse().expect("an address"));
    proxy.instead("table_name = 'versions'", "table_name = 'batches'");
    proxy.instead(BATCH, "BEGIN UNLOGGED BATCH");
    proxy.instead(CHANGE, "USING TIMESTAMP ?");
    proxy.instead(READ, "");
    let nodes = vec![proxy.address.to_string()];
    let store = open_with(&Options { nodes, request_timeout: Duration::from_secs(20), ..shared().clone() });
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    assert!(proxy.said(CHANGE) > 0 && proxy.said(READ) > 0);
    assert_eq!(proxy.said(BATCH), 0, "no batch was sent");
    port.register(1, 2);
    assert_eq!(proxy.said(BATCH), 1, "the batch of a register");
    (3..8).for_each(|channel| port.register(1, channel));
    assert_eq!(proxy.said(BATCH), 1, "each form is prepared once, and every new channel has that of the first");
    port.done(StoreOp::Save { messages: (10..15).map(|clock| Arc::new(message(1, 2, clock))).collect() });
    port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    assert_eq!(proxy.said(BATCH), 3);
    assert_eq!(port.clocks(uaid(1)), [10, 11, 12, 13, 14]);
    assert_eq!(port.user(uaid(1)).expect("it is known").channels.len(), 6);
    let settled = (10..15).map(|clock| message(1, 2, clock)).collect::<Vec<_>>();
    port.done(settle(&settled, None, true));
    assert_eq!((proxy.said(BATCH), port.clocks(uaid(1))), (4, vec![]));
    drop(port);
    store.close();
}
