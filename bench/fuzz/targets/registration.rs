//! Bodies of the registration API: what is read keeps to the bounds of the API, and is read again as it was.

#![no_main]

use libfuzzer_sys::fuzz_target;
use machine::limits::{APS_BYTES_MAX, DEVICE_TOKEN_BYTES_MAX};
use machine::upstream::BridgeKind;
use protocol::webpush::registration::{UserType, read_device, read_subscribe};
use serde_json::{Value, json};

fuzz_target!(|input: &[u8]| {
    let bridges = [BridgeKind::Fcm, BridgeKind::Apns].map(UserType::Bridge);
    for kind in bridges.into_iter().chain([UserType::WebPush]) {
        let Ok(device) = read_device(kind, input) else { continue };
        assert!(device.token.len() <= DEVICE_TOKEN_BYTES_MAX);
        assert!(!device.token.contains(|c: char| c.is_whitespace() || c.is_control()));
        let mut body = json!({ "token": &*device.token });
        if let Some(aps) = &device.aps {
            assert!(kind == UserType::Bridge(BridgeKind::Apns) && aps.len() <= APS_BYTES_MAX);
            assert!(serde_json::from_str::<Value>(aps).unwrap().is_object());
            body["aps"] = Value::from(&**aps);
        }
        assert!(read_device(kind, body.to_string().as_bytes()).is_ok_and(|again| again == device));
    }
    let _ = read_subscribe(input);
});
