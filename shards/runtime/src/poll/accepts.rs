//! Armed accepts, and the last known state of their listeners.

use std::os::fd::RawFd;

/// Armed accepts of one listener into the table of one ring.
struct Armed {
    ring: u16,
    listener: u32,
    arming: u16,
    fd: RawFd,
    count: usize,
}

/// A registered listening socket.
struct Listener {
    fd: RawFd,
    /// True if connections may wait: no accept has found the opposite since the last event.
    ready: bool,
}

/// Accepts of a shard.
#[derive(Default)]
pub(super) struct Accepts {
    armed: Vec<Armed>,
    listeners: Vec<Listener>,
}

impl Accepts {
    /// Arms one accept.
    pub fn arm(&mut self, ring: u16, listener: u32, arming: u16, fd: RawFd) {
        match self.armed.iter_mut().find(|armed| armed.is(ring, listener, arming)) {
            Some(armed) => armed.count += 1,
            None => self.armed.push(Armed { ring, listener, arming, fd, count: 1 }),
        }
    }

    /// Removes the accepts of an arming, and returns their number.
    pub fn cancel(&mut self, ring: u16, listener: u32, arming: u16) -> usize {
        let at = self.armed.iter().position(|armed| armed.is(ring, listener, arming));
        at.map_or(0, |at| self.armed.swap_remove(at).count)
    }

    /// Returns true if this listener is registered.
    pub fn knows(&self, fd: RawFd) -> bool {
        self.listeners.iter().any(|listener| listener.fd == fd)
    }

    /// Notes a registered listener, where connections may already wait.
    pub fn register(&mut self, fd: RawFd) {
        self.listeners.push(Listener { fd, ready: true });
    }

    /// Notes an event of the kernel: connections wait at this listener.
    pub fn notify_ready(&mut self, fd: RawFd) {
        self.listeners.iter_mut().filter(|listener| listener.fd == fd).for_each(|known| known.ready = true);
    }

    /// Carries out the armed accepts for which connections may wait. `accept` takes a descriptor and a ring. It returns
    /// the result, or `None` if no connection waits. `done` takes listener, ring and result.
    pub fn carry_out(
        &mut self,
        mut accept: impl FnMut(RawFd, u16) -> Option<i32>,
        mut done: impl FnMut(u32, u16, i32),
    ) {
        for armed in &mut self.armed {
            let Some(known) = self.listeners.iter_mut().find(|listener| listener.fd == armed.fd) else { continue };
            while armed.count > 0 && known.ready {
                match accept(armed.fd, armed.ring) {
                    Some(result) => {
                        armed.count -= 1;
                        done(armed.listener, armed.ring, result);
                    }
                    None => known.ready = false,
                }
            }
        }
        self.armed.retain(|armed| armed.count > 0);
    }
}

impl Armed {
    fn is(&self, ring: u16, listener: u32, arming: u16) -> bool {
        (self.ring, self.listener, self.arming) == (ring, listener, arming)
    }
}
