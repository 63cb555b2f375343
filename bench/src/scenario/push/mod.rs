//! `push`: direct notifications to acked clients, as many as the server takes or at a fixed rate. The figure is server
//! CPU time per notification: POST in, WebSocket frame out, ack in (CAPACITY.md). Latencies count from the due time of
//! a POST.

mod options;
mod window;
mod rounds;

use std::io;
use std::time::Duration;

pub use self::options::Options;
use self::window::{Measured, measure, show_load};
use super::traffic::{DuplicatePolicy, ONE_CHANNEL, Traffic};
use crate::metrics::Metrics;
use crate::report::Report;
use crate::result::names;
use crate::target::value_name;

/// Pushes and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    if options.body.is_empty() || target.sessions == 0 {
        return Err(io::Error::other("at least one size of --body and one of --sessions"));
    }
    let mut report = target.report("push");
    let vapid = options.vapid.unwrap_or_default();
    let mut traffic = Traffic::spelled(target, ONE_CHANNEL, options.signing(), vapid, options.encoding)?;
    traffic.driver.view.stage("ramp", target.sessions);
    let climb = target.ramp.climb(&mut traffic, 0..target.sessions)?;
    if traffic.driver.agents.connected() < target.sessions {
        let connected = traffic.driver.agents.connected();
        return Err(io::Error::other(format!("only {connected} of {} sessions could connect", target.sessions)));
    }
    climb.show(&mut report, "ramp", target.sessions);
    traffic.driver.open_publishers(target, options.in_flight)?;
    describe(&mut report, options);
    if options.rounds > 0 {
        rounds::run(&mut traffic, options, &mut report)?;
    } else {
        traffic.driver.view.stage("warm up", target.sessions);
        options.go(&mut traffic, options.warmup)?;
        let measured = measure(&mut traffic, options)?;
        traffic.drain(Duration::from_secs(options.patience))?;
        show(&mut report, &traffic, options, &measured)?;
    }
    traffic.check(&mut report, "push", DuplicatePolicy::Always);
    report.check("sessions lost", traffic.ended, climb.again);
    // At the end: a shard publishes its counters once per second, and not before its first second.
    if let Some(admin) = target.admin {
        report.shards(&Metrics::read(admin)?);
    }
    traffic.driver.view.curves(&mut report);
    report.finish(target.json.as_deref())
}

fn describe(report: &mut Report, options: &Options) {
    report.option("body", options.body.clone());
    report.option("vapid", options.is_signed());
    report.option("vapid_draft", options.is_signed().then(|| value_name(&options.vapid.unwrap_or_default())));
    report.option("encoding", value_name(&options.encoding));
    report.option("fresh_tokens", options.fresh_tokens);
    report.option("in_flight", options.in_flight);
    report.option("rate", options.rate);
    report.add("sessions", options.target.sessions as u64, "");
    report.add("body", format!("{:?}", options.body), "B");
    report.add("VAPID", options.is_signed(), "");
    report.add("POSTs under way at once", options.in_flight as u64, "");
}

fn show(report: &mut Report, traffic: &Traffic, options: &Options, measured: &Measured) -> io::Result<()> {
    let Measured { counted, spent, .. } = measured;
    report.add("notifications in the measured time", *counted, "");
    show_load(report, std::slice::from_ref(measured));
    spent.show(report, "notification", *counted);
    if let Some(us) = spent.us_each(*counted).filter(|_| options.vapid.is_some() && !options.fresh_tokens) {
        report.add(names::CPU_NOTIFICATION_VAPID, us, "us");
    }
    traffic.window()?.to_answer.show(report, names::TO_ANSWER);
    traffic.window()?.to_frame.show(report, names::TO_FRAME);
    traffic.window()?.lag.show(report, "generator late");
    traffic.window()?.series.show(report, names::TO_FRAME);
    if let Some(metrics) = &spent.metrics {
        println!("{}", metrics.json());
    }
    Ok(())
}
