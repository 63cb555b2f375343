//! Place where other shards leave sockets for a shard, and wake it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ring::SocketTray;

/// A socket from another shard.
pub(super) struct Arrival {
    pub table: u16,
    pub socket: OwnedFd,
    pub word: u64,
}

/// Tray of one shard. The slots of its tables bound it: each socket in it has a slot.
pub(super) struct Tray {
    /// Sockets in the tray; `None`: the plane is gone.
    arrivals: Mutex<Option<Vec<Arrival>>>,
    /// Slots of each table that are free and not reserved.
    free: Box<[AtomicU32]>,
    /// True while the shard sleeps, or is about to.
    sleeping: AtomicBool,
    /// The eventfd that the shard polls.
    event: File,
}

impl Tray {
    pub fn new(rings: u16, table: u32, event: BorrowedFd<'_>) -> io::Result<Tray> {
        Ok(Tray {
            arrivals: Mutex::new(Some(Vec::new())),
            free: (0..rings).map(|_| AtomicU32::new(table)).collect(),
            sleeping: AtomicBool::new(false),
            event: File::from(event.try_clone_to_owned()?),
        })
    }

    fn arrivals(&self) -> MutexGuard<'_, Option<Vec<Arrival>>> {
        // No holder of the lock can panic between two states.
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a slot of `table` for a socket. Returns false if none is free.
    pub fn reserve(&self, table: u16) -> bool {
        let Some(free) = self.free.get(usize::from(table)) else { return false };
        free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1)).is_ok()
    }

    /// Releases a slot.
    pub fn release(&self, table: u16) {
        self.free[usize::from(table)].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the sockets in the tray, in the order of their arrival. Each has a slot.
    pub fn take(&self) -> Vec<Arrival> {
        self.arrivals().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes that the shard is about to sleep: from here on, a shard that leaves a socket wakes it. Returns false if a
    /// socket is already in the tray; then the shard must not sleep.
    pub fn sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.arrivals().as_ref().is_none_or(Vec::is_empty)
    }

    /// Notes that the shard is awake.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Closes the sockets in the tray, and refuses further ones: the plane is gone.
    pub fn close(&self) {
        drop(self.arrivals().take());
    }
}

impl SocketTray for Tray {
    fn leave(&self, table: u16, socket: OwnedFd, word: u64) -> Result<(), (OwnedFd, i32)> {
        let mut arrivals = self.arrivals();
        let Some(list) = arrivals.as_mut() else { return Err((socket, -libc::EOWNERDEAD)) };
        if !self.reserve(table) {
            return Err((socket, -libc::ENFILE));
        }
        list.push(Arrival { table, socket, word });
        drop(arrivals);
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.wake();
        }
        Ok(())
    }

    fn wake(&self) {
        // The write neither blocks nor fails: that would take 2^64 wake-ups without a read.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }
}
