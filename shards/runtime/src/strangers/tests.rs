//! Exact counts on several threads, rates beside a sliding window, and evictions.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use machine::time::TimeSpan;
use proptest::prelude::*;

use super::*;

/// One shard.
fn strangers(limits: StrangerLimits) -> Strangers {
    Strangers::new(limits, 1)
}

fn connections(connections: u32) -> StrangerLimits {
    StrangerLimits { connections, ..StrangerLimits::default() }
}

fn v4(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0A00_0000 + n).into()
}

/// An address of the `n`th /64.
fn v6(n: u64, host: u64) -> IpAddr {
    Ipv6Addr::from_bits((u128::from(0x2001_0DB8_0000_0000 | n) << 64) | u128::from(host)).into()
}

fn at(seconds: u64) -> Instant {
    Instant(0).after(TimeSpan::from_secs(seconds))
}

fn bytes(strangers: &Strangers) -> usize {
    strangers.stripes.iter().map(|stripe| lock(stripe).table.bytes()).sum()
}

#[test]
fn users_are_charged_to_addresses_but_those_of_this_host() {
    let address = |text: &str| Stranger::of(text.parse().unwrap()).address();
    for loopback in ["127.0.0.1", "127.77.1.1", "::ffff:127.0.0.1", "::1"] {
        assert_eq!(address(loopback), None, "{loopback}");
    }
    for (one, other) in [("192.0.2.1", "::ffff:192.0.2.1"), ("2001:db8::1", "2001:db8::2")] {
        assert!(address(one).is_some() && address(one) == address(other), "{one} and {other}");
    }
    assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
    assert_ne!(address("126.255.255.255"), address("128.0.0.0"));
}

#[test]
fn connections_of_an_address_are_counted_exactly() {
    let strangers = strangers(connections(2));
    let first = strangers.enter(v4(1), at(0)).unwrap().unwrap();
    strangers.enter(v4(1), at(0)).unwrap().unwrap();
    assert_eq!(strangers.enter(v4(1), at(0)), Err(Limit::Connections));
    assert!(strangers.enter(v4(2), at(0)).unwrap().is_some(), "another address has its own");
    strangers.leave(first, at(0));
    let again = strangers.enter(v4(1), at(0)).unwrap().unwrap();
    assert_eq!(strangers.enter(v4(1), at(0)), Err(Limit::Connections));
    assert_eq!((strangers.stats().refused(Cause::Limit(Limit::Connections)), strangers.stats().addresses), (2, 2));
    strangers.leave(first, at(0));
    strangers.leave(again, at(0));
    assert_eq!(strangers.stats().addresses, 1, "an address that holds nothing has no entry");
}

#[test]
fn an_address_is_an_ipv4_address_or_an_ipv6_network_of_64_bits() {
    let same = [
        (v4(1), "::ffff:10.0.0.1".parse().unwrap(), true),
        (v4(1), v4(2), false),
        (v6(1, 1), v6(1, u64::MAX), true),
        (v6(1, 1), v6(2, 1), false),
        ("::1".parse().unwrap(), "127.0.0.1".parse().unwrap(), false),
        ("::1".parse().unwrap(), "::2".parse().unwrap(), true),
    ];
    for (one, other, is_same) in same {
        let strangers = strangers(connections(1));
        strangers.enter(one, at(0)).unwrap();
        assert_eq!(strangers.enter(other, at(0)).is_err(), is_same, "{one} {other}");
    }
    assert_eq!(size_of::<Option<Stranger>>(), 8, "it is kept for each session");
    let shown = format!("{:?} {:?}", Stranger::of("192.0.2.77".parse().unwrap()), Stranger::of(v6(0x1234, 0x5678)));
    assert_eq!(shown, "Stranger(192.0.2.0/24, ..) Stranger(2001:db8::/48, ..)");
}

