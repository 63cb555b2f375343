//! Copies of a data directory: online backup, and salvage of a damaged one.
//!
//! A copy has keys and store, so that it can be served as it is. A message that is unacked at the moment of a backup
//! is in the ledgers of the running shards and not in the copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime::process_clock::ProcessClock;
use store::embedded::{Copied, Progress, salvage as salvage_store};

use super::data_dir::{DataDir, fault, make_dir};
use super::error::NodeError;
use super::storage::Storage;

/// Backups in the data directory, unfinished ones included: each takes the room of the store. Refuse: another is not
/// made.
const BACKUPS_MAX: usize = 32;

/// A finished copy.
#[derive(Clone, Debug)]
pub struct BackupCopy {
    /// The new data directory.
    pub path: PathBuf,
    /// Contents of its store.
    pub copied: Copied,
}

/// Returns true if a backup may have this name: 1 to 64 of `0-9 A-Z a-z - _`, so that it names one directory.
pub fn is_backup_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Copies keys and store to `backups/NAME` in the data directory; the store stays in use. The copy has another name
/// until it is whole. Then the oldest backups without a name are removed, so that `keep` of them stay (0: all).
///
/// Takes as long as reading the store does; must not run on a shard or the control plane.
///
/// # Errors
/// [`NodeError::Backup`] for a bad or taken name, [`NodeError::Store`], [`NodeError::DataDir`].
pub(super) fn backup(data: &Path, storage: &Storage, name: &str, keep: usize) -> Result<BackupCopy, NodeError> {
    if !is_backup_name(name) {
        return Err(NodeError::Backup("the name of a backup has 1 to 64 letters, digits, - or _"));
    }
    let backups = data.join("backups");
    let path = backups.join(name);
    if path.exists() {
        return Err(NodeError::Backup("there is a backup of this name: choose another, or remove that one"));
    }
    make_dir(&backups)?;
    let draft = backups.join(format!("{name}.part"));
    let earlier = Earlier::list(&backups)?;
    // Before the copy: on a full disk, unfinished ones have the room for this one.
    for unfinished in earlier.unfinished.iter().chain(draft.exists().then_some(&draft)) {
        remove(unfinished)?;
    }
    let stay = if keep == 0 { usize::MAX } else { keep - usize::from(automatic_name(name).is_some()) };
    if earlier.staying(&draft, stay) >= BACKUPS_MAX {
        return Err(NodeError::Backup("there are 32 backups in the data directory: move some of them off this host"));
    }
    let copied = copy(data, storage, &draft).inspect_err(|_| {
        // The error of the copy says more. What stays is removed before the next one.
        let _ = remove(&draft);
    })?;
    fs::rename(&draft, &path).map_err(|error| fault(&path, "create", error))?;
    for old in earlier.beyond(stay) {
        if let Err(error) = remove_whole(old) {
            tracing::warn!(%error, "an old backup stays beyond store.backups_keep; remove it");
        }
    }
    Ok(BackupCopy { path, copied })
}

/// Copies keys and store to a new directory.
fn copy(data: &Path, storage: &Storage, to: &Path) -> Result<Copied, NodeError> {
    make_dir(to)?;
    copy_files(&data.join("keys"), &to.join("keys"))?;
    storage.backup(&to.join("store"))
}

/// Backups that were there before this one.
#[derive(Default)]
struct Earlier {
    /// Without a name, with the seconds since 1970 that are in its place, in this order.
    automatic: Vec<(u64, PathBuf)>,
    /// With a name of the operator, unfinished ones included.
    named: Vec<PathBuf>,
    /// Without a name, of a process that ended in the middle.
    unfinished: Vec<PathBuf>,
}

impl Earlier {
    fn list(backups: &Path) -> Result<Earlier, NodeError> {
        let mut earlier = Earlier::default();
        for entry in fs::read_dir(backups).map_err(|error| fault(backups, "list", error))?.flatten() {
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            match (name.strip_suffix(".part"), automatic_name(&name)) {
                (Some(draft), _) if automatic_name(draft).is_some() => earlier.unfinished.push(path),
                (None, Some(time)) => earlier.automatic.push((time, path)),
                _ => earlier.named.push(path),
            }
        }
        earlier.automatic.sort_unstable();
        Ok(earlier)
    }

    /// Returns the number of backups that stay beside a new one with this draft, if `keep` without a name stay.
    fn staying(&self, draft: &Path, keep: usize) -> usize {
        let named = self.named.iter().filter(|path| *path != draft).count();
        named + self.automatic.len().min(keep)
    }

    /// Returns those without a name but the latest `keep`.
    fn beyond(&self, keep: usize) -> impl Iterator<Item = &PathBuf> {
        self.automatic.iter().rev().skip(keep).map(|(_, path)| path)
    }
}

/// Time in the name of a backup that the operator gave no name: the seconds since 1970.
fn automatic_name(name: &str) -> Option<u64> {
    name.bytes().all(|b| b.is_ascii_digit()).then(|| name.parse().ok())?
}

/// Removes a backup. Until it is gone it does not look like a whole one.
fn remove_whole(backup: &Path) -> Result<(), NodeError> {
    let draft = backup.with_extension("part");
    fs::rename(backup, &draft).map_err(|error| fault(backup, "move", error))?;
    remove(&draft)
}

