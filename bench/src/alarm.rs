//! Wakes an epoll at an exact instant. Its own timeout counts in milliseconds, too coarse for an open loop whose
//! latencies are fractions of one.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// The token of its events; all others are smaller.
pub const TOKEN: Token = Token(usize::MAX);

/// A one-shot timer of the kernel.
pub struct Alarm(OwnedFd);

impl Alarm {
    /// An alarm that is not set.
    pub fn new(registry: &Registry) -> io::Result<Alarm> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TOKEN, Interest::READABLE)?;
        Ok(Alarm(timer))
    }

    /// Sets it, in the place of any earlier setting; an instant that is past rings at once.
    pub fn set(&self, at: Instant) -> io::Result<()> {
        let after = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) };
        let setting = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rings_each_time_it_is_set_and_not_before() {
        let mut poll = mio::Poll::new().unwrap();
        let mut events = mio::Events::with_capacity(4);
        let alarm = Alarm::new(poll.registry()).unwrap();
        poll.poll(&mut events, Some(Duration::from_millis(5))).unwrap();
        assert!(events.is_empty(), "not set");
        for pause in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(3)] {
            let at = Instant::now() + pause;
            alarm.set(at).unwrap();
            poll.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
            assert!(events.iter().any(|event| event.token() == TOKEN), "it did not ring");
            assert!(Instant::now() >= at, "it rang early");
        }
    }
}
