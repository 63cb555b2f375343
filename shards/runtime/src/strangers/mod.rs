//! Limits on callers by their address (decision 0027).
//!
//! An address is an IPv4 /32 or an IPv6 /64. Its counts hold for the process: the connections that it has, and three
//! rates. They are in one table for all shards, cut into stripes by a keyed hash of the address, and each stripe has a
//! lock. A call holds one of these locks for about 100 ns, and only while a limit is on.
//!
//! Lives on: every thread.

mod limits;

mod prefix;

mod table;

#[cfg(test)]
mod tests;

pub use limits::{Access, Cause, Limit, Stranger, StrangerLimits};
pub use prefix::{Prefix, PrefixError};

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use machine::limits::FAILED_SIGNATURES_PER_MINUTE;
use machine::time::{Instant, TimeSpan};

use self::limits::take_one;
use self::table::{LOOKED_AT, Table};

/// Addresses in the table for each shard. At most 48 bytes of entry and 20 of index each: 4.5 MB a shard.
pub const STRANGERS_PER_SHARD_MAX: usize = 65_536;
const MINUTE: TimeSpan = TimeSpan::from_secs(60);
/// Stripes of the table for each shard: their locks are rarely taken twice at a time.
const STRIPES_PER_SHARD: usize = 64;

/// Counts of the addresses of callers. One for the process, shared by all shards; any thread.
///
/// Nothing is counted while no limit is on.
pub struct Strangers {
    /// Empty while no limit is on.
    stripes: Box<[Mutex<Stripe>]>,
    limits: RwLock<StrangerLimits>,
    /// The key of the hash, which no caller knows.
    key: RandomState,
    /// Refusals by [`Access`], which need no table.
    access: Mutex<Tally<3>>,
}

/// Part of the table, with what happened in it.
struct Stripe {
    table: Table,
    /// By [`Limit`].
    tally: Tally<4>,
}

/// Refusals by their cause.
struct Tally<const CAUSES: usize> {
    refused: [u64; CAUSES],
    /// Refusals since they were last taken, and the last known address of them.
    unlogged: [(u64, Option<Stranger>); CAUSES],
}

impl<const CAUSES: usize> Tally<CAUSES> {
    const fn new() -> Tally<CAUSES> {
        Tally { refused: [0; CAUSES], unlogged: [(0, None); CAUSES] }
    }

    fn add(&mut self, cause: usize, refused: u64, stranger: Option<Stranger>) {
        self.refused[cause] += refused;
        let (count, last) = &mut self.unlogged[cause];
        *count += refused;
        *last = stranger.or(*last);
    }
}

/// Numbers of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StrangerStats {
    pub addresses: u64,
    /// Addresses whose counts were lost, or never made, because there were too many.
    pub forgotten: u64,
    refused: [u64; 4],
    refused_access: [u64; 3],
}

impl StrangerStats {
    /// Returns the number of refusals for this cause.
    pub fn refused(&self, cause: Cause) -> u64 {
        match cause {
            Cause::Limit(limit) => self.refused[limit as usize],
            Cause::Access(access) => self.refused_access[access as usize],
        }
    }
}

/// Refusals that were not logged yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusals {
    pub count: u64,
    /// The network of one of the addresses: an IPv4 /24 or an IPv6 /48. `None`: no setting needs addresses, or all of
    /// them are exempt.
    pub network: Option<Prefix>,
}

impl Strangers {
    /// A table for this number of shards.
    pub fn new(limits: StrangerLimits, shards: u16) -> Strangers {
        let stripes = if limits.any() { STRIPES_PER_SHARD * usize::from(shards) } else { 0 };
        let stripe = || Stripe { table: Table::new(STRANGERS_PER_SHARD_MAX / STRIPES_PER_SHARD), tally: Tally::new() };
        let stripes = (0..stripes).map(|_| Mutex::new(stripe())).collect();
        Strangers { stripes, limits: RwLock::new(limits), key: RandomState::new(), access: Mutex::new(Tally::new()) }
    }

    /// Returns true if a limit is on, so that the addresses of callers must be known. Never changes.
    pub fn needs_addresses(&self) -> bool {
        !self.stripes.is_empty()
    }

