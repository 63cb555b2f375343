//! Predictions from recorded and from made results, and what is refused.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;

use super::check::{Compared, Promise, lines};
use super::fit::index_bytes;
use super::hibernation::Hibernation;
use super::measure::{Beat, await_server};
use super::nodes::Plan;
use super::{Basis, Measured, Mix, cpu, memory};
use crate::result::{Figure, Outcome, Series, names};

fn outcome(scenario: &str, more: &serde_json::Value) -> Outcome {
    let mut all = json!({
        "schema": 1, "scenario": scenario, "server": "murre", "when": 1_700_000_000,
        "machine": { "kernel": "6.18", "cpu": "Some CPU", "cores": 2, "memory_bytes": 24u64 << 30 },
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Outcome::parse(all.to_string().as_bytes()).unwrap()
}

/// A server whose sessions take 140 B and the index, 20 MB without any, and 4,160 B of the kernel.
fn hold(counts: &[f64]) -> Outcome {
    let user: Vec<[f64; 2]> =
        counts.iter().map(|count| [*count, 2e7 + 140.0 * count + index_bytes(*count, 4.0, 1.1e6)]).collect();
    let kernel: Vec<[f64; 2]> = counts.iter().map(|count| [*count, 1e6 + 4_160.0 * count]).collect();
    let slab: Vec<[f64; 2]> = counts.iter().map(|count| [*count, 32.0 * count]).collect();
    outcome(
        "hold",
        &json!({
            "options": { "sessions": counts.last(), "shards": 4, "max_connections": 1_100_000 },
            "series": [
                { "name": "user bytes", "x_unit": "sessions", "unit": "B", "points": user },
                { "name": "kernel bytes", "x_unit": "sessions", "unit": "B", "points": kernel },
                { "name": "table bytes: murre_slab_bytes", "x_unit": "sessions", "unit": "B", "points": slab },
            ],
        }),
    )
}

fn push(sessions: u64, rate: u64, us: f64) -> Outcome {
    outcome(
        "push",
        &json!({
            "options": { "sessions": sessions, "rate": rate },
            "figures": [{ "name": "server CPU per notification", "value": us, "unit": "us" }],
        }),
    )
}

fn mix() -> Mix {
    defaults().0
}

/// Load and measurement of the default options.
fn defaults() -> (Mix, Measured) {
    use clap::Parser;
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        mix: Mix,
        #[command(flatten)]
        measured: Measured,
    }
    let Cli { mix, measured } = Cli::parse_from(["capacity"]);
    (mix, measured)
}

#[test]
fn a_million_is_predicted_from_ten_thousand_where_a_straight_line_would_fail() {
    let all = [hold(&[0.0, 2_500.0, 5_000.0, 10_000.0])];
    let real = hold(&[0.0, 500_000.0, 1_000_000.0]);
    let compared = lines(&Basis::new(&all).unwrap(), &mix(), &[real]).unwrap();
    assert_eq!(compared.len(), 6, "user, its slope, kernel and that of one, both and one table: {compared:?}");
    assert!(compared.iter().all(|line| line.off().abs() < 0.01 && line.held()), "{compared:?}");
}

#[test]
fn of_a_recorded_run_the_first_12_000_sessions_predict_the_rest() {
    let real = Outcome::parse(include_bytes!("../../python/recorded.json")).unwrap();
    let mut first = real.clone();
    first.series.iter_mut().for_each(|one| one.points.retain(|point| point[0] <= 12_000.0));
    let all = [first];
    let compared = lines(&Basis::new(&all).unwrap(), &mix(), &[real]).unwrap();
    assert_eq!(compared.iter().filter(|line| line.promise != Promise::None).count(), 3, "{compared:?}");
    assert!(compared.iter().all(Compared::held), "{compared:?}");
}

#[test]
fn a_full_run_that_is_further_off_than_promised_is_told() {
    let all = [hold(&[0.0, 2_500.0, 5_000.0, 10_000.0])];
    let basis = Basis::new(&all).unwrap();
    let mut real = hold(&[0.0, 500_000.0, 1_000_000.0]);
    real.series[0].points.iter_mut().for_each(|point| point[1] *= 1.08);
    let compared = lines(&basis, &mix(), &[real]).unwrap();
    assert!(!compared[1].held() && compared[1].name.starts_with("user bytes of a session"), "{compared:?}");
    assert!(compared[2..].iter().all(Compared::held), "8 % of a few are little of all: {compared:?}");
}

#[test]
fn cores_are_rates_times_costs_and_a_cold_million_costs_more() {
    let all = [hold(&[0.0, 5_000.0, 10_000.0]), push(10_000, 1_000, 30.0), push(10_000, 50_000, 17.0)];
    let basis = Basis::new(&all).unwrap();
    let asked = Mix { push_rate: 1_000.0, store_share: 0.0, connect_rate: 0.0, cold_us: Some(2.0), ..mix() };
    let predicted = cpu::Prediction::new(&basis, &asked);
    let direct = &predicted.items[0];
    assert_eq!((direct.cost.us, direct.us, direct.cost.at), (30.0, 34.0, Some(10_000.0)));
    assert_eq!(cpu::Prediction::new(&basis, &Mix { push_rate: 40_000.0, ..asked.clone() }).items[0].cost.us, 17.0);
    // 1,000 notifications, and 3,333 pings whose cost is assumed.
    assert!((predicted.cores() - (0.034 + 1e6 / 300.0 * 80e-6)).abs() < 1e-9, "{}", predicted.cores());
    assert!(predicted.items.iter().skip(1).all(|item| item.cost.at.is_none()));
}

#[test]
fn what_cold_memory_costs_is_taken_from_pushes_that_differ_in_sessions() {
    let all = [
        hold(&[0.0, 5_000.0, 10_000.0]),
        push(1_000, 1_000, 30.0),
        push(10_000, 1_000, 31.5),
        push(9_000, 5_000, 90.0),
    ];
    assert!((cpu::Prediction::new(&Basis::new(&all).unwrap(), &mix()).cold_us - 1.5).abs() < 1e-9);
    let close = [hold(&[0.0, 5_000.0, 10_000.0]), push(5_000, 1_000, 30.0), push(10_000, 1_000, 60.0)];
    assert_eq!(cpu::Prediction::new(&Basis::new(&close).unwrap(), &mix()).cold_us, 2.0, "too close to tell");
}

#[test]
fn operations_are_compared_at_the_rate_of_the_full_run() {
    let all = [hold(&[0.0, 5_000.0, 10_000.0]), push(10_000, 1_000, 30.0), push(10_000, 50_000, 17.0)];
    let basis = Basis::new(&all).unwrap();
    let compared = |us| lines(&basis, &mix(), &[push(1_000_000, 1_000, us)]).unwrap();
    assert!((compared(34.0)[0].off()).abs() < 0.001 && compared(34.0)[0].held());
    assert!(!compared(20.0)[0].held(), "34 is 70 % more than 20");
}

/// A run that tells how much of each it did while its cores were read.
fn told(scenario: &str, name: &str, sessions: u64, loads: [f64; 3], us: f64) -> Outcome {
    let [cores, notifications, pings] = loads;
    let figure = |name: &str, value: f64| json!({ "name": name, "value": value, "unit": "" });
    outcome(
        scenario,
        &json!({
            "options": { "sessions": sessions },
            "figures": [
                figure(names::CORES, cores), figure(names::NOTIFICATION_RATE, notifications),
                figure(names::PING_RATE, pings), figure(name, us),
            ],
        }),
    )
}

#[test]
fn the_pings_of_a_million_are_not_counted_into_its_notifications() {
    // 30 us each ping at 3,000 a second, 80 us one that comes alone; 60 us a notification.
    let all = [
        hold(&[0.0, 5_000.0, 10_000.0]),
        told("push", names::CPU_NOTIFICATION, 10_000, [0.060 + 30.0 * 80e-6, 1_000.0, 30.0], 62.4),
        told("ping", names::CPU_PING, 10_000, [0.09, 0.0, 3_000.0], 30.0),
        told("ping", names::CPU_PING, 10_000, [0.0064, 0.0, 80.0], 80.0),
    ];
    let basis = Basis::new(&all).unwrap();
    let mix = Mix { cold_us: Some(2.0), ..mix() };
    // Two tenfolds: 64 us and 34 us.
    let real = |cores: f64| told("push", names::CPU_NOTIFICATION, 1_000_000, [cores, 1_000.0, 3_300.0], cores * 1e3);
    let compared = lines(&basis, &mix, &[real(0.064 + 3_300.0 * 34e-6)]).unwrap();
    assert!(compared.iter().all(|line| line.off().abs() < 0.001), "{compared:?}");
    assert_eq!((compared.len(), compared[0].promise), (2, Promise::Within(0.2)));
    assert!(compared[0].name.contains("1000 notifications and 3300 pings"), "{compared:?}");
    assert!(lines(&basis, &mix, &[real(0.21)]).unwrap()[0].held());
    assert!(!lines(&basis, &mix, &[real(0.24)]).unwrap()[0].held(), "a quarter off");

    let unmeasured = [hold(&[0.0, 5_000.0, 10_000.0]), push(10_000, 1_000, 60.0)];
    let compared = lines(&Basis::new(&unmeasured).unwrap(), &mix, &[real(0.3)]).unwrap();
    assert_eq!(compared[0].promise, Promise::None, "what a ping costs was never measured");
}

#[test]
fn idle_cores_are_what_the_process_does_anyway_and_pings() {
    let mut few = hold(&[0.0, 5_000.0, 10_000.0]);
    let figure = |name: &str, value: f64| Figure { name: name.into(), value: value.into(), unit: String::new() };
    few.figures.extend([figure(names::CPU_IDLE, 0.003), figure(names::PING_RATE, 0.0)]);
    let mut real = hold(&[0.0, 500_000.0, 1_000_000.0]);
    real.figures.extend([figure(names::CPU_IDLE, 0.105), figure(names::PING_RATE, 3_000.0)]);
    let all = [few, told("ping", names::CPU_PING, 10_000, [0.09, 0.0, 3_000.0], 30.0)];
    let compared = lines(&Basis::new(&all).unwrap(), &Mix { cold_us: Some(2.0), ..mix() }, &[real]).unwrap();
    let idle = compared.iter().find(|line| line.name.starts_with("idle")).unwrap();
    assert!(idle.off().abs() < 0.001 && idle.promise == Promise::Within(0.2), "{compared:?}");
}

#[test]
fn what_was_measured_at_quite_another_rate_is_shown_and_not_promised() {
    // As the pings that user agents ask for: each of ten thousand once a minute.
    let rare = told("ping", names::CPU_PING, 10_000, [0.0134, 0.0, 167.0], 80.0);
    let often = told("ping", names::CPU_PING, 10_000, [0.09, 0.0, 3_000.0], 30.0);
    let all = |ping: &Outcome| [hold(&[0.0, 5_000.0, 10_000.0]), push(10_000, 1_000, 30.0), ping.clone()];
    let mut real = hold(&[0.0, 500_000.0, 1_000_000.0]);
    let figure = |name: &str, value: f64| Figure { name: name.into(), value: value.into(), unit: String::new() };
    real.figures.extend([figure(names::CPU_IDLE, 0.3), figure(names::PING_RATE, 3_333.0)]);
    for (ping, kept, said) in [(&rare, Promise::None, "0.027 cores"), (&often, Promise::Within(0.2), "0.141 cores")] {
        let (all, mix) = (all(ping), Mix { cold_us: Some(2.0), ..mix() });
        let basis = Basis::new(&all).unwrap();
        let compared = lines(&basis, &mix, std::slice::from_ref(&real)).unwrap();
        let idle = compared.iter().find(|line| line.name.starts_with("idle")).unwrap();
        assert_eq!(idle.promise, kept, "{compared:?}");
        // 800 notifications of 34 us, pings, and budgets for what was not measured.
        let promise = cpu::Prediction::new(&basis, &mix).promise();
        assert!(promise.starts_with(said) && promise.contains("more are not"), "{promise}");
    }
    let none = [hold(&[0.0, 5_000.0, 10_000.0])];
    let promise = cpu::Prediction::new(&Basis::new(&none).unwrap(), &mix()).promise();
    assert!(promise.starts_with("nothing is promised"), "{promise}");
}

#[test]
fn few_sessions_are_pinged_as_often_a_second_as_all_will_be() {
    let (mix, measured) = defaults();
    let beat = |sessions, ping_interval| Beat::new(&measured, &Mix { sessions, ping_interval, ..mix.clone() });
    assert_eq!(beat(1_000_000, 300.0), Beat { sessions: 10_000, interval_s: 3.0 });
    assert_eq!(beat(100_000, 300.0), Beat { sessions: 1_000, interval_s: 3.0 });
    assert_eq!(beat(2_000_000, 300.0), Beat { sessions: 10_000, interval_s: 1.5 });
    assert_eq!(beat(100_000_000, 300.0), Beat { sessions: 10_000, interval_s: 1.0 }, "as often as it is measured");
    assert_eq!(beat(1, 300.0), Beat { sessions: 1, interval_s: 3.0 });
}

#[test]
fn a_server_that_is_still_starting_is_waited_for_and_one_that_is_gone_is_not() {
    let (own, patience) = (std::process::id(), Duration::from_secs(30));
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        TcpListener::bind(address).unwrap()
    });
    await_server(&[address], own, patience).unwrap();
    drop(later.join().unwrap());
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let said = await_server(&[address], gone.id(), Duration::from_secs(3_600)).unwrap_err().to_string();
    assert!(said.contains("has the server ended"), "{said}");
    let (begin, short) = (Instant::now(), Duration::from_millis(100));
    let said = await_server(&[address], own, short).unwrap_err().to_string();
    assert!(said.contains("nobody listens") && said.contains("--admin") && begin.elapsed() >= short, "{said}");
}

