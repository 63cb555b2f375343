//! Access token of one profile (RFC 6749, RFC 7523). One fetch at a time; renewed before it expires, and used until it
//! does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use machine::upstream::BridgeFailure;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::account::ServiceAccount;
use crate::bridges::judgement::{Judgement, Reason};
use crate::bridges::request::{Authorization, Check, date_of};
use crate::http_client::{HttpClient, HttpClientError};
use crate::jitter::jitter;
use crate::retry_after::retry_seconds;

/// Access token of one profile, and its fetches.
pub(super) struct GoogleToken {
    app: Box<str>,
    account: ServiceAccount,
    client: HttpClient,
    state: Mutex<State>,
    /// Counts the fetches that have ended.
    fetches: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// Number of the last token.
    generation: u64,
    is_fetching: bool,
    /// Fetches in a row that failed.
    failures: u32,
    /// No fetch before this time.
    not_before: Option<Instant>,
    /// Pause that the token endpoint asked for in its last answer.
    asked: Option<Duration>,
    /// Outcome for calls without a token, as of the last fetch.
    failure: Option<Judgement>,
    /// Time at which FCM last refused a token.
    refused: Option<Instant>,
}

struct Token {
    header: HeaderValue,
    fetched: Instant,
    /// Time at which it is renewed.
    renewed: Instant,
    expires: Instant,
}

