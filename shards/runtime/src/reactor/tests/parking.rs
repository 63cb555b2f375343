//! A shard sleeps in its hub ring and hears of everything there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::reactor::{ControlMessage, PlaneLimits};

use super::bench::run;
use super::script::LineEdge;
use super::threads::{PATIENCE, Peer, serve};

#[test]
fn a_parked_shard_hears_all_its_rings_controls_and_other_shards() {
    run(|| {
        let mut limits = PlaneLimits::new(1_000);
        limits.table_max = 100;
        let server = serve(2, limits);
        let mut peers = Vec::new();
        for _ in 0..250 {
            let mut peer = Peer::connect(server.websocket);
            assert_eq!(peer.ask("UP\n"), "101\n");
            peers.push(peer);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let asker = std::thread::spawn({
            let (stop, mut peer) = (Arc::clone(&stop), peers.swap_remove(0));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(peer.ask("E\n"), "pong\n");
                }
            }
        });
        let begun = Instant::now();
        while server.number(0, "parks") < 1_000 {
            assert!(begun.elapsed() < PATIENCE, "it does not sleep");
            std::thread::sleep(Duration::from_millis(20));
        }
        let told = Arc::new(AtomicUsize::new(0));
        for round in 1..=50 {
            // A ring that is not the hub.
            let last = peers.last_mut().unwrap();
            assert_eq!(last.ask("E\n"), "pong\n");
            // The waker, as lanes of the control plane and of storage use it.
            let telling = Arc::clone(&told);
            let tell = move |_: &mut LineEdge| {
                telling.fetch_add(1, Ordering::Relaxed);
            };
            server.shards.control(ControlMessage::Edge(Arc::new(tell)));
            while told.load(Ordering::Relaxed) < 2 * round {
                assert!(begun.elapsed() < 2 * PATIENCE, "a control was lost");
                std::thread::sleep(Duration::from_micros(200));
            }
            // Another shard, and one that has slept for long.
            if round % 10 == 0 {
                let mut moving = peers.swap_remove(0);
                assert_eq!(moving.ask("M 1\nE\n"), "pong\n");
                assert_eq!(moving.answer(), "pong\n");
            }
        }
        stop.store(true, Ordering::Relaxed);
        asker.join().unwrap();
        assert!(server.sleeps(&mut peers[0]), "it does not sleep");
        server.end();
    });
}
