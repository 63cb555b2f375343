//! Conditions of a node: the one list from which the health routes, the metrics, the page and the log are made.
//!
//! A condition is good, or has a trouble. It says by itself which route of health its trouble turns ([`Turns`]). The
//! health of the node is that of its worst condition.
//! Lives on: the control plane looks about once a second, and whenever a route asks.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use edge::Health;

/// Routes of health that the trouble of a condition turns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Turns {
    /// None: neither a restart nor another node heals it. The routes say `DEGRADED`, with status 200.
    Nothing,
    /// The load balancer's, because another node does better.
    Balancer,
    /// Liveness, and with it the load balancer's: a restart heals it.
    Liveness,
}

impl Turns {
    fn name(self) -> &'static str {
        match self {
            Turns::Nothing => "nothing",
            Turns::Balancer => "balancer",
            Turns::Liveness => "liveness",
        }
    }
}

/// Declaration of one condition.
pub struct Condition {
    /// Its name on health pages, in the log and in the label `condition` of the metrics.
    pub name: &'static str,
    /// Most that its trouble turns.
    pub turns: Turns,
    /// Finds the present trouble. Reads what is in memory, and takes no time.
    pub check: Check,
}

/// Check of a condition.
pub type Check = Box<dyn Fn() -> Option<Trouble> + Send + Sync>;

/// Trouble of a condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    sentence: String,
    is_shared: bool,
}

impl Trouble {
    /// Trouble of this node. One clause for the operator.
    pub fn new(sentence: impl Into<String>) -> Trouble {
        Trouble { sentence: sentence.into(), is_shared: false }
    }

    /// Trouble that all nodes may have at once. It turns no route, because it would empty the load balancer.
    pub fn shared(sentence: impl Into<String>) -> Trouble {
        Trouble { sentence: sentence.into(), is_shared: true }
    }
}

/// Health of a condition that turns this, with this trouble.
fn health_of(turns: Turns, trouble: Option<&Trouble>) -> Health {
    match (trouble, turns) {
        (None, _) => Health::Good,
        (Some(Trouble { is_shared: true, .. }), _) | (_, Turns::Nothing) => Health::Degraded,
        (_, Turns::Balancer) => Health::Unready,
        (_, Turns::Liveness) => Health::Broken,
    }
}

/// State of one condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConditionState {
    pub name: &'static str,
    pub health: Health,
    /// Time of the last change of its health, by the host clock; at first, that of the start.
    pub since: SystemTime,
    pub trouble: Option<String>,
    turns: Turns,
}

impl ConditionState {
    /// Name of the most that its trouble turns.
    pub fn turns(&self) -> &'static str {
        self.turns.name()
    }

    /// Seconds since the Unix epoch of the last change.
    pub fn since_unix(&self) -> u64 {
        self.since.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// The list.
#[derive(Default)]
pub struct Conditions(Vec<(Condition, Mutex<Seen>)>);

/// State of a condition that was found and logged last.
struct Seen {
    health: Health,
    since: SystemTime,
    logged: Health,
    logged_at: Option<Instant>,
}

/// Shortest time between two lines about one condition, so that one that comes and goes does not fill the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl Conditions {
    pub fn new(list: Vec<Condition>) -> Conditions {
        let now = SystemTime::now();
        let seen = || Seen { health: Health::Good, since: now, logged: Health::Good, logged_at: None };
        Conditions(list.into_iter().map(|condition| (condition, Mutex::new(seen()))).collect())
    }

    /// Checks every condition, and logs those that have changed.
    pub fn look(&self) -> Vec<ConditionState> {
        self.0.iter().map(|(condition, seen)| look(condition, seen)).collect()
    }

    /// Health of the worst condition.
    pub fn health(&self) -> Health {
        worst(&self.look())
    }
}

impl fmt::Debug for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(condition, _)| condition.name)).finish()
    }
}

/// Health of the worst of these conditions.
pub(super) fn worst(states: &[ConditionState]) -> Health {
    states.iter().map(|state| state.health).max().unwrap_or_default()
}

