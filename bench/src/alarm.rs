//! Wakes an epoll at an exact instant. Its own timeout counts in milliseconds, too coarse for an open loop whose
//! latencies are fractions of one.

use std::cell::Cell;
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
pub struct Alarm {
    timer: OwnedFd,
    /// Time to which it is set, until that is known to have rung.
    at: Cell<Option<Instant>>,
}

impl Alarm {
    /// An alarm that is not set.
    pub fn new(registry: &Registry) -> io::Result<Alarm> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TOKEN, Interest::READABLE)?;
        Ok(Alarm { timer, at: Cell::new(None) })
    }

    /// Sets it, in the place of any earlier setting; an instant that is past rings at once.
    pub fn set(&self, at: Instant) -> io::Result<()> {
        let after = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) };
        let setting = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        self.at.set(Some(at));
        Ok(())
    }

    /// As [`Alarm::set`], unless it is set to something earlier.
    pub fn set_earlier(&self, at: Instant) -> io::Result<()> {
        if self.at.get().is_some_and(|set| set <= at) { Ok(()) } else { self.set(at) }
    }

    /// Notes that it has rung: there was an event.
    pub fn rang(&self) {
        self.at.set(None);
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

    #[test]
    fn the_earliest_of_several_instants_rings() {
        let mut poll = mio::Poll::new().unwrap();
        let mut events = mio::Events::with_capacity(4);
        let alarm = Alarm::new(poll.registry()).unwrap();
        let (soon, late) = (Instant::now() + Duration::from_millis(2), Instant::now() + Duration::from_secs(600));
        alarm.set(late).unwrap();
        alarm.set_earlier(soon).unwrap();
        alarm.set_earlier(late).unwrap();
        poll.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
        assert!(!events.is_empty());
        alarm.rang();
        alarm.set_earlier(Instant::now()).unwrap();
        poll.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
        assert!(!events.is_empty(), "what has rung is not set any more");
    }
}
