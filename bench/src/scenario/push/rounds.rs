//! Several measurements in windows of the clock on the wall, so that two generators, each with a server of its own on
//! the same host, push in turn: other load of the host meets both, and neither meets the other's load.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::options::Options;
use super::window::{measure, show_load};
use crate::latency::median;
use crate::report::Report;
use crate::result::names;
use crate::scenario::traffic::Traffic;

/// Pause after the last message of a window, before the next generator begins.
const MARGIN_SECONDS: f64 = 1.0;
/// Longest wait for the gate.
const GATE_PATIENCE: Duration = Duration::from_secs(7_200);

/// Pushes in each window and shows every round and the medians.
pub fn run(traffic: &mut Traffic, options: &Options, report: &mut Report) -> io::Result<()> {
    let span = options.warmup + options.seconds + MARGIN_SECONDS;
    if span > options.period {
        let message = format!("a window takes {span} s, --period is only {} s", options.period);
        return Err(io::Error::other(message));
    }
    wait_for_gate(traffic, options)?;
    let (mut p50, mut p99, mut cpu, mut windows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut all = crate::latency::Latency::default();
    for round in 1..=options.rounds {
        traffic.driver.view.stage(format!("round {round} of {}: waiting", options.rounds), options.target.sessions);
        traffic.idle(until_window(now_seconds(), options.period, options.offset))?;
        options.go(traffic, options.warmup)?;
        let measured = measure(traffic, options)?;
        // Work that is still under way belongs to this round.
        traffic.idle(Duration::from_secs_f64(MARGIN_SECONDS / 2.0))?;
        let window = traffic.window()?;
        p50.push(window.to_frame.us(0.5));
        p99.push(window.to_frame.us(0.99));
        cpu.extend(measured.spent.us_each(measured.counted));
        all.add(&window.to_frame);
        report.add(format!("round {round}: notifications"), measured.counted, "");
        report.add(format!("round {round}: {} p50", names::TO_FRAME), window.to_frame.us(0.5), "us");
        report.add(format!("round {round}: {} p99", names::TO_FRAME), window.to_frame.us(0.99), "us");
        report.add(format!("round {round}: generator late p99"), window.lag.us(0.99), "us");
        report.add(format!("round {round}: pings of the server"), measured.pings, "");
        windows.push(measured);
    }
    let points = |values: &[f64]| -> Vec<[f64; 2]> {
        values.iter().enumerate().map(|(at, value)| [(at + 1) as f64, *value]).collect()
    };
    report.series("p50 by round", "round", "us", points(&p50));
    report.series("p99 by round", "round", "us", points(&p99));
    report.add("median of rounds: p50", median(&p50), "us");
    report.add("median of rounds: p99", median(&p99), "us");
    show_load(report, &windows);
    if !cpu.is_empty() {
        report.add(names::CPU_NOTIFICATION, median(&cpu), "us");
    }
    all.show(report, names::TO_FRAME);
    traffic.drain(Duration::from_secs(options.patience))
}

fn wait_for_gate(traffic: &mut Traffic, options: &Options) -> io::Result<()> {
    let Some(gate) = &options.gate else { return Ok(()) };
    // The caller that waits for this generator sees this file.
    std::fs::write(gate.with_extension(format!("{}.ready", std::process::id())), b"")?;
    let begin = std::time::Instant::now();
    traffic.driver.view.stage("waiting for the gate", options.target.sessions);
    while !gate.exists() {
        if begin.elapsed() > GATE_PATIENCE {
            return Err(io::Error::other(format!("nobody made {} in two hours", gate.display())));
        }
        traffic.idle(Duration::from_millis(200))?;
    }
    Ok(())
}

fn now_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Time from `now` to the next instant at `offset` after a multiple of `period`.
fn until_window(now: f64, period: f64, offset: f64) -> Duration {
    Duration::from_secs_f64((period - (now - offset).rem_euclid(period)).clamp(0.0, period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_offsets_take_turns() {
        for now in [1_000.0, 1_003.5, 1_009.9, 1_014.0] {
            let (a, b) = (until_window(now, 10.0, 0.0).as_secs_f64(), until_window(now, 10.0, 5.0).as_secs_f64());
            assert!(a > 0.0 && a <= 10.0 && b > 0.0 && b <= 10.0);
            assert!(((now + a) % 10.0).min(10.0 - (now + a) % 10.0) < 1e-6, "{now}: {a}");
            assert!(((now + b) % 10.0 - 5.0).abs() < 1e-6, "{now}: {b}");
        }
    }
}