/// Trouble of the worst of these conditions; of equals, the first.
pub(super) fn worst_trouble(states: &[ConditionState]) -> Option<&str> {
    let health = worst(states);
    states.iter().filter(|state| state.health == health).find_map(|state| state.trouble.as_deref())
}

fn look(condition: &Condition, seen: &Mutex<Seen>) -> ConditionState {
    let trouble = (condition.check)();
    let health = health_of(condition.turns, trouble.as_ref());
    let mut seen = lock(seen);
    if health != seen.health {
        (seen.health, seen.since) = (health, SystemTime::now());
    }
    let trouble = trouble.map(|trouble| trouble.sentence);
    if health != seen.logged && seen.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
        log(condition.name, health, trouble.as_deref());
        (seen.logged, seen.logged_at) = (health, Some(Instant::now()));
    }
    ConditionState { name: condition.name, health, since: seen.since, trouble, turns: condition.turns }
}

fn log(condition: &str, health: Health, trouble: Option<&str>) {
    let (word, trouble) = (health.word(), trouble.unwrap_or_default());
    match health {
        Health::Good => tracing::info!(condition, health = word, "condition good again"),
        Health::Degraded => tracing::warn!(condition, health = word, trouble, "condition in trouble"),
        Health::Unready | Health::Broken => {
            tracing::error!(condition, health = word, trouble, "condition in trouble");
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use fixtures::Log;

    /// A condition whose trouble a test sets.
    fn condition(name: &'static str, turns: Turns) -> (Condition, Arc<Mutex<Option<Trouble>>>) {
        let trouble = Arc::<Mutex<Option<Trouble>>>::default();
        let read = Arc::clone(&trouble);
        (Condition { name, turns, check: Box::new(move || read.lock().unwrap().clone()) }, trouble)
    }

    #[test]
    fn health_is_that_of_the_worst_condition_and_what_all_nodes_share_turns_no_route() {
        let (nothing, of_nothing) = condition("a", Turns::Nothing);
        let (balancer, of_balancer) = condition("b", Turns::Balancer);
        let (liveness, of_liveness) = condition("c", Turns::Liveness);
        let conditions = Conditions::new(vec![nothing, balancer, liveness]);
        assert_eq!((conditions.health(), worst_trouble(&conditions.look())), (Health::Good, None));
        let set = |of: &Mutex<Option<Trouble>>, trouble| *of.lock().unwrap() = trouble;
        set(&of_nothing, Some(Trouble::new("one")));
        assert_eq!(conditions.health(), Health::Degraded);
        set(&of_balancer, Some(Trouble::shared("two")));
        assert_eq!(conditions.health(), Health::Degraded, "every node may have it");
        set(&of_balancer, Some(Trouble::new("two")));
        assert_eq!((conditions.health(), worst_trouble(&conditions.look())), (Health::Unready, Some("two")));
        set(&of_liveness, Some(Trouble::new("three")));
        assert_eq!((conditions.health(), worst_trouble(&conditions.look())), (Health::Broken, Some("three")));
        [&of_nothing, &of_balancer, &of_liveness].iter().for_each(|of| set(of, None));
        assert_eq!(conditions.health(), Health::Good);
    }

    #[test]
    fn a_change_has_a_time_and_a_line_and_one_that_comes_and_goes_has_few() {
        let (condition, trouble) = condition("store_room", Turns::Nothing);
        let (conditions, log) = (Conditions::new(vec![condition]), Log::default());
        let first = conditions.look()[0].since;
        log.of("info", || {
            for round in 0..20 {
                *trouble.lock().unwrap() = (round % 2 == 0).then(|| Trouble::new("full"));
                let state = conditions.look().remove(0);
                assert_eq!(state.health == Health::Degraded, round % 2 == 0);
                assert!(state.since >= first);
                assert_eq!(conditions.look()[0].since, state.since, "nothing has changed since");
            }
        });
        let text = log.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("condition in trouble condition=\"store_room\""), "{text}");
        assert!(text.contains("health=\"DEGRADED\" trouble=\"full\""), "{text}");
    }
}
