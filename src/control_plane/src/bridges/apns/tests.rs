//! APNs against its stand-in, over TLS and HTTP/2: every row of the table of answers, and what is sent.

mod channels;

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use machine::ids::{Chid, Clock, Origin, Stamp, StoreTicket, Uaid};
use machine::message::{Message, Topic, Tries, Urgency};
use machine::time::UnixSeconds;
use machine::upstream::{BridgeFailure, BridgeKind, BridgeOutcome, Bridged, UpstreamOp};
use protocol::webpush::headers::Encryption;
use protocol::webpush::message_id::MessageIds;
use protocol::webpush::payload::Draft;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use upstream::{APNS_CHANNELS, CA, Call, CertificateKind, Script, Service, TOPIC, Upstream};

use crate::bridges::{BridgeDriver, BridgeSettings, UpstreamQueue};
use config::{Config, Sources};

const KEY: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
const DEVICE: &str = "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0";
const REGISTERED: Clock = Clock(1_700_000_000_000_000);

struct Kit {
    upstream: Upstream,
    directory: tempfile::TempDir,
    queue: Arc<UpstreamQueue>,
    port: Box<dyn runtime::ports::Upstreams>,
    driver: JoinHandle<std::io::Result<()>>,
    next: u32,
}

impl Drop for Kit {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn settings(directory: &Path, sets: &[&str]) -> BridgeSettings {
    let file = |name: &str| directory.join(name).display().to_string();
    // The host of the tests may be slow.
    let mut all = vec![
        "bridge.auth_keys=0123456789abcdef".to_owned(),
        format!("bridge.ca_file={}", file(CA)),
        format!("bridge.apns.channels={}", file(APNS_CHANNELS)),
        "bridge.apns.timeout=25".to_owned(),
    ];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    let config = Config::load(&Sources { sets: all, ..Sources::default() }).unwrap();
    BridgeSettings::read(&config, &[KEY.to_owned()]).unwrap()
}

impl Kit {
    async fn start(sets: &[&str]) -> Kit {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::start(Ipv4Addr::LOCALHOST.into(), directory.path()).await.unwrap();
        let queue = Arc::new(UpstreamQueue::new().unwrap());
        let port = queue.port(Arc::new(|| {}));
        let driver = BridgeDriver::new(Arc::clone(&queue), settings(directory.path(), sets));
        let driver = tokio::spawn(driver.run());
        Kit { upstream, directory, queue, port, driver, next: 0 }
    }

    fn submit(&mut self, to: &Arc<Bridged>, message: &Arc<Message>) {
        self.next += 1;
        let ticket = StoreTicket { index: self.next, generation: 0 };
        self.port.submit(ticket, UpstreamOp { to: Arc::clone(to), message: Arc::clone(message) });
    }