#[test]
fn without_a_limit_nothing_is_counted_and_no_memory_is_used() {
    let off = strangers(StrangerLimits { exempt: vec!["10.0.0.0/8".parse().unwrap()], ..StrangerLimits::default() });
    assert!(!off.needs_addresses() && off.stripes.is_empty());
    assert_eq!(off.enter(v4(1), at(0)), Ok(None));
    assert_eq!(off.set_limits(connections(1)), [Limit::Connections], "it needs a restart");
    assert_eq!(off.enter(v6(1, 1), at(0)), Ok(None));
    // A limit that is off takes no entry for what it does not count.
    let registers = strangers(StrangerLimits { registers_per_hour: 1, ..StrangerLimits::default() });
    let stranger = registers.enter(v4(1), at(0)).unwrap().unwrap();
    assert!((0..9).all(|_| registers.enter(v4(1), at(0)).is_ok()));
    for limit in [Limit::Connections, Limit::Handshakes, Limit::NewUsers] {
        assert!((0..9).all(|_| registers.take(stranger, limit, at(0))), "{limit:?}");
    }
    assert_eq!(registers.stats().addresses, 0);
    registers.leave(stranger, at(0));
    assert!(registers.take(stranger, Limit::Registers, at(0)) && !registers.take(stranger, Limit::Registers, at(0)));
}

#[test]
fn exempt_networks_are_not_counted_and_can_be_changed() {
    let with = |exempt: &str, connections| StrangerLimits {
        connections,
        exempt: vec![exempt.parse().unwrap()],
        ..StrangerLimits::default()
    };
    let strangers = strangers(with("10.0.0.0/24", 1));
    assert!((0..9).all(|_| strangers.enter(v4(1), at(0)) == Ok(None)));
    assert_eq!(strangers.enter("::ffff:10.0.0.1".parse().unwrap(), at(0)), Ok(None));
    let counted = strangers.enter(v4(256), at(0)).unwrap().unwrap();
    assert!(strangers.enter(v4(256), at(0)).is_err());
    assert_eq!(strangers.set_limits(with("10.0.1.0/24", 2)), []);
    assert_eq!(strangers.enter(v4(256), at(0)), Ok(None));
    strangers.leave(counted, at(0));
    assert!((0..2).all(|_| matches!(strangers.enter(v4(1), at(0)), Ok(Some(_)))), "the new limit is 2");
    assert!(strangers.enter(v4(1), at(0)).is_err());
    assert_eq!(strangers.set_limits(StrangerLimits { handshakes_per_second: 1, ..connections(0) }).len(), 2);
    assert!(strangers.enter(v4(1), at(0)).is_err() && strangers.limits().handshakes_per_second == 0);
}

#[test]
fn rates_are_separate_and_come_back_over_their_period() {
    let strangers = strangers(StrangerLimits {
        handshakes_per_second: 4,
        new_users_per_hour: 2,
        registers_per_hour: 3,
        ..StrangerLimits::default()
    });
    let stranger = strangers.enter(v6(1, 1), at(9)).unwrap().unwrap();
    let taken = |limit, now| (0..99).take_while(|_| strangers.take(stranger, limit, now)).count();
    let rates = [Limit::Handshakes, Limit::NewUsers, Limit::Registers];
    assert_eq!(rates.map(|limit| taken(limit, at(9))), [4, 2, 3]);
    assert_eq!(rates.map(|limit| taken(limit, at(10))), [4, 0, 0]);
    assert_eq!(rates.map(|limit| taken(limit, at(10 + 1_800))), [4, 1, 1]);
    assert_eq!(rates.map(|limit| taken(limit, at(10 + 9_000))), [4, 2, 3]);
    assert_eq!(Limit::ALL.map(|limit| strangers.stats().refused(Cause::Limit(limit))), [0, 4, 4, 4]);
}

