//! Settings of all profiles, made of the configuration at the start and at a reload.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::header::HeaderValue;
use machine::upstream::BridgeKind;
use protocol::webpush::message_id::MessageIds;
use rustls::sign::SingleCertAndKey;

use super::apns::{Apns, read_channels};
use super::bridge::Bridge;
use super::connections::Connections;
use super::fcm::{Fcm, FcmRules, read_profiles};
use super::name::BridgeName;
use super::request::Check;
use crate::http_client::{HttpClient, client_config};
use config::Config;

/// Bounds of the calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Calls of each profile that are under way (`bridge.max_in_flight`). Queue: the others wait.
    pub in_flight_max: usize,
    /// Calls of each profile that wait (`bridge.queue`). Refuse: `Unavailable`.
    pub waiting_max: usize,
    /// Bytes of the bodies that wait, of all profiles (`bridge.queue_bytes`). Refuse: `Unavailable`.
    pub waiting_bytes_max: usize,
}

/// Everything that the bridges need of the configuration.
pub struct BridgeSettings {
    pub(super) profiles: Vec<ProfileSettings>,
    pub(super) bounds: Bounds,
}

/// One profile.
pub(crate) struct ProfileSettings {
    pub name: Arc<BridgeName>,
    pub(super) bridge: Bridge,
    pub(super) connections: Connections,
    /// For one call, with everything that it waits for.
    pub timeout: Duration,
}

impl BridgeSettings {
    /// Reads the credentials that the configuration names; `crypto_keys` seal message ids.
    ///
    /// # Errors
    /// A sentence without a secret.
    pub fn read(config: &Config, crypto_keys: &[String]) -> Result<BridgeSettings, String> {
        let mut profiles = Vec::new();
        fcm(config, &mut profiles)?;
        apns(config, crypto_keys, &mut profiles)?;
        let bounds = Bounds {
            in_flight_max: usize::from(config.bridge_calls.max_in_flight),
            waiting_max: usize::from(config.bridge_calls.queue),
            waiting_bytes_max: config.bridge_calls.queue_bytes,
        };
        Ok(BridgeSettings { profiles, bounds })
    }

    /// Returns what an operator should know of each profile. `online`: also asks each service once, without a
    /// notification.
    pub async fn report(&self, online: bool) -> Vec<ProfileReport> {
        let mut reports = Vec::new();
        for profile in &self.profiles {
            let check = if online { Some(profile.check().await) } else { None };
            reports.push(ProfileReport {
                name: format!("{} {}", profile.name.kind(), profile.name.app),
                certificate_expires: profile.bridge.ages().certificate_expires,
                clock_ahead: check.as_ref().and_then(|check| check.date).map(|date| ahead(SystemTime::now(), date)),
                service: check.map(|check| check.service),
            });
        }
        reports
    }

    /// Returns the names of the profiles.
    pub fn names(&self) -> BTreeSet<BridgeName> {
        self.profiles.iter().map(|profile| BridgeName::clone(&profile.name)).collect()
    }
}

/// State of one profile for an operator.
pub struct ProfileReport {
    pub name: String,
    pub certificate_expires: Option<SystemTime>,
    /// Seconds by which the clock of this host is ahead of that of the service, if its answer said.
    pub clock_ahead: Option<i64>,
    /// Answer of the service, if it was asked: a sentence without a secret if it is none of use.
    pub service: Option<Result<(), String>>,
}

impl ProfileSettings {
    /// Asks the service once: an access token of Google, or a request of Apple that is no notification.
    async fn check(&self) -> Check {
        match &self.bridge {
            Bridge::Fcm(fcm) => fcm.check().await,
            Bridge::Apns(_) => self.connections.check().await,
        }
    }
}

/// Returns the seconds from `date` to `now`, negative if that is earlier.
fn ahead(now: SystemTime, date: SystemTime) -> i64 {
    let seconds = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    now.duration_since(date).map_or_else(|early| -seconds(early.duration()), seconds)
}

fn fcm(config: &Config, profiles: &mut Vec<ProfileSettings>) -> Result<(), String> {
    let (fcm, ca) = (&config.fcm, config.bridge_calls.ca_file.as_deref());
    let Some(credentials) = &fcm.credentials else { return Ok(()) };
    let base = fcm.base_url.as_ref().ok_or("bridge.fcm.base_url is not set")?;
    let rules = FcmRules { min_ttl: fcm.min_ttl, max_ttl: fcm.max_ttl, max_data: fcm.max_data, collapse: fcm.collapse };
    let tls = client_config(ca).map_err(|error| format!("cannot read bridge.ca_file: {error}"))?;
    let mut over_h2 = tls.clone();
    over_h2.alpn_protocols = vec![b"h2".to_vec()];
    for profile in read_profiles(credentials.reveal())? {
        tracing::info!(bridge = "fcm", app = %profile.app, "bridge credentials read");
        let client = HttpClient::configured(tls.clone());
        let bridge = Fcm::new(&profile.app, base.target(), &profile.project, rules, profile.account, client);
        let client = HttpClient::configured(over_h2.clone());
        let connections = Connections::new(base.origin().clone(), client, usize::from(fcm.connections), IDLE_TIMEOUT);
        profiles.push(ProfileSettings {
            name: Arc::new(BridgeName { kind: BridgeKind::Fcm, app: profile.app }),
            bridge: Bridge::Fcm(bridge),
            connections,
            timeout: fcm.timeout,
        });
    }
    Ok(())
}

fn apns(config: &Config, crypto_keys: &[String], profiles: &mut Vec<ProfileSettings>) -> Result<(), String> {
    let (apns, ca) = (&config.apns, config.bridge_calls.ca_file.as_deref());
    let Some(text) = &apns.channels else { return Ok(()) };
    let mut tls = client_config(ca).map_err(|error| format!("cannot read bridge.ca_file: {error}"))?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    for channel in read_channels(text.reveal())? {
        tracing::info!(bridge = "apns", app = %channel.name, "bridge credentials read");
        let ids = MessageIds::new(crypto_keys).map_err(|_| "endpoint.crypto_keys cannot be used".to_owned())?;
        let topic = HeaderValue::try_from(&channel.topic).map_err(|_| "a topic cannot be sent".to_owned())?;
        let bridge = Apns { topic, credential: channel.credential, data_bytes_max: apns.max_data, ids };
        let mut tls = tls.clone();
        if let Some(certificate) = channel.certificate {
            tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certificate));
        }
        let (client, most) = (HttpClient::configured(tls), usize::from(apns.connections));
        profiles.push(ProfileSettings {
            name: Arc::new(BridgeName { kind: BridgeKind::Apns, app: channel.name }),
            bridge: Bridge::Apns(Box::new(bridge)),
            connections: Connections::new(channel.url.origin().clone(), client, most, apns.idle_timeout),
            timeout: apns.timeout,
        });
    }
    Ok(())
}

/// Time after which a connection to FCM that no call uses is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
