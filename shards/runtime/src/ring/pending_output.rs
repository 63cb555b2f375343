//! Bytes on their way to one socket, and where each frame among them ends.
//!
//! One SEND per socket and submission carries a whole outbox (RULES.md rule 1). When the kernel takes
//! only part of it, frame ends and emission ids say what to keep and what to give back (rule 6).
//!
//! The outbox of a TLS connection holds frames in plaintext until it is sealed for one submission. Of a record of which
//! the kernel took a byte, the rest stays as ciphertext; the other records are dropped, and what was in them is
//! plaintext again (rule 9).

use machine::ids::EmissionId;

use crate::tls::{PLAINTEXT_MAX, Tls};

/// Frames for one socket, coalesced.
#[derive(Default, Debug)]
pub(crate) struct PendingOutput {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    /// TLS only: ciphertext. First what must go out before anything else, then `records`.
    wire: Vec<u8>,
    records: Vec<Record>,
    /// TLS only: the alert close_notify follows the frames.
    close_notify: bool,
}

/// A record that was sealed for the submission under way.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Its range of `wire`.
    start: u32,
    end: u32,
    /// End of its plaintext in `bytes`.
    plain_end: u32,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    end: u32,
    /// Set for notifications: those can be sent again later, everything else must stay in line.
    emission: Option<EmissionId>,
}

/// A pooled outbox gives back what it grew beyond this.
const KEPT_BYTES: usize = 16 * 1024;

