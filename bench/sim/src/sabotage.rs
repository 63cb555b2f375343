//! Broken worlds: each breaks one law on purpose, and the oracle must notice. Tests only.

/// The law that is broken. Only tests make one.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sabotage {
    /// A kill takes the ledger with it.
    LedgerLost,
    /// Storage says Done to a settle and keeps the rows.
    SettleIgnored,
    /// Storage says Done to a POST and does not keep it.
    PublishIgnored,
    /// Storage does not know a user that it has.
    UserForgotten,
    /// Storage pages come newest first.
    PagesReversed,
    /// Storage keeps the older message of a topic.
    TopicStale,
    /// A reply between shards is lost now and then.
    ReplyLost,
    /// A full storage also refuses what must happen.
    FullRefusesSaves,
    /// Storage takes a message beyond a share and removes another one for it.
    RoomMade,
    /// Storage says Done to an unregister and keeps the channel with its rows.
    UnregisterIgnored,
    /// Storage says Done to a count of deliveries and does not keep it.
    TriedIgnored,
    /// Storage counts more deliveries than there were.
    TriedTooMuch,
    /// Storage says Done to a minimum urgency and does not keep it.
    MinimumIgnored,
    /// A stop carries out the close of frozen sessions that were left to the next process.
    FrozenClosed,
    /// The next process loses some records of frozen sessions.
    FrozenForgotten,
    /// The next process does not replay the ledger records of users with a frozen session.
    FrozenNotReplayed,
    /// The hello of a frozen session is said although its user has come back.
    HelloToReturned,
    /// The answer to the hello that the driver has said reaches the user agent.
    AnswerSent,
    /// The answer is swallowed with the broadcasts that have changed.
    ChangesSwallowed,
}

#[cfg(test)]
mod tests {
    use super::Sabotage;
    use crate::run::{Options, run_world};

    /// The first failure that this breakage causes; every one must cause some.
    fn found(sabotage: Sabotage) -> String {
        let failure = (0..1_000).find_map(|seed| run_world(seed, &Options::default(), Some(sabotage)).err());
        failure.map_or_else(|| panic!("nobody noticed {sabotage:?}"), |failure| failure.what)
    }

    #[test]
    fn a_lost_ledger_is_a_lost_message() {
        let what = found(Sabotage::LedgerLost);
        assert!(what.contains("is lost"), "{what}");
    }

    #[test]
    fn an_ignored_settle_is_a_message_after_its_ack() {
        let what = found(Sabotage::SettleIgnored);
        assert!(what.contains("comes again") || what.contains("comes after hello"), "{what}");
    }

    #[test]
    fn an_ignored_publish_is_a_lost_message() {
        let what = found(Sabotage::PublishIgnored);
        assert!(["is lost", "not registered", "beside its session"].iter().any(|lost| what.contains(lost)), "{what}");
    }

    #[test]
    fn a_forgotten_user_is_a_fresh_uaid_for_a_known_one() {
        let what = found(Sabotage::UserForgotten);
        assert!(what.contains("fresh UAID") || what.contains("no subscription"), "{what}");
    }

    #[test]
    fn reversed_pages_break_the_order() {
        assert!(found(Sabotage::PagesReversed).contains("was sent before"));
    }

    #[test]
    fn a_stale_topic_row_is_a_stale_or_lost_message() {
        let what = found(Sabotage::TopicStale);
        assert!(what.contains("replaced it") || what.contains("is lost"), "{what}");
    }

    #[test]
    fn a_lost_reply_leaves_somebody_waiting() {
        let what = found(Sabotage::ReplyLost);
        // The last: the reply was the body of a retry, and the message waits for it with every user agent connected.
        let waits =
            ["at rest", "still busy", "was not accepted although nothing fails", "is lost (everybody was connected)"];
        assert!(waits.iter().any(|wait| what.contains(wait)), "{what}");
    }

    #[test]
    fn a_full_storage_that_refuses_saves_locks_users_out() {
        let what = found(Sabotage::FullRefusesSaves);
        assert!(what.contains("at rest") || what.contains("still busy") || what.contains("a full storage"), "{what}");
    }

    #[test]
    fn a_message_removed_for_another_is_a_lost_message() {
        let what = found(Sabotage::RoomMade);
        assert!(what.contains("is lost"), "{what}");
    }

    #[test]
    fn an_ignored_unregister_is_a_message_for_nobody() {
        let what = found(Sabotage::UnregisterIgnored);
        assert!(what.contains("not registered") || what.contains("unregister"), "{what}");
    }

    #[test]
    fn deliveries_that_are_not_counted_are_too_many() {
        let what = found(Sabotage::TriedIgnored);
        assert!(what.contains("times and comes again"), "{what}");
    }

    #[test]
    fn a_minimum_that_is_not_kept_sends_what_is_held() {
        let what = found(Sabotage::MinimumIgnored);
        assert!(what.contains("is below the minimum"), "{what}");
    }

    #[test]
    fn a_close_of_a_frozen_session_is_a_lost_session() {
        let what = found(Sabotage::FrozenClosed);
        assert!(what.contains("reads a close") || what.contains("lost by a restart"), "{what}");
    }

    #[test]
    fn a_forgotten_record_is_a_lost_session() {
        let what = found(Sabotage::FrozenForgotten);
        assert!(what.contains("lost by a restart"), "{what}");
    }

    #[test]
    fn a_ledger_that_is_not_replayed_for_frozen_sessions_is_a_lost_message() {
        let what = found(Sabotage::FrozenNotReplayed);
        assert!(what.contains("is lost"), "{what}");
    }

    #[test]
    fn a_hello_for_a_user_that_has_come_back_ends_its_session() {
        let what = found(Sabotage::HelloToReturned);
        assert!(what.contains("by the hello of an earlier connection"), "{what}");
    }

    #[test]
    fn an_answer_to_the_hello_of_the_driver_is_noticed() {
        let what = found(Sabotage::AnswerSent);
        assert!(what.contains("a hello that it has not said"), "{what}");
    }

    #[test]
    fn a_broadcast_that_is_swallowed_with_the_answer_is_missed() {
        let what = found(Sabotage::ChangesSwallowed);
        assert!(what.contains("which is old"), "{what}");
    }

    #[test]
    fn deliveries_that_never_were_end_a_message_too_soon() {
        let what = found(Sabotage::TriedTooMuch);
        assert!(what.contains("is lost") || what.contains("Ended(Unacked)"), "{what}");
    }
}
