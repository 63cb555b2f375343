//! Answers of FCM and APNs: a body of any bytes ends no device but with the status that ends one, and no notification
//! counts as sent without success.

#![no_main]

mod control_plane;

use libfuzzer_sys::fuzz_target;
use machine::upstream::{BridgeFailure, BridgeOutcome};

use control_plane::bridges::{Told, of_apns, of_fcm};

const STATUSES: [u16; 14] = [200, 204, 302, 400, 401, 403, 404, 405, 410, 413, 429, 500, 503, 599];

fuzz_target!(|input: (u8, u64, &[u8])| {
    let (status, registered, body) = input;
    let status = STATUSES[usize::from(status) % STATUSES.len()];
    // Also as the part of an answer that the rows are told apart by.
    let word = String::from_utf8_lossy(body);
    let reason = serde_json::json!({ "reason": word, "timestamp": registered }).to_string();
    let kind = "type.googleapis.com/google.firebase.fcm.v1.FcmError";
    let error = serde_json::json!({"error": {"details": [{"@type": kind, "errorCode": word}]}}).to_string();
    for body in [body, error.as_bytes()] {
        judged(status, of_fcm(status, body), 404);
    }
    for body in [body, reason.as_bytes()] {
        judged(status, of_apns(status, body, registered), 410);
    }
});

fn judged(status: u16, Told { outcome, alarm }: Told, ends: u16) {
    match outcome {
        BridgeOutcome::Sent => assert!((200..300).contains(&status), "{status}"),
        BridgeOutcome::Gone => assert_eq!(status, ends),
        BridgeOutcome::Doubted => assert!((400..500).contains(&status), "{status}"),
        BridgeOutcome::Failed(BridgeFailure::Quota { retry_after } | BridgeFailure::Unavailable { retry_after }) => {
            assert!((10..=3_600).contains(&retry_after));
        }
        BridgeOutcome::Failed(_) => {}
    }
    assert!(alarm.is_none_or(|text| text.len() < 300 && !text.contains(char::is_control)), "a line of the log");
}
