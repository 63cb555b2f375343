//! Copies of a data directory: online backup, and salvage of a damaged one.
//!
//! A copy has keys and store, so that it can be served as it is. A message that is unacked at the moment of a backup
//! is in the ledgers of the running shards and not in the copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shards::process_clock::ProcessClock;
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
    let others = fs::read_dir(&backups).map_err(|error| fault(&backups, "list", error))?;
    if others.flatten().filter(|other| other.path() != draft).count() >= BACKUPS_MAX {
        return Err(NodeError::Backup("there are 32 backups in the data directory: move some of them off this host"));
    }
    if draft.exists() {
        fs::remove_dir_all(&draft).map_err(|error| fault(&draft, "remove", error))?;
    }
    make_dir(&draft)?;
    copy_files(&data.join("keys"), &draft.join("keys"))?;
    let copied = storage.backup(&draft.join("store"))?;
    fs::rename(&draft, &path).map_err(|error| fault(&path, "create", error))?;
    if keep > 0 {
        remove_oldest(&backups, name, keep)?;
    }
    Ok(BackupCopy { path, copied })
}

/// Time in the name of a backup that the operator gave no name: the seconds since 1970.
fn automatic_name(name: &str) -> Option<u64> {
    name.bytes().all(|b| b.is_ascii_digit()).then(|| name.parse().ok())?
}

/// Removes the oldest backups without a name until `keep` are left, and unfinished ones of earlier processes. The new
/// one stays also if its time is earlier, because the clock of the host can have been set back.
fn remove_oldest(backups: &Path, new: &str, keep: usize) -> Result<(), NodeError> {
    let names = fs::read_dir(backups).map_err(|error| fault(backups, "list", error))?;
    let names = names.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name != new);
    let (mut whole, mut doomed) = (Vec::new(), Vec::new());
    for name in names {
        match name.strip_suffix(".part") {
            Some(draft) if automatic_name(draft).is_some() => doomed.push(name),
            _ => whole.extend(automatic_name(&name).map(|time| (time, name))),
        }
    }
    whole.sort_unstable();
    let stay = keep - usize::from(automatic_name(new).is_some());
    for (_, name) in whole.iter().rev().skip(stay) {
        let draft = format!("{name}.part");
        // Until it is gone it must not look like a whole backup.
        fs::rename(backups.join(name), backups.join(&draft))
            .map_err(|error| fault(&backups.join(name), "move", error))?;
        doomed.push(draft);
    }
    for name in doomed {
        let path = backups.join(name);
        fs::remove_dir_all(&path).map_err(|error| fault(&path, "remove", error))?;
    }
    Ok(())
}

/// As [`backup`], of a data directory that no process uses.
///
/// # Errors
/// As [`backup`], and [`NodeError::InUse`]: ask the process that has it instead.
pub fn backup_unused(config: &crate::config::Config, name: &str) -> Result<BackupCopy, NodeError> {
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
    use crate::config::{Config, Sources};

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
        assert_eq!(left(0, "1002"), "1000 1001 1002 998.part 999 before-the-upgrade", "0 keeps all");
        assert_eq!(left(3, "1003"), "1001 1002 1003 before-the-upgrade", "by number, and no name counts");
        assert_eq!(left(3, "named"), "1001 1002 1003 before-the-upgrade named");
        assert_eq!(
            left(2, "5"),
            "1003 5 before-the-upgrade named",
            "the new one stays, also after a step of the clock"
        );
    }
}
