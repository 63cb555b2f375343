//! `murre import`: users, channels and messages of another service or of an export, from JSON lines
//! (docs/MIGRATING.md).
//!
//! One line is one user; a user of an export with many messages has several. A user is written whole or not at all.
//! Existing data is not written again, so a file can be imported repeatedly: from its start after a failure, or a later
//! dump over an earlier one.

mod line;
mod lines;
mod own;
mod router;
#[cfg(test)]
pub(super) mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use machine::time::UnixSeconds;
use store::fault::FaultKind;
use store::transfer::{ImportCounts, IncomingUser, Transfer, TransferFault, import_users};

use super::{ConfigArgs, fail, status};
pub(super) use line::Line;
use line::Parsed;
use lines::{Lines, Next};
pub(super) use own::encode_row;
use router::OtherRouter;

/// Users that are written at once, and so the size of one group of the committer.
const USERS_AT_ONCE_MAX: usize = 256;
/// Bytes of lines that are kept until they are written.
const BYTES_AT_ONCE_MAX: usize = 4 << 20;
/// Bad lines that are printed; more are only counted.
const BAD_LINES_SAID_MAX: u64 = 100;
/// Interval between progress lines.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// JSON lines, one user each; - reads standard input
    file: PathBuf,
    /// Read and decide everything, write nothing
    #[arg(long)]
    check: bool,
    /// Stop at the first bad line; the lines before it are written
    #[arg(long)]
    strict: bool,
    /// Skip this many lines, as an earlier run has printed
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_lines: u64,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs the import. Returns 0 when every line is in the store, 1 when a line was bad or the store failed.
pub fn run(args: Args) -> ExitCode {
    let config = match args.config.load() {
        Ok(config) => config,
        Err(error) => return fail(status::CONFIG, &error),
    };
    let input: Box<dyn BufRead> = if args.file.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        match File::open(&args.file) {
            Ok(file) => Box::new(BufReader::new(file)),
            Err(error) => return fail(status::FAILED, &format!("cannot read {}: {error}", args.file.display())),
        }
    };
    let keyless = config.endpoint.crypto_keys.is_empty();
    let mut say = |said: String| eprintln!("{said}");
    let mut import = Import::new(&args, &mut say);
    let done = server::with_store(&config, |store| Ok(import.all(input, store)));
    let summary = import.summary;
    match done {
        Err(fault) => return fail(fault.status(), &fault),
        Ok(Err(stop)) => {
            println!("{}", summary.text(args.check));
            return fail(stop.status(), &stop);
        }
        Ok(Ok(())) => println!("{}", summary.text(args.check)),
    }
    if keyless {
        println!(
            "endpoint.crypto_keys is not set: endpoint URLs that another service handed out answer 404 until its keys \
             are in that list"
        );
    }
    if summary.bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(status::FAILED) }
}

/// Reason why an import stopped before the end of its input.
#[derive(Debug)]
enum ImportError {
    /// The input cannot be read.
    Input(io::Error),
    /// The store failed; the first `done` lines are in it.
    Store { fault: TransferFault, done: u64 },
    /// `--strict`.
    BadLine,
}

impl ImportError {
    /// Exit status of an import that ends so: that of the store, if it is full or damaged.
    fn status(&self) -> u8 {
        match self {
            ImportError::Store { fault, .. } if fault.kind() != FaultKind::Lasting => status::of(fault.kind()),
            ImportError::Store { .. } | ImportError::Input(_) | ImportError::BadLine => status::FAILED,
        }
    }
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ImportError::Input(error) => write!(f, "the input cannot be read to its end: {error}"),
            ImportError::Store { fault, done } => write!(f, "{fault} (with --skip-lines {done})"),
            ImportError::BadLine => f.write_str("stopped at the bad line; mend it, then import the file again"),
        }
    }
}

/// Numbers of lines and messages by their result.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    /// Lines that are finished, from the start of the input.
    lines: u64,
    bad: u64,
    /// Lines of router types that are left out: `gcm`, `adm`, and those that this version does not know.
    gcm: u64,
    adm: u64,
    other_router: u64,
    /// Lines of another record version, and of users idle for 60 days: none is imported.
    other_version: u64,
    idle: u64,
    /// Messages that were not taken from good lines.
    expired: u64,
    read_before: u64,
    unsubscribed: u64,
    admitted: ImportCounts,
}

impl Summary {
    fn text(&self, check: bool) -> String {
        let ImportCounts {
            users_new,
            users_changed,
            users_unchanged,
            channels_added,
            channels_left_out,
            rows_added,
            rows_left_out,
        } = self.admitted;
        let Summary { lines, bad, gcm, adm, other_router, .. } = self;
        let Summary { other_version, idle, expired, read_before, unsubscribed, .. } = self;
        let would = if check { "nothing was written; it would be: " } else { "" };
        let of_there = if rows_left_out + channels_left_out == 0 {
            String::new()
        } else {
            format!(
                "\n  left alone, of users who are there: {channels_left_out} channels that may have been unregistered \
                 since, {rows_left_out} messages"
            )
        };
        format!(
            "{would}{lines} lines: {users_new} new users, {users_changed} changed, {users_unchanged} as they were; \
             {channels_added} channels, {rows_added} messages\n  \
             left out: {bad} bad lines; users: {gcm} of gcm, {adm} of adm, {other_router} of another router type, \
             {other_version} of another \
             record version, {idle} not seen for 60 days; messages: {expired} expired, {read_before} read before, \
             {unsubscribed} of no channel{of_there}"
        )
    }
}

