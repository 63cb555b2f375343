//! Effects of each fault of a drill on the nodes, the database and the users.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::cluster::TestCluster;
use super::fault::Fault;
use super::workload::Workload;

/// Time in which the database nodes see one of them again that stood still.
const SEEN_AGAIN: Duration = Duration::from_secs(20);

/// Breaks what `fault` names, waits for `outage`, and heals it.
pub(super) fn strike(fault: Fault, town: &mut TestCluster, crowd: &Workload, outage: Duration) -> io::Result<()> {
    match fault {
        Fault::None | Fault::Split | Fault::Clocks => Ok(()),
        Fault::Kill => {
            town.kill(0)?;
            thread::sleep(Duration::from_secs(3));
            town.revive(0)
        }
        Fault::KillForGood => town.kill(0),
        Fault::Rolling => (0..town.nodes()).try_for_each(|node| {
            town.stop(node)?;
            thread::sleep(Duration::from_millis(500));
            town.revive(node)
        }),
        Fault::Cut | Fault::LinksDown => {
            town.cut(true)?;
            thread::sleep(outage);
            town.cut(false)
        }
        Fault::Paused => {
            town.pause(0, true)?;
            thread::sleep(outage);
            town.pause(0, false)
        }
        Fault::DatabaseCut => {
            town.cut_from_database(0, true)?;
            thread::sleep(outage);
            town.cut_from_database(0, false)
        }
        Fault::NewAddress => {
            town.kill(0)?;
            thread::sleep(Duration::from_secs(3));
            town.revive_elsewhere(0)
        }
        Fault::Divergent => {
            // Messages wait which node 2 misses, and their users come back when node 3 is away.
            crowd.send_away(true);
            town.database("pause", 2)?;
            thread::sleep(outage);
            town.database("resume", 2)?;
            thread::sleep(SEEN_AGAIN);
            town.database("pause", 3)?;
            crowd.send_away(false);
            thread::sleep(outage);
            town.database("resume", 3)
        }
        Fault::ClockSet => {
            town.set_clock(3_600_000)?;
            thread::sleep(outage);
            town.set_clock(0)
        }
        Fault::DatabaseNode => {
            town.database("kill", 2)?;
            thread::sleep(outage.min(Duration::from_secs(10)));
            town.database("revive", 2)
        }
        Fault::DatabaseStopped => {
            town.all_databases("pause")?;
            thread::sleep(outage);
            town.all_databases("resume")
        }
        Fault::DatabaseSlow => {
            let end = Instant::now() + outage;
            while Instant::now() < end {
                town.all_databases("pause")?;
                thread::sleep(Duration::from_millis(150));
                town.all_databases("resume")?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        }
    }
}
