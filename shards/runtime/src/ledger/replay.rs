//! Reading the logs of earlier boots: every live record, for any shard count of that boot.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use machine::ids::Clock;
use machine::message::Message;

use super::error::LedgerError;
use super::layout::{self, HEADER_BYTES, MESSAGE_BYTES_MAX, RECORD_HEAD_BYTES};

/// Messages and files of earlier boots. Lives on the starting thread, until its messages are saved.
#[derive(Debug)]
pub struct Replay {
    /// Every live record once, in stamp order.
    pub messages: Vec<Arc<Message>>,
    /// No shard's clock may start at or below it.
    pub clock_floor: Clock,
    /// The logs that were read, and drafts of logs that never were.
    files: Vec<LeftoverLog>,
}

/// A file that an earlier boot left.
#[derive(Debug)]
struct LeftoverLog {
    path: PathBuf,
    /// It holds a live record.
    live: bool,
    /// No clock may start at or below it; 0 for a draft.
    floor: Clock,
}

impl Replay {
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Removes the files. Only after every message is saved and new logs carry the floor.
    ///
    /// # Errors
    /// If one cannot be removed, the others are; it would be replayed again, which is harmless but keeps its bytes.
    pub fn discard(mut self) -> Result<(), LedgerError> {
        self.remove(|_| true)
    }

    /// Removes files that hold no record, but for the one that carries the highest floor: starts that fail leave such,
    /// each as long as a log.
    ///
    /// # Errors
    /// As [`Replay::discard`].
    pub fn discard_empty(&mut self) -> Result<(), LedgerError> {
        let highest = self.files.iter().max_by_key(|left| left.floor).map(|left| left.path.clone());
        self.remove(|left| !left.live && Some(&left.path) != highest.as_ref())
    }

    fn remove(&mut self, which: impl Fn(&LeftoverLog) -> bool) -> Result<(), LedgerError> {
        let mut first = Ok(());
        self.files.retain(|left| {
            if !which(left) {
                return true;
            }
            match fs::remove_file(&left.path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    if first.is_ok() {
                        first = Err(LedgerError::io(&left.path, "remove", e));
                    }
                    true
                }
                _ => false,
            }
        });
        first
    }
}

/// Reads every log of `dir`; a directory that does not exist has none. Records with a wrong check are skipped:
/// they were being written when the host lost power.
///
/// A file of nothing but zeros is an empty log: versions that did not sync the header left such files when the host
/// lost power. No record is lost with it, because the length in a record is never 0. A zero header before anything
/// else is refused: the salt is gone, and the records behind it cannot be told from payload.
///
/// # Errors
/// If a log cannot be read or its header is damaged.
pub fn replay(dir: &Path) -> Result<Replay, LedgerError> {
    let mut replay = Replay { messages: Vec::new(), clock_floor: Clock(0), files: Vec::new() };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(replay),
        Err(e) => return Err(LedgerError::io(dir, "list", e)),
    };
    let mut seen = HashSet::new();
    for entry in entries {
        let path = entry.map_err(|e| LedgerError::io(dir, "list", e))?.path();
        match path.extension().and_then(|e| e.to_str()) {
            Some("log") => {}
            Some("tmp") => {
                replay.files.push(LeftoverLog { path, live: false, floor: Clock(0) });
                continue;
            }
            _ => continue,
        }
        let file = fs::read(&path).map_err(|e| LedgerError::io(&path, "read", e))?;
        if file.iter().all(|&byte| byte == 0) {
            replay.files.push(LeftoverLog { path, live: false, floor: Clock(0) });
            continue;
        }
        let header = layout::read_header(&file).map_err(|what| LedgerError::header(&path, what))?;
        let mut left = LeftoverLog { path, live: false, floor: header.floor };
        let ring = file.get(HEADER_BYTES as usize..).unwrap_or_default();
        for message in live_records(ring, header.salt) {
            left.live = true;
            left.floor = left.floor.max(message.stamp.clock);
            // A record that was being moved to the head is there twice.
            if seen.insert((message.uaid, message.chid, message.stamp)) {
                replay.messages.push(Arc::new(message));
            }
        }
        replay.clock_floor = replay.clock_floor.max(left.floor);
        replay.files.push(left);
    }
    replay.messages.sort_by_key(|m| (m.stamp, m.uaid, m.chid));
    Ok(replay)
}

/// Live records of one log that is not a file of a directory, a moved one twice, and the floor of its header. For
/// simulators.
///
/// # Errors
/// The reason why a start would refuse this log.
pub fn read_log(bytes: &[u8]) -> Result<(Vec<Message>, Clock), &'static str> {
    let header = layout::read_header(bytes)?;
    let ring = bytes.get(HEADER_BYTES as usize..).unwrap_or_default();
    Ok((live_records(ring, header.salt).collect(), header.floor))
}

/// Every place of the ring that carries the salted live word and a right check. It does not follow the chain of
/// records, so that a damaged one hides only itself.
fn live_records(ring: &[u8], salt: u64) -> impl Iterator<Item = Message> + '_ {
    let live = layout::live_word(salt).to_le_bytes();
    let places = (0..ring.len()).step_by(8);
    places.filter(move |&at| ring.get(at + 12..at + 16) == Some(&live[..])).filter_map(move |at| record(ring, at, salt))
}

fn record(ring: &[u8], at: usize, salt: u64) -> Option<Message> {
    let head = ring.get(at..at + RECORD_HEAD_BYTES as usize)?;
    let len = u32::from_le_bytes(layout::field(head, 0)) as usize;
    let slot = machine::ids::LedgerSlot(u32::from_le_bytes(layout::field(head, 4)));
    let check = u32::from_le_bytes(layout::field(head, 8));
    if len > MESSAGE_BYTES_MAX || u64::from_le_bytes(layout::field(head, 16)) != len as u64 {
        return None;
    }
    let start = at + RECORD_HEAD_BYTES as usize;
    let body = ring.get(start..start + len)?;
    if layout::record_crc(salt, slot, body) != check {
        return None;
    }
    Message::decode(body)
}
