//! murre-bench: everything that drives the server from outside, over its public sockets only.
//!
//! Modules in suggested reading order: the target and its process, the wire, the many-connection client, the
//! scenarios. The load generator shares its host with the server it measures, so it is one thread that waits in one
//! place.

pub mod target;

pub mod host;

pub mod slab;

pub mod process;

pub mod without_rings;

pub mod frame;

pub mod fleet;

pub mod publishers;

pub mod post;

pub mod random;

pub mod schedule;

pub mod latency;

pub mod delivery_log;

pub mod alarm;

pub mod metrics;

pub mod statements;

pub mod result;

pub mod report;

pub mod usage;

pub mod memory_sample;

pub mod view;

pub mod interrupt;

pub mod scenario;

pub mod html;

pub mod capacity;

pub mod conformance;
