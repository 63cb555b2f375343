//! `murre export`: every user of a store as JSON lines, which `murre import` reads (docs/MIGRATING.md).

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use machine::ids::Uaid;
use machine::time::UnixSeconds;
use store::fault::FaultKind;
use store::transfer::{LeftOut, Transfer, TransferFault, USERS_AT_ONCE_MAX, WholeUser, each_row, walk};

use super::import::{Line, encode_row};
use super::{ConfigArgs, fail, status};
use config::{Config, ConfigError, StoreKind};
use server::NodeError;

/// Characters of the rows of one line, unless its only row is longer. With 32 users at once that is 16 MiB of memory,
/// and a line with 2,048 channels has less than 1 MiB, of the 16 that an import reads.
const ROWS_CHARS_MAX: usize = 512 << 10;
/// Interval between progress lines.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// File to write, one user a line; - is standard output
    file: PathBuf,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs the export. Returns 0 when every user that a server would serve is in the output, 1 when one cannot be read or
/// the export failed.
pub fn run(args: Args) -> ExitCode {
    let config = match args.config.load().map_err(SourceError::Config).and_then(source) {
        Ok(config) => config,
        Err(refused) => return fail(status::CONFIG, &refused),
    };
    match export_to(&args.file, &config, &mut |said| eprintln!("{said}")) {
        Ok(exported) => {
            // Standard output may be the export.
            eprintln!("{}", exported.text());
            if exported.left.unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::from(status::FAILED) }
        }
        Err(fault) => fail(fault.status(), &fault),
    }
}

/// Reason why there is no store to export.
#[derive(Debug)]
enum SourceError {
    Config(ConfigError),
    NoStore(PathBuf),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Config(error) => error.fmt(f),
            SourceError::NoStore(path) => {
                write!(f, "{} is not a data directory: it has no store in it", path.display())
            }
        }
    }
}

/// Returns this configuration if its store is there: opening it would make an empty one.
fn source(config: Config) -> Result<Config, SourceError> {
    let is_there = match config.store.kind {
        StoreKind::Embedded => config.data_dir.join("store").is_dir(),
        StoreKind::Memory => false,
        StoreKind::Scylla => true,
    };
    if is_there { Ok(config) } else { Err(SourceError::NoStore(config.data_dir)) }
}

fn unix_now() -> UnixSeconds {
    UnixSeconds(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

fn export_to(path: &Path, config: &Config, say: &mut dyn FnMut(&str)) -> Result<Exported, NodeError> {
    let unwritten = |error: io::Error| {
        let said = format!("cannot write {}: {error}", path.display());
        NodeError::Transfer(TransferFault::new(said, of_output(&error)))
    };
    let mut output = Output::open(path).map_err(unwritten)?;
    let exported = server::with_source(config, |saved, from| {
        if saved > 0 {
            say(&format!("{saved} messages that the ledgers held are saved to the store"));
        }
        let mut said_at = Instant::now();
        export(from, &mut output.sink, &unix_now, &mut |so_far| {
            if said_at.elapsed() >= SAY_EVERY {
                said_at = Instant::now();
                say(&format!("{} users and {} messages exported", so_far.users, so_far.rows));
            }
        })
    })?;
    output.finish().map_err(unwritten)?;
    Ok(exported)
}

/// Kind of an error of the output. Its path is an argument of the command, not a part of the data directory.
fn of_output(error: &io::Error) -> FaultKind {
    match FaultKind::of(error) {
        FaultKind::Full => FaultKind::Full,
        _ => FaultKind::Lasting,
    }
}

/// Destination of an export. A file has its name only when it is whole, and only its owner can read it: UAIDs are
/// secrets.
struct Output {
    sink: BufWriter<File>,
    /// Present name and final name.
    draft: Option<(PathBuf, PathBuf)>,
}

impl Output {
    fn open(path: &Path) -> io::Result<Output> {
        if path.as_os_str() == "-" {
            let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            return Ok(Output { sink: BufWriter::new(stdout), draft: None });
        }
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(io::Error::other("it is there and no file; name a file, or - for standard output"));
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}.part", std::process::id()));
        let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&draft).map_err(|error| {
            let advice = "remove it if no other export writes it";
            io::Error::new(error.kind(), format!("{}: {error}; {advice}", draft.display()))
        })?;
        Ok(Output { sink: BufWriter::new(file), draft: Some((draft.into(), path.to_owned())) })
    }

    fn finish(mut self) -> io::Result<()> {
        self.sink.flush()?;
        if let Some((draft, path)) = &self.draft {
            self.sink.get_ref().sync_all()?;
            fs::rename(draft, path)?;
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(dir)?.sync_all()?;
            self.draft = None;
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((draft, _)) = &self.draft {
            let _ = fs::remove_file(draft);
        }
    }
}

/// Numbers of an export.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Exported {
    pub(super) users: u64,
    pub(super) channels: u64,
    pub(super) rows: u64,
    pub(super) lines: u64,
    pub(super) left: LeftOut,
}