/// One import under way. Keeps at most `USERS_AT_ONCE_MAX` users of at most `BYTES_AT_ONCE_MAX` bytes and one line.
struct Import<'a> {
    check: bool,
    strict: bool,
    skip_lines: u64,
    now: UnixSeconds,
    say: &'a mut dyn FnMut(String),
    said_at: Instant,
    summary: Summary,
    waiting: Vec<IncomingUser>,
    waiting_bytes: usize,
    uaids: HashSet<[u8; 16]>,
}

impl<'a> Import<'a> {
    fn new(args: &Args, say: &'a mut dyn FnMut(String)) -> Import<'a> {
        Import {
            check: args.check,
            strict: args.strict,
            skip_lines: args.skip_lines,
            now: UnixSeconds(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
            say,
            said_at: Instant::now(),
            summary: Summary::default(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            uaids: HashSet::new(),
        }
    }

    fn all(&mut self, input: impl BufRead, store: &mut dyn Transfer) -> Result<(), ImportError> {
        let mut lines = Lines::new(input);
        // Lines up to here are in the store.
        let mut written = self.skip_lines;
        for number in 1.. {
            let next = lines.next().map_err(ImportError::Input);
            // A failure to read must not cost what was read.
            let Ok(Some(next)) = next else {
                self.write(store, written)?;
                return next.map(drop);
            };
            if number <= self.skip_lines {
                continue;
            }
            self.summary.lines += 1;
            let taken = match next {
                Next::TooLong => Err(format!("longer than {} bytes", lines::LINE_BYTES_MAX)),
                Next::Line(bytes) => self.take(bytes).map(|coming| coming.map(|coming| (coming, bytes.len()))),
            };
            match taken {
                Ok(None) => {}
                Ok(Some((coming, bytes))) => {
                    if self.writes_before(&coming) {
                        self.write(store, written)?;
                        written = number - 1;
                        self.progress(written);
                    }
                    self.uaids.insert(coming.user.uaid.0);
                    self.waiting_bytes += bytes;
                    self.waiting.push(coming);
                }
                Err(reason) => {
                    self.complain(number, &reason);
                    if self.strict {
                        self.write(store, written)?;
                        return Err(ImportError::BadLine);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns true if the waiting users must be written before `coming` joins them: their number or size is at the
    /// bound, or the same user waits, who must be in the store before its next line.
    fn writes_before(&self, coming: &IncomingUser) -> bool {
        let again = self.uaids.contains(&coming.user.uaid.0);
        again || self.waiting.len() >= USERS_AT_ONCE_MAX || self.waiting_bytes >= BYTES_AT_ONCE_MAX
    }

    /// Returns the user of one line; `None` if the line has none to import. The error is the reason for a bad line.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<IncomingUser>, String> {
        if bytes.trim_ascii().is_empty() {
            return Ok(None);
        }
        match Line::parse(bytes)?.into_user(self.now)? {
            Parsed::OtherRouter(OtherRouter::Gcm) => self.summary.gcm += 1,
            Parsed::OtherRouter(OtherRouter::Adm) => self.summary.adm += 1,
            Parsed::OtherRouter(OtherRouter::Unknown) => self.summary.other_router += 1,
            Parsed::OtherVersion => self.summary.other_version += 1,
            Parsed::Idle => self.summary.idle += 1,
            Parsed::User(user) => {
                self.summary.expired += user.expired;
                self.summary.read_before += user.read_before;
                self.summary.unsubscribed += user.unsubscribed;
                return Ok(Some(user.coming));
            }
        }
        Ok(None)
    }

    fn complain(&mut self, number: u64, reason: &str) {
        self.summary.bad += 1;
        if self.summary.bad <= BAD_LINES_SAID_MAX {
            (self.say)(format!("line {number}: {reason}"));
        } else if self.summary.bad == BAD_LINES_SAID_MAX + 1 {
            (self.say)(format!("line {number} is bad too; from here on bad lines are only counted"));
        }
    }

    /// Writes the waiting users; `written` lines were in the store before.
    fn write(&mut self, store: &mut dyn Transfer, written: u64) -> Result<(), ImportError> {
        let admitted = import_users(store, &self.waiting, self.check);
        self.summary.admitted += admitted.map_err(|fault| ImportError::Store { fault, done: written })?;
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.uaids.clear();
        Ok(())
    }

    fn progress(&mut self, number: u64) {
        if self.said_at.elapsed() >= SAY_EVERY {
            self.said_at = Instant::now();
            let ImportCounts { users_new, users_changed, users_unchanged, .. } = self.summary.admitted;
            let known = users_changed + users_unchanged;
            let bad = self.summary.bad;
            let what = if self.check { "read" } else { "in the store" };
            (self.say)(format!("{number} lines {what}: {users_new} new users, {known} known, {bad} bad lines"));
        }
    }
}