    async fn reply(&mut self) -> BridgeOutcome {
        let wait = async {
            loop {
                if let Some((_, outcome)) = self.port.collect() {
                    return outcome;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("every call gets its reply")
    }

    async fn send(&mut self, to: Bridged, message: Message) -> BridgeOutcome {
        self.submit(&Arc::new(to), &Arc::new(message));
        self.reply().await
    }

    /// Sends to the usual device, and has APNs answer so.
    async fn answered(&mut self, answers: &[&str]) -> BridgeOutcome {
        self.upstream.state.answer(Service::Apns, answers);
        self.send(user(DEVICE), message(b"body")).await
    }

    fn last(&self) -> Call {
        self.upstream.state.calls().pop().unwrap()
    }
}

fn user(token: &str) -> Bridged {
    let (kind, app) = (BridgeKind::Apns, "firefox".into());
    Bridged { kind, app, token: token.into(), aps: None, registered: REGISTERED, refused: None }
}

fn message(body: &[u8]) -> Message {
    let headers = Encryption { encoding: Some(b"aes128gcm"), ..Encryption::default() };
    let mut draft = Draft::new(&headers, body.len());
    draft.extend(body);
    Message {
        uaid: Uaid([1; 16]),
        chid: Chid(0xdeca_fbad_0000_0000_0000_0123_4567_89ab_u128.to_be_bytes()),
        stamp: Stamp { clock: Clock(7), origin: Origin(8) },
        ttl: 60,
        accepted: UnixSeconds(1_700_000_000),
        urgency: Urgency::Normal,
        topic: None,
        receipt: false,
        tries: Tries::default(),
        payload: draft.finish().unwrap(),
    }
}

fn failed(failure: BridgeFailure) -> BridgeOutcome {
    BridgeOutcome::Failed(failure)
}

const BUSY: BridgeOutcome = BridgeOutcome::Failed(BridgeFailure::Unavailable { retry_after: 120 });

#[tokio::test]
async fn every_answer_of_apns_has_the_outcome_of_its_row() {
    use BridgeFailure::{Authentication, BadRequest, Configuration, Quota, TooLarge, Unreachable};
    let mut kit = Kit::start(&[]).await;
    for (answer, outcome) in [
        ("ok", BridgeOutcome::Sent),
        ("Unregistered;timestamp=1700000000000", BridgeOutcome::Gone),
        ("ExpiredToken;timestamp=1700000000000", BridgeOutcome::Gone),
        ("Unregistered;timestamp=1699999999999", BridgeOutcome::Doubted),
        ("ExpiredToken;timestamp=1699999999999", BridgeOutcome::Doubted),
        ("BadDeviceToken", BridgeOutcome::Doubted),
        ("DeviceTokenNotForTopic", BridgeOutcome::Doubted),
        ("PayloadTooLarge", failed(TooLarge { excess: 0 })),
        ("TooManyRequests", failed(Quota { retry_after: 60 })),
        ("InvalidProviderToken", failed(Authentication)),
        ("MissingProviderToken", failed(Authentication)),
        ("BadCertificate", failed(Authentication)),
        ("BadCertificateEnvironment", failed(Authentication)),
        ("Forbidden", failed(Authentication)),
        ("UnrelatedKeyIdInToken", failed(Authentication)),
        ("BadEnvironmentKeyIdInToken", failed(Authentication)),
        ("TopicDisallowed", failed(Configuration)),
        ("BadTopic", failed(Configuration)),
        ("MissingTopic", failed(Configuration)),
        ("BadCollapseId", failed(BadRequest)),
        ("BadPriority", failed(BadRequest)),
        ("BadPath", failed(BadRequest)),
        ("MethodNotAllowed", failed(BadRequest)),
        ("InternalServerError", BUSY),
        ("ServiceUnavailable", BUSY),
        ("IdleTimeout", BUSY),
        ("no_json", failed(Unreachable)),
        ("empty", failed(Unreachable)),
        ("teapot", failed(Unreachable)),
        ("redirect", failed(Unreachable)),
        ("large", failed(Unreachable)),
        ("endless_headers", failed(Unreachable)),
        ("reset", failed(Unreachable)),
        ("ok", BridgeOutcome::Sent),
    ] {
        let before = kit.upstream.state.count(Service::Apns);
        assert_eq!(kit.answered(&[answer]).await, outcome, "{answer}");
        assert_eq!(kit.upstream.state.count(Service::Apns), before + 1, "{answer} is not retried");
    }
    assert_eq!(kit.upstream.state.violations(), [""; 0]);
}

#[tokio::test]
async fn a_notification_that_was_not_processed_is_sent_once_more_over_another_connection() {
    let mut kit = Kit::start(&[]).await;
    for answer in ["Shutdown", "refused", "goaway_before"] {
        let before = kit.upstream.state.count(Service::Apns);
        assert_eq!(kit.answered(&[answer, "ok"]).await, BridgeOutcome::Sent, "{answer}");
        assert_eq!(kit.upstream.state.count(Service::Apns), before + 2, "{answer}");
    }
    assert!(kit.upstream.state.connections() >= 3, "Shutdown and GOAWAY end a connection");
    assert_eq!(kit.answered(&["Shutdown", "Shutdown", "ok"]).await, BUSY, "and only once");
    assert_eq!(kit.upstream.state.violations(), [""; 0]);
}

#[tokio::test]
async fn a_provider_token_is_made_once_and_kept_whatever_apns_says_of_it() {
    let mut kit = Kit::start(&[]).await;
    assert_eq!(kit.answered(&["ok"]).await, BridgeOutcome::Sent);
    let token = kit.last().header("authorization").unwrap().to_owned();
    assert_eq!(kit.answered(&["ExpiredProviderToken"]).await, failed(BridgeFailure::Authentication));
    assert_eq!(kit.answered(&["TooManyProviderTokenUpdates"]).await, BUSY);
    kit.queue.reload(settings(kit.directory.path(), &[]));
    for _ in 0..3 {
        assert_eq!(kit.answered(&["ok"]).await, BridgeOutcome::Sent);
        assert_eq!(kit.last().header("authorization"), Some(token.as_str()));
    }
    assert_eq!(kit.upstream.state.count(Service::Apns), 6, "no retry: the token is younger than 20 minutes");
    assert_eq!(kit.upstream.state.violations(), [""; 0]);
}

#[tokio::test]
async fn a_connection_begins_with_one_stream() {
    // The second one allows more as soon as it took a token.
    for (streams, largest) in [(1, 1..=1), (0, 2..=30)] {
        let mut kit = Kit::start(&["bridge.apns.connections=1"]).await;
        let (to, small) = (Arc::new(user(DEVICE)), Arc::new(message(b"body")));
        let always = [(Service::Apns, "ok;delay=20".to_owned())].into();
        kit.upstream.state.set(Script { always, streams, ..Script::default() });
        for _ in 0..30 {
            kit.submit(&to, &small);
        }
        for _ in 0..30 {
            assert_eq!(kit.reply().await, BridgeOutcome::Sent);
        }
        assert_eq!(kit.upstream.state.violations(), [""; 0]);
        assert_eq!(kit.upstream.state.connections(), 1);
        // Calls wait for the connection, so they begin together: they would all be sent before its SETTINGS are read.
        let found = kit.upstream.state.streams_max();
        assert!(largest.contains(&found), "{found} streams at a time");
    }
}

#[tokio::test]
async fn a_channel_with_a_certificate_shows_it_and_sends_no_token() {
    let mut kit = Kit::start(&[]).await;
    let to = Bridged { app: "beta".into(), ..user(DEVICE) };
    assert_eq!(kit.send(to, message(b"body")).await, BridgeOutcome::Sent);
    let call = kit.last();
    assert!(call.has_certificate && call.header("authorization").is_none(), "{call:?}");
    assert_eq!(kit.upstream.state.violations(), [""; 0]);
}

#[tokio::test]
async fn a_service_without_trust_or_without_an_answer_has_its_row() {
    for certificate in [CertificateKind::Expired, CertificateKind::WrongName, CertificateKind::Untrusted] {
        let mut kit = Kit::start(&[]).await;
        kit.upstream.state.set(Script { certificate, ..Script::default() });
        let outcome = kit.send(user(DEVICE), message(b"body")).await;
        assert_eq!(outcome, failed(BridgeFailure::Unreachable), "{certificate:?}");
    }
    for fault in ["silence", "slow"] {
        let mut kit = Kit::start(&["bridge.apns.timeout=2"]).await;
        assert_eq!(kit.answered(&[fault]).await, failed(BridgeFailure::NoAnswer), "{fault}");
    }
    for fault in ["close", "goaway_mid_stream"] {
        let mut kit = Kit::start(&[]).await;
        assert!(matches!(kit.answered(&[fault]).await, BridgeOutcome::Failed(_)), "{fault}");
        assert_eq!(kit.upstream.state.count(Service::Apns), 1, "{fault}: it may have been delivered");
    }
}

#[tokio::test]
async fn device_tokens_that_are_not_hexadecimal_are_doubted_without_a_call_and_under_the_guard() {
    let mut kit = Kit::start(&[]).await;
    for token in ["00fg", "token/..", "%30"] {
        assert_eq!(kit.send(user(token), message(b"body")).await, BridgeOutcome::Doubted, "{token}");
    }
    // A wrong import has such tokens for all users: none of them is removed.
    for _ in 0..46 {
        assert_eq!(kit.send(user("00fg"), message(b"body")).await, BridgeOutcome::Doubted);
    }
    for _ in 0..3 {
        assert_eq!(kit.send(user("00fg"), message(b"body")).await, failed(BridgeFailure::Configuration));
    }
    assert_eq!(kit.upstream.state.count(Service::Apns), 0);
    assert_eq!(kit.answered(&["BadDeviceToken"]).await, failed(BridgeFailure::Configuration));
    assert_eq!(kit.answered(&["ok"]).await, BridgeOutcome::Sent);
}

#[tokio::test]
async fn connections_are_replaced_with_pauses_while_apns_refuses_the_credentials() {
    let mut kit = Kit::start(&[]).await;
    let refusal = "InvalidProviderToken".to_owned();
    kit.upstream.state.set(Script { always: [(Service::Apns, refusal)].into(), ..Script::default() });
    for _ in 0..40 {
        assert_eq!(kit.send(user(DEVICE), message(b"body")).await, failed(BridgeFailure::Authentication));
    }
    assert_eq!(kit.upstream.state.count(Service::Apns), 40);
    let connections = kit.upstream.state.connections();
    assert!((2..=8).contains(&connections), "{connections} connections for 40 calls");
}

#[tokio::test]
async fn headers_say_topic_priority_expiration_and_collapse_id() {
    let mut kit = Kit::start(&[]).await;
    for (urgency, priority) in
        [(Urgency::High, "10"), (Urgency::Normal, "10"), (Urgency::Low, "5"), (Urgency::VeryLow, "1")]
    {
        assert_eq!(kit.send(user(DEVICE), Message { urgency, ..message(b"") }).await, BridgeOutcome::Sent);
        assert_eq!(kit.last().header("apns-priority"), Some(priority));
    }
    let call = kit.last();
    assert_eq!((call.method.as_str(), call.path.as_str()), ("POST", format!("/3/device/{DEVICE}").as_str()));
    assert_eq!(call.header("apns-topic"), Some(TOPIC));
    assert_eq!(call.header("apns-push-type"), Some("alert"));
    assert_eq!(call.header("apns-expiration"), Some("1700000060"));
    assert_eq!(call.header("apns-collapse-id"), None);
    let topic = Topic::new(b"news");
    let _ = kit.send(user(DEVICE), Message { ttl: 0, topic, ..message(b"") }).await;
    let first = kit.last();
    assert_eq!(first.header("apns-expiration"), Some("0"));
    assert_eq!(first.header("apns-collapse-id").unwrap().len(), 22);
    let chid = Chid([9; 16]);
    let _ = kit.send(user(DEVICE), Message { chid, topic, ..message(b"") }).await;
    assert_ne!(kit.last().header("apns-collapse-id"), first.header("apns-collapse-id"), "another site");
    assert_ne!(kit.last().header("apns-id"), first.header("apns-id"));
    assert_eq!(kit.upstream.state.violations(), [""; 0]);
}

#[tokio::test]
async fn a_payload_has_the_common_map_the_message_id_and_aps() {
    let mut kit = Kit::start(&[]).await;
    let sent = message(b"\xfb\xff");
    assert_eq!(kit.send(user(DEVICE), sent.clone()).await, BridgeOutcome::Sent);
    let payload: Value = serde_json::from_str(&kit.last().body).unwrap();
    let opened = MessageIds::new(&[KEY.to_owned()]).unwrap().open(payload["ver"].as_str().unwrap().as_bytes()).unwrap();
    assert_eq!((opened.stamp, opened.uaid, opened.chid), (sent.stamp, sent.uaid, sent.chid));
    let alert = json!({
        "title-loc-key": "SentTab.NoTabArrivingNotification.title",
        "loc-key": "SentTab.NoTabArrivingNotification.body",
    });
    let wanted = json!({
        "chid": "decafbad-0000-0000-0000-0123456789ab", "body": "-_8", "con": "aes128gcm", "ver": payload["ver"],
        "aps": {"alert": alert, "mutable-content": 1},
    });
    assert_eq!(payload, wanted);
}

#[tokio::test]
async fn aps_of_a_registration_overrides() {
    let mut kit = Kit::start(&[]).await;
    let keys = json!({
        "title-loc-key": "SentTab.NoTabArrivingNotification.title",
        "loc-key": "SentTab.NoTabArrivingNotification.body",
    });
    let with = |extra: Value| {
        let mut alert = keys.clone();
        alert.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        alert
    };
    for (own, aps) in [
        (json!({}), json!({"alert": keys, "mutable-content": 1})),
        (json!({"mutable-content": 0, "badge": 3}), json!({"alert": keys, "mutable-content": 0, "badge": 3})),
        (
            json!({"sound": "s", "category": "c", "content-available": 1}),
            json!({"alert": keys, "mutable-content": 1, "sound": "s", "category": "c", "content-available": 1}),
        ),
        (json!({"title": "T", "body": "B"}), json!({"alert": {"title": "T", "body": "B"}, "mutable-content": 1})),
        (
            json!({"title_loc_key": "K", "title_loc_args": ["a"], "loc_args": ["b"], "action_loc_key": "A"}),
            json!({
                "alert": with(json!({
                    "title-loc-key": "K", "title-loc-args": ["a"], "loc-args": ["b"], "action-loc-key": "A",
                })),
                "mutable-content": 1,
            }),
        ),
        (
            json!({"subtitle": "S", "launch_image": "L", "loc_key": "M"}),
            json!({
                "alert": with(json!({"subtitle": "S", "launch-image": "L", "loc-key": "M"})),
                "mutable-content": 1,
            }),
        ),
    ] {
        let to = Bridged { aps: Some(own.to_string().into()), ..user(DEVICE) };
        assert_eq!(kit.send(to, message(b"")).await, BridgeOutcome::Sent);
        let payload: Value = serde_json::from_str(&kit.last().body).unwrap();
        assert_eq!(payload["aps"], aps, "{own}");
    }
    // Only an imported record can have such a text.
    let to = Bridged { aps: Some("no JSON".into()), ..user(DEVICE) };
    assert_eq!(kit.send(to, message(b"")).await, BridgeOutcome::Sent);
    assert_eq!(kit.upstream.state.violations(), [""; 0]);
}

#[tokio::test]
async fn a_payload_of_4096_bytes_is_sent_and_one_byte_more_is_not() {
    let mut kit = Kit::start(&[]).await;
    let _ = kit.send(user(DEVICE), message(b"xxx")).await;
    let rest = 4_096 - (kit.last().body.len() - 4);
    // Three bytes of a body are four of its text.
    let fits = vec![0; rest / 4 * 3];
    assert_eq!(kit.send(user(DEVICE), message(&fits)).await, BridgeOutcome::Sent);
    assert!((4_093..=4_096).contains(&kit.last().body.len()), "{}", kit.last().body.len());
    let over = vec![0; fits.len() + 3];
    let excess = (4 - rest % 4) as u32;
    let large = failed(BridgeFailure::TooLarge { excess });
    assert_eq!(kit.send(user(DEVICE), message(&over)).await, large);
    assert_eq!(kit.upstream.state.count(Service::Apns), 2, "without a call");
    assert_eq!(kit.upstream.state.violations(), [""; 0]);
}
