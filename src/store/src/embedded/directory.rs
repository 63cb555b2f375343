//! The directory of an embedded store: its format file and its lock.
//!
//! Lives on: the thread that opens or salvages a store.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::{Cause, StoreOpenError};

/// Content of the format file.
pub(super) const FORMAT: &str = "murre embedded store, format 5\n";
/// Content of the format file before records had shares. Such records are read as they are.
const FORMAT_4: &str = "murre embedded store, format 4\n";
/// Content of the format file before records had bridges. Such records are read as they are.
const FORMAT_3: &str = "murre embedded store, format 3\n";
/// Content of the format file before records named channels. Such records are read as they are.
const FORMAT_2: &str = "murre embedded store, format 2\n";
/// Content of the format file before channels had rows of their own. Such a directory is migrated when it is opened.
const FORMAT_1: &str = "murre embedded store, format 1\n";
const FORMAT_PREFIX: &str = "murre embedded store, format ";
/// Longest wait for a lock that another holds.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Makes the directory a store and takes its lock.
pub(super) fn prepare(dir: &Path) -> Result<File, StoreOpenError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| StoreOpenError::io(dir, "create the store directory", e))?;
    if format_of(dir)?.is_none() && foreign(dir)? {
        return Err(StoreOpenError::new(dir, Cause::NotAStore));
    }
    let format = dir.join("FORMAT");
    let lock = take_lock(dir)?;
    // Before a row is written or migrated, so that an earlier version does not open the directory.
    if fs::read_to_string(&format).is_ok_and(|found| found == FORMAT) {
        return Ok(lock);
    }
    {
        let draft = dir.join("FORMAT.tmp");
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            file.write_all(FORMAT.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &format)?;
            File::open(dir)?.sync_all()
        };
        write().map_err(|e| StoreOpenError::io(&format, "write", e))?;
    }
    Ok(lock)
}

/// Reads the format of a directory, one that this version knows; `None` if there is no format file.
///
/// # Errors
/// If the file cannot be read, has no format, or names another one.
pub(super) fn format_of(dir: &Path) -> Result<Option<u8>, StoreOpenError> {
    let path = dir.join("FORMAT");
    let damaged = || Cause::Damaged("its text is not a format".into());
    let found = match fs::read_to_string(&path) {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => return Err(StoreOpenError::new(&path, damaged())),
        Err(e) => return Err(StoreOpenError::io(&path, "read", e)),
    };
    let known = [FORMAT_1, FORMAT_2, FORMAT_3, FORMAT_4, FORMAT].iter().zip(1..).find(|(text, _)| **text == found);
    if let Some((_, number)) = known {
        return Ok(Some(number));
    }
    let other = found.strip_prefix(FORMAT_PREFIX).map(|number| number.trim().to_string());
    let number = other.filter(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()));
    Err(StoreOpenError::new(&path, number.map_or_else(damaged, Cause::Version)))
}

/// Returns true if a directory without a format file holds anything that no store makes.
fn foreign(dir: &Path) -> Result<bool, StoreOpenError> {
    let list = fs::read_dir(dir).map_err(|e| StoreOpenError::io(dir, "list", e))?;
    Ok(list.flatten().any(|entry| !matches!(entry.file_name().to_str(), Some("LOCK" | "FORMAT.tmp"))))
}

/// Takes the exclusive lock. The kernel releases it at every end of the process.
pub(super) fn take_lock(dir: &Path) -> Result<File, StoreOpenError> {
    let path = dir.join("LOCK");
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|e| StoreOpenError::io(&path, "open", e))?;
    // A process that just ended, or a child it was starting, may hold it for a moment.
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(fs::TryLockError::WouldBlock) => return Err(StoreOpenError::new(dir, Cause::InUse)),
            Err(fs::TryLockError::Error(e)) => return Err(StoreOpenError::io(&path, "lock", e)),
        }
    }
}