#[test]
fn a_cache_that_fills_is_no_cost_of_a_session() {
    let cached = |counts: &[f64], bytes: fn(f64) -> f64| {
        let mut one = hold(counts);
        one.series[0].points.iter_mut().for_each(|point| point[1] += bytes(point[0]));
        let points = counts.iter().map(|count| [*count, bytes(*count)]).collect();
        let series = Series { name: names::STORE_BYTES.into(), x_unit: "sessions".into(), unit: "B".into(), points };
        one.series.push(series);
        one
    };
    let all = [cached(&[0.0, 5_000.0, 7_500.0, 10_000.0], |count| count * 900.0)];
    let basis = Basis::new(&all).unwrap();
    let real = cached(&[0.0, 10_000.0, 1_000_000.0], |count| (count * 900.0).min(1e8));
    let compared = lines(&basis, &mix(), &[real]).unwrap();
    assert!(compared.iter().all(Compared::held), "{compared:?}");
    let slope = compared.iter().find(|line| line.name.starts_with("user bytes of a session")).unwrap();
    assert!(slope.off().abs() < 0.01, "{compared:?}");
    let over = cached(&[0.0, 10_000.0, 1_000_000.0], |count| count * 900.0);
    let broken: Vec<Compared> =
        lines(&basis, &mix(), &[over]).unwrap().into_iter().filter(|line| !line.held()).collect();
    assert!(broken.len() == 1 && broken[0].promise == Promise::AtMost, "the bound: {broken:?}");
}

