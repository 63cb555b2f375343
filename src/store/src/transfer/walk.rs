//! The users of a store that a server would serve, a batch at a time.

use machine::RECORD_VERSION;
use machine::time::UnixSeconds;

use super::port::{Listed, Transfer, TransferFault, WholeUser};
use crate::idle;

/// Users that are read at once: with 2,048 channels each 15 MB.
const USERS_PER_BATCH: usize = 128;
/// Users with an unreadable record that are named; the others are counted.
const UNREADABLE_NAMED_MAX: usize = 100;

/// Users that a walk leaves out.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Not seen for 60 days, so the server would drop them.
    pub idle: u64,
    /// Their record has a meaning of another version, so they are reset at the next hello.
    pub of_other_version: u64,
    /// Their record cannot be read.
    pub unreadable: u64,
    /// Positions of the first 100 unreadable users.
    pub unreadable_at: Vec<String>,
}

impl LeftOut {
    /// Returns true if a server would serve this user; counts it otherwise.
    fn serves(&mut self, user: &WholeUser, now: UnixSeconds) -> bool {
        let (other, gone) = (user.record_version != RECORD_VERSION, idle(user.seen, now));
        self.of_other_version += u64::from(other);
        self.idle += u64::from(gone && !other);
        !other && !gone
    }
}

/// Receiver of the batches of a walk: it gets the store and the users of a batch.
pub type Take<'a> = dyn FnMut(&mut dyn Transfer, &[WholeUser]) -> Result<(), TransferFault> + 'a;

/// Hands the users of each batch to `take`, with the store. Returns the users that were left out.
///
/// # Errors
/// The store cannot be read, or `take` fails.
pub fn walk(
    from: &mut dyn Transfer,
    now: &dyn Fn() -> UnixSeconds,
    take: &mut Take<'_>,
) -> Result<LeftOut, TransferFault> {
    let mut left = LeftOut::default();
    let mut after = None;
    loop {
        let Listed { mut users, unreadable, last } = from.users(after, USERS_PER_BATCH)?;
        if last.is_none() {
            return Ok(left);
        }
        after = last;
        left.unreadable += unreadable.len() as u64;
        let room = UNREADABLE_NAMED_MAX - left.unreadable_at.len();
        left.unreadable_at.extend(unreadable.into_iter().take(room));
        users.retain(|user| left.serves(user, now()));
        take(from, &users)?;
    }
}
