//! Budgets of one endpoint and one user: `endpoint.token_rate`, `store.user_bytes_per_day`, registers and hellos,
//! decided at the owner, where every POST to them and every register and hello of them comes by. Owner shard only;
//! forgotten by a restart.

use crate::ids::Uaid;
use crate::limits;
use crate::lru::Lru;
use crate::message::Message;
use crate::time::{Instant, Now, TimeSpan, UnixSeconds};
use crate::token_bucket::TokenBuckets;

use super::super::stats::MachineStats;

/// The rates of one shard. A rate that is off costs nothing.
pub(in crate::shard) struct RateLimits {
    /// By `Placement::subscription`.
    endpoints: Option<TokenBuckets<u64>>,
    budgets: Option<Budgets>,
    /// Registers by user: a new connection has no new budget.
    registers: PerMinute,
    /// Hellos by user.
    hellos: PerMinute,
}

/// Counts of users in the present minute.
struct PerMinute {
    counts: Lru<Uaid, Counted>,
    max: u16,
}

/// Count of one user in one minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    /// Minutes since the process started.
    minute: u32,
    count: u16,
}

impl PerMinute {
    fn new(users: usize, max: u16) -> PerMinute {
        PerMinute { counts: Lru::new(users), max }
    }

    /// Counts one. Returns false if it is beyond the budget of this minute, and true in the second place if the count
    /// of another user of this minute was forgotten.
    fn take(&mut self, now: Instant, uaid: Uaid) -> (bool, bool) {
        let minute = now.seconds() / 60;
        let before = self.counts.get(&uaid).filter(|counted| counted.minute == minute);
        let before = before.map_or(0, |counted| counted.count);
        if before >= self.max {
            return (false, false);
        }
        let gone = self.counts.insert(uaid, Counted { minute, count: before + 1 });
        (true, gone.is_some_and(|(_, counted)| counted.minute == minute))
    }
}

/// Bytes stored today, by user.
struct Budgets {
    per_day: u64,
    spent: Lru<Uaid, Spent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spent {
    /// Days since the Unix epoch.
    day: u64,
    bytes: u64,
}

impl RateLimits {
    pub fn new(token_rate: u32, user_bytes_per_day: u64) -> RateLimits {
        let budgets = Budgets { per_day: user_bytes_per_day, spent: Lru::new(limits::BUDGET_USERS_MAX) };
        RateLimits {
            endpoints: TokenBuckets::new(token_rate),
            budgets: (user_bytes_per_day > 0).then_some(budgets),
            registers: PerMinute::new(limits::REGISTER_USERS_MAX, limits::REGISTERS_PER_MINUTE_MAX),
            hellos: PerMinute::new(limits::HELLO_USERS_MAX, limits::HELLOS_PER_MINUTE_MAX),
        }
    }

    /// Counts a POST to an endpoint, which `name` gives as `Placement::subscription`.
    ///
    /// # Errors
    /// It is one too many: the seconds until one will be taken.
    pub fn take_token(
        &mut self,
        now: Instant,
        name: impl FnOnce() -> u64,
        stats: &mut MachineStats,
    ) -> Result<(), u32> {
        let Some(endpoints) = &mut self.endpoints else { return Ok(()) };
        endpoints.take(now, name()).map_err(|wait| {
            stats.token_rate_refused += 1;
            wait.seconds_ceil()
        })
    }

    /// Counts a register of a user. False when it is beyond the budget of this minute.
    pub fn take_register(&mut self, now: Instant, uaid: Uaid, stats: &mut MachineStats) -> bool {
        let (taken, forgot) = self.registers.take(now, uaid);
        stats.register_counts_forgotten += u64::from(forgot);
        taken
    }

    /// Counts a hello of a user. False when it is beyond the budget of this minute.
    pub fn take_hello(&mut self, now: Instant, uaid: Uaid, stats: &mut MachineStats) -> bool {
        let (taken, forgot) = self.hellos.take(now, uaid);
        stats.hello_counts_forgotten += u64::from(forgot);
        stats.hellos_over_budget += u64::from(!taken);
        taken
    }

    /// Charges a message before it is stored. Returns the bytes that were charged.
    ///
    /// # Errors
    /// The budget of its user is spent: the seconds after which to try again, at most an hour.
    pub fn charge_budget(&mut self, now: Now, message: &Message, stats: &mut MachineStats) -> Result<u32, u32> {
        if message.ttl == 0 {
            return Ok(0);
        }
        self.charge(now, message.uaid, message.encoded_len() as u32, stats)
    }

    /// Charges a message that goes to the bridge of its user. Nothing of it is stored, but every call costs the places
    /// and the quota that all users of a profile share.
    ///
    /// # Errors
    /// As [`RateLimits::charge_budget`].
    pub fn charge_bridged(&mut self, now: Now, message: &Message, stats: &mut MachineStats) -> Result<u32, u32> {
        let bytes = (message.encoded_len() as u32).max(limits::BRIDGED_BYTES_MIN);
        self.charge(now, message.uaid, bytes, stats)
    }

