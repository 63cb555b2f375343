//! Overwrites secrets that libraries leave in memory: in blocks that they free, and on the stack.
//!
//! Types of this repository that hold a secret overwrite it when they are dropped. rustls and *ring* move secrets by
//! value, from one block of the heap to the next and through their frames, and free key schedules and expanded keys as
//! they are. So a thread says when it handles secrets, and then [`Wiping`], the allocator of the binaries, overwrites
//! each block that this thread frees. [`stack`] overwrites the dead frames below its caller.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

/// Bytes of the stack that a step of a handshake uses below the loop of a shard. It goes 20 KB deep without
/// optimization.
pub const SHARD_STACK_BYTES: usize = 64 * 1_024;
/// The same below the loop of an async runtime: 100 KB without optimization.
pub const RUNTIME_STACK_BYTES: usize = 256 * 1_024;

thread_local! {
    /// True if blocks that this thread frees are overwritten. Without a destructor: the allocator can always read it.
    static WIPES: Cell<bool> = const { Cell::new(false) };
}

/// The allocator of the system, which overwrites what a thread frees within [`freed`], or after [`this_thread`].
pub struct Wiping;

// SAFETY: each block is one of `System`, made with the layout by which it is freed.
unsafe impl GlobalAlloc for Wiping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if WIPES.get() {
            // SAFETY: the block has this size, and the caller uses it no more.
            unsafe { overwrite(block, layout.size()) };
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !WIPES.get() {
            // SAFETY: as the caller promises.
            return unsafe { System.realloc(block, layout, size) };
        }
        // SAFETY: the caller promises that the size is not zero, and fits with this alignment.
        let moved = unsafe { System.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both blocks have that many bytes; the old one is of this layout, and used no more.
            unsafe {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

/// Overwrites a block by volatile writes: others are left out before a block is freed.
///
/// # Safety
/// The block has `len` bytes, and nothing else uses it.
unsafe fn overwrite(block: *mut u8, len: usize) {
    let words = if block.cast::<u64>().is_aligned() { len / size_of::<u64>() } else { 0 };
    for at in 0..words {
        // SAFETY: the word is in the block, and aligned.
        unsafe { block.cast::<u64>().add(at).write_volatile(0) };
    }
    for at in words * size_of::<u64>()..len {
        // SAFETY: the byte is in the block.
        unsafe { block.add(at).write_volatile(0) };
    }
}

/// Runs a step in which this thread handles secrets: every block that it frees is overwritten.
pub fn freed<T>(step: impl FnOnce() -> T) -> T {
    struct Former(bool);
    impl Drop for Former {
        fn drop(&mut self) {
            WIPES.set(self.0);
        }
    }
    let _former = Former(WIPES.replace(true));
    step()
}

/// From now on every block that this thread frees is overwritten.
pub fn this_thread() {
    WIPES.set(true);
}

/// Overwrites that many bytes of the stack below the caller, where frames that have returned have left secrets.
#[inline(never)]
pub fn stack<const BYTES: usize>() {
    let zeroes = [0_u8; BYTES];
    black_box(&zeroes);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[global_allocator]
    static ALLOCATOR: Wiping = Wiping;

    /// Number of these bytes from an address on that are as [`secret`] made them, read past the rules of the language.
    /// Eight in a row count: a single one may be part of an address that a later frame has left there.
    fn left(address: usize, bytes: &mut [u8]) -> usize {
        File::open("/proc/self/mem").unwrap().read_exact_at(bytes, address as u64).unwrap();
        bytes.chunk_by(|byte, next| byte == next).filter(|run| run.len() >= 8 && run[0] == 0x5a).map(<[u8]>::len).sum()
    }

    /// A block of a size that nothing else here takes. The allocator uses its first 16 bytes when it is free.
    fn secret() -> (Vec<u8>, Vec<u8>) {
        (vec![0x5a; 777], vec![0; 777 - 16])
    }

    fn left_of_freed() -> usize {
        let (block, mut read) = secret();
        let address = block.as_ptr().addr();
        drop(block);
        left(address + 16, &mut read)
    }

    #[test]
    fn what_is_freed_is_overwritten_within_a_step_and_at_no_other_time() {
        assert!(left_of_freed() > 700);
        assert_eq!(freed(left_of_freed), 0);
        assert!(left_of_freed() > 700);
        freed(|| {
            freed(|| ());
            assert_eq!(left_of_freed(), 0, "a step within a step ends no other");
        });
        let thread = std::thread::spawn(|| {
            this_thread();
            left_of_freed()
        });
        assert_eq!(thread.join().unwrap(), 0);
    }

    #[test]
    fn a_block_that_grows_leaves_nothing_and_keeps_its_content() {
        let (mut block, mut read) = secret();
        let address = block.as_ptr().addr();
        freed(|| block.reserve(100_000));
        assert_ne!(block.as_ptr().addr(), address, "it was to be moved");
        assert_eq!(left(address + 16, &mut read), 0);
        assert_eq!(block, [0x5a; 777]);
    }

    #[test]
    fn the_stack_below_the_caller_is_overwritten() {
        #[inline(never)]
        fn leave() -> usize {
            let secret = [0x5a_u8; 16_000];
            black_box(&secret);
            secret.as_ptr().addr()
        }
        let mut read = vec![0; 16_000];
        assert!(left(leave(), &mut read) > 0, "the test sees what is left");
        let address = leave();
        stack::<SHARD_STACK_BYTES>();
        assert_eq!(left(address, &mut read), 0);
    }
}
