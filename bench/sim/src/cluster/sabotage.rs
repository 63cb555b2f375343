//! Broken clusters: each breaks a rule of decision 0017 where the surroundings of the machine keep it, and the oracle
//! must notice.

/// Which rule is broken. Only tests make one.
#[cfg_attr(not(test), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Breakage {
    /// A session looks at storage before its presence row is there: the row is never written.
    PresenceUnwritten,
    /// A presence row is cleared in whatever version it has.
    ClearsAnyVersion,
    /// A node that is not reached counts as one that says "not here".
    UnreachedIsGone,
    /// The word that nobody answered is not owed.
    NothingIsOwed,
    /// A push without an answer counts as refused: it is stamped again.
    UnsureIsRefused,
    /// A push without an answer counts as never sent: the node that may have it is not asked.
    UnsureIsUnreached,
    /// A push that was refused keeps its stamp.
    RefusedKeepsItsStamp,
}