#[test]
fn a_prediction_needs_readings_at_two_counts_that_grow() {
    let why = |all: &[Outcome]| match Basis::new(all) {
        Err(error) => error.to_string(),
        Ok(basis) => memory::Prediction::new(&basis, &mix()).unwrap_err().to_string(),
    };
    assert!(why(&[]).contains("no result has two readings"));
    assert!(why(&[push(10, 10, 1.0)]).contains("murre-bench hold"));
    let mut shrinking = hold(&[0.0, 5_000.0, 10_000.0]);
    shrinking.series[0].points.iter_mut().for_each(|point| point[1] = 2e7);
    assert!(why(&[shrinking]).contains("does not grow"));
    let mut blind = hold(&[0.0, 5_000.0, 10_000.0]);
    blind.series.remove(1);
    assert!(why(&[blind]).contains("slabinfo"));
}

#[test]
fn shards_and_connections_that_differ_from_the_measurement_are_accounted_for() {
    let all = [hold(&[0.0, 5_000.0, 10_000.0])];
    let basis = Basis::new(&all).unwrap();
    let with = |shards| memory::Prediction::new(&basis, &Mix { shards: Some(shards), ..mix() }).unwrap();
    assert!(with(64).user_bytes() > with(4).user_bytes() + 60.0 * 4e6);
    let wide = memory::Prediction::new(&basis, &Mix { max_connections: Some(10_000_000), ..mix() }).unwrap();
    assert!(wide.all_bytes() > with(4).all_bytes() + 8.9e6 * 8.0);
}

