//! One io_uring with a sparse table of direct descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{self, Ordering};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use machine::ids::ConnId;

use super::fence::{self, RingUses};
use super::layout::PlaneConfig;
use super::op::{Cqe, Kind, decode, encode_plain};
use super::pending_output::PendingOutput;

/// An outbox whose SEND was staged; `refused` is set when less than all of it went out.
pub(super) struct Sending {
    pub conn: ConnId,
    pub output: PendingOutput,
    pub refused: Option<i32>,
}

/// A ring, its table, and the sends of the submission being staged.
pub(super) struct Ring {
    // Dropped first: after it no staged entry can be submitted, so nothing below is read by the kernel again.
    io: IoUring,
    pub sends: Vec<Sending>,
    pub number: u16,
    /// Submissions in a row that found a flag and nothing behind it.
    vain: u32,
    /// The kernel lets a wait gather completions (Linux 6.12).
    can_gather: bool,
}

const ENTER_GETEVENTS: u32 = 1;

/// Vain submissions in a row after which a ring is given something to do.
const VAIN_MAX: u32 = 4;

/// Timeout of a kick: none.
static AT_ONCE: types::Timespec = types::Timespec::new();

/// Completions that end a wait which gathers, and microseconds after which it ends with fewer.
const GATHERED: usize = 64;
const GATHER_MICROS: u32 = 500;

/// Time after which a wait that gathers ends without any completion. The timeout of the hub comes first.
static NO_COMPLETION: types::Timespec = types::Timespec::new().sec(10);

/// The kernel runs 20 pieces of deferred work per visit; a busy ring gets this number of visits to batch more.
const VISITS_MAX: u32 = 16;

impl Ring {
    /// Makes a ring within its fence. Its completions are announced on `event`, if there is one, while not disabled;
    /// they are disabled at first.
    pub fn new(number: u16, config: PlaneConfig, uses: RingUses, event: Option<RawFd>) -> io::Result<Ring> {
        let io = fence::open(config.sq, config.cq)?;
        io.submitter().register_files_sparse(config.table)?;
        if let Some(event) = event {
            io.submitter().register_eventfd(event)?;
        }
        fence::close(&io, uses)?;
        let can_gather = io.params().is_feature_min_timeout();
        let mut ring = Ring { io, sends: Vec::new(), number, vain: 0, can_gather };
        if event.is_some() {
            ring.announce(false);
        }
        Ok(ring)
    }

    /// Its descriptor, as MSG_RING of another shard names it.
    pub fn fd(&self) -> RawFd {
        self.io.as_raw_fd()
    }

    /// Announce completions or not. Reaping signals the eventfd again, so it is off but while parked.
    pub fn announce(&mut self, on: bool) {
        if on {
            self.io.completion().enable_eventfd();
        } else {
            self.io.completion().disable_eventfd();
        }
    }

    /// Behind the last `announce(true)` of a shard and before the first `busy`. Pairs with the kernel's full barrier
    /// between setting TASKRUN and reading that flag: either it sees the flag and signals, or `busy` sees TASKRUN.
    pub fn announced() {
        atomic::fence(Ordering::SeqCst);
    }

    /// Replaces the file in a slot of the table.
    pub fn replace(&self, direct: u32, fd: RawFd) -> io::Result<()> {
        match self.io.submitter().register_files_update(direct, &[fd])? {
            1 => Ok(()),
            _ => Err(io::ErrorKind::Other.into()),
        }
    }

    /// Room for this many more entries without submitting.
    pub fn has_room(&mut self, entries: usize) -> bool {
        let queue = self.io.submission();
        queue.capacity() - queue.len() >= entries
    }

