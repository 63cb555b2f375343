//! `drill`: several nodes on one database, and everything that can go wrong with them (CLUSTER.md). A crowd of user
//! agents connects, acks and moves about, app servers post to any node, something breaks and heals; then every
//! notification that was answered 201 must have been received. Prints the table of faults with counts.
//!
//! Runs the real database (`bench/cassandra/cassandra`) and real server processes: on loopback, and for one fault in
//! network namespaces.

mod fault;
mod options;
mod workload;
mod strike;
mod fault_proxy;
mod network;
mod certificates;
mod cluster;

use std::io;
use std::time::{Duration, Instant};

use clap::ValueEnum as _;

use self::cluster::TestCluster;
pub use self::fault::Fault;
pub use self::options::Options;
use self::strike::strike;
use self::workload::Workload;
use crate::report::Report;

/// Time after the end of posting in which all messages must arrive: storage that was down is tried again after seconds,
/// an unacked message on a dead connection after a Ping.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the drills one after the other and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let faults = chosen(options)?;
    let mut report = Report::new("drill");
    let mut town = TestCluster::build(options)?;
    println!(
        "{:<16} {:>8} {:>8} {:>8} {:>5} {:>9} {:>9} {:>10}",
        "fault", "accepted", "refused", "unsure", "lost", "twice", "new uaid", "settled s"
    );
    for fault in faults {
        let drilled =
            drill(&mut town, fault, options).map_err(|error| io::Error::other(format!("{fault}: {error}")))?;
        println!(
            "{:<16} {:>8} {:>8} {:>8} {:>5} {:>9} {:>9} {:>10.1}",
            fault.to_string(),
            drilled.accepted,
            drilled.refused,
            drilled.unsure,
            drilled.lost,
            drilled.again,
            drilled.renamed,
            drilled.settled.as_secs_f64()
        );
        report.add(format!("{fault}: accepted"), drilled.accepted, "");
        report.add(format!("{fault}: refused with 5xx"), drilled.refused, "");
        report.add(format!("{fault}: POSTs without an answer"), drilled.unsure, "");
        report.add(format!("{fault}: received again after an ack"), drilled.again, "");
        report.add(format!("{fault}: seconds until all was received"), drilled.settled.as_secs_f64(), "s");
        if options.tls {
            report.add(format!("{fault}: TLS handshakes of nodes"), drilled.handshakes, "");
            if drilled.handshakes == 0.0 {
                report.fail(format!("{fault}: no node called another over TLS"));
            }
        }
        if fault == Fault::ClockSet && drilled.jumps == 0.0 {
            report.fail(format!("{fault}: no node noticed it"));
        }
        if drilled.accepted == 0 {
            report.fail(format!("{fault}: nothing was accepted, so nothing was tested"));
        }
        report.check(format!("{fault}: lost"), drilled.lost, 0);
        report.check(format!("{fault}: UAIDs changed"), drilled.renamed, 0);
        report.check(format!("{fault}: sessions closed by nodes that were left alone"), drilled.closed, 0);
        report.check(format!("{fault}: answers that are neither 201 nor 5xx"), drilled.strange, 0);
        if fault.refuses_in_order() {
            report.check(format!("{fault}: refused, and not with 503 and Retry-After"), drilled.disorderly, 0);
        }
        if !fault.loses_acks() {
            report.check(format!("{fault}: again after an ack"), drilled.again, 0);
        }
    }
    report.finish(options.json.as_deref())
}

/// Faults to drill. A fault that cannot run here is left out, with a line of output, unless it was given by name.
fn chosen(options: &Options) -> io::Result<Vec<Fault>> {
    let (mut can, all) = (Vec::new(), options.faults.is_empty());
    let wanted: &[Fault] = if all { Fault::value_variants() } else { &options.faults };
    for &fault in wanted {
        match fault.lacks(options.databases) {
            None => can.push(fault),
            Some(lacks) if all => println!("left out: {fault}, which {lacks}"),
            Some(lacks) => return Err(io::Error::other(format!("{fault} {lacks}"))),
        }
    }
    Ok(can)
}

/// Result of one drill.
struct Drilled {
    accepted: u64,
    refused: u64,
    disorderly: u64,
    unsure: u64,
    strange: u64,
    lost: u64,
    again: u64,
    renamed: u64,
    /// Sessions that nodes ended which had nothing to do with the fault.
    closed: u64,
    settled: Duration,
    /// Handshakes of nodes with nodes.
    handshakes: f64,
    /// Times nodes found that their clock had been set.
    jumps: f64,
}

fn drill(town: &mut TestCluster, fault: Fault, options: &Options) -> io::Result<Drilled> {
    town.open(fault)?;
    let crowd = Workload::gather(town, options.users, options.rate, !fault.loses_acks())?;
    std::thread::sleep(Duration::from_secs(options.calm));
    strike(fault, town, &crowd, Duration::from_secs(options.outage))?;
    let healed = Instant::now();
    std::thread::sleep(Duration::from_secs(options.calm));
    crowd.stop_posting();
    while crowd.missing() > 0 && healed.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
    }
    let settled = healed.elapsed();
    let missing = crowd.missing();
    if missing > 0 {
        eprintln!("{fault}: {missing} missing; {}", town.logs());
    }
    let tally = crowd.disperse();
    let (handshakes, jumps) = (town.sum("node_tls_handshakes_total"), town.sum("clock_jumps_total"));
    let alone = (0..town.nodes()).filter(|node| fault.leaves_alone(*node)).map(|node| town.websocket(node));
    let closed: u64 = alone.filter_map(|address| tally.closed.get(&address)).sum();
    town.close()?;
    let refused = tally.statuses.range(500..600).map(|(_, count)| count).sum();
    Ok(Drilled {
        accepted: tally.accepted.len() as u64,
        refused,
        disorderly: refused - tally.orderly,
        unsure: tally.statuses.get(&0).copied().unwrap_or(0),
        strange: tally.statuses.range(1..500).filter(|(status, _)| **status != 201).map(|(_, count)| count).sum(),
        lost: missing as u64,
        again: tally.again,
        renamed: tally.renamed,
        closed,
        settled,
        handshakes,
        jumps,
    })
}