#[test]
fn refusals_are_told_once_with_a_network_and_no_address() {
    let strangers = strangers(StrangerLimits { new_users_per_hour: 1, ..connections(1) });
    assert_eq!(strangers.take_refusals(Cause::Limit(Limit::Connections)), None);
    for n in 0..10 {
        let stranger = strangers.enter(v6(n, 1), at(0)).unwrap().unwrap();
        assert!(strangers.take(stranger, Limit::NewUsers, at(0)));
        assert!(strangers.enter(v6(n, 2), at(0)).is_err() && strangers.enter(v6(n, 3), at(0)).is_err());
    }
    let refusals = Refusals { count: 20, network: "2001:db8::/48".parse().ok() };
    assert_eq!(strangers.take_refusals(Cause::Limit(Limit::Connections)), Some(refusals));
    assert_eq!(strangers.take_refusals(Cause::Limit(Limit::Connections)), None);
    assert_eq!(strangers.take_refusals(Cause::Limit(Limit::NewUsers)), None);
}

#[test]
fn threads_of_all_shards_have_one_count() {
    for shards in [2, 7] {
        let strangers = Strangers::new(connections(100), shards);
        // All at one address: exactly the limit is served, on all shards together.
        let served = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..shards {
                scope.spawn(|| {
                    let mine = (0..1_000).filter(|_| strangers.enter(v4(1), at(0)).is_ok()).count();
                    served.fetch_add(mine as u32, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(served.into_inner(), 100, "{shards} shards");
        assert_eq!(strangers.stats().refused(Cause::Limit(Limit::Connections)), u64::from(shards) * 1_000 - 100);
    }
}

#[test]
fn threads_that_enter_and_leave_never_hold_more_than_the_limit() {
    const ADDRESSES: usize = 5;
    for shards in [2, 7] {
        let strangers = Strangers::new(connections(3), shards);
        let held: [AtomicU32; ADDRESSES] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..usize::from(shards) {
                let (strangers, held) = (&strangers, &held);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    for n in 0..20_000_usize {
                        let address = (n * 7 + thread) % ADDRESSES;
                        if let Ok(Some(stranger)) = strangers.enter(v4(address as u32), at(0)) {
                            assert!(held[address].fetch_add(1, Ordering::SeqCst) < 3, "{shards} shards");
                            mine.push((address, stranger));
                        }
                        if n % 3 != 0
                            && let Some((address, stranger)) = mine.pop()
                        {
                            held[address].fetch_sub(1, Ordering::SeqCst);
                            strangers.leave(stranger, at(0));
                        }
                    }
                    for (address, stranger) in mine {
                        held[address].fetch_sub(1, Ordering::SeqCst);
                        strangers.leave(stranger, at(0));
                    }
                });
            }
        });
        assert_eq!(strangers.stats().addresses, 0, "all have left");
    }
}

#[test]
fn a_botnet_cannot_reset_the_count_of_an_address_with_connections() {
    let strangers = strangers(StrangerLimits { new_users_per_hour: 2, ..connections(1) });
    let victim = v6(1, 1);
    let held = strangers.enter(victim, at(0)).unwrap().unwrap();
    assert!((0..2).all(|_| strangers.take(held, Limit::NewUsers, at(0))));
    // Callers that come, mint a user and go leave a debt of the hour behind.
    for n in 0..100_000 {
        let stranger = strangers.enter(v4(n), at(1)).unwrap().unwrap();
        assert!(strangers.take(stranger, Limit::NewUsers, at(1)));
        strangers.leave(stranger, at(1));
    }
    let stats = strangers.stats();
    assert!(stats.addresses <= STRANGERS_PER_SHARD_MAX as u64, "{stats:?}");
    assert_eq!(stats.forgotten, 100_001 - stats.addresses, "each that is not in the table was forgotten");
    assert_eq!(strangers.enter(victim, at(1)), Err(Limit::Connections));
    assert!(!strangers.take(held, Limit::NewUsers, at(1)));
    // An hour later their debts are gone, and so are they.
    (0..100).for_each(|_| strangers.age(at(3_700)));
    assert_eq!(strangers.stats().addresses, 1);
    assert_eq!(strangers.enter(victim, at(3_700)), Err(Limit::Connections));
}