    /// Stages an entry; the caller made sure of room.
    pub fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what an entry points to stays in place until the submission that carries it has returned:
        // outboxes are owned by `sends`, spans by the arena, the timespec by the hub or static, and all of them live
        // in the plane behind its rings. Every operation on them completes within that submission.
        let pushed = unsafe { self.io.submission().push(entry) };
        assert!(pushed.is_ok(), "the caller made room in the submission queue");
    }

    /// Returns true if a visit is due: something staged, deferred work, completions, or completions that overflowed.
    pub fn busy(&mut self) -> bool {
        let queue = self.io.submission();
        if !queue.is_empty() || queue.taskrun() || queue.cq_overflow() {
            return true;
        }
        drop(queue);
        !self.io.completion().is_empty()
    }

    /// Submits what is staged, runs deferred work and reaps every completion there is. When it returns, every
    /// SEND that was staged is over, and those of which something was left are marked in `sends`.
    pub fn enter(&mut self, ready: &mut VecDeque<Cqe>) {
        let mut vain = true;
        for visit in 1.. {
            let before = ready.len();
            let staged = self.io.submission().len() as u32;
            // SAFETY: no argument is passed; the entries are those of `push`.
            let entered = unsafe { self.io.submitter().enter::<libc::sigset_t>(staged, 0, ENTER_GETEVENTS, None) };
            if let Err(error) = entered {
                // EINTR: again. EAGAIN, EBUSY: the kernel is short of memory or of room for completions, which
                // reaping makes. Anything else would be a ring that is no ring.
                let errno = error.raw_os_error().unwrap_or(0);
                assert!(matches!(errno, libc::EINTR | libc::EAGAIN | libc::EBUSY), "io_uring_enter: {error}");
            }
            self.reap(ready);
            vain &= staged == 0 && ready.len() == before;
            let queue = self.io.submission();
            let flagged = queue.taskrun();
            if queue.is_empty() && !queue.cq_overflow() && !(flagged && visit < VISITS_MAX) {
                drop(queue);
                self.vain = if vain && flagged { self.vain + 1 } else { 0 };
                if self.vain >= VAIN_MAX {
                    self.kick();
                }
                return;
            }
        }
    }

    /// Gives the ring a piece of deferred work. The kernel queues work and then sets TASKRUN; when we run that work in
    /// between, the flag is set behind it and stays, since it is cleared only with the next work: a shard whose ring
    /// is idle otherwise would look at it for ever instead of sleeping. The flag cannot be told from a true one, so it
    /// is not ignored: the next work, this timeout, clears it.
    pub(super) fn kick(&mut self) {
        self.vain = 0;
        if self.has_room(1) {
            let entry = opcode::Timeout::new(&raw const AT_ONCE).build().user_data(encode_plain(Kind::Ignored, 0, 0));
            self.push(&entry);
        }
    }

    /// Blocks until there is a completion, and reaps what there is. Nothing is staged. With `gather` the first
    /// completion may wait for others, for [`GATHER_MICROS`] from the begin of the wait: one that comes later than that
    /// ends the wait at once.
    pub fn wait(&mut self, gather: bool, ready: &mut VecDeque<Cqe>) {
        let entered = if gather && self.can_gather {
            let args = types::SubmitArgs::new().timespec(&NO_COMPLETION).min_wait_usec(GATHER_MICROS);
            self.io.submitter().submit_with_args(GATHERED, &args)
        } else {
            // SAFETY: no argument is passed and nothing is submitted.
            unsafe { self.io.submitter().enter::<libc::sigset_t>(0, 1, ENTER_GETEVENTS, None) }
        };
        if let Err(error) = entered {
            // ETIME: nothing came within `NO_COMPLETION`.
            let errno = error.raw_os_error().unwrap_or(0);
            let expected = matches!(errno, libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME);
            assert!(expected, "io_uring_enter: {error}");
        }
        self.reap(ready);
    }

    fn reap(&mut self, ready: &mut VecDeque<Cqe>) {
        for entry in self.io.completion() {
            let word = entry.user_data();
            if let Some((kind, aux, _)) = decode(word)
                && kind == Kind::Send as u8
            {
                if let Some(sending) = self.sends.get_mut(aux) {
                    sending.refused = Some(entry.result());
                }
                continue;
            }
            ready.push_back(Cqe { word, result: entry.result(), more: cqueue::more(entry.flags()), ring: self.number });
        }
    }
}

/// Takes the descriptor that a completion of FIXED_FD_INSTALL has made.
pub(super) fn installed(result: i32) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the kernel has made this descriptor for us, and its completion is read once.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::super::hub::eventfd;
    use super::*;

    fn small_ring(number: u16) -> Ring {
        let config = PlaneConfig { rings: 1, table: 8, sq: 8, cq: 16 };
        Ring::new(number, config, RingUses::default(), None).unwrap()
    }

    #[test]
    fn a_kick_is_work_that_nobody_asks_for_and_leaves_the_ring_quiet() {
        let mut ring = small_ring(0);
        assert!(!ring.busy());
        ring.vain = VAIN_MAX;
        ring.kick();
        assert!(ring.busy() && ring.vain == 0);
        let mut ready = VecDeque::new();
        while ready.is_empty() {
            ring.enter(&mut ready);
        }
        assert_eq!(
            ready.pop_front().and_then(|cqe| decode(cqe.word)).map(|(kind, ..)| kind),
            Some(Kind::Ignored as u8)
        );
        assert!(ready.is_empty() && !ring.busy());
    }

    /// Waits with `gather` until `wake`, on a thread of its own and after a pause, has made one completion.
    fn gathers_one(ring: &mut Ring, pause: Duration, wake: impl FnOnce() + Send) {
        let mut ready = VecDeque::new();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(pause);
                wake();
            });
            while ready.is_empty() {
                ring.wait(true, &mut ready);
            }
        });
        assert_eq!(ready.len(), 1);
        // NO_COMPLETION ends a wait that one completion did not end.
        assert!(begin.elapsed() < Duration::from_secs(5), "one completion ends a wait that gathers");
    }

    /// No completion here is that of a timeout: those end every wait, also one that gathers.
    #[test]
    fn one_completion_ends_a_wait_that_gathers_before_and_behind_its_time() {
        let mut ring = small_ring(0);
        let event = File::from(eventfd().unwrap());
        let poll = opcode::PollAdd::new(types::Fd(event.as_raw_fd()), libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(encode_plain(Kind::Event, 0, 0));
        ring.push(&poll);
        ring.enter(&mut VecDeque::new());
        for pause in [Duration::ZERO, Duration::from_millis(20)] {
            gathers_one(&mut ring, pause, || {
                (&event).write_all(&1u64.to_ne_bytes()).unwrap();
            });
        }
        let hub = ring.fd();
        for pause in [Duration::ZERO, Duration::from_millis(20)] {
            gathers_one(&mut ring, pause, || {
                let mut other = small_ring(1);
                let word = encode_plain(Kind::Bell, 0, 0);
                other.push(&opcode::MsgRingData::new(types::Fd(hub), 0, word, None).build());
                other.enter(&mut VecDeque::new());
            });
        }
    }
}
