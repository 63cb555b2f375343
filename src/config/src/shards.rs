//! `shards.*`: threads and their sockets.

use machine::limits::{BACKLOG_MAX, BACKLOG_MIN};

use super::key::settings;
use super::parse;

settings! {
    /// `shards.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Shards as SHARDS at [shards] {
        /// CPU numbers to pin shards to, in this order; empty: every CPU this process may run on.
        pub cores: Vec<u32> = "shards.cores" ("cores" "LIST"), "all",
            "CPU numbers as 2-15,20, none twice, or all",
            "CPUs of the shards; each shard is pinned to one of them.",
            parse::cores;
        /// Number of shards; 0: one per core. More than cores: they share cores in turn.
        pub count: u16 = "shards.count" ("shards" "N"), "0",
            "a number from 0 (one per core) to 256",
            "Number of shards; a data directory can be opened with another number than it was written with.",
            parse::number(0, u64::from(machine::limits::SHARDS_MAX));
        /// Connections of each listening socket.
        pub backlog: u16 = "shards.backlog", "4096",
            "a number from 16 to 65535",
            "Connections that the kernel completes ahead of a shard, on each of its listening sockets; net.core.somaxconn also limits them.",
            parse::number(u64::from(BACKLOG_MIN), u64::from(BACKLOG_MAX));
        pub steer: Steer = "shards.steer", "off",
            "off or cpu",
            "Shard of a new connection: any shard, or that of the CPU that received its first packet; for hosts with as many receive queues as shards.",
            parse::word([("off", Steer::Off), ("cpu", Steer::Cpu)]);
        pub plane: PlaneChoice = "shards.plane", "auto",
            "auto, io_uring or poll",
            "System interface for sockets: io_uring rings or epoll. auto uses rings where they work, and epoll elsewhere. With hibernation, auto requires rings. Only poll gives up frozen sessions.",
            parse::word([("auto", PlaneChoice::Auto), ("io_uring", PlaneChoice::IoUring), ("poll", PlaneChoice::Poll)]);
    }
}

/// `shards.plane`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlaneChoice {
    /// Rings where they work, else epoll. With hibernation only rings.
    #[default]
    Auto,
    IoUring,
    Poll,
}

/// `shards.steer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Steer {
    /// Any shard: the kernel draws one by the addresses and ports of the connection.
    #[default]
    Off,
    /// The shard of the CPU that worked on its first packet, where there is one (SO_INCOMING_CPU).
    Cpu,
}
