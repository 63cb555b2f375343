//! Random bytes cost no memory: 64 KiB on each of 1,000 connections, and when they are gone the server has as much
//! memory as before (docs/STYLE.md: bounded under attack).

use std::time::{Duration, Instant};

use crate::common::wire::{Wire, masked, raw};
use crate::common::{PATIENCE, World};
use murre_bench::frame;
use murre_bench::host::{Memory, of_process, raise_open_files};
use murre_bench::metrics::Metrics;
use procfs::process::Process;

const CONNECTIONS: usize = 1_000;
const BYTES: usize = 64 * 1024;
/// Measured rounds of each kind: a leak shows in all of them.
const ROUNDS: usize = 2;

/// Bytes that may stay behind a connection. A receive takes 2 KiB at least, a fragmented message up to 64 KiB: were
/// either kept for one connection in two, this would be passed. Pools, and freed memory that the allocator keeps, are
/// the same after every round, so a first round of each kind is not measured.
const KEPT_PER_CONNECTION: u64 = 1_024;

/// Bytes without a pattern, the same in every run (xorshift64*).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(count);
        bytes
    }
}

/// Form in which the bytes come.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Instead of a request.
    Raw,
    /// Behind upgrade and hello, so that they are read as frame heads.
    Upgraded,
    /// As the payload of one message in many fragments with pings in between, so that the server must keep them all;
    /// every other one is never finished.
    Framed,
}

impl Kind {
    /// Number of connections open at once. A server must hold framed bytes: of a peak of many MiB the allocator keeps a
    /// part that differs from round to round, and hides the leaks that this test looks for.
    fn at_once(self) -> usize {
        match self {
            Kind::Raw | Kind::Upgraded => CONNECTIONS,
            Kind::Framed => CONNECTIONS / 20,
        }
    }

    /// Number that must be refused: every other framed one never sends anything that could be refused.
    fn refused(self) -> usize {
        match self {
            Kind::Raw | Kind::Upgraded => CONNECTIONS,
            Kind::Framed => CONNECTIONS / 2,
        }
    }

    /// One in twenty may be reset before the server has read the bytes to refuse.
    fn refused_min(self) -> f64 {
        self.refused() as f64 * 0.95
    }
}

/// One connection that has sent its share and is still open.
fn attack(world: &World, kind: Kind, number: usize, noise: &mut Noise) -> Wire {
    let address = world.server.websocket();
    match kind {
        Kind::Raw => {
            let mut wire = Wire::open(address);
            // The server may have refused and closed before the last byte.
            wire.try_write(&noise.bytes(BYTES));
            wire
        }
        Kind::Upgraded => {
            let mut wire = Wire::greeted(address);
            wire.try_write(&noise.bytes(BYTES));
            wire
        }
        Kind::Framed => {
            let mut wire = Wire::greeted(address);
            let bytes = noise.bytes(BYTES);
            let mut rest = &bytes[..];
            let mut out = Vec::new();
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(rest.len().min(1 + noise.next() as usize % 9_000));
                out.extend(raw(u8::from(rest.len() == BYTES), piece));
                out.extend(masked(frame::PING, &piece[..piece.len().min(125)]));
                rest = more;
            }
            if number.is_multiple_of(2) {
                out.extend(raw(0x80, b""));
            }
            wire.try_write(&out);
            wire
        }
    }
}

/// Connections the server has by its own count.
fn connections(world: &World) -> f64 {
    Metrics::read(world.server.admin()).unwrap().named("murre_connections").map(|(_, value)| value).sum()
}

/// Opens all connections of one kind, until the server has forgotten the last of them. Returns the number that it
/// refused by its own count.
fn round(world: &World, kind: Kind, noise: &mut Noise) -> f64 {
    let refused = || {
        let metrics = Metrics::read(world.server.admin()).unwrap();
        metrics.sum("murre_http_malformed") + metrics.sum("murre_frames_refused")
    };
    let before = refused();
    for _ in 0..CONNECTIONS / kind.at_once() {
        let wires: Vec<Wire> = (0..kind.at_once()).map(|number| attack(world, kind, number, noise)).collect();
        drop(wires);
    }
    // Counters are published about once a second: the server may have published a count of zero before these.
    let deadline = Instant::now() + 3 * PATIENCE;
    while connections(world) > 0.0 || refused() - before < kind.refused_min() {
        if Instant::now() > deadline {
            assert_eq!(connections(world), 0.0, "connections that are still there");
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    refused() - before
}

/// Memory of the server in bytes.
struct Held {
    /// Memory that it alone has written: heap and anonymous mappings. The ledger's file is mapped and left out.
    private: u64,
    /// All resident pages but those of files, which the kernel takes and gives back when it likes.
    resident: u64,
    /// Huge pages, into which the kernel turns the others when it likes: their excess is not the server's.
    huge: u64,
}

impl Held {
    fn read(world: &World) -> Held {
        let pid = world.server.pid();
        let memory = Memory::read(pid).unwrap();
        let private = memory.by_mapping.iter().filter(|(name, _)| *name == "[heap]" || *name == "anonymous");
        let status = of_process(pid, Process::status).unwrap();
        Held {
            private: private.map(|(_, bytes)| bytes).sum(),
            resident: (status.rssanon.unwrap() + status.rssshmem.unwrap()) * 1_024,
            huge: memory.huge,
        }
    }
}

#[test]
fn random_bytes_leave_memory_where_it_was() {
    raise_open_files();
    let world = World::with(&["--shards", "2"]);
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let kinds = [Kind::Raw, Kind::Upgraded, Kind::Framed];
    for kind in kinds {
        round(&world, kind, &mut noise);
    }
    for kind in kinds {
        let before = Held::read(&world);
        for _ in 0..ROUNDS {
            let refused = round(&world, kind, &mut noise);
            assert!(refused >= kind.refused_min(), "{kind:?}: only {refused} were read and refused");
        }
        let after = Held::read(&world);
        let bound = (ROUNDS * CONNECTIONS) as u64 * KEPT_PER_CONNECTION + after.huge.saturating_sub(before.huge);
        for (what, before, after) in
            [("private", before.private, after.private), ("resident", before.resident, after.resident)]
        {
            println!("{kind:?}: {what} {before} -> {after}");
            assert!(after < before + bound, "{kind:?}: {what} memory grew from {before} to {after} bytes");
        }
    }
    let mut bystander = Wire::greeted(world.server.websocket());
    bystander.write(&crate::common::wire::text("{}"));
    assert_eq!(bystander.hear(), crate::common::wire::Heard::Text("{}".into()));
}
