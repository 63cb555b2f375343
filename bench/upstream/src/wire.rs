//! A byte stream of HTTP/2 that sees the frames of both sides, and puts frames of its own between those of the server.
//!
//! The server library neither changes its limit of streams later, nor sends a GOAWAY that a test chooses, nor header
//! fields without an end. Acknowledgements of SETTINGS that were put in are not shown to it (RFC 9113 section 6.5.3).

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Way to put frames into a stream. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Frames(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// Frames to put in at the next boundary.
    queue: Vec<u8>,
    /// Of each SETTINGS frame that was sent and not acknowledged: the limit of streams, if it was put in.
    sent: VecDeque<Option<u32>>,
    /// Limit of streams that the other side acknowledged last.
    limit: Option<u32>,
    closed: bool,
    waker: Option<Waker>,
}

impl Frames {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, frame: &[u8]) {
        let mut shared = self.lock();
        shared.queue.extend_from_slice(frame);
        if let Some(waker) = shared.waker.take() {
            waker.wake();
        }
    }

    /// Announces a limit of streams at a time.
    pub fn put_limit(&self, streams: u32) {
        let mut payload = vec![0, 3];
        payload.extend(streams.to_be_bytes());
        self.put(&frame(SETTINGS, 0, 0, &payload));
    }

    /// Announces the end: streams above `last` were not processed.
    pub fn put_goaway(&self, last: u32, debug: &str) {
        let mut payload = last.to_be_bytes().to_vec();
        payload.extend([0; 4]);
        payload.extend(debug.as_bytes());
        self.put(&frame(GOAWAY, 0, 0, &payload));
    }

    /// Sends header fields for a stream, a few megabytes of them, and no end.
    pub fn put_endless_headers(&self, stream: u32) {
        // Status 200 of the static table, then literals without indexing, `a: b` (RFC 7541 section 6.2.2).
        self.put(&frame(HEADERS, 0, stream, &[0x88]));
        let fields = [0, 1, b'a', 1, b'b'].repeat(3_200);
        for _ in 0..200 {
            self.put(&frame(CONTINUATION, 0, stream, &fields));
        }
    }

    /// Ends the connection once all that was written is sent.
    pub fn close(&self) {
        self.lock().closed = true;
        self.put(&[]);
    }

    /// Limit of streams that the other side has to keep.
    pub fn limit(&self) -> Option<u32> {
        self.lock().limit
    }
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
/// Flag of SETTINGS.
const ACK: u8 = 1;
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Position in a sequence of frames.
struct Cursor {
    /// Bytes until the next head.
    rest: usize,
    head: Vec<u8>,
}

impl Cursor {
    /// Moves over the start of `bytes`: to the end of the frame, or as far as they go. Returns the length, and the head
    /// once it is complete.
    fn step(&mut self, bytes: &[u8]) -> (usize, Option<[u8; HEAD_BYTES]>) {
        if self.rest > 0 {
            let length = self.rest.min(bytes.len());
            self.rest -= length;
            return (length, None);
        }
        let length = (HEAD_BYTES - self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..length]);
        let Ok(head) = <[u8; HEAD_BYTES]>::try_from(self.head.as_slice()) else { return (length, None) };
        self.head.clear();
        self.rest = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        (length, Some(head))
    }

    fn is_between_frames(&self) -> bool {
        self.rest == 0 && self.head.is_empty()
    }
}

/// The stream.
pub(crate) struct Wire<S> {
    inner: S,
    frames: Frames,
    /// Limit of streams that is announced right behind the first SETTINGS.
    first_limit: Option<u32>,
    written: Cursor,
    /// Bytes that wait for the socket.
    pending: VecDeque<u8>,
    read: Cursor,
    /// Bytes for the library.
    ready: VecDeque<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub fn new(inner: S, frames: Frames, limit: u32) -> Wire<S> {
        Wire {
            inner,
            frames,
            first_limit: Some(limit),
            written: Cursor { rest: 0, head: Vec::new() },
            pending: VecDeque::new(),
            read: Cursor { rest: PREFACE_BYTES, head: Vec::new() },
            ready: VecDeque::new(),
        }
    }

    /// Moves frames that wait into the output, if no frame is half written.
    fn take_queue(&mut self) {
        if !self.written.is_between_frames() {
            return;
        }
        let mut shared = self.frames.lock();
        let queue = std::mem::take(&mut shared.queue);
        let mut rest = queue.as_slice();
        while rest.len() >= HEAD_BYTES {
            let length = HEAD_BYTES + u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
            if rest[3] == SETTINGS {
                let value = [rest[11], rest[12], rest[13], rest[14]];
                shared.sent.push_back(Some(u32::from_be_bytes(value)));
            }
            rest = &rest[length..];
        }
        self.pending.extend(queue);
    }

    fn pump(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.take_queue();
        while !self.pending.is_empty() {
            let (front, _) = self.pending.as_slices();
            let written = std::task::ready!(Pin::new(&mut self.inner).poll_write(cx, front))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.pending.drain(..written);
        }
        std::task::ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        if self.frames.lock().closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }

    /// Sorts bytes of the other side: everything goes to the library but acknowledgements of frames that were put in.
    fn sort(&mut self, mut bytes: &[u8]) {
        let mut head = self.read.head.clone();
        while !bytes.is_empty() {
            let is_head = self.read.rest == 0;
            let (length, whole) = self.read.step(bytes);
            if !is_head {
                self.ready.extend(&bytes[..length]);
            } else {
                head.extend_from_slice(&bytes[..length]);
                if let Some(whole) = whole {
                    let is_ours = whole[3] == SETTINGS && whole[4] & ACK != 0 && self.acknowledged();
                    if !is_ours {
                        self.ready.extend(&head);
                    }
                    head.clear();
                }
            }
            bytes = &bytes[length..];
        }
    }

    /// Returns true if the acknowledged SETTINGS were put in.
    fn acknowledged(&mut self) -> bool {
        let mut shared = self.frames.lock();
        match shared.sent.pop_front() {
            Some(Some(limit)) => {
                shared.limit = Some(limit);
                true
            }
            _ => false,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.frames.lock().waker = Some(cx.waker().clone());
        if let Poll::Ready(Err(error)) = this.pump(cx) {
            return Poll::Ready(Err(error));
        }
        while this.ready.is_empty() {
            let mut space = [0; 16 * 1024];
            let mut arrived = ReadBuf::new(&mut space);
            std::task::ready!(Pin::new(&mut this.inner).poll_read(cx, &mut arrived))?;
            if arrived.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let arrived = arrived.filled().to_vec();
            this.sort(&arrived);
        }
        let (front, _) = this.ready.as_slices();
        let length = front.len().min(buf.remaining());
        buf.put_slice(&front[..length]);
        this.ready.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        std::task::ready!(this.pump(cx))?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (length, head) = this.written.step(rest);
            this.pending.extend(&rest[..length]);
            rest = &rest[length..];
            if head.is_some_and(|head| head[3] == SETTINGS && head[4] & ACK == 0) {
                this.frames.lock().sent.push_back(None);
            }
            if this.written.is_between_frames() {
                if let Some(limit) = this.first_limit.take() {
                    this.frames.put_limit(limit);
                }
                this.take_queue();
            }
        }
        let _ = this.pump(cx)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pump(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
