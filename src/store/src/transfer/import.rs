//! Rule for writing users from elsewhere into a store that may know them already.
//!
//! The rule must let a transfer be run again, from its start or from where it was killed, and must never undo what the
//! users themselves have done in the new store since: a channel that was unregistered stays away, and an acked message
//! is not sent again. Clocks settle it. Every register and unregister in the store raises the user's clock above all
//! clocks that came with the user, so
//!
//! - a user who is not there is written whole, with messages;
//! - of a user who is there, a missing channel is added only when it was registered at or after the user's clock:
//!   otherwise it may be missing because it was unregistered, and is left out;
//! - a bridged user who is there gets a bridge that was registered later, and none otherwise;
//! - messages of a user who is there are left out: they were written with the user, and may have been acked since.
//!
//! A user can come in parts. Every part but the last brings only messages, which no read sees before the last part has
//! written the user; the rule above holds for each part.
//!
//! A user who was dropped (reset, idle for 60 days) is not there, and a store that keeps no trace of it (the embedded
//! one) takes it on again. No user agent connects with it any more, and after 60 days it is dropped once more.

use std::sync::Arc;

use machine::ids::{Clock, Uaid};
use machine::message::Message;
use machine::simplepush::Contact;

use super::port::{Transfer, TransferFault, WholeUser};

/// Rows that are handed to a store at once: 64 of at most 8 KiB and their heads.
const ROWS_AT_ONCE_MAX: usize = 64;

/// A user on its way into a store.
#[derive(Debug)]
pub struct IncomingUser {
    pub user: WholeUser,
    pub rows: Vec<Arc<Message>>,
    /// Further parts of the user follow, and the last of them writes the user.
    pub more: bool,
}

/// Numbers of users, channels and messages by their result.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ImportCounts {
    /// Users written whole.
    pub users_new: u64,
    /// Users that were there, and got channels or a later `seen`.
    pub users_changed: u64,
    /// Users that were there already, the same or newer.
    pub users_unchanged: u64,
    /// Channels written, those of new users included.
    pub channels_added: u64,
    /// Channels that may have been unregistered since.
    pub channels_left_out: u64,
    pub rows_added: u64,
    /// Messages of users who were there.
    pub rows_left_out: u64,
}

/// The part of one user that is written.
#[derive(Debug, PartialEq, Eq)]
enum ImportDecision {
    /// All of it, with its messages.
    Whole,
    /// Only new channels and a later `seen`, without messages.
    Part(Box<WholeUser>),
    /// Nothing: the store has it all.
    Nothing,
}

impl ImportCounts {
    /// Decides about a user and counts it. The caller counts its messages.
    fn decide(&mut self, coming: &WholeUser, there: Option<&WholeUser>) -> ImportDecision {
        let Some(there) = there else {
            self.users_new += 1;
            self.channels_added += coming.channels.len() as u64;
            return ImportDecision::Whole;
        };
        let known = |chid| there.channels.binary_search_by_key(&chid, |channel| channel.chid).is_ok();
        let missing = coming.channels.iter().filter(|channel| !known(channel.chid));
        let (added, left_out): (Vec<_>, Vec<_>) =
            missing.copied().partition(|channel| channel.registered_at >= there.user_clock);
        self.channels_added += added.len() as u64;
        self.channels_left_out += left_out.len() as u64;
        let bridge = match &there.contact.bridge {
            Some(_) => coming.contact.replacing(&there.contact).bridge,
            None => None,
        };
        if added.is_empty() && coming.seen <= there.seen && bridge == there.contact.bridge {
            self.users_unchanged += 1;
            return ImportDecision::Nothing;
        }
        self.users_changed += 1;
        let registered = bridge.as_ref().map(|bridge| bridge.registered);
        let later = added.iter().map(|channel| channel.registered_at).chain(registered);
        let user_clock = later.fold(there.user_clock, Clock::max);
        ImportDecision::Part(Box::new(WholeUser {
            channels: added,
            user_clock,
            low_water: there.low_water,
            contact: Contact { bridge, ..there.contact.clone() },
            may_have_messages: false,
            ..coming.clone()
        }))
    }
}

/// Writes these users, each once in the list, with their messages. `check` only counts.
///
/// # Errors
/// The store fails; the next run writes the rest.
pub fn import_users(
    to: &mut dyn Transfer,
    coming: &[IncomingUser],
    check: bool,
) -> Result<ImportCounts, TransferFault> {
    let mut admitted = ImportCounts::default();
    let uaids: Vec<Uaid> = coming.iter().map(|coming| coming.user.uaid).collect();
    let there = to.find(&uaids)?;
    let (mut rows, mut users) = (Vec::new(), Vec::new());
    for (IncomingUser { user, rows: of_user, more }, there) in coming.iter().zip(&there) {
        if there.is_some() {
            admitted.rows_left_out += of_user.len() as u64;
        } else {
            admitted.rows_added += of_user.len() as u64;
            rows.extend(of_user.iter().cloned());
        }
        if *more {
            continue;
        }
        match admitted.decide(user, there.as_ref()) {
            ImportDecision::Whole => {
                let may_have_messages = user.may_have_messages || !of_user.is_empty();
                users.push(WholeUser { may_have_messages, ..user.clone() });
            }
            ImportDecision::Part(part) => users.push(*part),
            ImportDecision::Nothing => {}
        }
    }
    if !check {
        for some in rows.chunks(ROWS_AT_ONCE_MAX) {
            to.put_rows(some)?;
        }
        if !users.is_empty() {
            to.put_users(&users)?;
        }
    }
    Ok(admitted)
}

impl std::ops::AddAssign for ImportCounts {
    fn add_assign(&mut self, more: ImportCounts) {
        self.users_new += more.users_new;
        self.users_changed += more.users_changed;
        self.users_unchanged += more.users_unchanged;
        self.channels_added += more.channels_added;
        self.channels_left_out += more.channels_left_out;
        self.rows_added += more.rows_added;
        self.rows_left_out += more.rows_left_out;
    }
}