    /// Takes the list of exempt networks, and the numbers of the limits that are on and stay on. Connections that are
    /// there stay counted, or not, as they were. Returns the limits that these would switch on or off: that needs a
    /// restart, and their numbers stay.
    pub fn set_limits(&self, mut limits: StrangerLimits) -> Vec<Limit> {
        let mut known = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let is_switched = |limit: &Limit| (limits.of(*limit) == 0) != (known.of(*limit) == 0);
        let switched: Vec<Limit> = Limit::ALL.into_iter().filter(is_switched).collect();
        for limit in &switched {
            limits.set(*limit, known.of(*limit));
        }
        *known = limits;
        switched
    }

    /// Counts a connection of this address until [`Strangers::leave`]. `None`: the address is exempt, or there is no
    /// room for it in the table; the connection is served and has no limits.
    ///
    /// # Errors
    /// [`Limit::Connections`] if the address has as many as it may.
    pub fn enter(&self, address: IpAddr, now: Instant) -> Result<Option<Stranger>, Limit> {
        let Some(stranger) = self.identify(address) else { return Ok(None) };
        let connections_max = self.limits().connections;
        if connections_max == 0 {
            return Ok(Some(stranger));
        }
        let hash = self.hash(stranger);
        let Some(mut stripe) = self.stripe(hash) else { return Ok(None) };
        let Some(entry) = stripe.table.entry(hash, stranger, now, |other| self.hash(other)) else { return Ok(None) };
        if entry.connections >= connections_max {
            stripe.tally.add(Limit::Connections as usize, 1, Some(stranger));
            return Err(Limit::Connections);
        }
        entry.connections += 1;
        Ok(Some(stranger))
    }

    /// Counts a connection that moved to another shard, also beyond the limit. The shard that it left has called
    /// [`Strangers::leave`]. Returns false if the table has no room: then the connection has no limits.
    pub fn enter_moved(&self, stranger: Stranger, now: Instant) -> bool {
        if self.limits().connections == 0 {
            return true;
        }
        let hash = self.hash(stranger);
        let Some(mut stripe) = self.stripe(hash) else { return false };
        let Some(entry) = stripe.table.entry(hash, stranger, now, |other| self.hash(other)) else { return false };
        entry.connections += 1;
        true
    }

    /// Ends a connection that [`Strangers::enter`] has counted.
    pub fn leave(&self, stranger: Stranger, now: Instant) {
        if self.limits().connections == 0 {
            return;
        }
        let hash = self.hash(stranger);
        let Some(mut stripe) = self.stripe(hash) else { return };
        if let Some(entry) = stripe.table.find(hash, stranger) {
            entry.connections = entry.connections.saturating_sub(1);
        }
        stripe.table.release(hash, stranger, now, |other| self.hash(other));
    }

    /// Returns the identity of this address; `None` if it is exempt, or no limit is on.
    pub fn identify(&self, address: IpAddr) -> Option<Stranger> {
        let is_exempt = || self.limits().exempt.iter().any(|prefix| prefix.contains(address));
        (self.needs_addresses() && !is_exempt()).then(|| Stranger::of(address))
    }

    /// Takes one handshake, new user or register of this address. Returns false if that is beyond the limit; a refusal
    /// takes nothing. [`Limit::Connections`] is always true: [`Strangers::enter`] counts them.
    pub fn take(&self, stranger: Stranger, limit: Limit, now: Instant) -> bool {
        self.take_all(stranger, &[limit], now).is_ok()
    }

    /// Takes one of each of these limits, as [`Strangers::take`], or none of them.
    ///
    /// An address that asks for at most half of a limit in any period is never refused. No address is served more than
    /// twice the limit in any period.
    ///
    /// # Errors
    /// One of them is used up: the time until there is one again.
    pub fn take_all(&self, stranger: Stranger, limits: &[Limit], now: Instant) -> Result<(), TimeSpan> {
        let numbers = {
            let known = self.limits();
            let rates = limits.iter().filter_map(|limit| Some((*limit, known.of(*limit), limit.period()?)));
            rates.filter(|(_, number, _)| *number > 0).collect::<Vec<_>>()
        };
        if numbers.is_empty() {
            return Ok(());
        }
        let hash = self.hash(stranger);
        let Some(mut stripe) = self.stripe(hash) else { return Ok(()) };
        let Stripe { table, tally } = &mut *stripe;
        let Some(entry) = table.entry(hash, stranger, now, |other| self.hash(other)) else { return Ok(()) };
        let before = entry.full_at;
        for (limit, number, period) in numbers {
            let Some(full_at) = entry.rate(limit) else { continue };
            if let Err(wait) = take_one(full_at, number, period, now) {
                entry.full_at = before;
                tally.add(limit as usize, 1, Some(stranger));
                return Err(wait);
            }
        }
        Ok(())
    }

