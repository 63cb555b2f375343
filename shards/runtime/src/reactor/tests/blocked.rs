//! A socket that takes no bytes is ended after a time; one that takes some is not.

use std::time::{Duration, Instant};

use crate::reactor::PlaneLimits;
use machine::time::TimeSpan;

use super::bench::{Bench, run};

/// A shard that ends a blocked socket after this long.
fn strict(blocked_timeout: TimeSpan) -> Bench {
    let mut limits = PlaneLimits::new(1_000);
    limits.blocked_timeout = blocked_timeout;
    Bench::new(1, limits)
}

#[test]
fn a_socket_that_takes_no_bytes_is_ended_and_its_neighbour_is_not() {
    run(|| {
        let mut bench = strict(TimeSpan::from_ms(200));
        let mut neighbour = bench.websocket();
        let mut lazy = bench.websocket();
        lazy.say(b"N 400\n");
        bench.until("told", |bench| bench.log(0).contains(&"gone NotReading".to_owned()));
        bench.until("closed", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!((bench.shards[0].stats.stuck_closes, bench.shards[0].closes.close_not_reading), (1, 1));
        assert_eq!(bench.shards[0].buffer_pool.used(), 0);
        neighbour.say(b"E\n");
        bench.until("an answer", |_| neighbour.heard() == b"pong\n");
    });
}

/// It is blocked for longer than the timeout in all, but never without progress for as long.
#[test]
fn a_slow_reader_keeps_its_session() {
    run(|| {
        let mut bench = strict(TimeSpan::from_secs(3));
        let mut client = bench.websocket();
        client.say(b"N 400\n");
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        let begun = Instant::now();
        while client.lines_so_far() < 400 {
            let pause = Instant::now();
            bench.until("a pause", |_| pause.elapsed() >= Duration::from_millis(200));
            client.hear(64 * 1024);
            assert_eq!(bench.shards[0].stats.stuck_closes, 0, "after {:?}", begun.elapsed());
        }
        assert!(begun.elapsed() > Duration::from_secs(4), "the reader was not slow enough to test anything");
        bench.until("it is not watched any more", |bench| bench.shards[0].websockets.next().is_none());
    });
}
