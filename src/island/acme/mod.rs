//! Certificates from an ACME authority (RFC 8555): ordered, kept in the data directory, renewed
//! (docs/decisions/0025-acme.md).
//!
//! One task, one order at a time, one order for each name: a name that fails leaves the others alone. [`schedule`] has
//! the times, [`order`] speaks with the authority, [`files`] keeps what it issued.
//! Lives on: the island.

mod files;
mod http;
mod numbers;
mod order;
mod schedule;
#[cfg(test)]
mod tests;

pub use numbers::{OrderBook, Outcome};
pub use order::Answers;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instant_acme::{Account, NewAccount};
use ring::rand::{SecureRandom as _, SystemRandom};

use super::Host;
use super::client::Client;
use crate::config;
use files::{Files, Issued};
use http::Http;
use order::{Failure, Wanted, order};

/// Orders certificates and renews them.
pub(crate) struct Acme {
    settings: config::Acme,
    files: Files,
    http: Http,
    account: Option<Account>,
    names: Vec<Name>,
    answers: Answers,
    book: Arc<OrderBook>,
}

/// One name, and its times.
struct Name {
    name: String,
    issued: Option<Issued>,
    /// Window of the renewal, as the authority suggests.
    window: Option<(SystemTime, SystemTime)>,
    /// Time of the next question for it.
    ask_at: SystemTime,
    /// Chance of this certificate, from 0 to 1.
    draw: f64,
    failures: u32,
    /// No order before this.
    not_before: SystemTime,
}

impl Name {
    fn new(name: &str, issued: Option<Issued>) -> Name {
        let (window, ask_at, not_before) = (None, SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
        Name { name: name.to_owned(), issued, window, ask_at, draw: draw(), failures: 0, not_before }
    }

    /// Time of the next order.
    fn order_at(&self) -> SystemTime {
        let due = |issued: &Issued| schedule::renewal(&issued.validity, self.window, self.draw);
        self.issued.as_ref().map_or(self.not_before, due).max(self.not_before)
    }

    /// Time of the next question for the window; `None` without a certificate that the authority knows by an identity.
    fn asks_at(&self) -> Option<SystemTime> {
        self.issued.as_ref()?.id.as_ref().map(|_| self.ask_at)
    }
}

impl Acme {
    /// With the settings `acme.*`, for these names, in this directory. Reads what is there.
    ///
    /// # Errors
    /// If `acme.ca` cannot be read.
    pub(crate) fn new(
        settings: config::Acme,
        names: &[String],
        dir: PathBuf,
        (answers, book): (Answers, Arc<OrderBook>),
    ) -> io::Result<Option<Acme>> {
        let Some(directory) = settings.directory.clone() else { return Ok(None) };
        let client = match &settings.ca {
            Some(path) => Client::trusting_file(path)?,
            None => Client::new(),
        };
        let files = Files::new(dir, directory.to_string());
        let names: Vec<Name> = names.iter().map(|name| Name::new(name, files.issued(name))).collect();
        for Name { name, .. } in names.iter().filter(|name| name.issued.is_none()) {
            book.set_missing(name, None);
        }
        let http = Http { client: Arc::new(client), directory };
        Ok(Some(Acme { settings, files, http, account: None, names, answers, book }))
    }

    pub(super) fn book(&self) -> Arc<OrderBook> {
        Arc::clone(&self.book)
    }

    /// Orders what is due, for ever. `host` takes new certificates.
    pub(super) async fn run(mut self, host: Arc<dyn Host>) {
        loop {
            for at in 0..self.names.len() {
                self.attend(at, &host).await;
            }
            let now = SystemTime::now();
            self.book.set_next(self.names.iter().map(Name::order_at).min());
            let times = self.names.iter().flat_map(|name| [Some(name.order_at()), name.asks_at()]).flatten();
            let next = times.min().map_or(LOOK_MAX, |at| at.duration_since(now).unwrap_or_default());
            // The clock of the host can step, so that a long sleep would end at a wrong time.
            let pause = tokio::time::sleep(next.clamp(LOOK_MIN, LOOK_MAX));
            tokio::select! {
                () = pause => {}
                () = self.book.woken() => self.names.iter_mut().for_each(|name| {
                    name.ask_at = SystemTime::UNIX_EPOCH;
                    name.not_before = SystemTime::UNIX_EPOCH;
                }),
            }
        }
    }

    /// Asks for the window of one name and orders its certificate, as far as either is due.
    async fn attend(&mut self, at: usize, host: &Arc<dyn Host>) {
        let now = SystemTime::now();
        if self.names[at].asks_at().is_some_and(|ask_at| ask_at <= now) {
            self.ask(at).await;
        }
        if self.names[at].order_at() > now {
            return;
        }
        let name = self.names[at].name.clone();
        tracing::info!(name, directory = %self.http.directory, "certificate order begun");
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
        let ordered = order(&account, &wanted, &self.answers).await?;
        let kept = self.files.set_issued(&name.name, &ordered.key, &ordered.chain);
        kept.map_err(|reason| Failure::new(Outcome::Failed, &reason))
    }

    async fn issued(&mut self, at: usize, issued: Issued, host: &Arc<dyn Host>) {
        let last_day = issued.validity.last_day();
        let name = &mut self.names[at];
        *name = Name::new(&name.name, Some(issued));
        // An authority whose windows are always over gets no stream of orders.
        name.not_before = SystemTime::now() + schedule::BACK_OFF_MIN;
        let host = Arc::clone(host);
        let taken = tokio::task::spawn_blocking(move || host.renew_certificates()).await;
        tracing::info!(name = name.name, last_day, "certificate issued");
        if let Ok(Err(reason)) = taken {
            tracing::error!(name = name.name, "new certificate not shown, the old ones stay: {reason}; send SIGHUP");
        }
        self.book.count(Outcome::Issued);
        self.book.set_issued(&name.name);
        self.ask(at).await;
    }

    fn failed(&mut self, at: usize, failure: &Failure) {
        let name = &mut self.names[at];
        name.failures = name.failures.saturating_add(1);
        let pause = schedule::back_off(name.failures, draw());
        name.not_before = SystemTime::now() + pause;
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
                tracing::debug!(name = name.name, reason = failure.reason, "no renewal information");
                ASK_FAILED
            }
        };
        name.ask_at = SystemTime::now() + pause;
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
                tracing::info!(directory = %self.http.directory, "account made with the certificate authority");
                account
            }
        };
        Ok(self.account.insert(account).clone())
    }
}

/// A number from 0 to 1, or the middle if the kernel gives no random bytes.
fn draw() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

/// Time for one order in all. Beyond it: the order fails.
const ORDER_TIME_MAX: Duration = Duration::from_secs(300);
/// Pauses between two looks at the times of the names.
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(3_600);
/// Pause after a question for a window without an answer.
const ASK_FAILED: Duration = Duration::from_secs(3_600);
