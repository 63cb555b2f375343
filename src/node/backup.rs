//! Copies of a data directory: online backup, and salvage of a damaged one.
//!
//! A copy has keys and store, so that it can be served as it is. A message that is unacked at the moment of a backup
//! is in the ledgers of the running shards and not in the copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shards::wall::Wall;
use store::embedded::{Copied, Progress, salvage as salvage_store};

use super::data_dir::{DataDir, fault, make_dir};
use super::fault::Fault;
use super::storage::Storage;

/// A finished copy.
#[derive(Clone, Debug)]
pub struct Copy {
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
/// until it is whole. Takes as long as reading the store does; must not run on a shard or the island.
///
/// # Errors
/// [`Fault::Backup`] for a bad or taken name, [`Fault::Store`], [`Fault::DataDir`].
pub(super) fn backup(data: &Path, storage: &Storage, name: &str) -> Result<Copy, Fault> {
    if !is_backup_name(name) {
        return Err(Fault::Backup("the name of a backup has 1 to 64 letters, digits, - or _"));
    }
    let backups = data.join("backups");
    let path = backups.join(name);
    if path.exists() {
        return Err(Fault::Backup("there is a backup of this name: choose another, or remove that one"));
    }
    make_dir(&backups)?;
    let draft = backups.join(format!("{name}.part"));
    if draft.exists() {
        fs::remove_dir_all(&draft).map_err(|error| fault(&draft, "remove", error))?;
    }
    make_dir(&draft)?;
    copy_files(&data.join("keys"), &draft.join("keys"))?;
    let copied = storage.backup(&draft.join("store"))?;
    fs::rename(&draft, &path).map_err(|error| fault(&path, "create", error))?;
    Ok(Copy { path, copied })
}

/// As [`backup`], of a data directory that no process uses.
///
/// # Errors
/// As [`backup`], and [`Fault::InUse`]: ask the process that has it instead.
pub fn backup_unused(config: &crate::config::Config, name: &str) -> Result<Copy, Fault> {
    let data = DataDir::open(&config.data_dir)?;
    let storage = Storage::open(config, &data.store(), &Arc::new(Wall::start()))?;
    let copy = backup(data.path(), &storage, name);
    storage.close();
    copy
}

/// Makes the data directory `dest` from the readable keys, store and ledger logs of `source`, which is only read.
/// `progress` is called now and then.
///
/// # Errors
/// [`Fault::InUse`], [`Fault::Backup`] when `dest` is not empty, [`Fault::Store`], [`Fault::DataDir`].
pub fn salvage(source: &Path, dest: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Copy, Fault> {
    if !source.join("store").is_dir() {
        return Err(Fault::Backup("the first directory is not a data directory: it has no store in it"));
    }
    if fs::read_dir(dest).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Fault::Backup("the second directory is not empty: name a new one"));
    }
    let source = DataDir::open(source)?;
    make_dir(dest)?;
    for part in ["keys", "ledger"] {
        copy_files(&source.path().join(part), &dest.join(part))?;
    }
    let copied = salvage_store(&source.store(), &dest.join("store"), progress);
    let copied = copied.map_err(|error| Fault::Store(error.to_string()))?;
    Ok(Copy { path: dest.to_owned(), copied })
}

/// Copies the files of one directory with their modes; one that does not exist has none.
fn copy_files(from: &Path, to: &Path) -> Result<(), Fault> {
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
