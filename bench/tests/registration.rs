//! The registration API over sockets, through the real process (PROTOCOL.md 3).

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::LazyLock;

use crate::common::wire::{Heard, Wire};
use crate::common::{Reply, Request, World, stranger};
use murre_bench::frame::upgrade_request;
use serde_json::{Value, json};
use upstream::{FCM_CREDENTIALS, Papers};

/// Credentials of the app `firefox` at FCM. No service is there: no test here sends a notification.
static CREDENTIALS: LazyLock<String> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("registration");
    std::fs::create_dir_all(&directory).unwrap();
    let nowhere = (Ipv4Addr::LOCALHOST, 1).into();
    Papers::new(Ipv4Addr::LOCALHOST.into()).unwrap().write(&directory, nowhere, nowhere).unwrap();
    format!("bridge.fcm.credentials={}", directory.join(FCM_CREDENTIALS).display())
});

/// A server with registration of devices, and these settings.
fn world_with(sets: &[&str]) -> World {
    let own = ["bridge.auth_keys=registration-key-of-this-test", &CREDENTIALS];
    let settings: Vec<&str> = own.iter().chain(sets).flat_map(|set| ["--set", set]).collect();
    World::with(&settings)
}

fn world(store: &str) -> World {
    world_with(&[&format!("store.kind={store}")])
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
    let kinds = ["webpush/any", "fcm/firefox", "fcm/firefox", "fcm/firefox"];
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
    let device = Device::register(world, "fcm/firefox");
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

/// First registration of a user from the `n`th address: its status, and the value of `Retry-After`.
fn registers_from(world: &World, n: u8, users: &str, authorization: &str) -> (u16, Option<u32>) {
    let mut wire = Wire::of(stranger(n, world.server.endpoint()));
    let request = Request::new("POST", users).header("Host", "h").header("Connection", "close");
    let request = if authorization.is_empty() { request } else { request.header("Authorization", authorization) };
    wire.write(&request.body(br#"{"token":"device-token","key":null}"#).to_bytes());
    let response = wire.response();
    (response.status, response.header("retry-after").and_then(|text| text.parse().ok()))
}

/// Returns true if a new user agent from the `n`th address gets a UAID.
fn greets_from(world: &World, n: u8) -> bool {
    let mut wire = Wire::of(stranger(n, world.server.websocket()));
    wire.write(&upgrade_request("h"));
    assert_eq!(wire.response().status, 101);
    wire.say(&json!({"messageType": "hello", "use_webpush": true}));
    match wire.hear() {
        Heard::Text(text) => text.contains("\"status\":200"),
        end => {
            assert_eq!(end, Heard::Close(1013, "AddressLimit".into()));
            false
        }
    }
}

/// No address makes more users than it may, whatever it speaks, and none takes from another.
#[test]
fn an_address_makes_as_many_users_by_https_as_by_websocket_and_no_other_lacks_them() {
    let world = world_with(&["strangers.new_users=5"]);
    let kinds = ["/v1/fcm/firefox/registration", "/v1/webpush/any/registration"];
    let answers: Vec<_> = (0..40).map(|n| registers_from(&world, 2, kinds[n % 2], "")).collect();
    let made = answers.iter().filter(|(status, _)| *status == 200).count();
    assert!((5..=10).contains(&made), "{made} users of one address");
    for (status, retry_after) in &answers[made..] {
        assert!(*status == 429 && retry_after.is_some_and(|seconds| (1..=720).contains(&seconds)), "{answers:?}");
    }
    assert!(!greets_from(&world, 2), "its sessions are counted with its requests");
    // Devices of other addresses see nothing of it.
    for n in 10..50 {
        assert_eq!(registers_from(&world, n, kinds[usize::from(n) % 2], "").0, 200, "127.0.0.{n}");
    }
    assert!((0..20).filter(|_| greets_from(&world, 60)).count() <= 10);
    assert_eq!(registers_from(&world, 60, kinds[0], "").0, 429, "its requests are counted with its sessions");
}

#[test]
fn a_first_registration_needs_a_token_of_the_operator() {
    let token = "a-token-of-sixteen-or-more";
    let world = world_with(&["access.register=token", &format!("access.tokens={token}")]);
    for users in ["/v1/webpush/x/registration", "/v1/fcm/firefox/registration"] {
        assert_eq!(registers_from(&world, 2, users, "").0, 401, "{users}");
        assert_eq!(registers_from(&world, 2, users, "Bearer another-token-of-sixteen").0, 401, "{users}");
        assert_eq!(registers_from(&world, 2, users, &format!("Bearer {token}")).0, 200, "{users}");
    }
}
