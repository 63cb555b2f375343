//! Receive buffers of a shard: spans that a RECV fills and the codec reads, then free again.
//!
//! Idle connections hold none (RULES.md). Freed spans are reused last in, first out, so that only as many
//! are ever touched as were in use at once.

use std::cell::UnsafeCell;

use super::op::AUX_MAX;

/// Bytes of a small span.
pub(crate) const SMALL_BYTES: usize = 2 * 1024;
/// Bytes of a large span.
pub(crate) const LARGE_BYTES: usize = 8 * 1024;
const SMALL_COUNT: usize = 1_024;
const LARGE_COUNT: usize = 256;

const _: () = assert!(SMALL_COUNT + LARGE_COUNT <= AUX_MAX);

/// Size of the spans that a port receives into (RULES.md rule 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpanSize {
    /// WebSockets.
    Small,
    /// Endpoint and node connections.
    Large,
}

/// A span that is owned: by the kernel from staging to completion, by the reactor until it is freed.
#[derive(Debug)]
pub(crate) struct ArenaSpan(u16);

impl ArenaSpan {
    /// The number that user_data carries.
    pub(super) fn index(&self) -> usize {
        usize::from(self.0)
    }

    /// The span whose completion was reaped. Only for the plane, once per completion.
    pub(super) fn of_completion(index: usize) -> ArenaSpan {
        ArenaSpan(index as u16)
    }
}

/// All spans of a shard.
pub(crate) struct Arena {
    memory: Box<[UnsafeCell<u8>]>,
    small: Vec<u16>,
    large: Vec<u16>,
}

impl Arena {
    pub(crate) fn new() -> Arena {
        let bytes = SMALL_COUNT * SMALL_BYTES + LARGE_COUNT * LARGE_BYTES;
        let zeroed: Box<[u8]> = vec![0; bytes].into_boxed_slice();
        // SAFETY: UnsafeCell<u8> has the layout of u8, so the box keeps its size and alignment.
        let memory = unsafe { Box::from_raw(Box::into_raw(zeroed) as *mut [UnsafeCell<u8>]) };
        let small = (0..SMALL_COUNT as u16).rev().collect();
        let large = (SMALL_COUNT as u16..(SMALL_COUNT + LARGE_COUNT) as u16).rev().collect();
        Arena { memory, small, large }
    }

    /// A free span, if there is one.
    pub(crate) fn take(&mut self, size: SpanSize) -> Option<ArenaSpan> {
        match size {
            SpanSize::Small => self.small.pop(),
            SpanSize::Large => self.large.pop(),
        }
        .map(ArenaSpan)
    }

    /// Gives a span back.
    pub(crate) fn free(&mut self, span: ArenaSpan) {
        if usize::from(span.0) < SMALL_COUNT { self.small.push(span.0) } else { self.large.push(span.0) }
    }

    /// Length of the span.
    pub(crate) fn len(&self, span: &ArenaSpan) -> usize {
        place(span).1
    }

    /// Address and length of the span, for the kernel to write to.
    pub(super) fn target(&self, span: &ArenaSpan) -> (*mut u8, u32) {
        let (start, len) = place(span);
        (self.memory[start].get(), len as u32)
    }

    /// The first `len` bytes of a span whose RECV has completed.
    pub(crate) fn bytes(&mut self, span: &ArenaSpan, len: usize) -> &mut [u8] {
        let (start, all) = place(span);
        let cells = &mut self.memory[start..start + len.min(all)];
        // SAFETY: UnsafeCell<u8> has the layout of u8, `&mut self` is exclusive among us, and the kernel is
        // done with this span: its completion was reaped before a `ArenaSpan` could be had, and it was not staged
        // since.
        unsafe { &mut *(std::ptr::from_mut(cells) as *mut [u8]) }
    }
}

fn place(span: &ArenaSpan) -> (usize, usize) {
    let index = span.index();
    match index.checked_sub(SMALL_COUNT) {
        None => (index * SMALL_BYTES, SMALL_BYTES),
        Some(large) => (SMALL_COUNT * SMALL_BYTES + large * LARGE_BYTES, LARGE_BYTES),
    }
}
