//! One profile: its calls that wait and that are under way, and the decisions on them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper::header::AUTHORIZATION;
use hyper::{Method, Request};
use machine::ids::Uaid;
use machine::upstream::{BridgeFailure, BridgeOutcome};
use tokio::time::{Instant, timeout_at};

use super::breaker::{Admission, Breaker, Change};
use super::bridge::Bridge;
use super::certificate_notice::CertificateNotice;
use super::connections::{Connections, ExchangeError};
use super::guard::{Belief, Guard};
use super::judgement::{Judgement, Reason, Retry};
use super::name::BridgeName;
use super::queue::UpstreamCall;
use super::request::Prepared;
use super::retry_budget::RetryBudget;
use super::settings::ProfileSettings;
use super::stats::ProfileStats;
use super::waiting::{UserCall, Waiting};
use crate::jitter::jitter;

/// State of one profile.
pub(super) struct Profile {
    pub name: Arc<BridgeName>,
    pub service: Arc<Service>,
    timeout: Duration,
    pub waiting: Waiting<PendingCall>,
    pub in_flight: usize,
    pub breaker: Breaker,
    pub guard: Guard,
    /// Reason of the last refusal of a token.
    refusal: Option<Reason>,
    budget: RetryBudget,
    pub stats: ProfileStats,
    /// Time of the last alarm in the log.
    alarmed: Option<Instant>,
    certificate_notice: CertificateNotice,
}

/// Bridge and connections of a profile, which its calls share. A reload makes another; calls end with that of their
/// begin.
pub(super) struct Service {
    pub bridge: Bridge,
    pub connections: Arc<Connections>,
}

/// One call, from its acceptance to its reply: it waits, or an attempt is under way.
pub(super) struct PendingCall {
    pub call: UpstreamCall,
    service: Arc<Service>,
    pub prepared: Arc<Prepared>,
    since: Instant,
    pub deadline: Instant,
    is_retry: bool,
    is_probe: bool,
}

impl UserCall for PendingCall {
    fn uaid(&self) -> Uaid {
        self.call.op.message.uaid
    }

