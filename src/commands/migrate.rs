//! `murre migrate`: a store into another, with every user, channel and stored message (docs/MIGRATING.md).

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use machine::time::UnixSeconds;
use store::transfer::{Compared, Copied, ImportCounts, compare, copy};

use super::{fail, status};
use crate::config::{Config, ConfigError, Sources, StoreKind};
use crate::node::{self, NodeError};

/// Interval between progress lines.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Store to read: embedded:DATA_DIR, or embedded:FILE or scylla:FILE with the configuration that describes it
    #[arg(long, value_name = "KIND:WHERE", value_parser = StoreLocation::parse)]
    from: StoreLocation,
    /// Store to write, spelled likewise
    #[arg(long, value_name = "KIND:WHERE", value_parser = StoreLocation::parse)]
    to: StoreLocation,
    /// Copy nothing, only compare
    #[arg(long)]
    compare: bool,
}

/// A store on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoreLocation {
    kind: StoreKind,
    /// A data directory, or a configuration file.
    path: PathBuf,
}

impl StoreLocation {
    fn parse(text: &str) -> Result<StoreLocation, String> {
        let (kind, path) = text.split_once(':').ok_or("it must be spelled KIND:WHERE, as embedded:/var/lib/murre")?;
        let kind = match kind {
            "embedded" => StoreKind::Embedded,
            "scylla" => StoreKind::Scylla,
            _ => {
                let known = "embedded and scylla are";
                return Err(format!("{kind} is not a kind of store that users can be moved from or to: {known}"));
            }
        };
        if path.is_empty() {
            return Err("behind the colon there must be a data directory or a configuration file".into());
        }
        Ok(StoreLocation { kind, path: path.into() })
    }

    /// The configuration by which this store is opened.
    fn config(&self) -> Result<Config, LocationError> {
        let is_dir = self.kind == StoreKind::Embedded && !self.path.is_file();
        let config = if is_dir {
            let flag = ("KIND:WHERE".to_owned(), "data_dir", self.path.display().to_string());
            Config::load(&Sources { flags: vec![flag], ..Sources::default() })
        } else {
            Config::load(&Sources { file: Some(self.path.clone()), ..Sources::default() })
        };
        let config = config.map_err(LocationError::Config)?;
        if config.store.kind != self.kind {
            return Err(LocationError::OtherKind(self.path.clone()));
        }
        Ok(config)
    }
}

/// Reason why a place cannot be opened.
#[derive(Debug)]
pub(super) enum LocationError {
    Config(ConfigError),
    OtherKind(PathBuf),
    NoSource(PathBuf),
}

impl std::fmt::Display for LocationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LocationError::Config(error) => error.fmt(f),
            LocationError::OtherKind(path) => {
                write!(f, "{}: its store.kind is not the KIND that was asked for", path.display())
            }
            LocationError::NoSource(path) => {
                write!(f, "{} is not a data directory: it has no store in it", path.display())
            }
        }
    }
}

/// Runs the migration. Returns 0 when everything has arrived, 1 when something differs or a store failed.
pub fn run(args: Args) -> ExitCode {
    let (from, to) = match configs(&args) {
        Ok(both) => both,
        Err(refused) => return fail(status::CONFIG, &refused),
    };
    let mut say = |said: &str| eprintln!("{said}");
    match migrate(&from, &to, args.compare, &mut say) {
        Ok(outcome) => {
            println!("{}", outcome.text());
            if outcome.compared.users_different > 0 {
                let differ = "not everything has arrived. If the destination has been used since, that may be why; \
                              else start again with a new destination";
                return fail(status::FAILED, &differ);
            }
            println!("{}", keys(&from, &to));
            if outcome.compared.is_complete() {
                return ExitCode::SUCCESS;
            }
            fail(
                status::FAILED,
                &"everything has arrived but the users named above, whom the first store does not serve either",
            )
        }
        Err(fault) => fail(fault.status(), &fault),
    }
}

fn configs(args: &Args) -> Result<(Config, Config), LocationError> {
    let (from, to) = (args.from.config()?, args.to.config()?);
    Ok((source(from)?, to))
}

/// Returns this configuration if its store is there: opening it would make an empty one.
pub(super) fn source(config: Config) -> Result<Config, LocationError> {
    let is_there = match config.store.kind {
        StoreKind::Embedded => config.data_dir.join("store").is_dir(),
        StoreKind::Memory => false,
        StoreKind::Scylla => true,
    };
    if !is_there {
        return Err(LocationError::NoSource(config.data_dir));
    }
    Ok(config)
}

