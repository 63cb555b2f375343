//! One session from hello to ack, over real sockets, with clients from other projects (PROTOCOL.md 1 and 2).

use std::time::Duration;

use crate::common::wire::{Heard, Wire, masked, text};
use crate::common::{Request, SILENCE, World};
use client::agent::channel_id;
use client::encryption::SubscriptionKeys;
use murre_bench::frame;
use protocol::webpush::identity::Identity;
use serde_json::json;

#[test]
fn hello_gives_new_keeps_known_and_replaces_unknown() {
    let world = World::start();
    let mut new = world.agent(None);
    assert_eq!(new.uaid.len(), 32);
    assert!(new.uaid.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)), "{}", new.uaid);
    new.register(None);
    let uaid = new.uaid.clone();
    new.leave();
    assert_eq!(world.agent(Some(&uaid)).uaid, uaid);
    let dashed = uuid::Uuid::parse_str(&uaid).unwrap().to_string().to_uppercase();
    assert_eq!(world.agent(Some(&dashed)).uaid, uaid);
    let invented = "0123456789abcdef0123456789abcdef";
    assert_ne!(world.agent(Some(invented)).uaid, invented);
    assert_eq!(world.agent(Some("not a uuid")).uaid.len(), 32);
}

#[test]
fn hello_has_exactly_five_keys() {
    let world = World::start();
    let mut agent = crate::common::UserAgent::connect(world.server.websocket());
    agent.send(json!({"messageType": "hello", "channelIDs": [channel_id()], "extra": [1], "uaid": null}));
    let answer = agent.expect("hello");
    let mut keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["broadcasts", "messageType", "status", "uaid", "use_webpush"]);
    assert_eq!((&answer["broadcasts"], &answer["use_webpush"]), (&json!({}), &json!(true)));
}

#[test]
fn encrypted_and_signed_message_reaches_the_page() {
    let world = World::start();
    let mut agent = world.agent(None);
    let identity = Identity::generate();
    let subscription = agent.register(Some(&identity.public_key()));
    assert!(subscription.url.contains("/wpush/v3/"), "{}", subscription.url);
    let page = SubscriptionKeys::generate().unwrap();
    let reply = world.send(subscription.secret(&page, Some(&identity), "a secret for the page"));
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(reply.header("ttl"), "43200");
    let note = agent.note();
    assert_eq!(note.channel, subscription.channel);
    assert_eq!(note.version, reply.id());
    assert_eq!(note.headers, json!({"encoding": "aes128gcm"}));
    assert_eq!(page.decrypt(&note.body).unwrap(), b"a secret for the page");
    for hidden in ["ttl", "topic", "timestamp"] {
        assert!(note.message.get(hidden).is_none());
    }
    agent.ack([&note]);
    agent.silence();
}

#[test]
fn an_endpoint_with_a_key_takes_only_that_key() {
    let world = World::start();
    let mut agent = world.agent(None);
    let (mine, other) = (Identity::generate(), Identity::generate());
    let subscription = agent.register(Some(&mine.public_key()));
    let page = SubscriptionKeys::generate().unwrap();
    assert_eq!(world.send(subscription.secret(&page, None, "x")).refusal(), (401, 109));
    assert_eq!(world.send(subscription.secret(&page, Some(&other), "x")).refusal(), (401, 109));
    let tampered = subscription.secret(&page, Some(&mine), "x").header("authorization", "vapid t=a.b.c,k=ABC");
    assert_eq!(world.send(tampered).refusal(), (401, 109));
    agent.silence();
    assert_eq!(world.send(subscription.secret(&page, Some(&mine), "yes")).status, 201);
    assert_eq!(page.decrypt(&agent.note().body).unwrap(), b"yes");
}

#[test]
fn the_same_token_with_another_key_is_refused_also_after_it_was_accepted() {
    let world = World::start();
    let mut agent = world.agent(None);
    let mine = Identity::generate();
    let (first, second) = (mine.public_key(), Identity::generate().public_key());
    let locked_to_second = agent.register(Some(&second));
    let locked_to_first = agent.register(Some(&first));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let token = mine.sign(&json!({"aud": murre_bench::process::ENDPOINT_URL, "exp": now + 600}));
    let right = format!("vapid t={token},k={first}");
    for _ in 0..3 {
        assert_eq!(world.send(locked_to_first.request(60).header("authorization", &right)).status, 201);
        let wrong = format!("vapid t={token},k={second}");
        let reply = world.send(locked_to_second.request(60).header("authorization", &wrong));
        assert_eq!(reply.refusal(), (401, 109));
        let reply = world.send(locked_to_second.request(60).header("authorization", &right));
        assert_eq!(reply.refusal(), (401, 109));
    }
    for _ in 0..3 {
        assert_eq!(agent.note().channel, locked_to_first.channel);
    }
    agent.silence();
}

