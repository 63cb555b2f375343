//! Bridges against the stand-ins of their services, over TLS and HTTP/2.

mod fcm;
mod pressure;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use machine::ids::{StoreTicket, Uaid};
use machine::message::Message;
use machine::upstream::{BridgeFailure, BridgeKind, BridgeOutcome, Bridged, UpstreamOp};
use protocol::webpush::headers::Encryption;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use upstream::{CA, FCM_CREDENTIALS, Upstream};

use super::fcm::tests::{message, user};
use super::judgement::Judgement;
use super::request::CredentialAges;
use super::stats::{ProfileSnapshot, ProfileSnapshots, ProfileStats};
use super::{BridgeDriver, BridgeName, BridgeSettings, UpstreamQueue};
use config::{Config, Sources};

/// Bridges of one configuration, and the services that they call.
struct Kit {
    upstream: Upstream,
    directory: tempfile::TempDir,
    queue: Arc<UpstreamQueue>,
    port: Box<dyn runtime::ports::Upstreams>,
    snapshots: Arc<ProfileSnapshots>,
    driver: JoinHandle<std::io::Result<()>>,
    next: u32,
}

impl Drop for Kit {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Kit {
    /// Bridges with the FCM profile `firefox`, and these settings.
    async fn start(sets: &[&str]) -> Kit {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::start(Ipv4Addr::LOCALHOST.into(), directory.path()).await.unwrap();
        let settings = settings(&upstream, directory.path(), sets).unwrap();
        let queue = Arc::new(UpstreamQueue::new().unwrap());
        let port = queue.port(Arc::new(|| {}));
        let driver = BridgeDriver::new(Arc::clone(&queue), settings);
        let snapshots = driver.snapshots();
        let driver = tokio::spawn(driver.run());
        Kit { upstream, directory, queue, port, snapshots, driver, next: 0 }
    }

    /// Submits a notification; returns its ticket.
    fn submit(&mut self, to: &Arc<Bridged>, message: &Arc<Message>) -> StoreTicket {
        self.next += 1;
        let ticket = StoreTicket { index: self.next, generation: 0 };
        self.port.submit(ticket, UpstreamOp { to: Arc::clone(to), message: Arc::clone(message) });
        ticket
    }

    /// The next reply.
    async fn reply(&mut self) -> (StoreTicket, BridgeOutcome) {
        let began = Instant::now();
        loop {
            if let Some(answered) = self.port.collect() {
                return answered;
            }
            assert!(began.elapsed() < PATIENCE, "every call gets its reply");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Hands a notification to FCM and returns its outcome.
    async fn send(&mut self, token: &str) -> BridgeOutcome {
        let ticket = self.submit(&user(BridgeKind::Fcm, "firefox", token), &small());
        let (of, outcome) = self.reply().await;
        assert_eq!(of, ticket);
        outcome
    }

    fn read(&self, sets: &[&str]) -> Result<BridgeSettings, String> {
        settings(&self.upstream, self.directory.path(), sets)
    }

    /// State of the profile of FCM, once it is as it should be.
    async fn profile(&self, is_right: impl Fn(&ProfileSnapshot) -> bool) -> ProfileSnapshot {
        let began = Instant::now();
        loop {
            let found = self.snapshots.look().iter().find(|profile| &*profile.name.app == "firefox").cloned();
            if let Some(profile) = found.clone().filter(&is_right) {
                return profile;
            }
            assert!(began.elapsed() < PATIENCE, "{found:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn settings(upstream: &Upstream, directory: &std::path::Path, sets: &[&str]) -> Result<BridgeSettings, String> {
    let file = |name: &str| directory.join(name).display().to_string();
    let mut all = vec![
        "bridge.auth_keys=0123456789abcdef".to_owned(),
        format!("bridge.ca_file={}", file(CA)),
        format!("bridge.fcm.credentials={}", file(FCM_CREDENTIALS)),
        format!("bridge.fcm.base_url=https://localhost:{}", upstream.google.port()),
        // The host of the tests may be slow.
        "bridge.fcm.timeout=25".to_owned(),
    ];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    let config = Config::load(&Sources { sets: all, ..Sources::default() }).unwrap();
    BridgeSettings::read(&config, &[])
}

fn small() -> Arc<Message> {
    let headers = Encryption { encoding: Some(b"aes128gcm"), ..Encryption::default() };
    Arc::new(message(&headers, b"body"))
}

/// A notification for the `n`th user.
fn of_user(n: u8) -> Arc<Message> {
    Arc::new(Message { uaid: Uaid([n; 16]), ..(*small()).clone() })
}

fn failed(failure: BridgeFailure) -> BridgeOutcome {
    BridgeOutcome::Failed(failure)
}

/// State of one profile of FCM, for tests of the metrics.
pub(crate) fn snapshots() -> Arc<ProfileSnapshots> {
    let mut stats = ProfileStats::new();
    for judgement in [Judgement::sent(), Judgement::quota(60), Judgement::no_answer_of_ours(418)] {
        stats.replied(&judgement, Duration::from_millis(20));
    }
    let name = Arc::new(BridgeName { kind: BridgeKind::Fcm, app: "firefox".into() });
    let ages = CredentialAges { token: Some(Duration::from_secs(5)), certificate_expires: None };
    let (in_flight, is_breaker_open) = (4, true);
    let rest = ProfileSnapshot::of_strays(BridgeKind::Fcm, stats);
    let snapshots = ProfileSnapshots::default();
    snapshots.look().push(ProfileSnapshot { name, in_flight, is_breaker_open, ages, ..rest });
    Arc::new(snapshots)
}

/// Longest wait of a test for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
