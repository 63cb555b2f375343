//! Layout of the file. Everything little-endian: the file never leaves its host.
//!
//! ```text
//! header  0 magic 8   8 version 4   12 shard 2 + 2 zero   16 ring bytes 8   24 salt 8   32 CRC of 0..32
//!         64 and 128: a clock floor each: clock 8, CRC of the clock 4
//! record  0 body length 4   4 slot 4   8 CRC of length, slot and body 4   12 state 4   16 body length again 8
//! ```

use machine::ids::{Clock, LedgerSlot, ShardId};

/// Bytes before the ring; one page.
pub(super) const HEADER_BYTES: u64 = 4096;
/// Bytes before the body of a record.
pub(super) const RECORD_HEAD_BYTES: u64 = 24;
/// The largest encoded message that can be appended, bytes. Above `limits::PAYLOAD_BYTES_MAX` with all its heads.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// State of a record that is settled or not finished.
pub(super) const DEAD: u32 = 0;
/// State of the rest of the ring when the next record did not fit in it.
pub(super) const FILLER: u32 = 1;

const MAGIC: [u8; 8] = *b"murre lg";
const VERSION: u32 = 1;
const FLOOR_CELLS: [usize; 2] = [64, 128];

/// Bytes of a record whose body is `len` long.
pub(super) fn record_bytes(len: usize) -> u64 {
    (RECORD_HEAD_BYTES + len as u64).next_multiple_of(8)
}

/// Bytes of the ring in a file of this size.
pub(super) fn ring_bytes(log_bytes: u64) -> u64 {
    log_bytes.saturating_sub(HEADER_BYTES) / 8 * 8
}

/// Contents of the header.
pub(super) struct Header {
    pub(super) salt: u64,
    pub(super) floor: Clock,
}

/// The word that marks a record live in the file of this salt; never [`DEAD`] or [`FILLER`].
pub(super) fn live_word(salt: u64) -> u32 {
    (salt >> 32) as u32 | 0x8000_0000
}

/// The salted check of a record. No payload can carry a valid one, its author does not know the salt.
pub(super) fn record_crc(salt: u64, slot: LedgerSlot, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt as u32);
    hasher.update(&(body.len() as u32).to_le_bytes());
    hasher.update(&slot.0.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// The bytes of a header, without its clock floors.
pub(super) fn header(shard: ShardId, ring: u64, salt: u64) -> [u8; 36] {
    let mut head = [0u8; 36];
    head[0..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..14].copy_from_slice(&shard.0.to_le_bytes());
    head[16..24].copy_from_slice(&ring.to_le_bytes());
    head[24..32].copy_from_slice(&salt.to_le_bytes());
    let check = crc32fast::hash(&head[..32]);
    head[32..36].copy_from_slice(&check.to_le_bytes());
    head
}

/// Place and bytes of one of the two floor cells.
pub(super) fn floor(cell: usize, clock: Clock) -> (usize, [u8; 12]) {
    let mut bytes = [0u8; 12];
    bytes[..8].copy_from_slice(&clock.0.to_le_bytes());
    bytes[8..].copy_from_slice(&crc32fast::hash(&clock.0.to_le_bytes()).to_le_bytes());
    (FLOOR_CELLS[cell & 1], bytes)
}

/// Reads the header; the reason when it is not one.
pub(super) fn read_header(file: &[u8]) -> Result<Header, &'static str> {
    let head = file.get(..HEADER_BYTES as usize).ok_or("it is cut off inside its header")?;
    if head[..8] != MAGIC {
        return Err("it does not begin like one");
    }
    let word = |at: usize| u64::from_le_bytes(field(head, at));
    let half = |at: usize| u32::from_le_bytes(field(head, at));
    if half(8) != VERSION {
        return Err("another version of murre wrote it");
    }
    if half(32) != crc32fast::hash(&head[..32]) {
        return Err("its header is damaged");
    }
    let floors = FLOOR_CELLS.iter().filter(|&&at| half(at + 8) == crc32fast::hash(&head[at..at + 8]));
    let floor = floors.map(|&at| Clock(word(at))).max().unwrap_or_default();
    Ok(Header { salt: word(24), floor })
}

/// `N` bytes at `at` of a header page; callers name constants inside it.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