#[test]
fn vapid_claims_are_checked() {
    let world = World::start();
    let mut agent = world.agent(None);
    let mine = Identity::generate();
    let subscription = agent.register(Some(&mine.public_key()));
    let url = murre_bench::process::ENDPOINT_URL;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let cases = [
        (json!({"aud": url, "exp": now + 60}), 201),
        (json!({"aud": url, "exp": now + 60, "sub": "tel:1"}), 201),
        (json!({"aud": url, "exp": now - 3_600}), 401),
        (json!({"aud": url, "exp": now + 25 * 3_600}), 401),
        (json!({"aud": url, "exp": (now + 60).to_string()}), 401),
        (json!({"aud": url}), 401),
        (json!({"aud": "http://elsewhere.test", "exp": now + 60}), 401),
        (json!({"aud": [url], "exp": now + 60}), 201),
        (json!({"aud": ["http://elsewhere.test"], "exp": now + 60}), 401),
        (json!({"exp": now + 60}), 401),
    ];
    for (claims, status) in cases {
        let header = format!("vapid t={},k={}", mine.sign(&claims), mine.public_key());
        let reply = world.send(subscription.request(60).header("authorization", &header));
        assert_eq!(reply.status, status, "{claims} {reply:?}");
    }
    let draft_01 = format!("WebPush {}", mine.sign(&json!({"aud": url, "exp": now + 60})));
    let request = || subscription.request(60).header("authorization", &draft_01);
    assert_eq!(world.send(request()).refusal(), (400, 110));
    let crypto_key = format!("p256ecdsa={}", mine.public_key());
    assert_eq!(world.send(request().header("crypto-key", &crypto_key)).status, 201);
}

/// The public key of an aesgcm sender; the server only carries it.
const SENDER_KEY: &str = "BO_tgGm-yvYAGLeRe16AvhzaUcpYRiqgsGOlXpt0DRWDRGGdzVLGlEVJMygqAUECarLnxCiAOHTP_znkedrlWoU";

#[test]
fn aesgcm_headers_arrive_without_quotes_and_padding() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    let request = subscription
        .request(60)
        .header("content-encoding", "aesgcm")
        .header("encryption", "keyid=\"p256dh\";salt=\"4pdat984KmT9BWsU3np0nw==\"")
        .header("crypto-key", &format!("keyid=\"p256dh\";dh=\"{SENDER_KEY}=\""))
        .encrypted(vec![1, 2, 3]);
    assert_eq!(world.send(request).status, 201);
    let note = agent.note();
    assert_eq!(note.body, [1, 2, 3]);
    assert_eq!(note.headers["encoding"], "aesgcm");
    assert_eq!(note.headers["encryption"], "keyid=p256dh;salt=4pdat984KmT9BWsU3np0nw");
    assert_eq!(note.headers["crypto_key"], format!("keyid=p256dh;dh={SENDER_KEY}"));
}

#[test]
fn a_message_without_body_has_neither_data_nor_headers() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    assert_eq!(world.post(&subscription, 60, "").status, 201);
    let note = agent.note();
    assert!(note.message.get("data").is_none() && note.message.get("headers").is_none(), "{}", note.message);
}

#[test]
fn unregister_answers_410_at_the_endpoint() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    let kept = agent.register(None);
    agent.unregister(&subscription.channel);
    let reply = world.post(&subscription, 60, "x");
    assert_eq!(reply.refusal(), (410, 106));
    assert_eq!(reply.header("cache-control"), "max-age=86400");
    assert_eq!(world.post(&kept, 60, "still there").status, 201);
    assert_eq!(agent.note().text(), "still there");
    agent.unregister(&channel_id());
}

#[test]
fn registering_again_gives_another_url_of_the_same_channel() {
    let world = World::start();
    let mut agent = world.agent(None);
    let channel = channel_id();
    let first = agent.register_as(&channel, None);
    let second = agent.register_as(&channel, None);
    assert_eq!((&first["status"], &second["status"]), (&json!(200), &json!(200)));
    for answer in [first, second] {
        let url = answer["pushEndpoint"].as_str().unwrap().to_owned();
        assert_eq!(world.post(&crate::common::Subscription { channel: channel.clone(), url }, 60, "x").status, 201);
        assert_eq!(agent.note().channel, channel);
    }
}

#[test]
fn a_key_that_is_no_key_is_answered_400_and_the_session_goes_on() {
    let world = World::start();
    let mut agent = world.agent(None);
    for key in ["!!!", "AAAA"] {
        let answer = agent.register_as(&channel_id(), Some(key));
        assert_eq!(answer["status"], 400, "{answer}");
    }
    agent.register(None);
}

