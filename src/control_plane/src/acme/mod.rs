//! Certificates from an ACME authority (RFC 8555): ordered, kept in the data directory, renewed
//! (docs/decisions/0025-acme.md).
//!
//! One task, one order at a time, one order for each name: a name that fails leaves the others alone. [`schedule`] has
//! the times, [`order`] speaks with the authority, [`files`] keeps what it issued.
//! Lives on: the control plane.

mod answers;
mod files;
mod http;
mod stats;
mod order;
mod schedule;
#[cfg(test)]
mod tests;

pub use answers::Answers;
pub use stats::{OrderBook, Outcome};

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instant_acme::{Account, NewAccount};
use tokio::time::Instant;

use super::host::Host;
use super::http_client::HttpClient;
use super::jitter::jitter;
use files::{Files, Issued};
use http::Http;
use order::{Failure, Wanted, order};

/// Orders certificates and renews them.
pub struct Acme {
    settings: config::Acme,
    files: Arc<Files>,
    http: Http,
    account: Option<Account>,
    names: Vec<Name>,
    answers: Answers,
    book: Arc<OrderBook>,
    /// Attempts in a row to show new certificates that failed; 0: the listeners show all.
    unshown: u32,
    /// Time of the next such attempt.
    show_at: Instant,
}

/// One name, and its times.
struct Name {
    name: String,
    issued: Option<Issued>,
    /// Window of the renewal, as the authority suggests.
    window: Option<(SystemTime, SystemTime)>,
    /// Time of the next question for it.
    ask_at: Instant,
    /// Chance of this certificate, from 0 to 1.
    draw: f64,
    failures: u32,
    /// No order before this.
    not_before: Instant,
}

impl Name {
    fn new(name: &str, issued: Option<Issued>) -> Name {
        let (window, now) = (None, Instant::now());
        Name { name: name.to_owned(), issued, window, ask_at: now, draw: jitter(), failures: 0, not_before: now }
    }

