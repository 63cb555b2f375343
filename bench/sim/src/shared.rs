//! Parts that both kinds of worlds share.

use machine::ids::{Chid, Uaid};
use machine::{Mail, StoreOp};
use runtime::mailbox::Lane;

use crate::rng::Rng;

/// Result of a check; its error says in words what went wrong.
pub(crate) type Verdict = Result<(), String>;

/// The placement key of every world: a data directory keeps it over restarts.
pub(crate) const PLACEMENT_KEY: [u8; 16] = *b"one placement ok";

/// Nanoseconds of a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// One salted stream for each kind of decision.
pub(crate) struct Streams {
    pub(crate) schedule: Rng,
    pub(crate) network: Rng,
    pub(crate) store: Rng,
    pub(crate) clients: Rng,
    pub(crate) faults: Rng,
}

impl Streams {
    /// The streams of a seed, each with its own salt, in the order of the fields.
    pub(crate) fn new(seed: u64, salts: [u64; 5]) -> Streams {
        let [schedule, network, store, clients, faults] = salts.map(|salt| Rng::new(seed, salt));
        Streams { schedule, network, store, clients, faults }
    }
}

/// User and channel that a POST names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipient {
    pub(crate) uaid: Uaid,
    pub(crate) chid: Chid,
}

/// Names nobody, so that a POST has a default.
impl Default for Recipient {
    fn default() -> Recipient {
        Recipient { uaid: Uaid([0; 16]), chid: Chid([0; 16]) }
    }
}

/// A write that failed and takes effect all the same.
pub(crate) struct Late {
    pub(crate) at: u64,
    pub(crate) op: StoreOp,
}

/// The lane that a mail travels in.
pub(crate) fn lane_of(mail: &Mail) -> Lane {
    match mail {
        Mail::Request { .. } => Lane::Requests,
        Mail::Reply { .. } => Lane::Replies,
        Mail::Arrive(_) | Mail::Stayed(_) => Lane::Arrivals,
    }
}

/// Operations of a node that is gone: of those of each user some first ones reach the store, and the rest is lost.
pub(crate) fn first_of_each<W>(
    works: Vec<W>,
    user: impl Fn(&W) -> Uaid,
    mut reaches: impl FnMut() -> bool,
) -> (Vec<W>, Vec<W>) {
    let mut stuck: Vec<Uaid> = Vec::new();
    works.into_iter().partition(|work| {
        let uaid = user(work);
        let done = !stuck.contains(&uaid) && reaches();
        if !done {
            stuck.push(uaid);
        }
        done
    })
}
