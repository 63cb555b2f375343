//! The broadcast source: a URL that says the current version of every broadcast, polled (PROTOCOL.md 1.9 and 7.9).
//! Lives on the control plane.
//!
//! A source that fails costs nothing but news: the values known stay, the node starts and serves without it. Failures
//! are counted by reason; the log has one line when the source begins to fail and one when it answers again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use machine::counters;
use machine::stats::{Board, Counters as _};
use serde::Deserialize;

use super::broadcasts::{BROADCASTS_BODY_BYTES_MAX, Broadcasts, Values};
use super::http_client::{HttpClient, HttpClientError};
use super::jitter::jitter;
use config::Secret;
use protocol::wire::url::HttpUrl;

/// Source of broadcasts.
#[derive(Clone, Debug)]
pub struct BroadcastSource {
    pub url: HttpUrl,
    /// Sent as `Authorization: Bearer` to the origin of `url` and to no other origin.
    pub token: Option<Secret>,
    /// Between two polls.
    pub interval: Duration,
}

counters! {
    /// Numbers of the broadcast source.
    pub struct BroadcastSourceStats {
        counter broadcast_source_ok: "Polls of the broadcast source that brought its values.",
        counter broadcast_source_timeout: "Polls that were not answered within 5 s.",
        counter broadcast_source_connect: "Polls without a connection: name, address, TLS, or it broke.",
        counter broadcast_source_status: "Polls answered with another status than 2xx.",
        counter broadcast_source_body: "Polls answered with what are no broadcasts, or too many.",
        counter broadcast_source_redirect: "Polls answered with a redirect that is not followed.",
        counter broadcast_source_news: "Values of the source that were not known.",
        gauge broadcast_source_up: "1 when the last poll brought values.",
    }
}

/// State of the source, for the admin page.
pub(super) struct State {
    /// Without its query.
    pub url: String,
    /// Time of the last change between success and failure.
    pub since: Instant,
    /// Result of the last poll; `None` before the first.
    pub last: Option<Result<(), HttpClientError>>,
}

/// Poller of the source.
pub(super) struct BroadcastPoller {
    source: BroadcastSource,
    client: Arc<HttpClient>,
    broadcasts: Arc<Broadcasts>,
    state: Arc<Mutex<State>>,
    stats: BroadcastSourceStats,
    board: Arc<Board>,
    /// For one poll; [`POLL_TIME_MAX`] but in tests.
    pub patience: Duration,
    /// Least time until the next poll, as the source asked in its last answer.
    pub pause: Duration,
}

impl BroadcastPoller {
    pub fn new(source: BroadcastSource, client: Arc<HttpClient>, broadcasts: Arc<Broadcasts>) -> BroadcastPoller {
        let state = State { url: source.url.to_string(), since: Instant::now(), last: None };
        BroadcastPoller {
            source,
            client,
            broadcasts,
            state: Arc::new(Mutex::new(state)),
            stats: BroadcastSourceStats::default(),
            board: Arc::new(Board::new(&[BroadcastSourceStats::MEANINGS])),
            patience: POLL_TIME_MAX,
            pause: Duration::ZERO,
        }
    }

    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    pub fn state(&self) -> Arc<Mutex<State>> {
        Arc::clone(&self.state)
    }

    /// Polls for ever. The first wait is a random part of the interval and every other one deviates from it by up to a
    /// tenth, so that nodes that were started together do not ask together.
    pub async fn run(mut self) {
        tokio::time::sleep(self.source.interval.mul_f64(jitter())).await;
        loop {
            self.poll().await;
            tokio::time::sleep(self.source.interval.mul_f64(0.9 + 0.2 * jitter()).max(self.pause)).await;
        }
    }

    /// Asks once, takes over what it says, counts, and logs a change for better or worse.
    pub async fn poll(&mut self) {
        let mut pause = Duration::ZERO;
        let asked = tokio::time::timeout(self.patience, self.ask(&mut pause)).await;
        self.pause = pause.min(PAUSE_MAX);
        let values = asked.unwrap_or(Err(HttpClientError::Timeout));
        let set = |values| self.broadcasts.set(values).map_err(|why| HttpClientError::Body(why.to_owned()));
        let outcome = values.and_then(set);
        let stats = &mut self.stats;
        *match &outcome {
            Ok(_) => &mut stats.broadcast_source_ok,
            Err(HttpClientError::Timeout) => &mut stats.broadcast_source_timeout,
            Err(HttpClientError::Connect(_) | HttpClientError::Untrusted(_)) => &mut stats.broadcast_source_connect,
            Err(HttpClientError::Status(_)) => &mut stats.broadcast_source_status,
            Err(HttpClientError::Body(_)) => &mut stats.broadcast_source_body,
            Err(HttpClientError::Redirect(_)) => &mut stats.broadcast_source_redirect,
        } += 1;
        let news = *outcome.as_ref().unwrap_or(&0);
        stats.broadcast_source_news += news as u64;
        stats.broadcast_source_up = outcome.is_ok().into();
        stats.write_to(&self.board, 0);
        let outcome = outcome.map(drop);
        if lock(&self.state).note(outcome.clone()) {
            let url = &self.source.url;
            match outcome {
                Ok(()) => tracing::info!(%url, "broadcast source recovered"),
                Err(why) => tracing::warn!(%url, reason = %why, "broadcast source failed; the known versions stay"),
            }
        }
    }