/// Result of a run.
#[derive(Debug)]
struct Outcome {
    copied: Option<Copied>,
    compared: Compared,
}

fn migrate(from: &Config, to: &Config, compare_only: bool, say: &mut dyn FnMut(&str)) -> Result<Outcome, NodeError> {
    node::with_stores(from, to, |saved, from, to| {
        if saved > 0 {
            say(&format!("{saved} messages that the ledgers held are saved to the first store"));
        }
        let mut progress = Progress::new(say);
        let copied = if compare_only {
            None
        } else {
            Some(copy(from, to, &unix_now, &mut |so_far| progress.say(|| copying(so_far)))?)
        };
        let compared = compare(from, to, &unix_now, &mut |so_far| {
            progress.say(|| format!("{} users compared", so_far.users));
        })?;
        Ok(Outcome { copied, compared })
    })
}

/// Reports the progress, at most once per [`SAY_EVERY`].
pub(super) struct Progress<'a> {
    say: &'a mut dyn FnMut(&str),
    said_at: Instant,
}

impl<'a> Progress<'a> {
    pub(super) fn new(say: &'a mut dyn FnMut(&str)) -> Progress<'a> {
        Progress { say, said_at: Instant::now() }
    }

    pub(super) fn say(&mut self, line: impl FnOnce() -> String) {
        if self.said_at.elapsed() >= SAY_EVERY {
            self.said_at = Instant::now();
            (self.say)(&line());
        }
    }
}

fn copying(so_far: &Copied) -> String {
    let ImportCounts { users_new, users_changed, users_unchanged, rows_added, .. } = so_far.admitted;
    let known = users_changed + users_unchanged;
    format!("{users_new} users and {rows_added} messages copied, {known} users were there")
}

impl Outcome {
    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(copied) = &self.copied {
            let ImportCounts { users_new, users_changed, users_unchanged, channels_added, rows_added, .. } =
                copied.admitted;
            let known = users_changed + users_unchanged;
            text += &format!(
                "copied {users_new} users with {channels_added} channels and {rows_added} messages; {known} users were \
                 there; left behind {} not seen for 60 days and {} of another record version\n",
                copied.users_idle, copied.users_of_other_version
            );
        }
        let Compared { users, channels, rows, digest, digest_there, users_newer, users_different, .. } = self.compared;
        text += &format!(
            "compared {users} users with {channels} channels and {rows} messages: {users_different} differ, \
             {users_newer} have changed there since\n\
             digest {digest:032x} here, {digest_there:032x} there"
        );
        text + &unreadable("the first store", self.compared.users_unreadable, &self.compared.unreadable)
    }
}

/// Names the unreadable users of a store in a line of its own; empty when there are none.
pub(super) fn unreadable(store: &str, users: u64, named: &[String]) -> String {
    if users == 0 {
        return String::new();
    }
    let more = users - named.len() as u64;
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!(
        "\nleft out {users} users whose record in {store} is damaged or of another version of murre; each is found \
         with SELECT ... WHERE {}{more}",
        named.join(", ")
    )
}

/// Tells the operator which keys to carry over: a store does not hold them, and a server on the new store needs them.
fn keys(from: &Config, to: &Config) -> String {
    let kept = |config: &Config, name: &str| config.data_dir.join("keys").join(name).display().to_string();
    let of = |what: &str, name: &str, configured: bool| {
        let source = if configured { format!("{what} of the old configuration") } else { kept(from, name) };
        format!("  {what}: {source}\n")
    };
    let crypto = of("endpoint.crypto_keys", "crypto", !from.endpoint.crypto_keys.is_empty());
    let node = of("node.keys", "node", !from.node.keys.is_empty());
    let wanted = if to.store.kind == StoreKind::Embedded {
        format!("or copy both files to {}", kept(to, ""))
    } else {
        "all nodes need the same".to_owned()
    };
    format!(
        "Keys are not in the store. Carry them over before a server starts on the new one ({wanted}):\n{crypto}{node}\
         Without the first, every endpoint URL that was handed out is dead. Do not start a server on the old store \
         again."
    )
}

pub(super) fn unix_now() -> UnixSeconds {
    UnixSeconds(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}
