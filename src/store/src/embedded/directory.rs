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
pub(super) const FORMAT: &str = "murre store, format 1\n";
/// The first bytes of the format file of any version.
const FORMAT_FRONT: &str = "murre ";
/// Longest format of another version that an error names, bytes.
const FORMAT_BYTES_MAX: usize = 64;
/// Longest wait for a lock that another holds.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Makes the directory a store and takes its lock.
pub(super) fn prepare(dir: &Path) -> Result<File, StoreOpenError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| StoreOpenError::io(dir, "create the store directory", e))?;
    let is_store = has_format(dir)?;
    if !is_store && foreign(dir)? {
        return Err(StoreOpenError::new(dir, Cause::NotAStore));
    }
    let lock = take_lock(dir)?;
    if !is_store {
        let (format, draft) = (dir.join("FORMAT"), dir.join("FORMAT.tmp"));
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

/// Returns true if a directory has a format file, and false if it has none.
///
/// # Errors
/// If the file cannot be read, has no format, or names another one than that of this version.
pub(super) fn has_format(dir: &Path) -> Result<bool, StoreOpenError> {
    let path = dir.join("FORMAT");
    let damaged = || Cause::Damaged("its text is not a format".into());
    let found = match fs::read_to_string(&path) {
        Ok(found) if found == FORMAT => return Ok(true),
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => return Err(StoreOpenError::new(&path, damaged())),
        Err(e) => return Err(StoreOpenError::io(&path, "read", e)),
    };
    let text = found.trim_end();
    let is_other = text.starts_with(FORMAT_FRONT) && text.len() <= FORMAT_BYTES_MAX && !text.contains(char::is_control);
    let cause = if is_other { Cause::Version(text.to_owned()) } else { damaged() };
    Err(StoreOpenError::new(&path, cause))
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
