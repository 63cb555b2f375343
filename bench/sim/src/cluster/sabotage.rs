//! Broken clusters: each breaks a rule of decision 0017 where the surroundings of the machine keep it, and the oracle
//! must notice.

/// Which rule is broken. Only tests make one.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Breakage {
    /// A session looks at storage before its presence row is there: the row is never written.
    PresenceUnwritten,
    /// A presence row is cleared in any version.
    ClearsAnyVersion,
    /// A node that is not reached counts as one that says "not here".
    UnreachedIsGone,
    /// The word that nobody answered is not owed.
    NothingIsOwed,
    /// A push without an answer counts as refused: it is stamped again.
    UnsureIsRefused,
}

#[cfg(test)]
mod tests {
    use super::Breakage;
    use crate::run::{Options, run_cluster};

    /// The first failure that this breakage causes; every one must cause some.
    fn found(breakage: Breakage) -> String {
        let failure = (0..10_000).find_map(|seed| run_cluster(seed, &Options::default(), Some(breakage)).err());
        failure.map_or_else(|| panic!("no seed notices {breakage:?}"), |failure| failure.what)
    }

    #[test]
    fn a_session_without_its_row_is_not_told() {
        let what = found(Breakage::PresenceUnwritten);
        assert!(what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_row_that_is_cleared_in_any_version_hides_a_session() {
        let what = found(Breakage::ClearsAnyVersion);
        assert!(what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_node_that_is_taken_for_gone_keeps_its_sessions_waiting() {
        let what = found(Breakage::UnreachedIsGone);
        assert!(what.contains("waits (") || what.contains("lost"), "{what}");
    }

    #[test]
    fn a_word_that_is_not_owed_is_not_said() {
        let what = found(Breakage::NothingIsOwed);
        assert!(what.contains("waits ("), "{what}");
    }

    #[test]
    fn a_push_without_an_answer_has_two_names() {
        let what = found(Breakage::UnsureIsRefused);
        assert!(what.contains("another id") || what.contains("said otherwise"), "{what}");
    }
}