impl Exported {
    fn text(&self) -> String {
        let Exported { users, channels, rows, lines, left } = self;
        format!(
            "exported {users} users with {channels} channels and {rows} messages in {lines} lines; left out {} not \
             seen for 60 days and {} of another record version{}",
            left.idle,
            left.of_other_version,
            unreadable(left)
        )
    }
}

/// Names the unreadable users in a line of its own; empty when there are none.
fn unreadable(left: &LeftOut) -> String {
    let LeftOut { unreadable: users, unreadable_at: named, .. } = left;
    if *users == 0 {
        return String::new();
    }
    let more = users - named.len() as u64;
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!(
        "\nleft out {users} users whose record in the store is damaged or of another version of murre; each is found \
         with SELECT ... WHERE {}{more}",
        named.join(", ")
    )
}

/// Writes every user that a server would serve. `progress` is called after each batch.
pub(super) fn export(
    from: &mut dyn Transfer,
    out: &mut dyn Write,
    now: &dyn Fn() -> UnixSeconds,
    progress: &mut dyn FnMut(&Exported),
) -> Result<Exported, TransferFault> {
    let mut writer = Writer { out, exported: Exported::default() };
    let left = walk(from, now, &mut |from, users| {
        for some in users.chunks(USERS_AT_ONCE_MAX) {
            writer.users(from, some, now())?;
        }
        progress(&writer.exported);
        Ok(())
    })?;
    Ok(Exported { left, ..writer.exported })
}

struct Writer<'a> {
    out: &'a mut dyn Write,
    exported: Exported,
}

impl Writer<'_> {
    /// Writes these users. A user with more messages than fit on a line has several lines, perhaps between those of
    /// other users.
    fn users(&mut self, from: &mut dyn Transfer, users: &[WholeUser], now: UnixSeconds) -> Result<(), TransferFault> {
        let (filled, empty): (Vec<_>, Vec<_>) = users.iter().partition(|user| user.may_have_messages);
        let uaids: Vec<Uaid> = filled.iter().map(|user| user.uaid).collect();
        let mut waiting = vec![(Vec::new(), 0); filled.len()];
        each_row(from, &uaids, now, &mut |at, message| {
            let row = encode_row(&message);
            let (rows, chars) = &mut waiting[at];
            if *chars > 0 && *chars + row.len() > ROWS_CHARS_MAX {
                *chars = 0;
                self.line(filled[at], std::mem::take(rows), true)?;
            }
            *chars += row.len();
            rows.push(row);
            Ok(())
        })?;
        let waiting = waiting.into_iter().map(|(rows, _)| rows);
        let rest = empty.into_iter().map(|user| (user, Vec::new()));
        filled.into_iter().zip(waiting).chain(rest).try_for_each(|(user, rows)| self.line(user, rows, false))
    }

    fn line(&mut self, user: &WholeUser, rows: Vec<String>, more: bool) -> Result<(), TransferFault> {
        self.exported.lines += 1;
        self.exported.rows += rows.len() as u64;
        if !more {
            self.exported.users += 1;
            self.exported.channels += user.channels.len() as u64;
        }
        let written = serde_json::to_writer(&mut *self.out, &Line::of(user, rows, more)).map_err(io::Error::from);
        written.and_then(|()| self.out.write_all(b"\n")).map_err(|error| {
            let said = format!("cannot write the output: {error}; run the command again");
            TransferFault::new(said, of_output(&error))
        })
    }
}
