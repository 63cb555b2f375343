//! Listeners of shards that each know their CPU, on the real kernel.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use super::{config, refusal, start};
use crate::cpus::cores;
use crate::status;
use crate::{RunningNode, running};

const CONNECTIONS: u64 = 40;

/// On loopback the CPU that connects works on the packet, so each shard gets what its CPU made and nothing else. With
/// one CPU there is one shard, which gets all.
#[test]
fn a_connection_of_a_cpu_is_accepted_by_the_shard_of_that_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(&config(dir.path(), &["shards.count=0", "shards.steer=cpu"])).unwrap();
    let cpus = cores(&[]).unwrap();
    let mut clients = Vec::new();
    for (shard, cpu) in cpus.iter().enumerate() {
        let addresses = [node.addresses().websocket[0], node.addresses().endpoint[0]];
        for (round, address) in addresses.into_iter().enumerate() {
            clients.push(connect_on(*cpu, move || TcpStream::connect(address).unwrap()));
            let expected = CONNECTIONS * (round as u64 + 1);
            let until = Instant::now() + super::PATIENCE;
            while accepts(&node, shard) < expected && Instant::now() < until {
                thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(accepts(&node, shard), expected, "shard {shard} of CPU {cpu}");
        }
    }
    let all = (0..cpus.len()).map(|shard| accepts(&node, shard)).sum::<u64>();
    assert_eq!(all, 2 * CONNECTIONS * cpus.len() as u64);
    drop(clients);
    node.stop().unwrap();
}

/// Connects from a thread that runs on this CPU alone.
fn connect_on(cpu: u32, connect: impl Fn() -> TcpStream + Send + 'static) -> Vec<TcpStream> {
    let made = thread::spawn(move || {
        let mut only = CpuSet::new();
        only.set(cpu as usize);
        sched_setaffinity(None, &only).unwrap();
        (0..CONNECTIONS).map(|_| connect()).collect()
    });
    made.join().unwrap()
}

fn accepts(node: &RunningNode, shard: usize) -> u64 {
    running::sum(&node.stage.boards()[shard..=shard], "accepts")
}

#[test]
fn shards_that_share_a_cpu_are_not_steered_to() {
    let dir = tempfile::tempdir().unwrap();
    let (said, code) = refusal(&config(dir.path(), &["shards.count=200", "shards.steer=cpu"]));
    assert!(said.starts_with("shards.steer = cpu requires a separate CPU for each shard, and 200 "), "{said}");
    assert_eq!(code, status::CONFIG);
}