#[test]
fn pings_of_both_kinds_are_answered() {
    let world = World::start();
    let mut wire = Wire::greeted(world.server.websocket());
    wire.write(&text("{}"));
    assert_eq!(wire.message(), json!({}));
    wire.write(&masked(frame::PING, b"payload"));
    assert_eq!(wire.hear(), Heard::Pong(b"payload".to_vec()));
    wire.say(&json!({"messageType": "ping"}));
    assert_eq!(wire.goodbye().0, 4774);
}

#[test]
fn nack_is_counted_and_not_answered() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    world.post(&subscription, 60, "x");
    let note = agent.note();
    agent.send(json!({"messageType": "nack", "version": note.version, "code": 301}));
    agent.barrier();
    agent.silence();
    let uaid = agent.uaid.clone();
    agent.leave();
    assert_eq!(world.agent(Some(&uaid)).note().version, note.version);
}

#[test]
fn every_ack_code_settles() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    for code in [json!(100), json!(101), json!(102), json!(7), json!(null)] {
        world.post(&subscription, 60, "x");
        let note = agent.note();
        let update = json!({"channelID": note.channel, "version": note.version, "code": code});
        agent.send(json!({"messageType": "ack", "updates": [update]}));
    }
    agent.send(json!({"messageType": "ack", "updates": []}));
    let unknown = json!({"channelID": channel_id(), "version": "gAAAAA-unknown"});
    agent.send(json!({"messageType": "ack", "updates": [unknown]}));
    agent.barrier();
    let uaid = agent.uaid.clone();
    agent.leave();
    world.agent(Some(&uaid)).silence();
}

#[test]
fn offline_messages_drain_in_order_and_end_with_their_ack() {
    let world = World::start();
    let (agent, subscription) = world.subscriber();
    let uaid = agent.uaid.clone();
    agent.leave();
    let mut ids = Vec::new();
    for n in 0..37 {
        ids.push(world.post(&subscription, 3600, &format!("number {n}")).id());
    }
    let mut agent = world.agent(Some(&uaid));
    let mut unacked = Vec::new();
    for (n, id) in ids.iter().enumerate() {
        let note = agent.note();
        assert_eq!((note.version.as_str(), note.text()), (id.as_str(), format!("number {n}").as_str()));
        unacked.push(json!({"channelID": note.channel, "version": note.version}));
        // The next page comes when most of the one before is acked: in threes, the last ones first.
        if unacked.len() == 3 || n == 36 {
            unacked.reverse();
            agent.send(json!({"messageType": "ack", "updates": std::mem::take(&mut unacked)}));
        }
    }
    agent.barrier();
    agent.leave();
    world.agent(Some(&uaid)).silence();
}

#[test]
fn unacked_messages_come_back_in_order_under_the_same_ids() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    let uaid = agent.uaid.clone();
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(world.post(&subscription, 3600, &n.to_string()).id());
    }
    for id in &ids {
        assert_eq!(&agent.note().version, id);
    }
    drop(agent);
    let mut agent = world.agent(Some(&uaid));
    let mut notes = Vec::new();
    for (n, id) in ids.iter().enumerate() {
        let note = agent.note();
        assert_eq!((note.version.as_str(), note.text()), (id.as_str(), n.to_string().as_str()));
        notes.push(note);
    }
    agent.ack(&notes[..5]);
    agent.leave();
    let mut agent = world.agent(Some(&uaid));
    assert_eq!(agent.note().version, ids[5]);
    agent.silence();
}

#[test]
fn the_last_message_of_a_topic_replaces_the_stored_one() {
    let world = World::start();
    let (agent, subscription) = world.subscriber();
    let uaid = agent.uaid.clone();
    agent.leave();
    for (topic, body) in [("mail", "one"), ("news", "paper"), ("mail", "two"), ("mail", "three")] {
        let reply = world.send(subscription.request(60).header("topic", topic).encrypted(body));
        assert_eq!(reply.status, 201);
    }
    let mut agent = world.agent(Some(&uaid));
    let mut texts = vec![agent.note().text().to_owned(), agent.note().text().to_owned()];
    texts.sort();
    assert_eq!(texts, ["paper", "three"]);
    agent.silence();
}

#[test]
fn ttl_zero_is_delivered_now_or_never() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    let reply = world.post(&subscription, 0, "now");
    assert_eq!((reply.status, reply.header("ttl")), (201, "0"));
    assert_eq!(agent.note().text(), "now");
    let uaid = agent.uaid.clone();
    agent.leave();
    std::thread::sleep(SILENCE);
    assert_eq!(world.post(&subscription, 0, "never").status, 201);
    let mut agent = world.agent(Some(&uaid));
    agent.silence();
}

