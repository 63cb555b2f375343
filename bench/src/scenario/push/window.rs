//! One measured window of `push`, and its figures.

use std::io;

use super::options::Options;
use crate::report::Report;
use crate::result::names;
use crate::scenario::traffic::Traffic;
use crate::usage::{UsageDelta, UsageSample};

/// Result of one window.
pub struct Measured {
    /// Notifications that came in its time.
    pub counted: u64,
    /// Pings of the server that were answered meanwhile: a million sessions bring thousands per second, and their cost
    /// is not part of the cost of a notification.
    pub pings: u64,
    pub spent: UsageDelta,
}

/// Shows the work and the resource use of the server in all of these windows together.
pub fn show_load(report: &mut Report, windows: &[Measured]) {
    let wall: f64 = windows.iter().map(|one| one.spent.wall.as_secs_f64()).sum();
    let rate = |count: fn(&Measured) -> u64| windows.iter().map(count).sum::<u64>() as f64 / wall.max(1e-9);
    report.add(names::NOTIFICATION_RATE, rate(|one| one.counted), "/s");
    report.add(names::PING_RATE, rate(|one| one.pings), "/s");
    let cpu: Option<f64> = windows.iter().map(|one| Some(one.spent.cpu?.run_ns as f64 / 1e9)).sum();
    if let Some(seconds) = cpu {
        report.add(names::CORES, seconds / wall.max(1e-9), "cores");
    }
}

/// Measures for the seconds of the options.
pub fn measure(traffic: &mut Traffic, options: &Options) -> io::Result<Measured> {
    traffic.driver.view.stage("push", options.target.sessions);
    let before = UsageSample::read(&options.target)?;
    let (delivered, pings) = (traffic.ledger.delivered_count(), traffic.driver.agents.pings());
    traffic.open_window();
    options.go(traffic, options.seconds)?;
    traffic.close_window();
    let spent = before.spent(&options.target)?;
    let counted = traffic.ledger.delivered_count() - delivered;
    Ok(Measured { counted, pings: traffic.driver.agents.pings() - pings, spent })
}