#[test]
fn a_botnet_that_holds_connections_fills_the_table_and_is_served_uncounted() {
    let strangers = strangers(connections(1));
    let victim = strangers.enter(v6(1, 1), at(0)).unwrap().unwrap();
    let held: Vec<_> = (0..100_000).map(|n| strangers.enter(v4(n), at(0)).expect("one is allowed")).collect();
    let counted = held.iter().flatten().count() as u64;
    let stats = strangers.stats();
    assert_eq!((stats.addresses, stats.forgotten), (counted + 1, 100_000 - counted));
    assert!(counted < STRANGERS_PER_SHARD_MAX as u64 && counted > STRANGERS_PER_SHARD_MAX as u64 * 9 / 10, "{counted}");
    assert!(strangers.enter(v6(1, 1), at(0)).is_err());
    let places = held.iter().position(Option::is_none).expect("some are not counted");
    assert_eq!(strangers.enter(v4(places as u32), at(0)), Ok(None), "there is still no room for it");
    assert!(bytes(&strangers) <= STRANGERS_PER_SHARD_MAX * 60, "{}", bytes(&strangers));
    held.into_iter().flatten().chain([victim]).for_each(|stranger| strangers.leave(stranger, at(0)));
    assert_eq!(strangers.stats().addresses, 0);
}

#[test]
fn memory_has_its_bound_while_addresses_come_and_go() {
    let strangers = strangers(StrangerLimits { new_users_per_hour: 2, ..StrangerLimits::default() });
    for n in 0..500_000 {
        let stranger = strangers.enter(v4(n), at(0)).unwrap().unwrap();
        assert!(strangers.take(stranger, Limit::NewUsers, at(0)));
    }
    assert!(bytes(&strangers) <= STRANGERS_PER_SHARD_MAX * 60, "{}", bytes(&strangers));
    assert!(strangers.stats().addresses > STRANGERS_PER_SHARD_MAX as u64 * 9 / 10);
}

mod eviction {
    use super::*;

    /// A table of 8 entries; the hash of an address is its number.
    fn table() -> Table {
        Table::new(8)
    }

    fn hash(stranger: Stranger) -> u64 {
        stranger.number().wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn stranger(n: u32) -> Stranger {
        Stranger::of(v4(n))
    }

    /// Makes this address a holder of connections, and of a debt until `debt`.
    fn put(table: &mut Table, n: u32, now: Instant, connections: u32, debt: u64) {
        let entry = table.entry(hash(stranger(n)), stranger(n), now, hash).expect("there is room");
        entry.connections = connections;
        *entry.rate(Limit::Registers).unwrap() = at(debt);
    }

    fn known(table: &mut Table) -> Vec<u32> {
        (0..99).filter(|n| table.find(hash(stranger(*n)), stranger(*n)).is_some()).collect()
    }

    #[test]
    fn those_that_hold_nothing_leave_first_then_the_smallest_debt_and_never_connections() {
        let mut table = table();
        for (n, connections, debt) in
            [(0, 1, 0), (1, 0, 50), (2, 0, 9), (3, 1, 0), (4, 0, 40), (5, 2, 0), (6, 1, 0), (7, 0, 60)]
        {
            put(&mut table, n, at(0), connections, debt);
        }
        put(&mut table, 10, at(10), 1, 0);
        assert_eq!((known(&mut table), table.forgotten), (vec![0, 1, 3, 4, 5, 6, 7, 10], 0), "2 held nothing");
        put(&mut table, 11, at(10), 1, 0);
        assert_eq!((known(&mut table), table.forgotten), (vec![0, 1, 3, 5, 6, 7, 10, 11], 1), "4 had least debt");
        put(&mut table, 12, at(10), 1, 0);
        put(&mut table, 13, at(10), 1, 0);
        let holders = vec![0, 3, 5, 6, 10, 11, 12, 13];
        assert_eq!((known(&mut table), table.forgotten), (holders.clone(), 3));
        assert!(table.entry(hash(stranger(14)), stranger(14), at(99), hash).is_none());
        assert_eq!((known(&mut table), table.forgotten), (holders, 4), "it is not counted");
    }

    proptest! {
        /// Random entries and exits, beside a list of those that hold something.
        #[test]
        fn what_holds_connections_is_always_found(ops in proptest::collection::vec((0..24_u32, 0..4_u8), 1..200)) {
            let mut table = table();
            let mut held: Vec<u32> = Vec::new();
            for (second, (n, op)) in ops.into_iter().enumerate() {
                let now = at(second as u64);
                match op {
                    0 | 1 => {
                        if let Some(entry) = table.entry(hash(stranger(n)), stranger(n), now, hash) {
                            entry.connections += 1;
                            held.push(n);
                        } else {
                            let holders: HashSet<_> = held.iter().collect();
                            prop_assert_eq!(holders.len(), 8, "only holders keep a new address out");
                        }
                    }
                    2 => {
                        if let Some(place) = held.iter().position(|one| *one == n) {
                            held.swap_remove(place);
                            table.find(hash(stranger(n)), stranger(n)).unwrap().connections -= 1;
                            table.release(hash(stranger(n)), stranger(n), now, hash);
                        }
                    }
                    _ => {
                        if let Some(entry) = table.entry(hash(stranger(n)), stranger(n), now, hash) {
                            let _ = take_one(entry.rate(Limit::NewUsers).unwrap(), 3, TimeSpan::from_secs(9), now);
                        }
                    }
                }
                prop_assert!(table.len() <= 8);
                for n in 0..24 {
                    let counted = held.iter().filter(|one| **one == n).count() as u32;
                    let found = table.find(hash(stranger(n)), stranger(n)).map_or(0, |entry| entry.connections);
                    prop_assert_eq!(found, counted);
                }
            }
        }
    }
}

mod rates {
    use super::*;