    /// Counts signatures of this address that were verified in vain.
    pub fn fail(&self, stranger: Stranger, failed: u32, now: Instant) {
        let hash = self.hash(stranger);
        let Some(mut stripe) = self.stripe(hash) else { return };
        if let Some(entry) = stripe.table.entry(hash, stranger, now, |other| self.hash(other)) {
            // Beyond the bound nothing more is added, so that an address is forgiven after a minute without any.
            (0..failed).for_each(|_| _ = take_one(entry.forgiven_at(), FAILED_SIGNATURES_PER_MINUTE, MINUTE, now));
        }
    }

    /// Returns true if this address fails: half of [`FAILED_SIGNATURES_PER_MINUTE`] signatures were verified in vain
    /// and are not forgiven. One is forgiven every tenth of a second.
    pub fn is_failing(&self, stranger: Stranger, now: Instant) -> bool {
        let hash = self.hash(stranger);
        let Some(mut stripe) = self.stripe(hash) else { return false };
        let forgiven_at = stripe.table.find(hash, stranger).map(|entry| *entry.forgiven_at());
        forgiven_at.is_some_and(|at| at.since(now) > TimeSpan(MINUTE.0 / 2))
    }

    /// Counts refusals by a rule, of this caller if its address is known.
    pub fn refuse(&self, access: Access, refused: u64, stranger: Option<Stranger>) {
        lock(&self.access).add(access as usize, refused, stranger);
    }

    /// Removes some of the addresses that hold nothing. Called once a second, it has looked at all within a minute or
    /// two.
    pub fn age(&self, now: Instant) {
        for stripe in &self.stripes {
            lock(stripe).table.age(LOOKED_AT, now, |stranger| self.hash(stranger));
        }
    }

    /// Returns the numbers of the table.
    pub fn stats(&self) -> StrangerStats {
        let mut stats = StrangerStats { refused_access: lock(&self.access).refused, ..StrangerStats::default() };
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            stats.addresses += stripe.table.len() as u64;
            stats.forgotten += stripe.table.forgotten;
            for (sum, refused) in stats.refused.iter_mut().zip(stripe.tally.refused) {
                *sum += refused;
            }
        }
        stats
    }

    /// Takes the refusals for this cause since the last call, for the log; `None` if there were none.
    pub fn take_refusals(&self, cause: Cause) -> Option<Refusals> {
        let (mut count, mut network) = (0, None);
        let mut take = |unlogged: &mut (u64, Option<Stranger>)| {
            let (refused, last) = std::mem::take(unlogged);
            count += refused;
            network = network.or(last.map(Stranger::network));
        };
        match cause {
            Cause::Limit(limit) => {
                self.stripes.iter().for_each(|stripe| take(&mut lock(stripe).tally.unlogged[limit as usize]));
            }
            Cause::Access(access) => take(&mut lock(&self.access).unlogged[access as usize]),
        }
        (count > 0).then_some(Refusals { count, network })
    }

    fn hash(&self, stranger: Stranger) -> u64 {
        self.key.hash_one(stranger.number())
    }

    /// The stripe of this hash; `None` while no limit is on. The table takes other bits of the hash: the lowest and the
    /// highest.
    fn stripe(&self, hash: u64) -> Option<MutexGuard<'_, Stripe>> {
        let middle = (hash >> 24) & 0xFFFF_FFFF;
        self.stripes.get(((middle * self.stripes.len() as u64) >> 32) as usize).map(lock)
    }

    fn limits(&self) -> RwLockReadGuard<'_, StrangerLimits> {
        // Nothing that holds it can panic between two states.
        self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds it can panic between two states.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
