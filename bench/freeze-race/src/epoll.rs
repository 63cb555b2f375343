//! Epoll for reading, level-triggered.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An instance of epoll.
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Descriptors that one call returns at most.
    pub const EVENTS_MAX: usize = 256;

    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    pub fn add(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(key), EventFlags::IN | EventFlags::RDHUP)?)
    }

    /// Returns the keys of up to `EVENTS_MAX` readable descriptors.
    pub fn wait(&self, keys: &mut Vec<u64>, timeout_ms: u32) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout_ms) * 1_000_000 };
        let mut events = Vec::with_capacity(Self::EVENTS_MAX);
        epoll::wait(&self.0, spare_capacity(&mut events), Some(&timeout))?;
        keys.clear();
        keys.extend(events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}
