//! State that a process leaves to the next one: packet rules that stay, and records of frozen sessions.
//!
//! A process writes down what it may leave before it makes packet rules, in the file `hibernation` of the data
//! directory. Every start finds it, also with another configuration, and adopts or undoes it: rules without a
//! reader make the kernel drop every new connection to their ports. What a living process holds is never touched: it
//! has the lock of its directory of records, and owns its table.
//!
//! ```text
//! murre hibernation 1
//! boot <32 hex digits: the boot of the host>
//! namespace <cookie of the network namespace>
//! queue <number>
//! table <name>
//! ports <numbers>
//! directory <path>
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hibernate::{HeldDir, LeftTable, RecordDir, boot_of_host, left_tables, namespace_cookie, remove_table, table_of};

use super::super::data_dir::DataDir;
use super::super::error::NodeError;
use config::Config;
use host::files::write_whole;

const FIRST_LINE: &str = "murre hibernation 1";

/// Longest wait for a directory that another process holds: the time that its stop may take to freeze every session.
pub(super) const HELD_TIME_MAX: Duration = Duration::from_secs(60);
/// Interval between two tries to hold it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The part of this host to which packet rules belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    boot: [u8; 16],
    namespace: u64,
}

impl Place {
    fn here() -> io::Result<Place> {
        Ok(Place { boot: boot_of_host()?, namespace: namespace_cookie()? })
    }
}

/// Rules and records that a process may leave, as they are written down in its data directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    place: Place,
    pub queue: u16,
    pub table: String,
    pub ports: Vec<u16>,
    pub dir: PathBuf,
}

impl Note {
    /// Describes what a process with these settings may leave here.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn new(queue: u16, ports: &[u16], dir: &Path) -> io::Result<Note> {
        let (table, ports, dir) = (table_of(queue), ports.to_vec(), dir.to_owned());
        Ok(Note { place: Place::here()?, queue, table, ports, dir })
    }

    fn path(data: &Path) -> PathBuf {
        data.join("hibernation")
    }

    /// Reads the note of a data directory. `None` if nothing was left, and for a note that cannot be read.
    pub fn read(data: &Path) -> Option<Note> {
        let path = Note::path(data);
        let text = fs::read_to_string(&path).ok()?;
        let note = Note::parse(&text);
        if note.is_none() {
            tracing::warn!(path = %path.display(), "note of hibernation not understood; packet rules are found by their ports");
        }
        note
    }

    fn parse(text: &str) -> Option<Note> {
        let mut lines = text.lines();
        let mut value = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned);
        value("murre")?.eq("hibernation 1").then_some(())?;
        let boot = u128::from_str_radix(&value("boot")?, 16).ok()?.to_be_bytes();
        let place = Place { boot, namespace: value("namespace")?.parse().ok()? };
        let (queue, table) = (value("queue")?.parse().ok()?, value("table")?);
        let ports = value("ports")?.split_whitespace().map(|port| port.parse().ok()).collect::<Option<_>>()?;
        Some(Note { place, queue, table, ports, dir: value("directory")?.into() })
    }

    fn text(&self) -> Option<String> {
        let Note { place, queue, table, ports, dir } = self;
        let boot = u128::from_be_bytes(place.boot);
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let (ports, dir) = (ports.join(" "), dir.to_str().filter(|dir| !dir.contains('\n'))?);
        let namespace = place.namespace;
        Some(format!(
            "{FIRST_LINE}\nboot {boot:032x}\nnamespace {namespace}\nqueue {queue}\ntable {table}\nports {ports}\n\
             directory {dir}\n"
        ))
    }

    /// Writes the note down. Before this process has made packet rules that stay.
    ///
    /// # Errors
    /// Those of the file system, and `InvalidInput` for a path that is no text.
    pub fn write(&self, data: &Path) -> io::Result<()> {
        write_whole(&Note::path(data), &self.text().ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// Removes the note: nothing is left.
    pub fn remove(data: &Path) {
        if let Err(error) = fs::remove_file(Note::path(data))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "note of hibernation left behind in data_dir; remove the file hibernation");
        }
    }

    /// Returns true if packet rules of this note can be in the network namespace of this process.
    pub fn is_of_here(&self) -> bool {
        Place::here().is_ok_and(|here| here == self.place)
    }
}

/// Returns true if an earlier process of this data directory may have left frozen sessions here.
pub fn waits(data: &Path) -> bool {
    Note::read(data).is_some_and(|note| note.is_of_here())
}

