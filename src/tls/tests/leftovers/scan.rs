//! Reads the memory of this process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

/// Secrets are kept xor this byte, so that the list of them is no copy.
pub const MASK: u8 = 0x5a;
const PIECE: usize = 1 << 20;
const SECRET_MAX: usize = 64;

/// Number of copies by kind of secret in all memory that this process can write.
pub fn copies(secrets: &[(String, Vec<u8>)]) -> BTreeMap<String, usize> {
    let mut copies: BTreeMap<String, usize> = secrets.iter().map(|(kind, _)| (kind.clone(), 0)).collect();
    let memory = File::open("/proc/self/mem").unwrap();
    let mut buffer = vec![0; PIECE + SECRET_MAX];
    let own = buffer.as_ptr().addr()..buffer.as_ptr().addr() + buffer.len();
    let mut firsts = [false; 256];
    secrets.iter().for_each(|(_, masked)| firsts[usize::from(masked[0] ^ MASK)] = true);
    for (start, end) in regions() {
        for from in (start..end).step_by(PIECE) {
            // Pieces overlap, because a copy may lie across their border.
            let wanted = (end - from).min(buffer.len());
            let Ok(read) = memory.read_at(&mut buffer[..wanted], from as u64) else { continue };
            for at in 0..read.min(PIECE) {
                if !firsts[usize::from(buffer[at])] || own.contains(&(from + at)) {
                    continue;
                }
                for (kind, masked) in secrets {
                    let is_here = buffer[at..read].len() >= masked.len()
                        && buffer[at..].iter().zip(masked).all(|(byte, masked)| byte ^ MASK == *masked);
                    if is_here {
                        *copies.get_mut(kind).unwrap() += 1;
                        if std::env::var_os("LEFTOVERS_SHOW").is_some() {
                            println!("{kind} at {:x} in {start:x}-{end:x}", from + at);
                        }
                    }
                }
            }
        }
    }
    // The buffer has copies, and its block is free from here on.
    buffer.fill(0);
    std::hint::black_box(&buffer);
    copies
}

fn regions() -> Vec<(usize, usize)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let of_line = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        rest.starts_with("rw").then_some((address(start)?, address(end)?))
    };
    maps.lines().filter_map(of_line).collect()
}
