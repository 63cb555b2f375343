//! What a user agent may say and what it is told, message by message and field by field (BEHAVIOUR.md 1.4 to 1.6, 1.9,
//! 1.11 and 12).

mod common;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{Draft, PATIENCE, Subscription, UserAgent, World, exchange, identity};
use murre_bench::agent::channel_id;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

/// The code that a session of its own is closed with for this message.
async fn closed_with(world: &World, greeted: bool, message: &str) -> u16 {
    let mut agent = UserAgent::connect(world.server.websocket()).await;
    if greeted {
        agent.hello(None).await;
    }
    agent.send_frame(Message::text(message.to_owned())).await;
    agent.close_code().await
}

/// The UAID that this hello is answered with.
async fn hello(world: &World, message: Value) -> String {
    let mut agent = UserAgent::connect(world.server.websocket()).await;
    agent.send(message).await;
    let answer = agent.expect("hello").await;
    assert_eq!(answer["status"], 200);
    answer["uaid"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_uaid_is_known_in_every_spelling() {
    let world = World::start();
    let (agent, _) = world.subscriber().await;
    let uaid = agent.uaid.clone();
    agent.leave().await;
    let id = uuid::Uuid::parse_str(&uaid).unwrap();
    let (simple, dashed) = (id.simple().to_string(), id.hyphenated().to_string());
    assert_eq!(simple, uaid, "the server spells 32 lower-case digits");
    let braces = id.braced().to_string();
    for spelling in [&simple, &simple.to_uppercase(), &dashed, &dashed.to_uppercase(), &braces, &braces.to_uppercase()]
    {
        assert_eq!(hello(&world, json!({"messageType": "hello", "uaid": spelling})).await, uaid, "{spelling}");
    }
}

#[tokio::test]
async fn what_is_no_uaid_gets_a_fresh_one() {
    let world = World::start();
    let digits = "0123456789abcdef0123456789abcdef";
    let spellings =
        [json!(null), json!(""), json!("nonsense"), json!(digits[1..]), json!(format!("{digits}0")), json!(" ")];
    let mut seen = std::collections::BTreeSet::new();
    for spelling in spellings {
        let uaid = hello(&world, json!({"messageType": "hello", "uaid": spelling})).await;
        assert_eq!(uaid.len(), 32);
        assert_eq!(uuid::Uuid::parse_str(&uaid).unwrap().get_version_num(), 4, "{spelling}: {uaid}");
        assert!(seen.insert(uaid), "a UAID is given once");
    }
    let absent = hello(&world, json!({"messageType": "hello"})).await;
    assert!(seen.insert(absent));
}

#[tokio::test]
async fn before_its_first_register_a_user_is_written_nowhere() {
    let world = World::start();
    let agent = world.agent(None).await;
    let uaid = agent.uaid.clone();
    agent.leave().await;
    let mut again = world.agent(Some(&uaid)).await;
    assert_ne!(again.uaid, uaid);
    again.register(None).await;
    let uaid = again.uaid.clone();
    again.leave().await;
    assert_eq!(world.agent(Some(&uaid)).await.uaid, uaid);
}

#[tokio::test]
async fn fields_that_a_message_does_not_have_may_hold_anything() {
    let world = World::start();
    let mut agent = UserAgent::connect(world.server.websocket()).await;
    let junk = json!([{"a": [null, 1.5, "\u{1f426}"]}, {}]);
    let with_junk = |mut message: Value| {
        for field in ["x", "status", "data", "headers", ""] {
            message[field] = junk.clone();
        }
        message
    };
    let old = json!({
        "messageType": "hello", "wakeup_host": {"ip": "10.0.0.1", "port": 9}, "updates": 7, "version": 1, "code": "c",
        "mobilenetwork": {"mcc": "1", "mnc": "2", "netid": "3"}, "channelIDs": [channel_id(), channel_id()],
    });
    agent.send(with_junk(old)).await;
    agent.expect("hello").await;
    let channel = channel_id();
    agent.send(with_junk(json!({"messageType": "register", "channelID": channel, "uaid": 7, "code": "x"}))).await;
    assert_eq!(agent.expect("register").await["status"], 200);
    agent.send(with_junk(json!({"messageType": "ack", "updates": [], "channelID": 1, "version": 1}))).await;
    agent.send(with_junk(json!({"messageType": "nack", "version": "v", "updates": 1, "broadcasts": 1}))).await;
    agent.send(with_junk(json!({"messageType": "unregister", "channelID": channel, "version": 1, "key": 1}))).await;
    assert_eq!(agent.expect("unregister").await["status"], 200);
    agent.send(with_junk(json!({"messageType": "ping", "uaid": 1, "channelID": 1}))).await;
    assert_eq!(agent.message().await, json!({}));
    agent.barrier().await;
}

#[tokio::test]
async fn null_is_as_good_as_absent_where_a_field_may_be_absent() {
    let world = World::start();
    let mut agent = UserAgent::connect(world.server.websocket()).await;
    agent.send(json!({"messageType": "hello", "uaid": null, "channelIDs": null, "broadcasts": null})).await;
    agent.expect("hello").await;
    let channel = channel_id();
    agent.send(json!({"messageType": "register", "channelID": channel, "key": null})).await;
    let url = agent.expect("register").await["pushEndpoint"].as_str().unwrap().to_owned();
    let unlocked = Subscription { channel: channel.clone(), url };
    assert_eq!(world.post(&unlocked, 60, "without VAPID").await.status, 201);
    assert_eq!(agent.note().await.text(), "without VAPID");
    let update = json!({"channelID": channel, "version": "unknown", "code": null});
    agent.send(json!({"messageType": "ack", "updates": [update]})).await;
    agent.send(json!({"messageType": "nack", "version": "v", "code": null})).await;
    agent.send(json!({"messageType": "unregister", "channelID": channel, "code": null})).await;
    assert_eq!(agent.expect("unregister").await["status"], 200);
}

#[tokio::test]
async fn fields_of_another_type_close() {
    let world = World::start();
    let first = [
        r#"{"messageType":"hello","uaid":7}"#,
        r#"{"messageType":"hello","uaid":true}"#,
        r#"{"messageType":"hello","uaid":["0123456789abcdef0123456789abcdef"]}"#,
        r#"{"messageType":"hello","uaid":{}}"#,
        r#"{"messageType":"hello","channelIDs":"x"}"#,
        r#"{"messageType":"hello","channelIDs":["x"]}"#,
        r#"{"messageType":"hello","channelIDs":[7]}"#,
        r#"{"messageType":"hello","channelIDs":[null]}"#,
        r#"{"messageType":"hello","broadcasts":[]}"#,
        r#"{"messageType":"hello","broadcasts":{"a":1}}"#,
        r#"{"messageType":"hello","broadcasts":{"a":null}}"#,
    ];
    for message in first {
        assert_eq!(closed_with(&world, false, message).await, 1011, "{message}");
    }
    const ID: &str = "deadbeef-0000-4000-8000-000000000001";
    let later = [
        r#"{"messageType":"register","channelID":7}"#.to_owned(),
        r#"{"messageType":"register","channelID":null}"#.into(),
        format!(r#"{{"messageType":"register","channelID":"{ID}","key":7}}"#),
        r#"{"messageType":"unregister"}"#.into(),
        r#"{"messageType":"unregister","channelID":"x"}"#.into(),
        format!(r#"{{"messageType":"unregister","channelID":"{ID}","code":"200"}}"#),
        format!(r#"{{"messageType":"unregister","channelID":"{ID}","code":-1}}"#),
        r#"{"messageType":"ack","updates":null}"#.into(),
        r#"{"messageType":"ack","updates":{}}"#.into(),
        r#"{"messageType":"ack","updates":[7]}"#.into(),
        r#"{"messageType":"ack","updates":[{"channelID":"x","version":"v"}]}"#.into(),
        format!(r#"{{"messageType":"ack","updates":[{{"channelID":"{ID}"}}]}}"#),
        format!(r#"{{"messageType":"ack","updates":[{{"channelID":"{ID}","version":7}}]}}"#),
        format!(r#"{{"messageType":"ack","updates":[{{"channelID":"{ID}","version":"v","code":70000}}]}}"#),
        r#"{"messageType":"nack"}"#.into(),
        r#"{"messageType":"nack","version":7}"#.into(),
        r#"{"messageType":"nack","version":"v","code":"301"}"#.into(),
        r#"{"messageType":"broadcast_subscribe"}"#.into(),
        r#"{"messageType":"broadcast_subscribe","broadcasts":null}"#.into(),
        r#"{"messageType":"broadcast_subscribe","broadcasts":{"a":1}}"#.into(),
        r#"{"messageType":"Ping"}"#.into(),
        r#"{"messageType":null}"#.into(),
        r#"{"messagetype":"ping"}"#.into(),
        r#"{"a":1}"#.into(),
        r#"[{}]"#.into(),
        r#"[]"#.into(),
        r#"null"#.into(),
        r#""ping""#.into(),
        r#"7"#.into(),
        r#"{} {}"#.into(),
        r#"{"#.into(),
        String::new(),
    ];
    for message in later {
        assert_eq!(closed_with(&world, true, &message).await, 1011, "{message}");
    }
}

#[tokio::test]
async fn nothing_but_hello_comes_first() {
    let world = World::start();
    let id = channel_id();
    let early = [
        json!({"messageType": "register", "channelID": id}),
        json!({"messageType": "unregister", "channelID": id}),
        json!({"messageType": "ack", "updates": []}),
        json!({"messageType": "nack", "version": "v"}),
        json!({"messageType": "broadcast_subscribe", "broadcasts": {}}),
        json!({"messageType": "ping"}),
        json!({}),
    ];
    for message in early {
        assert_eq!(closed_with(&world, false, &message.to_string()).await, 1011, "{message}");
    }
}

#[tokio::test]
async fn a_channel_is_registered_in_one_spelling() {
    let world = World::start();
    let id = uuid::Uuid::new_v4();
    let dashed = id.hyphenated().to_string();
    let others = [
        dashed.to_uppercase(),
        id.simple().to_string(),
        id.braced().to_string(),
        id.urn().to_string(),
        format!(" {dashed}"),
        dashed[1..].to_owned(),
        String::new(),
    ];
    for spelling in others {
        let message = json!({"messageType": "register", "channelID": spelling}).to_string();
        assert_eq!(closed_with(&world, true, &message).await, 1011, "{spelling}");
    }
    let mut agent = world.agent(None).await;
    let answer = agent.register_as(&dashed, None).await;
    let mut keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["channelID", "messageType", "pushEndpoint", "status"]);
    assert_eq!((&answer["channelID"], &answer["status"]), (&json!(dashed), &json!(200)));
}

#[tokio::test]
async fn a_key_is_taken_with_and_without_padding() {
    let world = World::start();
    let mut agent = world.agent(None).await;
    let (_, key) = identity();
    for spelling in [key.clone(), format!("{key}=")] {
        let locked = agent.register(Some(&spelling)).await;
        assert!(locked.url.contains("/wpush/v3/"), "{}", locked.url);
        assert_eq!(world.post(&locked, 60, "x").await.refusal(), (401, 109), "{spelling}");
    }
    let refused = agent.register_as(&channel_id(), Some("AAAA")).await;
    assert_eq!(refused["status"], 400);
    let text = refused["pushEndpoint"].as_str().unwrap();
    assert!(!text.is_empty() && !text.contains("://"), "a sentence in the place of the endpoint: {text}");
}

#[tokio::test]
async fn fernet_endpoints_have_one_version_without_a_key_and_one_with() {
    let world = World::with(&["--set", "endpoint.tokens=fernet"]);
    let mut agent = world.agent(None).await;
    let (_, key) = identity();
    let (open, locked) = (agent.register(None).await, agent.register(Some(&key)).await);
    assert!(open.url.contains("/wpush/v1/"), "{}", open.url);
    assert!(locked.url.contains("/wpush/v2/"), "{}", locked.url);
    assert_eq!(world.post(&open, 60, "x").await.status, 201);
    assert_eq!(world.post(&locked, 60, "x").await.refusal(), (401, 109));
}

#[tokio::test]
async fn three_hundred_registers_in_one_minute_are_answered() {
    let world = World::start();
    let mut agent = world.agent(None).await;
    let channels: Vec<String> = (0..300).map(|_| channel_id()).collect();
    for channel in &channels {
        agent.send(json!({"messageType": "register", "channelID": channel})).await;
    }
    for channel in &channels {
        let answer = agent.expect("register").await;
        assert_eq!((&answer["status"], &answer["channelID"]), (&json!(200), &json!(channel)));
    }
}

#[tokio::test]
async fn unregister_takes_every_spelling_and_channels_nobody_knows() {
    let world = World::start();
    let mut agent = world.agent(None).await;
    // Before anything was registered: Firefox sends late what it could not send under its last UAID.
    agent.unregister(&channel_id()).await;
    let spellings: [fn(uuid::Uuid) -> String; 5] = [
        |id| id.hyphenated().to_string(),
        |id| id.simple().to_string(),
        |id| id.hyphenated().to_string().to_uppercase(),
        |id| id.braced().to_string(),
        |id| id.simple().to_string().to_uppercase(),
    ];
    for (spell, code) in spellings.into_iter().zip([json!(200), json!(201), json!(202), json!(null), json!(u32::MAX)]) {
        let subscription = agent.register(None).await;
        let id = uuid::Uuid::parse_str(&subscription.channel).unwrap();
        agent.send(json!({"messageType": "unregister", "channelID": spell(id), "code": code})).await;
        let answer = agent.expect("unregister").await;
        assert_eq!(answer, json!({"messageType": "unregister", "channelID": subscription.channel, "status": 200}));
        assert_eq!(world.post(&subscription, 60, "x").await.refusal(), (410, 106), "{}", spell(id));
        agent.unregister(&subscription.channel).await;
    }
}

#[tokio::test]
async fn an_ack_names_a_version_and_any_channel() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber().await;
    let spellings: [fn(&str) -> String; 4] =
        [|id| id.to_owned(), |id| id.to_uppercase(), |id| id.replace('-', ""), |_| channel_id()];
    let mut versions = Vec::new();
    for _ in &spellings {
        world.post(&subscription, 3600, "x").await;
        versions.push(agent.note().await.version);
    }
    let (other, foreign) = world.subscriber().await;
    let mut other = other;
    world.post(&foreign, 3600, "of somebody else").await;
    let theirs = other.note().await;
    let mut updates: Vec<Value> = Vec::new();
    for (spell, version) in spellings.iter().zip(&versions) {
        updates.push(json!({"channelID": channel_id(), "version": format!("{version}x")}));
        updates.push(json!({"channelID": foreign.channel, "version": theirs.version}));
        updates.push(json!({"channelID": spell(&subscription.channel), "version": version}));
    }
    agent.send(json!({"messageType": "ack", "updates": updates})).await;
    agent.barrier().await;
    let (uaid, their_uaid) = (agent.uaid.clone(), other.uaid.clone());
    agent.leave().await;
    other.leave().await;
    world.agent(Some(&uaid)).await.silence().await;
    let again = world.agent(Some(&their_uaid)).await.note().await;
    assert_eq!(again.version, theirs.version, "nobody settles what was sent to somebody else");
}

#[tokio::test]
async fn a_nack_of_any_code_changes_nothing() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber().await;
    world.post(&subscription, 3600, "x").await;
    let note = agent.note().await;
    for code in [json!(301), json!(302), json!(303), json!(0), json!(-7), json!(i32::MAX)] {
        agent.send(json!({"messageType": "nack", "version": note.version, "code": code})).await;
    }
    agent.send(json!({"messageType": "nack", "version": "of nothing"})).await;
    agent.barrier().await;
    agent.ack([&note]).await;
    let uaid = agent.uaid.clone();
    agent.leave().await;
    world.agent(Some(&uaid)).await.silence().await;
}

#[tokio::test]
async fn a_ping_is_an_empty_object_with_any_blanks_or_says_so() {
    let world = World::start();
    for spelling in ["{}", " { } ", "{\r\n\t}", "\n{}\n", r#"{"messageType":"ping"}"#, r#" {"messageType" : "ping"} "#]
    {
        let mut agent = world.agent(None).await;
        agent.send_frame(Message::text(spelling)).await;
        assert_eq!(agent.frame().await, Some(Message::text("{}")), "{spelling:?}");
        agent.send_frame(Message::text(spelling)).await;
        assert_eq!(agent.close_code().await, 4774, "{spelling:?} at once again");
    }
}

#[tokio::test]
async fn a_ping_after_the_least_interval_is_answered() {
    let world = World::with(&["--set", "websocket.ping_min_interval=0.1"]);
    let mut agent = world.agent(None).await;
    for _ in 0..3 {
        agent.send(json!({})).await;
        assert_eq!(agent.message().await, json!({}));
        // Longer than the interval by more than the clock of sessions is coarse.
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}

async fn set_broadcast(world: &World, id: &'static str, version: &'static str) {
    let admin = world.server.admin();
    let set = move || murre_bench::metrics::set_broadcast(admin, id, version);
    tokio::task::spawn_blocking(set).await.unwrap().unwrap();
}

#[tokio::test]
async fn hello_subscribes_to_the_broadcasts_it_names() {
    let world = World::start();
    set_broadcast(&world, "tests/differs", "v2").await;
    set_broadcast(&world, "tests/equal", "v1").await;
    // A shard may hear of them a moment later than another.
    let begun = Instant::now();
    let mut agent = loop {
        assert!(begun.elapsed() < PATIENCE, "a shard that has not heard of them");
        let mut agent = UserAgent::connect(world.server.websocket()).await;
        let wanted = json!({"tests/differs": "v1", "tests/equal": "v1", "tests/later": "v1"});
        agent.send(json!({"messageType": "hello", "broadcasts": wanted})).await;
        let told = agent.expect("hello").await["broadcasts"].clone();
        if told["errors"].as_object().is_some_and(|errors| errors.len() == 1) {
            let errors = json!({"tests/later": "Broadcast not found"});
            assert_eq!(told, json!({"tests/differs": "v2", "errors": errors}), "what differs, and what is unknown");
            break agent;
        }
    };
    set_broadcast(&world, "tests/nobody", "v1").await;
    set_broadcast(&world, "tests/later", "v1").await;
    let told = agent.expect("broadcast").await;
    let expected = json!({"messageType": "broadcast", "broadcasts": {"tests/later": "v1"}});
    assert_eq!(told, expected, "told as soon as it is known, and of nothing else");
    set_broadcast(&world, "tests/equal", "v2").await;
    assert_eq!(agent.expect("broadcast").await["broadcasts"], json!({"tests/equal": "v2"}));
    set_broadcast(&world, "tests/differs", "v3").await;
    assert_eq!(agent.expect("broadcast").await["broadcasts"], json!({"tests/differs": "v3"}));
}

#[tokio::test]
async fn broadcast_subscribe_adds_and_is_silent_when_nothing_differs() {
    let world = World::start();
    set_broadcast(&world, "tests/one", "v1").await;
    let mut agent = world.agent(None).await;
    let subscribe =
        |id: &str, version: &str| json!({"messageType": "broadcast_subscribe", "broadcasts": {id: version}});
    agent.knows_broadcast("tests/one", "v1").await;
    agent.send(subscribe("tests/one", "v1")).await;
    agent.send(json!({"messageType": "broadcast_subscribe", "broadcasts": {}})).await;
    agent.silence().await;
    agent.send(json!({"messageType": "broadcast_subscribe", "broadcasts": {"tests/one": "v1", "x": "v"}})).await;
    let told = agent.expect("broadcast").await;
    assert_eq!(told["broadcasts"], json!({"errors": {"x": "Broadcast not found"}}));
    set_broadcast(&world, "tests/one", "v2").await;
    assert_eq!(agent.expect("broadcast").await["broadcasts"], json!({"tests/one": "v2"}));
}

/// The older of two sessions is told to go and disturbs the newer no more, however its end arrives.
async fn takeover(world: &World) {
    let (mut old, subscription) = world.subscriber().await;
    let mut new = world.agent(Some(&old.uaid.clone())).await;
    assert_eq!(new.uaid, old.uaid);
    assert_eq!(old.close_code().await, 1011);
    drop(old.into_stream());
    assert_eq!(world.post(&subscription, 3600, "to the newer").await.status, 201);
    let note = new.note().await;
    assert_eq!(note.text(), "to the newer");
    new.ack([&note]).await;
    new.register(None).await;
}

#[tokio::test]
async fn the_newer_session_wins_on_one_shard() {
    let world = World::with(&["--shards", "1"]);
    for _ in 0..4 {
        takeover(&world).await;
    }
}

#[tokio::test]
async fn the_newer_session_wins_wherever_it_lands() {
    let world = World::with(&["--shards", "5"]);
    for _ in 0..12 {
        takeover(&world).await;
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[tokio::test]
async fn another_node_ends_the_session_that_it_names_and_no_other() {
    let world = World::with(&["--set", "node.keys=0123456789abcdef-node"]);
    let before = now_ms();
    let (mut agent, subscription) = world.subscriber().await;
    let after = now_ms();
    let disconnect = async |connected_at: u64| {
        let path = format!("/notif/{}/{connected_at}", agent.uaid);
        let request = Draft::new("DELETE", &path).header("authorization", "Bearer 0123456789abcdef-node");
        exchange(world.server.node(), request.into_request()).await.status
    };
    // Of an older session, and of one that is yet to come.
    assert_eq!((disconnect(before - 1).await, disconnect(after + 1).await), (404, 404));
    let mut ended = 0;
    for connected_at in before..=after {
        ended += u32::from(disconnect(connected_at).await == 200);
    }
    assert_eq!(ended, 1, "one instant is its own, between {before} and {after}");
    assert_eq!(agent.close_code().await, 1011);
    // What comes now is stored; the user may come back.
    assert_eq!(world.post(&subscription, 3600, "later").await.status, 201);
    assert_eq!(world.agent(Some(&agent.uaid)).await.note().await.text(), "later");
}

#[tokio::test]
async fn stored_notifications_follow_the_hello_at_once_and_carry_nothing_else() {
    let world = World::start();
    let (agent, subscription) = world.subscriber().await;
    let uaid = agent.uaid.clone();
    agent.leave().await;
    let request = subscription.request(3600).header("topic", "t").header("urgency", "high").body("body");
    let id = world.send(request).await.id();
    let bare = world.post(&subscription, 3600, "").await.id();
    let mut agent = UserAgent::connect(world.server.websocket()).await;
    agent.send(json!({"messageType": "hello", "uaid": uaid})).await;
    assert_eq!(agent.expect("hello").await["uaid"], uaid.as_str());
    let keys = |message: &Value| message.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let full = agent.message().await;
    assert_eq!((&full["version"], &full["data"]), (&json!(id), &json!("Ym9keQ")));
    let mut found = keys(&full);
    found.sort();
    assert_eq!(found, ["channelID", "data", "headers", "messageType", "version"]);
    let empty = agent.message().await;
    assert_eq!(empty["version"], bare.as_str());
    let mut found = keys(&empty);
    found.sort();
    assert_eq!(found, ["channelID", "messageType", "version"]);
}

#[tokio::test]
async fn a_channel_is_of_one_user() {
    let world = World::start();
    let (mut one, mut two) = (world.agent(None).await, world.agent(None).await);
    let channel = channel_id();
    let url = |answer: Value| answer["pushEndpoint"].as_str().unwrap().to_owned();
    let first = Subscription { channel: channel.clone(), url: url(one.register_as(&channel, None).await) };
    let second = Subscription { channel: channel.clone(), url: url(two.register_as(&channel, None).await) };
    one.unregister(&channel).await;
    assert_eq!(world.post(&first, 60, "x").await.refusal(), (410, 106));
    assert_eq!(world.post(&second, 60, "for two").await.status, 201);
    assert_eq!(two.note().await.text(), "for two");
    one.silence().await;
}