#[test]
fn sessions_that_one_node_cannot_hold_are_planned_for_several() {
    let all = [hold(&[0.0, 5_000.0, 10_000.0])];
    let basis = Basis::new(&all).unwrap();
    let plan = |mix: Mix| Plan::new(&basis, &mix).unwrap();
    assert_eq!(plan(mix()).nodes, 1);
    let four = plan(Mix { sessions: 50_000_000, ..mix() });
    assert_eq!((four.nodes, four.each.sessions, four.each.max_connections()), (4, 12_500_000, 13_750_000));
    assert!(four.each.max_connections() <= u64::from(config::MAX_CONNECTIONS_MAX));
    assert!(four.why[0].contains("--max-connections 55000000"), "{:?}", four.why);
    assert_eq!((four.each.push_rate, four.each.connect_rate), (250.0, 25.0));
    // A bound of the operator's own: 2.5 million connections for each node.
    assert_eq!(plan(Mix { sessions: 5_000_000, max_connections: Some(2_500_000), ..mix() }).nodes, 2);
    let small = plan(Mix { memory: Some(4.0), ..mix() });
    assert!(small.nodes > 1 && small.why[0].contains("of memory"), "{small:?}");
    let each = memory::Prediction::new(&basis, &small.each).unwrap();
    assert!(each.host_bytes() <= 4.0 * f64::from(1 << 30), "{}", each.host_bytes());
    let busy = plan(Mix { push_rate: 1e6, cores: 8, ..mix() });
    assert!(busy.nodes > 1 && busy.why[0].contains("--cores"), "{busy:?}");
    assert!(cpu::Prediction::new(&basis, &busy.each).cores_wanted(&busy.each) <= 8.0);
    let impossible = Plan::new(&basis, &Mix { memory: Some(0.5), ..mix() }).unwrap_err();
    assert!(impossible.contains("larger hosts"), "{impossible}");
}

