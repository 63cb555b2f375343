//! A comparison of two stores.

use machine::ids::Uaid;
use machine::time::UnixSeconds;

use crate::transfer::{Transfer, USERS_AT_ONCE_MAX, WholeUser, each_row, walk};

/// Rows that expire within this many seconds of a comparison are on neither side of it: they may expire between the
/// two reads.
const EXPIRY_MARGIN_SECONDS: u64 = 60;

/// Result of a comparison. Users that only the second store has do not count.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Users of the first store that must be in the second.
    pub users: u64,
    /// Channels of these users.
    pub channels: u64,
    /// Messages of these users.
    pub rows: u64,
    /// Users of these that are missing or not the same in the second store.
    pub different: Vec<Uaid>,
}

impl Compared {
    /// Returns true if the second store has every user of the first, and each of them is the same.
    pub fn is_same(&self) -> bool {
        self.different.is_empty()
    }
}

/// Compares the users of the first store with those of the second: the users with their channels, and every byte of
/// their messages.
pub fn compare(from: &mut dyn Transfer, to: &mut dyn Transfer, now: UnixSeconds) -> Compared {
    let mut compared = Compared::default();
    let walked = walk(from, &|| now, &mut |from, users| {
        for some in users.chunks(USERS_AT_ONCE_MAX) {
            let uaids: Vec<Uaid> = some.iter().map(|user| user.uaid).collect();
            let there = to.find(&uaids)?;
            let (ours, theirs) = (rows(from, &uaids, now), rows(to, &uaids, now));
            for (at, user) in some.iter().enumerate() {
                compared.users += 1;
                compared.channels += user.channels.len() as u64;
                compared.rows += ours[at].len() as u64;
                let is_same = there[at].as_ref().is_some_and(|there| lasting(there) == lasting(user));
                if !is_same || ours[at] != theirs[at] {
                    compared.different.push(user.uaid);
                }
            }
        }
        Ok(())
    });
    assert_eq!(walked.expect("the first store can be read").unreadable, 0);
    compared
}

/// The messages of each user that do not expire soon, in any order.
fn rows(store: &mut dyn Transfer, uaids: &[Uaid], now: UnixSeconds) -> Vec<Vec<Vec<u8>>> {
    let mut found = vec![Vec::new(); uaids.len()];
    let soon = UnixSeconds(now.0.saturating_add(EXPIRY_MARGIN_SECONDS));
    let read = each_row(store, uaids, now, &mut |at, message| {
        if !message.expired(soon) {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            found[at].push(bytes);
        }
        Ok(())
    });
    read.expect("both stores can be read");
    found.iter_mut().for_each(|rows| rows.sort());
    found
}

/// The user without `seen`, which is refreshed once a day, and `may_have_messages`, which is a bound.
fn lasting(user: &WholeUser) -> WholeUser {
    WholeUser { seen: UnixSeconds(0), may_have_messages: false, ..user.clone() }
}