impl GoogleToken {
    pub fn new(app: &str, account: ServiceAccount, client: HttpClient) -> GoogleToken {
        GoogleToken { app: app.into(), account, client, state: Mutex::default(), fetches: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the token, after a fetch if need be. Time is the caller's to bound.
    ///
    /// # Errors
    /// The outcome for a call without a token.
    pub async fn get(token: &Arc<GoogleToken>) -> Result<Authorization, Judgement> {
        let mut fetches = token.fetches.subscribe();
        if let Some(authorization) = token.valid() {
            return Ok(authorization);
        }
        GoogleToken::fetch(token, Instant::now());
        if token.state().is_fetching {
            // An error cannot be: the sender lives as long as `token`.
            let _ = fetches.changed().await;
        }
        token.valid().ok_or_else(|| token.state().failure.clone().unwrap_or_else(Judgement::unreachable))
    }

    fn valid(&self) -> Option<Authorization> {
        let state = self.state();
        let token = state.token.as_ref().filter(|token| Instant::now() < token.expires)?;
        Some(Authorization { header: Some(token.header.clone()), generation: state.generation })
    }

    /// Discards the token of this number, which FCM refused. Returns true if there is or may be another one.
    pub fn refused(&self, generation: u64) -> bool {
        let (mut state, now) = (self.state(), Instant::now());
        if state.generation != generation {
            return true;
        }
        if state.token.is_none() {
            return state.is_fetching;
        }
        // A service that refuses every token does not make us fetch one for every call.
        if state.refused.is_some_and(|time| now.saturating_duration_since(time) < REFUSALS_APART) {
            return false;
        }
        (state.token, state.refused, state.not_before) = (None, Some(now), None);
        true
    }

    /// Fetches a token if there is none, or it expires soon.
    pub fn renew_early(token: &Arc<GoogleToken>, now: Instant) {
        let is_fresh = token.state().token.as_ref().is_some_and(|token| now < token.renewed);
        if !is_fresh {
            GoogleToken::fetch(token, now);
        }
    }

    /// Returns the age of the token.
    pub fn age(&self) -> Option<Duration> {
        self.state().token.as_ref().map(|token| token.fetched.elapsed())
    }

    /// Starts a fetch, unless one is under way or the last one was just now.
    fn fetch(token: &Arc<GoogleToken>, now: Instant) {
        let mut state = token.state();
        if state.is_fetching || state.not_before.is_some_and(|time| now < time) {
            return;
        }
        state.is_fetching = true;
        drop(state);
        let token = Arc::clone(token);
        tokio::spawn(async move {
            let fetched = token.ask_in_time(&mut None).await;
            token.fetched(fetched);
        });
    }

    /// Asks for a token, and discards it.
    pub async fn check(&self) -> Check {
        let mut date = None;
        let asked = self.ask_in_time(&mut date).await;
        let why = |judgement: Judgement| judgement.alarm.unwrap_or_else(|| "no answer".to_owned());
        Check { service: asked.map(drop).map_err(why), date }
    }

    /// Asks for a token; `date` becomes the clock of the server that answers.
    async fn ask_in_time(&self, date: &mut Option<SystemTime>) -> Result<Token, Judgement> {
        timeout(FETCH_TIME_MAX, self.ask(date)).await.unwrap_or_else(|_| Err(no_connection("timeout")))
    }

    fn fetched(&self, fetched: Result<Token, Judgement>) {
        let mut state = self.state();
        state.is_fetching = false;
        match fetched {
            Ok(token) => {
                if state.failures > 0 || state.generation == 0 {
                    tracing::info!(bridge = "fcm", app = %self.app, "bridge credentials accepted");
                }
                state.generation += 1;
                // Also for a service whose tokens expire at once.
                state.not_before = Some(token.fetched + PAUSE_MIN);
                (state.token, state.failures, state.failure) = (Some(token), 0, None);
            }
            Err(judgement) => {
                let span = (PAUSE_MIN * 2u32.saturating_pow(state.failures.min(6))).min(PAUSE_MAX);
                state.failures = state.failures.saturating_add(1);
                let asked = state.asked.take().unwrap_or_default();
                state.not_before = Some(Instant::now() + span.mul_f64(0.5 + jitter() / 2.0).max(asked));
                let reason = judgement.alarm.as_deref().unwrap_or("no answer");
                if judgement.reason == Reason::Authentication {
                    tracing::error!(bridge = "fcm", app = %self.app, reason, "bridge credentials refused");
                } else {
                    tracing::warn!(bridge = "fcm", app = %self.app, reason, "bridge token not fetched");
                }
                // The line is there; the calls that wait need not repeat it.
                state.failure = Some(Judgement { alarm: None, ..judgement });
            }
        }
        drop(state);
        self.fetches.send_modify(|fetches| *fetches += 1);
    }

    async fn ask(&self, date: &mut Option<SystemTime>) -> Result<Token, Judgement> {
        let assertion = self.account.assertion(SystemTime::now()).ok_or_else(|| no_connection("no signature"))?;
        let body = format!("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={assertion}");
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        let answer = self.client.send(&self.account.token_uri, request, |_| ANSWER_BYTES_MAX).await;
        let answer = answer.map_err(|error| no_connection(&no_secrets(&error)))?;
        *date = date_of(answer.headers());
        let status = answer.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            let pause = retry_seconds(answer.headers(), SystemTime::now());
            self.state().asked = pause.map(|seconds| Duration::from_secs(u64::from(seconds)));
            let text = format!("the token endpoint answered {}", status.as_u16());
            let unavailable = Judgement::unavailable(pause.unwrap_or(PAUSE_SECONDS));
            return Err(Judgement { answered: false, ..unavailable }.alarming(text));
        }
        if status.is_client_error() {
            let error: Refusal = serde_json::from_slice(answer.body()).unwrap_or_default();
            let error: String = error.error.chars().filter(char::is_ascii_graphic).take(64).collect();
            let text = format!("the token endpoint answered {} {error}; check the service account", status.as_u16());
            let judgement = Judgement::failed(BridgeFailure::Authentication, Reason::Authentication);
            return Err(judgement.without_call().alarming(text));
        }
        let granted: Granted = serde_json::from_slice(answer.body())
            .map_err(|_| no_connection(&format!("the token endpoint answered {} without a token", status.as_u16())))?;
        let header = HeaderValue::try_from(format!("Bearer {}", granted.access_token));
        let mut header = header.map_err(|_| no_connection("the token endpoint answered a token that is no text"))?;
        header.set_sensitive(true);
        let (fetched, seconds) = (Instant::now(), granted.expires_in.clamp(0.0, TOKEN_SECONDS_MAX));
        let life = Duration::from_secs_f64(seconds);
        let renewed = fetched + life.saturating_sub(RENEW_BEFORE).max(life / 2);
        Ok(Token { header, fetched, renewed, expires: fetched + life })
    }
}

fn no_connection(reason: &str) -> Judgement {
    Judgement::unreachable().alarming(reason)
}

/// Returns the reason without anything that the server wrote.
fn no_secrets(error: &HttpClientError) -> String {
    match error {
        HttpClientError::Body(_) => "the answer of the token endpoint is too large or incomplete".to_owned(),
        error => error.to_string(),
    }
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: f64,
}

#[derive(Deserialize, Default)]
struct Refusal {
    #[serde(default)]
    error: String,
}

/// Time before its expiry at which a token is renewed, but not before half of its life.
const RENEW_BEFORE: Duration = Duration::from_secs(300);
/// Time for one fetch. Beyond it: as a connection that is refused.
const FETCH_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a fetch. After each that failed it is doubled, with jitter.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time between two tokens that are discarded because FCM refused them.
const REFUSALS_APART: Duration = Duration::from_secs(10);
/// Bytes of the answer of the token endpoint.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Seconds that a token is used at most.
const TOKEN_SECONDS_MAX: f64 = 86_400.0;
/// Pause of senders while the token endpoint fails.
const PAUSE_SECONDS: u32 = 120;
