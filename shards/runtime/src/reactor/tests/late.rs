//! A shard that is not let run, or has more to read than a turn takes, says until when it has heard.

use std::time::Duration;

use crate::ports::Port;
use crate::reactor::PlaneLimits;
use machine::Effect;
use machine::time::{Instant, TimeSpan};

use super::bench::{Bench, Client, run};

/// Input from before the shard stood still is told before the shard says that it heard it, in any number of turns; and
/// it says that it was late.
#[test]
fn a_late_shard_has_heard_only_what_it_has_told() {
    run(|| {
        let mut bench = Bench::new(1, PlaneLimits::new(4_000));
        let mut clients: Vec<Client> = (0..1_500).map(|_| bench.websocket()).collect();
        bench.settle();
        clients.iter_mut().for_each(|client| client.say(b"E\n"));
        let said = bench.shards[0].clock.now().mono;
        std::thread::sleep(Duration::from_millis(300));
        let commands =
            |bench: &Bench, lines: usize| bench.log(0)[..lines].iter().filter(|l| l.starts_with("command")).count();
        let before = commands(&bench, bench.log(0).len());
        time_out(&mut bench);
        bench.turn();
        let heard = |bench: &Bench| bench.shards[0].machine.heard.iter().find(|(until, ..)| *until >= said).copied();
        assert_eq!(heard(&bench), None, "one turn has read nothing yet");
        bench.until("everything is heard", |bench| {
            time_out(bench);
            heard(bench).is_some()
        });
        let (_, _, lines) = heard(&bench).unwrap();
        assert_eq!(commands(&bench, lines) - before, clients.len(), "told before it was said to be heard");
        let late: Vec<Instant> = bench.shards[0].machine.heard.iter().filter(|h| h.1).map(|h| h.0).collect();
        assert!(late.iter().any(|until| *until <= said), "the round that stood still is told at once: {late:?}");
    });
}

/// Something is due: the machine is told until when the shard has heard, then of the time.
pub(super) fn time_out(bench: &mut Bench) {
    let conn = bench.shards[0].machine.opened[0];
    bench.shards[0].machine.orders.push(Effect::Ready(conn));
}

#[test]
fn a_shard_that_slept_was_not_late() {
    run(|| {
        let mut bench = Bench::one();
        let _client = bench.websocket();
        bench.settle();
        // The host may make it late between two turns, but not every time.
        let was_late = |bench: &mut Bench| {
            bench.shards[0].machine.heard.clear();
            bench.shards[0].input_horizon.slept();
            std::thread::sleep(Duration::from_millis(300));
            bench.settle();
            time_out(bench);
            bench.turn();
            bench.shards[0].machine.heard.iter().any(|(_, late, _)| *late)
        };
        assert!((0..20).any(|_| !was_late(&mut bench)), "{:?}", bench.shards[0].machine.heard);
    });
}

/// The shard learns once that nothing may be stamped, and once that it may again.
#[test]
fn a_shard_is_told_when_its_clock_is_stopped_and_when_it_goes_on() {
    run(|| {
        let mut bench = Bench::new(1, PlaneLimits::new(64));
        let told = |bench: &Bench| {
            bench.log(0).iter().filter(|line| line.starts_with("clock stopped")).cloned().collect::<Vec<_>>()
        };
        bench.settle();
        assert_eq!(told(&bench), [""; 0]);
        for stopped in [true, false] {
            bench.shards[0].clock.stop(stopped);
            bench.turn();
            bench.turn();
        }
        assert_eq!(told(&bench), ["clock stopped: true", "clock stopped: false"]);
    });
}

/// The rest of a request came in time, and the shard was not let run: it is read before its time is judged.
#[test]
fn a_request_that_came_in_time_is_not_ended_by_a_late_shard() {
    run(|| {
        let limits = PlaneLimits { request_timeout: TimeSpan::from_ms(200), ..PlaneLimits::new(10) };
        let mut bench = Bench::new(1, limits);
        let mut client = Client::connect(bench.endpoint);
        client.say(b"E ");
        bench.until("half is read", |bench| bench.shards[0].begun_in_line(Port::Endpoint) == 1);
        client.say(b"\n");
        std::thread::sleep(Duration::from_millis(400));
        bench.until("the answer", |_| !client.heard().is_empty());
        assert_eq!(client.heard(), b"pong\n");
    });
}