    /// Time until the certificate is due, by the host clock; none without a certificate.
    fn due_in(&self) -> Duration {
        let due = |issued: &Issued| schedule::renewal(&issued.validity, self.window, self.draw);
        self.issued
            .as_ref()
            .map_or(Duration::ZERO, |issued| due(issued).duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Time until the next order.
    fn order_in(&self) -> Duration {
        // The host clock can step; the pause after an order must not change with it.
        self.due_in().max(left(self.not_before))
    }

    /// Time until the next question for the window; `None` without a certificate that the authority knows by an
    /// identity.
    fn asks_in(&self) -> Option<Duration> {
        self.issued.as_ref()?.id.as_ref().map(|_| left(self.ask_at))
    }

    /// Time until either.
    fn next_in(&self) -> Duration {
        let order_in = self.order_in();
        self.asks_in().map_or(order_in, |asks_in| asks_in.min(order_in))
    }
}

impl Acme {
    /// With the settings `acme.*`, for these names, in this directory. Reads what is there.
    ///
    /// # Errors
    /// If `acme.ca` cannot be read.
    pub fn new(
        settings: config::Acme,
        names: &[String],
        dir: PathBuf,
        (answers, book): (Answers, Arc<OrderBook>),
    ) -> io::Result<Option<Acme>> {
        let Some(directory) = settings.directory.clone() else { return Ok(None) };
        let client = match &settings.ca {
            Some(path) => HttpClient::trusting_file(path)?,
            None => HttpClient::new(),
        };
        let files = Arc::new(Files::new(dir, directory.to_string()));
        let names: Vec<Name> = names.iter().map(|name| Name::new(name, files.issued(name))).collect();
        for Name { name, .. } in names.iter().filter(|name| name.issued.is_none()) {
            book.set_missing(name, None);
        }
        let http = Http::new(client, directory);
        let (account, unshown, show_at) = (None, 0, Instant::now());
        Ok(Some(Acme { settings, files, http, account, names, answers, book, unshown, show_at }))
    }

    pub(super) fn book(&self) -> Arc<OrderBook> {
        Arc::clone(&self.book)
    }

    /// Orders what is due, for ever. `host` takes new certificates.
    pub(super) async fn run(mut self, host: Arc<dyn Host>) {
        loop {
            self.book.set_next(self.names.iter().map(Name::order_in).min().map(|left| SystemTime::now() + left));
            // One name at a time, so that a wake and the time of the next order do not wait for all of them.
            let first = (0..self.names.len()).min_by_key(|at| self.names[*at].next_in());
            let shows_in = (self.unshown > 0).then(|| left(self.show_at));
            let next = shows_in.into_iter().chain(first.map(|at| self.names[at].next_in())).min();
            // The clock of the host can step, so that a long sleep would end at a wrong time.
            let pause = tokio::time::sleep(next.unwrap_or(LOOK_MAX).clamp(LOOK_MIN, LOOK_MAX));
            tokio::select! {
                () = pause => {
                    if self.unshown > 0 && left(self.show_at).is_zero() {
                        self.show(&host).await;
                    }
                    if let Some(at) = first {
                        self.attend(at, &host).await;
                    }
                }
                () = self.book.woken() => {
                    let now = Instant::now();
                    self.show_at = now;
                    self.names.iter_mut().for_each(|name| (name.ask_at, name.not_before) = (now, now));
                }
            }
        }
    }

    /// Asks for the window of one name and orders its certificate, as far as either is due.
    async fn attend(&mut self, at: usize, host: &Arc<dyn Host>) {
        if self.names[at].asks_in().is_some_and(|left| left.is_zero()) {
            self.ask(at).await;
        }
        if !self.names[at].order_in().is_zero() {
            return;
        }
        let name = self.names[at].name.clone();
        tracing::info!(name, directory = %self.http.directory, "certificate order begun");
        // Only what is asked for within this order counts.
        self.http.take_pause();
        let ordered = tokio::time::timeout(ORDER_TIME_MAX, self.order(at)).await;
        let timeout = |_| Err(Failure::new(Outcome::Timeout, &"no certificate in time"));
        match ordered.unwrap_or_else(timeout) {
            Ok(issued) => self.issued(at, issued, host).await,
            Err(failure) => self.failed(at, &failure),
        }
    }

    /// Orders the certificate of one name and writes it to its file.
    async fn order(&mut self, at: usize) -> Result<Issued, Failure> {
        let account = self.account().await?;
        let name = &self.names[at];
        let wanted = Wanted {
            name: &name.name,
            // Without a window the authority does not know this certificate, or not the extension.
            replaces: name.issued.as_ref().filter(|_| name.window.is_some()).and_then(|issued| issued.id.clone()),
            profile: self.settings.profile.as_deref(),
            challenge: self.settings.challenge,
        };
        let ordered = order(&account, &wanted, &self.answers, &self.files).await?;
        let (files, name) = (Arc::clone(&self.files), name.name.clone());
        let kept = tokio::task::spawn_blocking(move || files.set_issued(&name, &ordered.key, &ordered.chain)).await;
        let kept = kept.map_err(|error| error.to_string()).and_then(|kept| kept);
        kept.map_err(|reason| Failure::new(Outcome::Failed, &reason))
    }

    async fn issued(&mut self, at: usize, issued: Issued, host: &Arc<dyn Host>) {
        let last_day = issued.validity.last_day();
        let Name { name, failures, .. } = &self.names[at];
        let failures = failures.saturating_add(1);
        tracing::info!(name, last_day, "certificate issued");
        self.names[at] = Name::new(name, Some(issued));
        self.book.count(Outcome::Issued);
        self.show(host).await;
        self.ask(at).await;
        let name = &mut self.names[at];
        let mut pause = schedule::BACK_OFF_MIN;
        if name.due_in().is_zero() {
            // The host clock is ahead, or the windows of this authority are always over: no stream of orders.
            name.failures = failures;
            pause = schedule::back_off(failures, jitter());
            let (name, retry_seconds) = (&name.name, pause.as_secs());
            tracing::warn!(name, last_day, retry_seconds, "new certificate due at once; check the clock of this host");
        }
        name.not_before = Instant::now() + pause;
    }

    /// Has the listeners show all certificates. They take all or none; then it is tried again later.
    async fn show(&mut self, host: &Arc<dyn Host>) {
        let host = Arc::clone(host);
        let taken = tokio::task::spawn_blocking(move || host.renew_certificates()).await;
        let Err(reason) = taken.map_err(|error| error.to_string()).and_then(|taken| taken) else {
            self.unshown = 0;
            for Name { name, .. } in self.names.iter().filter(|name| name.issued.is_some()) {
                self.book.set_issued(name);
            }
            return;
        };
        self.unshown = self.unshown.saturating_add(1);
        let pause = schedule::back_off(self.unshown, jitter());
        self.show_at = Instant::now() + pause;
        let retry_seconds = pause.as_secs();
        tracing::error!(retry_seconds, reason, "new certificate not taken by the listeners; the old certificates stay");
    }

    fn failed(&mut self, at: usize, failure: &Failure) {
        let name = &mut self.names[at];
        name.failures = name.failures.saturating_add(1);
        let asked = self.http.take_pause().min(schedule::BACK_OFF_MAX);
        let pause = schedule::back_off(name.failures, jitter()).max(asked);
        name.not_before = Instant::now() + pause;
        self.book.count(failure.outcome);
        if name.issued.is_none() {
            self.book.set_missing(&name.name, Some(failure.reason.clone()));
        }
        // The directory is read again with the next order.
        self.account = None;
        if failure.no_account {
            self.files.remove_account();
        }
        let (outcome, retry_seconds, reason) = (failure.outcome.name(), pause.as_secs(), &failure.reason);
        tracing::warn!(name = name.name, outcome, retry_seconds, reason, "certificate order failed");
    }

    /// Asks the authority for the window of a renewal (RFC 9773 section 4). Without an answer, two thirds of the
    /// lifetime count.
    async fn ask(&mut self, at: usize) {
        let account = self.account().await;
        let name = &mut self.names[at];
        let Some(id) = name.issued.as_ref().and_then(|issued| issued.id.as_ref()) else { return };
        let asked = match account {
            Ok(account) => account.renewal_info(id).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        let pause = match asked {
            Ok((info, pause)) => {
                let time = |seconds: i64| {
                    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
                };
                let window = info.suggested_window;
                name.window = Some((time(window.start.unix_timestamp()), time(window.end.unix_timestamp())));
                schedule::ask_again(pause)
            }
            Err(failure) => {
                tracing::debug!(name = name.name, reason = failure.reason, "renewal information not received");
                ASK_FAILED
            }
        };
        name.ask_at = Instant::now() + pause;
    }

    /// Returns the account. Makes one if there is none.
    async fn account(&mut self) -> Result<Account, Failure> {
        if let Some(account) = &self.account {
            return Ok(account.clone());
        }
        let failed = |error: io::Error| Failure::new(Outcome::Failed, &format!("the account: {error}"));
        let builder = Account::builder_with_http(Box::new(self.http.clone()));
        let account = match self.files.account().map_err(failed)? {
            Some(credentials) => builder.from_credentials(credentials).await?,
            None => {
                let contact = self.settings.email.as_ref().map(|email| format!("mailto:{email}"));
                let contact: Vec<&str> = contact.as_deref().into_iter().collect();
                let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
                let (account, credentials) = builder.create(&new, self.http.directory.to_string(), None).await?;
                self.files.set_account(&credentials).map_err(failed)?;
                tracing::info!(directory = %self.http.directory, "certificate authority account created");
                account
            }
        };
        Ok(self.account.insert(account).clone())
    }
}

/// Time until then; none afterwards.
fn left(at: Instant) -> Duration {
    at.saturating_duration_since(Instant::now())
}

/// Time for one order in all. Beyond it: the order fails.
const ORDER_TIME_MAX: Duration = Duration::from_secs(300);
/// Pauses between two looks at the times of the names.
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(3_600);
/// Pause after a question for a window without an answer.
const ASK_FAILED: Duration = Duration::from_secs(3_600);