#[test]
fn memory_that_cannot_be_fitted_is_forecast_from_the_documented_constants() {
    let mut flat = hold(&[0.0, 5_000.0, 10_000.0]);
    flat.series[0].points.iter_mut().for_each(|point| point[1] = 2e7);
    let all = [flat];
    let basis = Basis::new(&all).unwrap();
    let (forecast, why) = memory::Prediction::best(&basis, &mix());
    assert!(why.unwrap().contains("does not grow"));
    assert!(forecast.promise()[0].contains("documented constant"), "{:?}", forecast.promise());
    // docs/CAPACITY.md: 4.33 KB a session, 34 MB a shard, and 125 MB.
    let formula = 4_330.0 * 1e6 + 4.0 * 34e6 + 125e6;
    assert!((forecast.all_bytes() / formula - 1.0).abs() < 0.01, "{} against {formula}", forecast.all_bytes());
    let measured = [hold(&[0.0, 5_000.0, 10_000.0])];
    let (forecast, why) = memory::Prediction::best(&Basis::new(&measured).unwrap(), &mix());
    assert!(why.is_none() && forecast.promise()[0].starts_with("Promised"), "{:?}", forecast.promise());
}

#[test]
fn a_mix_that_makes_no_sense_is_refused() {
    for wrong in [
        Mix { store_share: 1.5, ..mix() },
        Mix { push_rate: -1.0, ..mix() },
        Mix { ping_interval: 0.0, ..mix() },
        Mix { utilisation: f64::NAN, ..mix() },
        Mix { sessions: 0, ..mix() },
        Mix { memory: Some(0.0), ..mix() },
        Mix { max_connections: Some(1 << 25), ..mix() },
        Mix { shards: Some(257), ..mix() },
        frozen(29.0, 0.0),
        frozen(300.0, 0.0),
        frozen(60.0, 300.0),
    ] {
        assert!(wrong.complaint().is_some(), "{wrong:?}");
    }
    assert!(mix().complaint().is_none());
}

