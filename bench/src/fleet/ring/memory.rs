//! Memory that is shared with the kernel between staging an operation and its completion.

use std::cell::{RefCell, UnsafeCell};

/// Bytes that are reached by pointer only, so that no reference says that they do not change.
pub(super) struct Memory(Box<[UnsafeCell<u8>]>);

impl Memory {
    /// Zeros. Pages that are not written to take no memory.
    pub fn new(bytes: usize) -> Memory {
        let zeros: Box<[u8]> = vec![0; bytes].into_boxed_slice();
        // SAFETY: UnsafeCell<u8> has the layout of u8, so the box keeps its size and alignment.
        Memory(unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [UnsafeCell<u8>]) })
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Pointer to byte `at`, with at least `len` behind it.
    pub fn pointer(&self, at: usize, len: usize) -> *mut u8 {
        let cells = &self.0[at..at + len];
        cells.as_ptr().cast_mut().cast()
    }

    /// Copies `bytes` to `at`. The kernel must not have these under way.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let target = self.pointer(at, bytes.len());
        // SAFETY: `pointer` checked the bounds, `&mut self` excludes other users in this process, and `bytes` cannot
        // overlap memory that is only ever reached through `self`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Bytes that do not change: [`Spans::bytes`] and `Ring::reap` say why.
    pub fn read(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: `pointer` checked the bounds; both callers hold what the kernel has given back and `&self` keeps
        // `write` out.
        unsafe { std::slice::from_raw_parts(self.pointer(at, len), len) }
    }
}

/// Bytes of a receive span. A longer message comes in pieces.
pub(in crate::fleet) const SPAN_BYTES: usize = 4 * 1024;
/// Receives under way at once, over all rings.
const SPANS: usize = 1_024;

const _: () = assert!(SPANS <= crate::fleet::user_data::AUX_MAX);

/// A span that is owned: by the kernel from staging to completion, by us until it is freed. There is one of each.
#[derive(Debug)]
pub(in crate::fleet) struct Span(u16);

impl Span {
    pub(super) fn index(&self) -> usize {
        usize::from(self.0)
    }

    /// The span of a completed receive. Once per completion, only for [`super::Rings`].
    pub(super) fn of_completion(index: usize) -> Span {
        Span(index as u16)
    }
}

/// The receive spans of all rings. The last one freed is taken first, so that only as many are touched as are in use
/// at once.
pub(in crate::fleet) struct Spans {
    memory: Memory,
    free: RefCell<Vec<u16>>,
}

impl Spans {
    pub(super) fn new() -> Spans {
        Spans { memory: Memory::new(SPANS * SPAN_BYTES), free: RefCell::new((0..SPANS as u16).rev().collect()) }
    }

    /// A free one, if there is one.
    pub fn take(&self) -> Option<Span> {
        self.free.borrow_mut().pop().map(Span)
    }

    /// Gives it back.
    pub fn free(&self, span: Span) {
        self.free.borrow_mut().push(span.0);
    }

    pub(super) fn pointer(&self, span: &Span) -> *mut u8 {
        self.memory.pointer(span.index() * SPAN_BYTES, SPAN_BYTES)
    }

    /// The first `len` bytes of a span whose receive is over. The caller has the `Span`, so the kernel has not: staging
    /// a receive takes it away and its completion brings it back.
    pub fn bytes(&self, span: &Span, len: usize) -> &[u8] {
        self.memory.read(span.index() * SPAN_BYTES, len.min(SPAN_BYTES))
    }
}