#[test]
fn messages_expire_and_do_not_block_live_ones() {
    let world = World::start();
    let (agent, subscription) = world.subscriber();
    let uaid = agent.uaid.clone();
    agent.leave();
    for n in 0..12 {
        assert_eq!(world.post(&subscription, 1, &format!("short {n}")).status, 201);
    }
    assert_eq!(world.post(&subscription, 3600, "long").status, 201);
    std::thread::sleep(Duration::from_millis(2_100));
    let mut agent = world.agent(Some(&uaid));
    assert_eq!(agent.note().text(), "long");
    agent.silence();
}

#[test]
fn a_cancelled_message_is_not_delivered() {
    let world = World::start();
    let (agent, subscription) = world.subscriber();
    let uaid = agent.uaid.clone();
    agent.leave();
    let gone = world.post(&subscription, 3600, "gone").id();
    world.post(&subscription, 3600, "kept");
    assert_eq!(world.cancel(&gone).status, 204);
    assert_eq!(world.cancel(&gone).status, 204);
    assert_eq!(world.cancel("nonsense").status, 400);
    let mut agent = world.agent(Some(&uaid));
    assert_eq!(agent.note().text(), "kept");
    agent.silence();
}

#[test]
fn browsers_may_post_from_any_origin() {
    let world = World::start();
    let (_agent, subscription) = world.subscriber();
    let path = subscription.url.strip_prefix("http://push.test").unwrap();
    let preflight = Request::new("OPTIONS", path)
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "ttl,content-encoding,authorization");
    let reply = world.send(preflight);
    assert!(matches!(reply.status, 200 | 204), "{reply:?}");
    assert_eq!(reply.header("access-control-allow-origin"), "https://app.example");
    assert!(reply.header("access-control-allow-methods").contains("POST"));
    assert!(reply.header("access-control-allow-headers").contains("content-encoding"));
    assert_eq!(reply.header("access-control-max-age"), "3600");
    let reply = world.send(subscription.request(60).header("origin", "https://app.example").encrypted("x"));
    assert_eq!(reply.header("access-control-allow-origin"), "https://app.example");
    assert!(reply.header("access-control-expose-headers").to_lowercase().contains("location"));
}

#[test]
fn broadcasts_are_told_when_they_differ() {
    let world = World::start();
    let (admin, token) = (world.server.admin(), world.server.admin_token().unwrap());
    let set = |version| murre_bench::metrics::set_broadcast(admin, &token, "tests/one", version).unwrap();
    set("v1");
    let subscribe = |version: &str| json!({"messageType": "broadcast_subscribe", "broadcasts": {"tests/one": version}});
    let (mut agent, mut second) = (world.agent(None), world.agent(None));
    for agent in [&mut agent, &mut second] {
        agent.knows_broadcast("tests/one", "v1");
    }
    second.send(subscribe("v1"));
    second.silence();
    set("v2");
    for agent in [&mut agent, &mut second] {
        assert_eq!(agent.expect("broadcast")["broadcasts"], json!({"tests/one": "v2"}));
    }
}

#[test]
fn a_user_agent_that_does_not_ack_hears_a_burst_and_a_backlog() {
    let world = World::start();
    let mut agent = world.agent(None);
    let subscription = agent.register(None);
    for round in ["live", "stored"] {
        let uaid = agent.uaid.clone();
        if round == "stored" {
            agent.leave();
            agent = world.agent(Some(&uaid));
            agent.leave();
            // No user agent is connected until all of it is stored.
            agent = crate::common::UserAgent::connect(world.server.websocket());
        }
        let mut ids = Vec::new();
        for _ in 0..300 {
            let reply = world.send(subscription.request(600));
            assert_eq!(reply.status, 201, "{reply:?}");
            ids.push(reply.id());
        }
        if round == "stored" {
            agent.uaid = agent.hello(Some(&uaid));
        }
        let mut notes = Vec::new();
        let begun = std::time::Instant::now();
        for id in &ids {
            notes.push(agent.note());
            assert_eq!(notes.last().map(|note| &note.version), Some(id), "{round}: in order");
        }
        println!("{round}: the last of 300 came {:.1} s after the last POST", begun.elapsed().as_secs_f64());
        agent.ack(&notes);
        agent.silence();
    }
}

#[test]
fn a_message_that_is_never_acked_stops_coming() {
    let world = World::with(&["--set", "delivery.attempts_max=4"]);
    let mut agent = world.agent(None);
    let subscription = agent.register(None);
    let uaid = agent.uaid.clone();
    assert_eq!(world.send(subscription.request(600)).status, 201);
    let first = agent.note();
    agent.leave();
    for _ in 0..3 {
        let mut agent = world.agent(Some(&uaid));
        assert_eq!(agent.note().version, first.version);
        agent.leave();
    }
    let mut agent = world.agent(Some(&uaid));
    agent.silence();
    assert_eq!(world.send(subscription.request(600)).status, 201);
    assert_ne!(agent.note().version, first.version);
}