#[test]
fn tls_costs_its_secrets_and_its_handshakes() {
    let all_bytes = |tls| memory::Prediction::documented(&Mix { tls, ..mix() }, 2.0).all_bytes();
    let more: f64 = all_bytes(true) - all_bytes(false);
    assert!((more - (1e6 * 224.0 + 2.0 * 5.0 * 1_048_576.0)).abs() < 1.0, "{more}");
}

/// A server that freezes after `after` seconds, and pings each 300 s, or thaws only each `pings` seconds for a ping.
fn frozen(after: f64, pings: f64) -> Mix {
    let hibernation = Hibernation { hibernate_after: after, hibernate_ping_interval: pings };
    Mix { hibernation, push_rate: 0.0, ..mix() }
}

#[test]
fn frozen_sessions_have_no_socket_and_are_thawed_for_each_frame() {
    let mixes = [frozen(0.0, 0.0), frozen(60.0, 0.0), frozen(60.0, 3_000.0)];
    let live = mixes.map(|mix| (mix.live_share() * 1_000.0).round());
    assert_eq!(live, [1_000.0, 250.0, 25.0]);
    let noisy = Mix { push_rate: 1e6, store_share: 0.0, ..frozen(60.0, 0.0) };
    assert_eq!((noisy.live_share(), noisy.thaws()), (1.0, 0.0));
    let all_bytes = |mix: &Mix| memory::Prediction::documented(mix, 2.0).all_bytes();
    let saved = all_bytes(&frozen(0.0, 0.0)) - all_bytes(&frozen(60.0, 0.0));
    assert!((saved - 1e6 * 0.75 * (4_170.0 - 320.0)).abs() < 1.0, "{saved}");
    let basis = [hold(&[0.0, 5_000.0, 10_000.0])];
    let basis = Basis::new(&basis).unwrap();
    let measured = |mix: &Mix| memory::Prediction::new(&basis, mix).unwrap().kernel_bytes();
    assert!(measured(&frozen(60.0, 0.0)) < 0.35 * measured(&frozen(0.0, 0.0)));
    let thaws = |mix: &Mix| cpu::Prediction::new(&basis, mix).items.last().map(|item| (item.name, item.rate)).unwrap();
    let (name, rate) = thaws(&frozen(60.0, 0.0));
    assert!(name.contains("thaw") && (rate - 1e6 / 300.0 * 0.75).abs() < 0.1, "{name} {rate}");
    assert!(!thaws(&frozen(0.0, 0.0)).0.contains("thaw"));
}