    /// Asks, and follows redirects. `pause` becomes the time for which the source asks to wait.
    async fn ask(&self, pause: &mut Duration) -> Result<Values, HttpClientError> {
        let mut url = self.source.url.clone();
        let mut at_home = true;
        for _ in 0..=REDIRECTS_MAX {
            let answer = self.client.call(&url, self.request(at_home)?, BROADCASTS_BODY_BYTES_MAX).await?;
            if answer.status.is_success() {
                return parse(&answer.body);
            }
            *pause = answer.pause.unwrap_or_default();
            if !matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Err(HttpClientError::Status(answer.status));
            }
            let next = answer.location.and_then(|location| url.join(&location));
            let next = next.ok_or(HttpClientError::Redirect("its Location is no URL"))?;
            if url.origin().https && !next.origin().https {
                return Err(HttpClientError::Redirect("it leads from https to http"));
            }
            // A redirect to another origin is final for the token: it is not sent from then on.
            at_home &= next.origin() == self.source.url.origin();
            url = next;
        }
        Err(HttpClientError::Redirect("there are more than 3 in a row"))
    }

    fn request(&self, at_home: bool) -> Result<Request<String>, HttpClientError> {
        let mut request = Request::new(String::new());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(token) = self.source.token.as_ref().filter(|_| at_home) {
            let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.reveal()))
                .map_err(|_| HttpClientError::Connect("broadcast.token does not fit into a header".to_owned()))?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        Ok(request)
    }
}

/// For one poll with its redirects: outlives two lost SYNs (sent again after 1 s and 2 s more), where the 1 s of the
/// older service fails with the first; and a start that waits for a dead source is not held up for long.
const POLL_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause that the source asks for (`Retry-After`). Beyond it: an hour counts.
const PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// Redirects followed in one poll. Refuse: the poll fails.
const REDIRECTS_MAX: usize = 3;

/// The body of an answer. Other members than `broadcasts` are ignored, as by the services before us.
fn parse(body: &[u8]) -> Result<Values, HttpClientError> {
    #[derive(Deserialize)]
    struct Body {
        broadcasts: Values,
    }
    match serde_json::from_slice(body) {
        Ok(Body { broadcasts }) => Ok(broadcasts),
        Err(error) => {
            // The place only: text of another server does not belong in the log.
            let (line, column) = (error.line(), error.column());
            Err(HttpClientError::Body(format!("not {{\"broadcasts\": {{id: version}}}}: line {line} column {column}")))
        }
    }
}

impl State {
    /// Takes the outcome of a poll; true when that is a change between answering and failing.
    fn note(&mut self, outcome: Result<(), HttpClientError>) -> bool {
        let was_ok = self.last.as_ref().map(Result::is_ok);
        let changed = was_ok != Some(outcome.is_ok());
        if changed {
            self.since = Instant::now();
        }
        self.last = Some(outcome);
        changed
    }
}

/// Locks, also after a panic: it left the state as it was.
pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_turn_for_better_or_worse_is_worth_a_line() {
        let mut state = State { url: String::new(), since: Instant::now(), last: None };
        let outcomes = [
            (Err(HttpClientError::Timeout), true),
            (Err(HttpClientError::Connect("refused".to_owned())), false),
            (Ok(()), true),
            (Ok(()), false),
            (Err(HttpClientError::Timeout), true),
        ];
        for (outcome, worth) in outcomes {
            assert_eq!(state.note(outcome.clone()), worth, "{outcome:?}");
            assert_eq!(state.last, Some(outcome), "the admin page shows the last one in any case");
        }
    }

    #[test]
    fn what_are_no_broadcasts_is_refused() {
        for body in ["", "[]", "{}", "{\"broadcasts\":null}", "{\"broadcasts\":{\"a\":1}}", "{\"broadcasts\":{}} x"] {
            assert!(matches!(parse(body.as_bytes()), Err(HttpClientError::Body(_))), "{body}");
        }
        let values = parse(b"{\"code\":200,\"broadcasts\":{\"a/b\":\"1\"}}").unwrap();
        assert_eq!(values, Values::from([("a/b".to_owned(), "1".to_owned())]));
    }
}
