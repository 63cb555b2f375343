//! The mapping: the only place of the ledger that touches raw memory.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ids::LedgerSlot;

use super::fault::LedgerError;
use super::layout::{self, DEAD, HEADER_BYTES, RECORD_HEAD_BYTES};

const STATE_AT: u64 = 12;

/// A file mapped shared and writable. Owned by one thread.
pub(super) struct Map {
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
                // SAFETY: `at` lies inside the mapping, which nobody else knows yet. What is there stays.
                unsafe {
                    let page = self.base.as_ptr().add(at);
                    page.write_volatile(page.read_volatile());
                }
            }
        }
    }

    /// The secret of this file.
    pub(super) fn salt(&self) -> u64 {
        self.salt
    }

    /// Copies `bytes` to `at` of the header page.
    pub(super) fn write_header_bytes(&mut self, at: usize, bytes: &[u8]) {
        note("header", Path::new(""));
        assert!(at + bytes.len() <= HEADER_BYTES as usize, "the header is one page");
        // SAFETY: inside the header page by the assertion; `&mut self` makes this the only access.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
        // Order: a floor is in the map before the append that relies on it.
        std::sync::atomic::compiler_fence(Ordering::Release);
    }

    /// State word of the record at `place`.
    pub(super) fn state(&self, place: u64) -> u32 {
        self.state_cell(place).load(Ordering::Relaxed)
    }

    /// Sets that word, after everything written before.
    pub(super) fn set_state(&mut self, place: u64, state: u32) {
        if place + RECORD_HEAD_BYTES <= self.bytes as u64 - HEADER_BYTES {
            self.state_cell(place).store(state, Ordering::Release);
        }
        // Else fewer bytes than a record head are left: whoever reads there knows it for a filler by its size.
    }

    /// Body length and slot of the record at `place`.
    pub(super) fn record_head(&self, place: u64) -> (usize, LedgerSlot) {
        let head = self.span(place, RECORD_HEAD_BYTES as usize);
        let len = u32::from_le_bytes(layout::field(head, 0)) as usize;
        (len, LedgerSlot(u32::from_le_bytes(layout::field(head, 4))))
    }

    /// Body of the record at `place`.
    pub(super) fn body(&self, place: u64, len: usize) -> &[u8] {
        self.span(place + RECORD_HEAD_BYTES, len)
    }

    /// Writes a record at `place` and then marks it live.
    pub(super) fn write_record(&mut self, place: u64, slot: LedgerSlot, body: &[u8]) {
        let size = RECORD_HEAD_BYTES as usize + body.len();
        let _inside = self.span(place, size);
        self.set_state(place, DEAD);
        let mut head = [0u8; RECORD_HEAD_BYTES as usize];
        head[0..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&slot.0.to_le_bytes());
        head[8..12].copy_from_slice(&layout::record_crc(self.salt, slot, body).to_le_bytes());
        head[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
        // SAFETY: `span` proved that the record lies inside the ring; `&mut self` makes this the only access.
        unsafe {
            let at = self.base.as_ptr().add((HEADER_BYTES + place) as usize);
            std::ptr::copy_nonoverlapping(head.as_ptr(), at, head.len());
            std::ptr::copy_nonoverlapping(body.as_ptr(), at.add(head.len()), body.len());
        }
        self.set_state(place, layout::live_word(self.salt));
    }

    fn span(&self, place: u64, len: usize) -> &[u8] {
        let start = (HEADER_BYTES + place) as usize;
        assert!(start + len <= self.bytes, "a record lies inside its log");
        // SAFETY: inside the mapping by the assertion; writers need `&mut self`, so it does not change meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), len) }
    }

    fn state_cell(&self, place: u64) -> &AtomicU32 {
        assert!(place.is_multiple_of(8) && place + RECORD_HEAD_BYTES <= self.bytes as u64 - HEADER_BYTES);
        let at = (HEADER_BYTES + place + STATE_AT) as usize;
        // SAFETY: inside the mapping by the assertion, and aligned: the page, the place and 12 are multiples of 4.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
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
