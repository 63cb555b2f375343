//! The registration API over sockets, through the real process (PROTOCOL.md 3).

use crate::common::{Reply, Request, World};
use serde_json::{Value, json};

const SETTINGS: [&str; 4] =
    ["--set", "bridge.auth_keys=registration-key-of-this-test", "--set", "bridge.stub.enabled=true"];

fn world(store: &str) -> World {
    let store = format!("store.kind={store}");
    World::with(&[&SETTINGS[..], &["--set", &store]].concat())
}

fn json_of(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.body).unwrap_or_else(|_| panic!("{reply:?}"))
}

/// A registered user.
#[derive(Clone)]
struct Device {
    path: String,
    secret: String,
    channels: Vec<String>,
    endpoint: String,
}

impl Device {
    fn register(world: &World, kind: &str) -> Device {
        let users = format!("/v1/{kind}/registration");
        let reply = world.send(Request::new("POST", &users).body(br#"{"token":"device-token","key":null}"#));
        assert_eq!(reply.status, 200, "{reply:?}");
        let body = json_of(&reply);
        let text = |name: &str| body[name].as_str().unwrap().to_owned();
        Device {
            path: format!("{users}/{}", text("uaid")),
            secret: text("secret"),
            channels: vec![text("channelID")],
            endpoint: text("endpoint"),
        }
    }

    fn call(&self, world: &World, method: &str, rest: &str, body: &Value) -> Reply {
        let request = Request::new(method, &format!("{}{rest}", self.path));
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        world.send(request.header("authorization", &format!("webpush {}", self.secret)).body(body))
    }

    fn listed(&self, world: &World) -> Vec<String> {
        let reply = self.call(world, "GET", "", &Value::Null);
        assert_eq!(reply.status, 200, "{reply:?}");
        let channels: Vec<String> = serde_json::from_value(json_of(&reply)["channelIDs"].clone()).unwrap();
        channels
    }
}

#[test]
fn what_was_answered_200_survives_a_crash() {
    let mut world = world("embedded");
    let kinds = ["webpush/any", "stub/success", "stub/error", "stub/success"];
    let mut devices = kinds.map(|kind| Device::register(&world, kind)).to_vec();
    for device in &mut devices {
        let reply = device.call(&world, "POST", "/subscription", &json!({ "key": null }));
        assert_eq!(reply.status, 200, "{reply:?}");
        device.channels.push(json_of(&reply)["channelID"].as_str().unwrap().to_owned());
        device.channels.sort();
    }
    let removed = devices.pop().unwrap();
    assert_eq!(removed.call(&world, "DELETE", "", &Value::Null).status, 200);
    world.crash();
    for device in &devices {
        let mut listed = device.listed(&world);
        listed.sort();
        assert_eq!(listed, device.channels);
    }
    assert_eq!(removed.call(&world, "GET", "", &Value::Null).refusal(), (410, 103));
}

#[test]
fn a_bridged_user_has_no_session_and_is_removed() {
    for store in ["memory", "embedded"] {
        registers_and_is_removed(&world(store));
    }
}

fn registers_and_is_removed(world: &World) {
    let device = Device::register(world, "stub/success");
    let uaid = device.path.rsplit('/').next().unwrap().replace('-', "");
    let agent = world.agent(Some(&uaid));
    assert_ne!(agent.uaid, uaid, "a fresh UAID");
    assert_eq!(device.listed(world), device.channels);
    assert_eq!(device.call(world, "PUT", "", &json!({ "token": "another-token" })).status, 200);
    assert_eq!(device.call(world, "PUT", "", &json!({ "token": "" })).refusal(), (400, 108));
    assert_eq!(device.call(world, "DELETE", "", &Value::Null).status, 200);
    let path = &device.endpoint[device.endpoint.find("/wpush/").unwrap()..];
    let post = Request::new("POST", path).header("ttl", "60");
    assert_eq!(world.send(post).refusal(), (410, 106));
}
