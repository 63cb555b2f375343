//! A bad path: carries packets between two TUN devices with delay, loss, reordering and duplication.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::stream::Random;

/// Packets that may be on their way at once; beyond it the path drops, as a router does.
const PACKETS_MAX: usize = 65_536;

/// Longest wait for a packet: those that are on their way become due meanwhile.
const POLL_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Faults of the path, in each direction.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub delay: Duration,
    /// Added at random to the delay of each packet, so that packets overtake each other.
    pub jitter: Duration,
    pub loss_per_mille: u64,
    pub duplicates_per_mille: u64,
}

/// Counts of packets.
#[derive(Default, Debug)]
pub struct PathStats {
    pub carried: AtomicU64,
    pub lost: AtomicU64,
    pub duplicated: AtomicU64,
}

/// Carries packets until `end`.
pub fn carry(mut ends: [File; 2], faults: Faults, seed: u64, stats: &PathStats, end: &AtomicBool) -> io::Result<()> {
    let mut random = Random(seed);
    let mut on_way = BinaryHeap::new();
    let mut buffer = vec![0; 1 << 16];
    let mut number = 0u64;
    while !end.load(Ordering::Relaxed) {
        let mut ready = ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
        poll(&mut ready, Some(&POLL_TIME))?;
        let readable = ready.map(|end| !end.revents().is_empty());
        for from in [0, 1] {
            if !readable[from] {
                continue;
            }
            let length = ends[from].read(&mut buffer)?;
            if random.below(1_000) < faults.loss_per_mille || on_way.len() >= PACKETS_MAX {
                stats.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let twice = random.below(1_000) < faults.duplicates_per_mille;
            stats.duplicated.fetch_add(twice.into(), Ordering::Relaxed);
            for _ in 0..=usize::from(twice) {
                let jitter = random.below(faults.jitter.as_micros() as u64 + 1);
                let due = Instant::now() + faults.delay + Duration::from_micros(jitter);
                number += 1;
                on_way.push(Reverse((due, number, 1 - from, buffer[..length].to_vec())));
            }
        }
        let now = Instant::now();
        while on_way.peek().is_some_and(|Reverse(packet)| packet.0 <= now) {
            let Some(Reverse((_, _, to, packet))) = on_way.pop() else { break };
            // A device whose queue is full refuses the packet: it is lost.
            let counter = if ends[to].write_all(&packet).is_ok() { &stats.carried } else { &stats.lost };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}
