//! Notifications of a node to the service manager.

use super::{config, hello, start};
use crate::StopOutcome;
use crate::service_manager::ServiceManager;
use crate::service_manager::tests::Listening;

/// A million at 10,000 a second take longer than a manager waits for silence.
#[test]
fn a_stop_asks_the_service_manager_for_time() {
    let dir = tempfile::tempdir().unwrap();
    let manager = Listening::below(dir.path());
    let mut node = start(&config(dir.path(), &["drain.rate=7"])).unwrap();
    node.manager = ServiceManager::at(&manager.name);
    let _session = hello(&node, "");
    assert_eq!(node.stop().unwrap(), StopOutcome::InOrder);
    let heard = manager.heard();
    assert!(heard[0].starts_with("STOPPING=1\nSTATUS=closing ") && heard[0].ends_with(", 7 a second"), "{heard:?}");
    assert_eq!(heard[1], "EXTEND_TIMEOUT_USEC=30000000", "{heard:?}");
    assert_eq!(heard.last().unwrap(), "EXTEND_TIMEOUT_USEC=90000000", "{heard:?}");
}