    fn bytes(&self) -> usize {
        self.prepared.body.len()
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// Step after an attempt.
pub(super) enum Next {
    /// The call has its reply.
    Over,
    /// A second attempt.
    Again(Box<PendingCall>),
}

impl Service {
    fn new(bridge: Bridge, connections: Connections) -> Arc<Service> {
        Arc::new(Service { bridge, connections: Arc::new(connections) })
    }
}

impl Profile {
    pub fn new(settings: ProfileSettings) -> Profile {
        let ProfileSettings { name, bridge, connections, timeout } = settings;
        Profile {
            name,
            service: Service::new(bridge, connections),
            timeout,
            waiting: Waiting::new(),
            in_flight: 0,
            breaker: Breaker::new(),
            guard: Guard::new(),
            refusal: None,
            budget: RetryBudget::new(),
            stats: ProfileStats::new(),
            alarmed: None,
            certificate_notice: CertificateNotice::default(),
        }
    }

    /// A profile of the same name that leads elsewhere: of `before` it keeps the numbers, and credentials that are to
    /// change seldom.
    pub fn in_place_of(before: &Profile, settings: ProfileSettings) -> Profile {
        let mut profile = Profile::new(settings);
        profile.stats = before.stats.clone();
        // Invariant: nothing else holds a service that was made just now.
        if let Some(service) = Arc::get_mut(&mut profile.service) {
            service.bridge.adopt(&before.service.bridge);
        }
        profile
    }

    /// Returns true if these settings lead to the same project, or to the same app, at the same service: what was
    /// learned of it holds.
    pub fn leads_to(&self, settings: &ProfileSettings) -> bool {
        self.service.bridge.leads_to(&settings.bridge)
            && self.service.connections.origin() == settings.connections.origin()
    }

    /// Uses these settings from now on. What was learned of the service stays: calls, breaker, guard and numbers.
    pub fn reload(&mut self, settings: ProfileSettings) {
        let ProfileSettings { name: _, mut bridge, connections, timeout } = settings;
        bridge.adopt(&self.service.bridge);
        (self.service, self.timeout) = (Service::new(bridge, connections), timeout);
    }

    /// Makes the request of a call. `None`: the call has its reply.
    pub fn prepare(&mut self, call: UpstreamCall, now: Instant) -> Option<PendingCall> {
        match self.service.bridge.prepare(&call.op.to, &call.op.message, SystemTime::now()) {
            Ok(prepared) => {
                if let Some(left) = self.breaker.refuses(now) {
                    self.reply(call, now, now, shed(left));
                    return None;
                }
                let (prepared, deadline) = (Arc::new(prepared), now + self.timeout);
                let service = Arc::clone(&self.service);
                Some(PendingCall { call, service, prepared, since: now, deadline, is_retry: false, is_probe: false })
            }
            Err(judgement) => {
                let judgement = self.believed(judgement, now);
                self.reply(call, now, now, judgement);
                None
            }
        }
    }

    /// Lets the breaker decide on a call that would be made now. `None`: the call has its reply.
    pub fn admit(&mut self, mut pending: PendingCall, now: Instant) -> Option<PendingCall> {
        match self.breaker.admit(now) {
            Admission::Shed(left) => {
                self.reply(pending.call, pending.since, now, shed(left));
                return None;
            }
            Admission::Probe => pending.is_probe = true,
            Admission::Pass => {}
        }
        self.budget.called(now);
        self.in_flight += 1;
        self.waiting.began(pending.uaid());
        Some(pending)
    }

    /// Handles the result of an attempt.
    pub fn ended(&mut self, pending: PendingCall, judgement: Judgement, now: Instant) -> Next {
        self.in_flight -= 1;
        let sign = match pending.is_probe {
            true => judgement.sign,
            false => self.breaker.of_user(now, pending.uaid(), judgement.sign),
        };
        match self.breaker.record(now, sign, pending.is_probe, jitter()) {
            Change::Opened => {
                tracing::warn!(bridge = self.name.kind(), app = %self.name.app, "bridge breaker opened");
            }
            Change::Closed => {
                tracing::warn!(bridge = self.name.kind(), app = %self.name.app, "bridge breaker closed");
            }
            Change::None => {}
        }
        let mut judgement = self.believed(judgement, now);
        if judgement.retry != Retry::No && !pending.is_retry && now < pending.deadline {
            if self.budget.take(now) {
                self.stats.retries += 1;
                self.in_flight += 1;
                return Next::Again(Box::new(PendingCall { is_retry: true, is_probe: false, ..pending }));
            }
            judgement = Judgement::shed(SHED_SECONDS_MIN);
        }
        self.waiting.ended(pending.uaid());
        self.reply(pending.call, pending.since, now, judgement);
        Next::Over
    }

    /// Renews credentials that expire soon, and logs a client certificate that does. Called about ten times a second.
    pub fn tick(&mut self, now: Instant) {
        let bridge = &self.service.bridge;
        bridge.tick(now);
        let days_left = self.certificate_notice.take(bridge.ages().certificate_expires, now, SystemTime::now());
        if let Some(days_left) = days_left {
            let (bridge, app) = (self.name.kind(), &self.name.app);
            if days_left < 0 {
                tracing::error!(bridge, %app, days_left, "client certificate of a bridge has ended; renew it");
            } else {
                tracing::warn!(bridge, %app, days_left, "client certificate of a bridge ends soon; renew it");
            }
        }
    }

    /// Answers a call whose time is over before its turn came.
    pub fn expired(&mut self, pending: PendingCall, now: Instant) {
        self.reply(pending.call, pending.since, now, Judgement::timeout().without_call());
    }

    /// Answers a call that finds no place.
    pub fn refused(&mut self, pending: PendingCall, now: Instant) {
        self.reply(pending.call, pending.since, now, Judgement::shed(SHED_SECONDS_MIN));
    }

    /// Puts an outcome under the guard, which counts answers of the service and tokens that were refused in its place.
    fn believed(&mut self, judgement: Judgement, now: Instant) -> Judgement {
        let refuses = judgement.outcome == BridgeOutcome::Doubted;
        if refuses {
            self.refusal = Some(judgement.reason);
        }
        let belief = match judgement.answered {
            true => self.guard.answered(now, refuses),
            false => Belief::Believed,
        };
        if belief == Belief::Tripped {
            let (reason, hint) = (self.refusal.unwrap_or(judgement.reason), self.service.bridge.guard_hint());
            tracing::error!(
                bridge = self.name.kind(), app = %self.name.app, %reason, hint,
                "bridge guard active: too many device tokens refused"
            );
        }
        if belief == Belief::Believed || !refuses {
            return judgement;
        }
        Judgement { outcome: BridgeOutcome::Failed(BridgeFailure::Configuration), ..judgement }
    }

    fn reply(&mut self, call: UpstreamCall, since: Instant, now: Instant, judgement: Judgement) {
        if let Some(text) = &judgement.alarm
            && self.alarmed.is_none_or(|time| now.saturating_duration_since(time) >= ALARM_INTERVAL)
        {
            self.alarmed = Some(now);
            let reason = judgement.reason;
            tracing::error!(bridge = self.name.kind(), app = %self.name.app, %reason, text, "bridge call refused");
        }
        self.stats.replied(&judgement, now.saturating_duration_since(since));
        if let Some((queue, ticket)) = call.back {
            queue.leave(ticket, judgement.outcome);
        }
    }
}

fn shed(left: Duration) -> Judgement {
    let left = u32::try_from(left.as_secs_f64().ceil() as u64).unwrap_or(u32::MAX);
    Judgement::shed(left.max(SHED_SECONDS_MIN))
}

/// One attempt, until the deadline of the call.
pub(super) async fn attempt(pending: &PendingCall) -> Judgement {
    let made = timeout_at(pending.deadline, exchange(&pending.service, &pending.prepared)).await;
    made.unwrap_or_else(|_| Judgement::timeout())
}

async fn exchange(service: &Service, prepared: &Prepared) -> Judgement {
    let authorization = match service.bridge.authorize().await {
        Ok(authorization) => authorization,
        Err(judgement) => return judgement,
    };
    let Ok(mut stream) = Connections::stream(&service.connections).await else { return Judgement::unreachable() };
    let origin = service.connections.origin();
    let scheme = if origin.https { "https" } else { "http" };
    let uri = format!("{scheme}://{}{}", origin.authority(), prepared.path);
    let request = Request::builder().method(Method::POST).uri(uri).body(Full::new(prepared.body.clone()));
    // The path holds a device token: it may be none of a URL.
    let Ok(mut request) = request else { return Judgement::doubted_here(Reason::BadToken) };
    request.headers_mut().extend(prepared.headers.clone());
    if let Some(header) = &authorization.header {
        request.headers_mut().insert(AUTHORIZATION, header.clone());
    }
    match stream.exchange(request).await {
        Ok(answer) => {
            let judgement = service.bridge.judge(&answer, &prepared.to, SystemTime::now());
            if judgement.reconnect {
                stream.give_up()
            } else {
                stream.was_of_use()
            }
            if judgement.retry == Retry::NewCredentials && !service.bridge.renew(&authorization) {
                return judgement.retrying(Retry::No);
            }
            judgement
        }
        Err(ExchangeError::Unconnected | ExchangeError::Broken) => Judgement::unreachable(),
        Err(ExchangeError::Unprocessed) => {
            Judgement { answered: false, ..Judgement::unavailable(PAUSE_SECONDS) }.retrying(Retry::Unprocessed)
        }
        Err(ExchangeError::Unreadable(status)) => Judgement::no_answer_of_ours(status),
    }
}

/// Least pause of senders whose call is shed.
const SHED_SECONDS_MIN: u32 = 10;
/// Pause of senders when a service processes no request.
const PAUSE_SECONDS: u32 = 120;
/// Time between two alarms of one profile in the log.
const ALARM_INTERVAL: Duration = Duration::from_secs(60);
