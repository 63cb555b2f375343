//! The mapping: the only place of the ledger that touches raw memory.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::error::LedgerError;
use super::layout::HEADER_BYTES;
use super::medium::Medium;

/// A file mapped shared and writable. Owned by one thread.
pub struct Map {
    base: NonNull<u8>,
    bytes: usize,
    salt: u64,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is tied to the thread that made it.
unsafe impl Send for Map {}

impl Map {
    /// Makes, allocates and maps a file of `bytes`; its content is zero but for what `write_header` writes, and that
    /// is on the disk. [`Map::fault_in`] comes later: it dirties every page, and a sync would write them all.
    pub(super) fn create(path: &Path, bytes: u64, write_header: impl FnOnce(&mut Map)) -> Result<Map, LedgerError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| LedgerError::io(path, "create", e))?;
        let made = Map::of(&file, bytes).and_then(|mut map| {
            write_header(&mut map);
            note("file", path);
            // Pages that were written through the mapping are the file's: this writes them, and its length.
            file.sync_all().map_err(|e| ("sync", e))?;
            Ok(map)
        });
        if made.is_err() {
            // A file that could not be allocated would only take up the space that is missing.
            let _ = std::fs::remove_file(path);
        }
        made.map_err(|(action, e)| LedgerError::io(path, action, e))
    }

    fn of(file: &File, bytes: u64) -> Result<Map, (&'static str, std::io::Error)> {
        let fd = file.as_raw_fd();
        let len = usize::try_from(bytes).map_err(|e| ("map", std::io::Error::other(e)))?;
        // SAFETY: plain call on an open descriptor. Allocated here, so that no later store faults on a full disk.
        if unsafe { libc::fallocate(fd, 0, 0, bytes as i64) } != 0 {
            return Err(("allocate", std::io::Error::last_os_error()));
        }
        // SAFETY: a new mapping at an address of the kernel's choice over the whole of an open file.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0)
        };
        let base = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED);
        let base = base.ok_or_else(|| ("map", std::io::Error::last_os_error()))?;
        let mut map = Map { base, bytes: len, salt: 0 };
        map.salt = salt().map_err(|e| ("salt", e))?;
        Ok(map)
    }

    /// Faults every page in for writing, so that no append waits for the file system.
    pub(super) fn fault_in(&mut self) {
        // SAFETY: the range is exactly this mapping. Kernels before 5.14 refuse the advice; the loop below serves them.
        let advised = unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_POPULATE_WRITE) };
        if advised != 0 {
            for at in (0..self.bytes).step_by(4096) {
                // SAFETY: `at` lies inside the mapping, which no other code knows yet. What is there stays.
                unsafe {
                    let page = self.base.as_ptr().add(at);
                    page.write_volatile(page.read_volatile());
                }
            }
        }
    }

    fn cell(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "a word lies inside its log");
        // SAFETY: inside the mapping by the assertion, and aligned: the mapping begins on a page.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}

impl Medium for Map {
    fn salt(&self) -> u64 {
        self.salt
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: exactly this mapping; writers need `&mut self`, so it does not change meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        if at < HEADER_BYTES as usize {
            note("header", Path::new(""));
        }
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes), "a record lies inside its log");
        // SAFETY: inside the mapping by the assertion; `&mut self` makes this the only access.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
        // Order: a floor is in the map before the append that relies on it.
        std::sync::atomic::compiler_fence(Ordering::Release);
    }

    fn word(&self, at: usize) -> u32 {
        self.cell(at).load(Ordering::Relaxed)
    }

    fn set_word(&mut self, at: usize, word: u32) {
        self.cell(at).store(word, Ordering::Release);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, once; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Syncs a directory, so that the names in it outlive a power cut.
pub(super) fn sync_directory(dir: &Path) -> Result<(), LedgerError> {
    note("directory", dir);
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| LedgerError::io(dir, "sync the directory of", e))
}

/// A step of making a log; a power cut relies on their order.
#[cfg(not(test))]
fn note(_step: &'static str, _path: &Path) {}

#[cfg(test)]
thread_local! {
    /// The steps that this thread took: a test cannot cut the power.
    pub(super) static STEPS: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(test)]
fn note(step: &'static str, path: &Path) {
    let is_log = |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|e| e == "log");
    let named = std::fs::read_dir(path).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(is_log)));
    STEPS.with_borrow_mut(|steps| steps.push(if named { "directory with the log" } else { step }));
}

fn salt() -> Result<u64, std::io::Error> {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes at most 8 bytes into a buffer of 8.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize { Ok(u64::from_le_bytes(bytes)) } else { Err(std::io::Error::last_os_error()) }
}