impl PendingOutput {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.wire.is_empty() && !self.close_notify
    }

    /// Bytes of frames.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes for the kernel: those of the frames, or the ciphertext if there is some.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        if self.wire.is_empty() { &self.bytes } else { &self.wire }
    }

    /// Appends ciphertext that goes out before every frame of this outbox and is never taken back.
    pub(crate) fn push_wire(&mut self, bytes: &[u8]) {
        debug_assert!(self.records.is_empty(), "nothing is added to an outbox that is sealed");
        self.wire.extend_from_slice(bytes);
    }

    /// Ends the stream with the alert close_notify, behind all frames.
    pub(crate) fn end_with_close_notify(&mut self) {
        self.close_notify = true;
    }

    /// Drops the frames: nothing may be sealed any more. The ciphertext stays.
    pub(crate) fn drop_frames(&mut self) {
        self.bytes.clear();
        self.frames.clear();
        self.close_notify = false;
    }

    /// Seals the frames for one submission.
    pub(crate) fn seal(&mut self, tls: &mut dyn Tls, slot: u32) {
        tls.control(slot, &mut self.wire);
        let mut plain_end = 0;
        for plain in self.bytes.chunks(PLAINTEXT_MAX) {
            plain_end += plain.len() as u32;
            let start = self.wire.len() as u32;
            tls.seal(slot, plain, &mut self.wire);
            self.records.push(Record { start, end: self.wire.len() as u32, plain_end });
        }
        if self.close_notify {
            let start = self.wire.len() as u32;
            tls.close_notify(slot, &mut self.wire);
            self.records.push(Record { start, end: self.wire.len() as u32, plain_end });
        }
    }

    /// The bytes for the kernel.
    #[cfg(test)]
    pub(crate) fn wire_for_test(&self) -> &[u8] {
        self.as_bytes()
    }

    /// After the kernel took `taken` bytes of a sealed outbox: keeps the rest of the ciphertext that was begun, and the
    /// plaintext of every record of which nothing was taken, as [`PendingOutput::keep_tail`] does. Returns the number
    /// of those records.
    pub(crate) fn keep_sealed_tail(&mut self, taken: usize, unsent: &mut Vec<EmissionId>) -> u32 {
        let begun = self.records.iter().take_while(|record| (record.start as usize) < taken).count();
        let first = self.records.first().map_or(self.wire.len(), |record| record.start as usize);
        let (end, plain_sent) = match begun.checked_sub(1).map(|last| self.records[last]) {
            Some(last) => (last.end as usize, last.plain_end as usize),
            None => (first, 0),
        };
        let untouched = self.records.len() - begun;
        if untouched == 0 {
            self.close_notify = false;
        }
        self.records = Vec::new();
        self.wire.truncate(end);
        self.wire.drain(..taken.min(end));
        self.wire.shrink_to_fit();
        self.keep_tail(plain_sent, unsent);
        untouched as u32
    }

    /// Returns the buffer to which an edge appends one frame; [`PendingOutput::end_frame`] must follow.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Ends a frame: the bytes that were appended since the last one.
    pub(crate) fn end_frame(&mut self, emission: Option<EmissionId>) {
        let end = self.bytes.len() as u32;
        if self.frames.last().is_none_or(|last| last.end < end) {
            self.frames.push(Frame { end, emission });
        }
    }

    /// Appends one frame that is not a notification.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.end_frame(None);
    }

    /// After the kernel took `sent` bytes: keeps the rest of a frame that was begun and every frame behind it
    /// that is no notification; notifications of which nothing was sent go to `unsent`, oldest first.
    pub(crate) fn keep_tail(&mut self, sent: usize, unsent: &mut Vec<EmissionId>) {
        let (mut start, mut kept) = (0, 0);
        let mut frames_kept = 0;
        for at in 0..self.frames.len() {
            let Frame { end, emission } = self.frames[at];
            let end = end as usize;
            if end > sent {
                match emission {
                    Some(emission) if start >= sent => unsent.push(emission),
                    _ => {
                        let from = start.max(sent);
                        self.bytes.copy_within(from..end, kept);
                        kept += end - from;
                        self.frames[frames_kept] = Frame { end: kept as u32, emission: None };
                        frames_kept += 1;
                    }
                }
            }
            start = end;
        }
        self.bytes.truncate(kept);
        self.frames.truncate(frames_kept);
    }

    /// Appends what `other` has that is no notification; its notifications go to `unsent`.
    pub(crate) fn append_replies(&mut self, other: &mut PendingOutput, unsent: &mut Vec<EmissionId>) {
        debug_assert!(other.wire.is_empty(), "no record is made while one is on its way");
        other.keep_tail(0, unsent);
        self.push(&other.bytes);
        self.close_notify |= other.close_notify;
        other.clear();
    }

    /// Empties it, and gives back what is more than the common size.
    pub(crate) fn clear(&mut self) {
        self.drop_frames();
        self.wire.clear();
        self.records.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.wire.shrink_to(KEPT_BYTES);
        self.frames.shrink_to(64);
        self.records.shrink_to(64);
    }

    /// Bytes of heap it holds.
    pub(crate) fn heap_bytes(&self) -> usize {
        let tables = self.frames.capacity() * size_of::<Frame>() + self.records.capacity() * size_of::<Record>();
        self.bytes.capacity() + self.wire.capacity() + tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> PendingOutput {
        let mut out = PendingOutput::default();
        out.push(b"reply1");
        out.tail().extend_from_slice(b"note-one");
        out.end_frame(Some(EmissionId(1)));
        out.push(b"pong");
        out.tail().extend_from_slice(b"note-two");
        out.end_frame(Some(EmissionId(2)));
        out
    }

    /// For every possible short send: what was sent and what is kept are whole frames in their order, and a
    /// notification is either wholly on the wire or kept, or named.
    #[test]
    fn a_short_send_keeps_one_tail_and_names_the_rest() {
        let whole = b"reply1note-onepongnote-two";
        for sent in 0..=whole.len() {
            let (mut out, mut unsent) = (sample(), Vec::new());
            out.keep_tail(sent, &mut unsent);
            let mut stream = whole[..sent].to_vec();
            stream.extend_from_slice(out.as_bytes());
            let expected: &[u8] = match sent {
                0..=6 => b"reply1pong",
                7..=18 => b"reply1note-onepong",
                _ => whole,
            };
            assert_eq!(stream, expected, "{sent} bytes sent");
            let ids: Vec<u32> = unsent.iter().map(|e| e.0).collect();
            let named: &[u32] = match sent {
                0..=6 => &[1, 2],
                7..=18 => &[2],
                _ => &[],
            };
            assert_eq!(ids, named, "{sent} bytes sent");
        }
    }

    #[test]
    fn frames_behind_a_tail_are_kept_but_for_notifications() {
        let (mut tail, mut newer, mut unsent) = (PendingOutput::default(), sample(), Vec::new());
        tail.push(b"tail");
        tail.append_replies(&mut newer, &mut unsent);
        assert_eq!(tail.as_bytes(), b"tailreply1pong");
        assert_eq!(unsent.len(), 2);
        assert!(newer.is_empty());
    }
}
