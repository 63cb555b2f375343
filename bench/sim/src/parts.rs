//! The peers of the server in a world: user agents, app servers and relays.

use std::collections::{BTreeMap, BTreeSet};

use machine::Refusal;
use machine::ids::{Chid, Uaid};

use crate::plan::Plan;
use crate::rng::Rng;
use crate::socket::SocketId;

/// One user agent. Survives its connections.
#[derive(Default)]
pub(crate) struct Agent {
    /// UAID that the last answered hello gave it.
    pub(crate) uaid: Option<Uaid>,
    /// Channels that it believes to be registered.
    pub(crate) channels: BTreeSet<Chid>,
    /// Open as far as it knows; the last one is the one it uses.
    pub(crate) sockets: Vec<SocketId>,
    /// It does not connect before this (monotonic nanoseconds).
    pub(crate) retry_at: u64,
    /// Relay through which it connects.
    pub(crate) relay: Option<usize>,
    /// It speaks SimplePush.
    pub(crate) simple: bool,
    pub(crate) habit: Habit,
}

/// Behaviour of a user agent towards notifications.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Habit {
    #[default]
    Prompt,
    /// All acks of half a minute at once.
    Batches,
    NeverAcks,
    /// Its socket is full most of the time.
    HardlyReads,
}

impl Agent {
    /// A user agent of this world.
    pub(crate) fn draw(plan: &Plan, rng: &mut Rng) -> Agent {
        let slow = [Habit::Batches, Habit::NeverAcks, Habit::HardlyReads];
        let habit = if rng.permille(plan.slow_clients) { rng.pick(&slow) } else { Habit::Prompt };
        let relay = (plan.relays > 0 && rng.permille(plan.members)).then(|| rng.index(plan.relays));
        Agent { simple: rng.permille(plan.simple), habit, relay, ..Agent::default() }
    }
}

/// One app server.
#[derive(Default)]
pub(crate) struct AppServer {
    pub(crate) socket: Option<SocketId>,
    pub(crate) pending: Option<Pending>,
    /// As another node: the user to have checked next.
    pub(crate) notify: Option<Uaid>,
}

/// Event that an app server waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// The answer to a POST; the registration of the channel, and its version, at the time of the POST.
    Post { post: usize, registered: Option<bool>, version: u64 },
    /// The answer to a POST that the landing shard found broken.
    Broken { refusal: Refusal },
    /// The answer to a cancel.
    Cancel { post: usize },
    /// The answer to a look at a receipt.
    Receipt { post: usize },
    /// The answer to a push of another node, and when it set out (monotonic nanoseconds).
    NodePush { post: usize, since: u64 },
    /// The answer to another request of another node.
    NodeOther,
}

/// One relay, as its operator knows it.
#[derive(Default)]
pub(crate) struct RelayClient {
    pub(crate) socket: Option<SocketId>,
    pub(crate) members: BTreeMap<Uaid, SocketId>,
    /// Member whose hello is under way.
    pub(crate) attaching: Option<SocketId>,
}