    fn charge(&mut self, now: Now, uaid: Uaid, bytes: u32, stats: &mut MachineStats) -> Result<u32, u32> {
        let Some(budgets) = &mut self.budgets else { return Ok(0) };
        let now = now.unix();
        let (fits, forgot) = budgets.charge(now, uaid, bytes);
        stats.budgets_forgotten += u64::from(forgot);
        if fits {
            return Ok(bytes);
        }
        stats.budget_refused += 1;
        let midnight = TimeSpan::from_secs(DAY_SECONDS - now.0 % DAY_SECONDS);
        Err(midnight.min(RETRY_AFTER_MAX).seconds_ceil())
    }

    /// The message was not stored after all.
    pub fn refund_budget(&mut self, now: Now, uaid: Uaid, charged: u32) {
        if let Some(budgets) = &mut self.budgets {
            budgets.refund(now.unix(), uaid, charged);
        }
    }

    /// Number of endpoints whose bucket was forgotten because too many are known.
    pub fn buckets_forgotten(&self) -> u64 {
        self.endpoints.as_ref().map_or(0, TokenBuckets::forgotten)
    }
}

impl Budgets {
    /// Takes `bytes` from today's budget. Returns true if it was enough, and true if another user of today was
    /// forgotten.
    fn charge(&mut self, now: UnixSeconds, uaid: Uaid, bytes: u32) -> (bool, bool) {
        let day = now.0 / DAY_SECONDS;
        let spent = self.spent.get(&uaid).filter(|spent| spent.day == day).map_or(0, |spent| spent.bytes);
        let after = spent.saturating_add(u64::from(bytes));
        if after > self.per_day {
            return (false, false);
        }
        let gone = self.spent.insert(uaid, Spent { day, bytes: after });
        (true, gone.is_some_and(|(_, spent)| spent.day == day))
    }

    /// Gives back bytes that were not stored; of a day that is over nothing is left to give back.
    fn refund(&mut self, now: UnixSeconds, uaid: Uaid, bytes: u32) {
        if let Some(spent) = self.spent.get(&uaid).filter(|spent| spent.day == now.0 / DAY_SECONDS) {
            spent.bytes = spent.bytes.saturating_sub(u64::from(bytes));
        }
    }
}

const DAY_SECONDS: u64 = 24 * 60 * 60;
/// An operator may raise the budget meanwhile.
const RETRY_AFTER_MAX: TimeSpan = TimeSpan::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_a_user_are_counted_by_the_minute() {
        let (mut rates, mut stats) = (RateLimits::new(0, 0), MachineStats::default());
        let (first, next) = (Instant(0), Instant(0).after(TimeSpan::from_secs(60)));
        for _ in 0..limits::REGISTERS_PER_MINUTE_MAX {
            assert!(rates.take_register(first, Uaid([1; 16]), &mut stats));
        }
        assert!(!rates.take_register(first, Uaid([1; 16]), &mut stats));
        assert!(rates.take_register(first, Uaid([2; 16]), &mut stats));
        assert!(rates.take_register(next, Uaid([1; 16]), &mut stats));
    }

    #[test]
    fn a_rate_that_is_off_costs_no_name() {
        let (mut rates, mut stats) = (RateLimits::new(0, 0), MachineStats::default());
        assert_eq!(rates.take_token(Instant(0), || panic!("no name is needed"), &mut stats), Ok(()));
    }

    #[test]
    fn a_budget_is_of_its_user_and_its_day() {
        let mut budgets = Budgets { per_day: 100, spent: Lru::new(2) };
        let (a, b, c) = (Uaid([1; 16]), Uaid([2; 16]), Uaid([3; 16]));
        let (today, tomorrow) = (UnixSeconds(DAY_SECONDS * 9 + 5), UnixSeconds(DAY_SECONDS * 10));
        assert_eq!(budgets.charge(today, a, 100), (true, false));
        assert_eq!(budgets.charge(today, a, 1), (false, false));
        assert_eq!(budgets.charge(today, b, 60), (true, false));
        assert_eq!(budgets.charge(tomorrow, a, 100), (true, false), "a new day");
        assert_eq!(budgets.charge(tomorrow, c, 1), (true, false), "the count of yesterday goes unseen");
        assert_eq!(budgets.charge(tomorrow, b, 1), (true, true), "one of today is told");
        budgets.refund(tomorrow, c, 1);
        budgets.refund(today, b, 1);
        assert_eq!(budgets.spent.peek(&c).map(|spent| spent.bytes), Some(0));
        assert_eq!(budgets.spent.peek(&b).map(|spent| spent.bytes), Some(1));
    }
}
