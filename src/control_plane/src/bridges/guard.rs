//! Guard of one profile: answers that refuse tokens are not believed while too many do.
//!
//! A wrong project, topic or environment makes the service refuse every token, and app servers delete subscriptions for
//! good when they are told that these have ended.

use std::time::Duration;

use tokio::time::Instant;

use super::recent::RecentCounts;

pub(super) struct Guard {
    /// Answers, and those that refuse a token.
    recent: RecentCounts<2>,
    until: Option<Instant>,
}

/// State of the guard after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Belief {
    /// The answer is believed.
    Believed,
    /// The answer is not believed: the guard is active.
    Doubted,
    /// As `Doubted`, and this answer made the guard active.
    Tripped,
}

impl Guard {
    pub fn new() -> Guard {
        Guard { recent: RecentCounts::over(SPAN), until: None }
    }

    pub fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Notes an answer of the service. The answer that makes the guard active is under it already, and it may be a good
    /// one: the fiftieth.
    pub fn answered(&mut self, now: Instant, refuses_token: bool) -> Belief {
        self.recent.add(now, [true, refuses_token]);
        if self.is_active(now) {
            return if refuses_token { Belief::Doubted } else { Belief::Believed };
        }
        let [answers, refusals] = self.recent.sums(now);
        if answers < ANSWERS_MIN || u64::from(refusals) * 5 <= u64::from(answers) {
            return Belief::Believed;
        }
        self.until = Some(now + ACTIVE);
        Belief::Tripped
    }
}

/// Answers within [`SPAN`] of which more than a fifth refuse a token.
const ANSWERS_MIN: u32 = 50;
const SPAN: Duration = Duration::from_secs(300);
/// Time for which the guard is active.
const ACTIVE: Duration = Duration::from_secs(900);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn more_than_a_fifth_of_fifty_answers_are_not_believed_for_fifteen_minutes() {
        let (mut guard, now) = (Guard::new(), Instant::now());
        for _ in 0..40 {
            assert_eq!(guard.answered(now, false), Belief::Believed);
        }
        for _ in 0..10 {
            assert_eq!(guard.answered(now, true), Belief::Believed, "a fifth is not more than a fifth");
        }
        assert_eq!(guard.answered(now, true), Belief::Tripped);
        assert_eq!(guard.answered(now + Duration::from_secs(899), true), Belief::Doubted);
        assert!(!guard.is_active(now + Duration::from_secs(900)));
        assert_eq!(guard.answered(now + Duration::from_secs(1300), true), Belief::Believed);
    }

    #[tokio::test]
    async fn forty_nine_refusals_are_believed() {
        let (mut guard, now) = (Guard::new(), Instant::now());
        for _ in 0..49 {
            assert_eq!(guard.answered(now, true), Belief::Believed);
        }
        assert_eq!(guard.answered(now + Duration::from_secs(301), true), Belief::Believed, "they are too old");
        for _ in 0..48 {
            assert_eq!(guard.answered(now + Duration::from_secs(301), true), Belief::Believed);
        }
        assert_eq!(guard.answered(now + Duration::from_secs(301), true), Belief::Tripped);
    }

    #[tokio::test]
    async fn an_answer_counts_for_five_minutes_wherever_it_stands_in_its_part_of_them() {
        let (mut guard, now) = (Guard::new(), Instant::now());
        assert_eq!(guard.answered(now, false), Belief::Believed);
        for _ in 0..48 {
            assert_eq!(guard.answered(now + Duration::from_secs(29), true), Belief::Believed);
        }
        assert_eq!(guard.answered(now + Duration::from_secs(328), true), Belief::Tripped, "299 s later");
    }

    #[tokio::test]
    async fn the_guard_is_active_from_the_fiftieth_answer_also_if_that_is_a_good_one() {
        let (mut guard, now) = (Guard::new(), Instant::now());
        for _ in 0..34 {
            assert_eq!(guard.answered(now, false), Belief::Believed);
        }
        for _ in 0..15 {
            assert_eq!(guard.answered(now, true), Belief::Believed);
        }
        assert!(!guard.is_active(now));
        assert_eq!(guard.answered(now, false), Belief::Tripped);
        assert!(guard.is_active(now));
        assert_eq!(guard.answered(now, true), Belief::Doubted);
    }
}
