//! Counts allocations by thread, and can show their places.

// An allocator is unsafe to implement.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use procfs::process::Process;

/// The system's allocator, counting on the way. Growing a buffer counts; giving back does not.
pub struct Counting;

/// More threads than a node of one shard has; those beyond are counted together.
const THREADS: usize = 256;

static COUNTS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
static TASKS: [AtomicI32; THREADS] = [const { AtomicI32::new(0) }; THREADS];
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// The thread whose allocations are traced; 0 is none.
static TRACED: AtomicI32 = AtomicI32::new(0);
static TRACES: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

thread_local! {
    // Without a destructor and without code to make it: reading it allocates nothing.
    static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
    static TRACING: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    let place = PLACE.get();
    let place = if place == usize::MAX {
        let place = NEXT.fetch_add(1, Ordering::Relaxed).min(THREADS - 1);
        // SAFETY: no pointers are passed.
        TASKS[place].store(unsafe { libc::gettid() }, Ordering::Relaxed);
        PLACE.set(place);
        place
    } else {
        place
    };
    COUNTS[place].fetch_add(1, Ordering::Relaxed);
    if TRACED.load(Ordering::Relaxed) == TASKS[place].load(Ordering::Relaxed) && !TRACING.replace(true) {
        let stack = short(&Backtrace::force_capture().to_string());
        *TRACES.lock().unwrap().entry(stack).or_insert(0) += 1;
        TRACING.set(false);
    }
}

/// Functions of the crates of a shard in a stack, innermost first.
fn short(stack: &str) -> String {
    let ours = |line: &&str| {
        let line = line.split_once(": ").map_or("", |(_, name)| name);
        let line = line.strip_prefix('<').unwrap_or(line);
        ["edge::", "machine::", "protocol::", "runtime::", "store::"].iter().any(|name| line.starts_with(name))
    };
    let names = stack.lines().filter(ours).take(5).map(|line| line.trim().to_owned());
    names.collect::<Vec<_>>().join("\n      ")
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// A thread of this process.
#[derive(Clone, Copy)]
pub struct Thread(i32);

impl Thread {
    /// The thread whose name begins with `name`.
    pub fn named(name: &str) -> Thread {
        let mut tasks = Process::myself().unwrap().tasks().unwrap().flatten();
        let found = tasks.find(|task| task.stat().is_ok_and(|stat| stat.comm.starts_with(name)));
        Thread(found.unwrap_or_else(|| panic!("there is no thread {name}")).tid)
    }

    /// Number of its allocations.
    pub fn allocations(self) -> u64 {
        let places = TASKS.iter().zip(&COUNTS).filter(|(task, _)| task.load(Ordering::Relaxed) == self.0);
        places.map(|(_, count)| count.load(Ordering::Relaxed)).sum()
    }

    /// Places at which it allocates while `work` runs, one line for each with its count.
    pub fn trace(self, work: impl FnOnce()) -> String {
        TRACED.store(self.0, Ordering::Relaxed);
        work();
        TRACED.store(0, Ordering::Relaxed);
        let traces = std::mem::take(&mut *TRACES.lock().unwrap());
        let mut traces: Vec<_> = traces.into_iter().collect();
        traces.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        traces.iter().map(|(stack, count)| format!("{count:6} x {stack}\n")).collect()
    }
}