fn remove(dir: &Path) -> Result<(), NodeError> {
    fs::remove_dir_all(dir).map_err(|error| fault(dir, "remove", error))
}

/// As [`backup`], of a data directory that no process uses.
///
/// # Errors
/// As [`backup`], and [`NodeError::InUse`]: ask the process that has it instead.
pub fn backup_unused(config: &config::Config, name: &str) -> Result<BackupCopy, NodeError> {
    let data = DataDir::open(&config.data_dir)?;
    let storage = Storage::open(config, &data.store(), &Arc::new(ProcessClock::start()))?;
    let copy = backup(data.path(), &storage, name, config.store.backups_keep);
    storage.close();
    copy
}

/// Makes the data directory `dest` from the readable keys, store and ledger logs of `source`, which is only read.
/// `progress` is called now and then.
///
/// # Errors
/// [`NodeError::InUse`], [`NodeError::Backup`] when `dest` is not empty, [`NodeError::Store`], [`NodeError::DataDir`].
pub fn salvage(source: &Path, dest: &Path, progress: &mut dyn FnMut(Progress)) -> Result<BackupCopy, NodeError> {
    if !source.join("store").is_dir() {
        return Err(NodeError::Backup("the first directory is not a data directory: it has no store in it"));
    }
    if fs::read_dir(dest).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(NodeError::Backup("the second directory is not empty: name a new one"));
    }
    let source = DataDir::open(source)?;
    make_dir(dest)?;
    for part in ["keys", "ledger"] {
        copy_files(&source.path().join(part), &dest.join(part))?;
    }
    let copied = salvage_store(&source.store(), &dest.join("store"), progress);
    let copied = copied.map_err(NodeError::Store)?;
    Ok(BackupCopy { path: dest.to_owned(), copied })
}

/// Copies the files of one directory with their modes; one that does not exist has none.
fn copy_files(from: &Path, to: &Path) -> Result<(), NodeError> {
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fault(from, "read", error)),
    };
    make_dir(to)?;
    for entry in entries {
        let path = entry.map_err(|error| fault(from, "read", error))?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name()) {
            fs::copy(&path, to.join(name)).map_err(|error| fault(&path, "copy", error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Config, Sources};

    #[test]
    fn backups_are_bounded_in_number() {
        let dir = tempfile::tempdir().unwrap();
        let sets = vec![format!("data_dir={}", dir.path().display()), "store.backups_keep=0".to_owned()];
        let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
        let make = |name: &str| backup_unused(&config, name);
        make("first").unwrap();
        for number in 1..BACKUPS_MAX - 1 {
            fs::create_dir(dir.path().join("backups").join(number.to_string())).unwrap();
        }
        // What an earlier try of the same name has left is replaced, and does not count.
        fs::create_dir(dir.path().join("backups/last.part")).unwrap();
        make("last").unwrap();
        let said = make("more").unwrap_err().to_string();
        assert!(said.contains(&BACKUPS_MAX.to_string()) && said.contains("move some of them"), "{said}");
        assert!(!dir.path().join("backups/more.part").exists(), "nothing is begun");
        fs::remove_dir_all(dir.path().join("backups/first")).unwrap();
        make("more").unwrap();
        // What this one replaces does not count.
        let sets = vec![format!("data_dir={}", dir.path().display()), "store.backups_keep=7".to_owned()];
        let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
        backup_unused(&config, "1000").unwrap();
        assert_eq!(fs::read_dir(dir.path().join("backups")).unwrap().count(), 2 + 7);
    }

    #[test]
    fn a_backup_that_fails_leaves_nothing_and_what_ended_in_the_middle_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let sets = vec![format!("data_dir={}", dir.path().display()), "store.kind=memory".to_owned()];
        let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
        let unfinished = dir.path().join("backups/1000.part");
        fs::create_dir_all(&unfinished).unwrap();
        backup_unused(&config, "1001").map(|_| ()).unwrap_err();
        assert_eq!(fs::read_dir(dir.path().join("backups")).unwrap().count(), 0);
    }

    #[test]
    fn the_oldest_backups_without_a_name_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let config = |keep: usize| {
            let sets = vec![format!("data_dir={}", dir.path().display()), format!("store.backups_keep={keep}")];
            Config::load(&Sources { sets, ..Sources::default() }).unwrap()
        };
        let left = |keep: usize, name: &str| {
            backup_unused(&config(keep), name).unwrap();
            let entries = fs::read_dir(dir.path().join("backups")).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort_unstable();
            names.join(" ")
        };
        left(0, "before-the-upgrade");
        for name in ["999", "1000", "1001"] {
            left(0, name);
        }
        fs::create_dir(dir.path().join("backups/998.part")).unwrap();
        assert_eq!(left(0, "1002"), "1000 1001 1002 999 before-the-upgrade", "0 keeps all");
        assert_eq!(left(3, "1003"), "1001 1002 1003 before-the-upgrade", "by number, and no name counts");
        assert_eq!(left(3, "named"), "1001 1002 1003 before-the-upgrade named");
        assert_eq!(
            left(2, "5"),
            "1003 5 before-the-upgrade named",
            "the new one stays, also after a step of the clock"
        );
    }
}