/// Returns the tables of packet rules that keep these ports closed although no process owns them, and the one of the
/// note.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN. A kernel that has no packet rules is no error.
pub fn tables_in_the_way(note: Option<&Note>, ports: &[u16]) -> io::Result<Vec<LeftTable>> {
    let is_noted = |table: &LeftTable| note.is_some_and(|note| note.is_of_here() && note.table == table.name);
    match left_tables() {
        Ok(mut tables) => {
            tables.retain(|table| is_noted(table) || table.ports.iter().any(|port| ports.contains(port)));
            Ok(tables)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        Err(_) => Ok(Vec::new()),
    }
}

/// Rules and records that a start has found, with the directories of records that it holds.
pub(crate) struct Found {
    pub data: PathBuf,
    owner: [u8; 16],
    note: Option<Note>,
    /// `hibernate.dir`, if it is set, and the hold on it.
    dir: Option<PathBuf>,
    own: Option<io::Result<HeldDir>>,
    /// Another directory in which the earlier process has left records.
    other: Option<HeldDir>,
    /// A directory that another process holds: nothing is adopted or undone then.
    pub held: Option<PathBuf>,
}

impl Found {
    /// Holds the directories of records, and finds what an earlier process has left. Calls `wait` while another process
    /// holds one of them; that returns an error where the start must end.
    ///
    /// # Errors
    /// Those of `wait`; [`NodeError::LeftRules`] where this process lacks the capability to adopt or undo.
    pub fn look(
        config: &Config,
        data: &DataDir,
        owner: [u8; 16],
        mut wait: impl FnMut(Duration) -> Result<(), NodeError>,
    ) -> Result<Found, NodeError> {
        let note = Note::read(data.path());
        let begin = Instant::now();
        let (data, dir) = (data.path().to_owned(), config.hibernate.dir.clone());
        let mut found = Found { data, owner, note, dir, own: None, other: None, held: None };
        loop {
            found.hold(config);
            let Some(held) = &found.held else { break };
            if begin.elapsed() >= HELD_TIME_MAX {
                return Ok(found);
            }
            if begin.elapsed() < LOOK_AGAIN {
                tracing::info!(dir = %held.display(), "frozen sessions held by another process; the start waits for its end");
            }
            wait(LOOK_AGAIN)?;
        }
        found.check_capability()?;
        Ok(found)
    }

    /// Tries once to hold every directory.
    fn hold(&mut self, config: &Config) {
        let hibernate = &config.hibernate;
        self.held = None;
        if let Some(dir) = &hibernate.dir
            && !matches!(self.own, Some(Ok(_)))
        {
            let held = if hibernate.after.is_some() { HeldDir::make(dir) } else { HeldDir::hold(dir) };
            self.note_held(dir, &held);
            self.own = Some(held);
        }
        let noted = self.note.as_ref().map(|note| note.dir.clone()).filter(|dir| Some(dir) != hibernate.dir.as_ref());
        if let Some(dir) = noted.filter(|_| self.other.is_none()) {
            let held = HeldDir::hold(&dir);
            self.note_held(&dir, &held);
            self.other = held.ok();
        }
    }

    fn note_held(&mut self, dir: &Path, held: &io::Result<HeldDir>) {
        if held.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.held = Some(dir.to_owned());
        }
    }

    /// Refuses a start that can neither adopt nor undo what is there: the kernel would drop every new connection.
    fn check_capability(&self) -> Result<(), NodeError> {
        let Some(note) = self.note.as_ref().filter(|note| note.is_of_here()) else { return Ok(()) };
        match tables_in_the_way(Some(note), &[]) {
            Ok(_) => Ok(()),
            Err(_) => Err(NodeError::LeftRules {
                table: note.table.clone(),
                ports: note.ports.clone(),
                note: Note::path(&self.data),
            }),
        }
    }

    /// Opens the directory of `hibernate.dir`, if it is set.
    pub fn open_own(&mut self) -> Option<io::Result<RecordDir>> {
        let owner = self.owner;
        self.own.take().map(|held| held.and_then(|held| RecordDir::open(held, owner)))
    }

    /// Undoes what this process has not adopted. `ports`: those of its listeners. `adopts`: its own directory, if its
    /// sessions outlive it. Returns the number of sessions whose records are gone, if anything was undone.
    pub fn undo(&mut self, ports: &[u16], adopts: Option<&Path>) -> Option<u64> {
        if let Some(dir) = &self.held {
            tracing::warn!(dir = %dir.display(), "frozen sessions of another process left alone");
            return None;
        }
        // A hold that is still here was not opened.
        drop(self.own.take());
        let (mut undone, mut sessions) = (false, 0);
        // Without the capability nothing was noted, and nothing can be seen.
        for LeftTable { name, ports } in tables_in_the_way(self.note.as_ref(), ports).unwrap_or_default() {
            match remove_table(&name) {
                Ok(()) => {
                    tracing::warn!(table = name, ?ports, "packet rules of an earlier process removed");
                    undone = true;
                }
                // A process has taken it over, or removed it.
                Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => {}
                Err(error) => {
                    tracing::error!(table = name, ?ports, %error, "packet rules of an earlier process left")
                }
            }
        }
        // One that could not be used was let go.
        let own = self.dir.as_ref().filter(|dir| Some(dir.as_path()) != adopts).and_then(|dir| HeldDir::hold(dir).ok());
        for dir in own.into_iter().chain(self.other.take()) {
            // Those of a directory that cannot be read are not counted.
            sessions += dir.sessions(self.owner).unwrap_or(0);
            match dir.clear(self.owner) {
                Ok(files) => undone |= files > 0,
                Err(error) => {
                    let dir = dir.path().display();
                    tracing::warn!(%dir, %error, "records left behind; remove the files *.frozen");
                }
            }
        }
        if adopts.is_none() && self.note.as_ref().is_none_or(|note| note.is_of_here() || note.is_void()) {
            Note::remove(&self.data);
        }
        undone.then_some(sessions)
    }
}

impl Note {
    /// Returns true if no process of this boot of the host has written it.
    fn is_void(&self) -> bool {
        Place::here().is_ok_and(|here| here.boot != self.place.boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_back_as_it_was_written_and_a_cut_one_is_not_understood() {
        let note = Note::new(7, &[443, 8443], Path::new("/run/a directory")).unwrap();
        assert!(note.is_of_here() && !note.is_void());
        let text = note.text().unwrap();
        assert_eq!(Note::parse(&text).as_ref(), Some(&note));
        let lines: Vec<_> = text.lines().collect();
        for len in 0..lines.len() {
            assert_eq!(Note::parse(&lines[..len].join("\n")), None, "{len}");
        }
        let other = Note { place: Place { namespace: 1, ..note.place }, ..note.clone() };
        assert!(!other.is_of_here() && !other.is_void());
        let earlier = Note { place: Place { boot: [0; 16], ..note.place }, ..note };
        assert!(!earlier.is_of_here() && earlier.is_void());
        assert_eq!(Note { dir: "/a\nb".into(), ..earlier }.text(), None);
    }
}