    const PERIOD: TimeSpan = TimeSpan(1_000);

    /// Number of these times in the window of one period that ends with the last of them, its bounds included.
    fn in_window(times: &[u64], now: u64) -> u32 {
        times.iter().filter(|time| now - **time <= PERIOD.0).count() as u32
    }

    /// Gaps between attempts: bursts, and pauses of any length up to two periods.
    fn gaps() -> impl Strategy<Value = Vec<u64>> {
        let gap = prop_oneof![3 => Just(0), 3 => 1..50_u64, 2 => 50..400_u64, 1 => 900..2_100_u64];
        proptest::collection::vec(gap, 1..400)
    }

    proptest! {
        #[test]
        fn below_half_a_limit_none_is_refused(gaps in gaps(), number in 2..40_u32) {
            let (mut full_at, mut now, mut asked) = (Instant(0), 5_000, Vec::new());
            for gap in gaps {
                now += gap;
                // A caller that keeps to half of the limit in every window.
                if in_window(&asked, now) < number / 2 {
                    asked.push(now);
                    prop_assert!(take_one(&mut full_at, number, PERIOD, Instant(now)).is_ok());
                }
            }
        }

        #[test]
        fn beyond_twice_a_limit_none_is_served(gaps in gaps(), number in 1..40_u32) {
            let (mut full_at, mut now, mut served) = (Instant(0), 5_000, Vec::new());
            for gap in gaps {
                now += gap;
                if take_one(&mut full_at, number, PERIOD, Instant(now)).is_ok() {
                    served.push(now);
                }
                prop_assert!(in_window(&served, now) <= 2 * number);
            }
        }
    }

    #[test]
    fn twice_the_limit_is_reached_and_not_passed() {
        for number in [1, 3, 7, 1_000] {
            let mut full_at = Instant(0);
            let served = (0..=PERIOD.0).flat_map(|ns| [ns; 1_001]);
            let served =
                served.filter(|ns| take_one(&mut full_at, number, PERIOD, Instant(5_000 + ns)).is_ok()).count();
            assert!((2 * number - 1..=2 * number).contains(&(served as u32)), "{number}: {served}");
        }
    }
}
