//! Connections to other nodes that wait for the next call, and the numbers of each node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use machine::peers::PeerState;

use super::stats::{CallStats, PeerSnapshot, PeerStatus};
use super::wire::Conn;
use protocol::wire::url::HttpUrl;

/// Connections to all nodes.
#[derive(Default)]
pub(super) struct Connections(HashMap<Arc<str>, Peer>);

/// Connections to one node.
pub(super) struct Peer {
    pub base: Arc<HttpUrl>,
    /// Connections without a call, with the time of their last use; the last one used is used first.
    idle: Vec<(Conn, Instant)>,
    pub stats: CallStats,
    /// Reason of the last call without an answer.
    pub trouble: String,
}

impl Connections {
    /// Returns the connections to a node.
    pub fn peer(&mut self, url: &Arc<str>) -> &mut Peer {
        self.0.entry(Arc::clone(url)).or_insert_with(|| {
            // Invariant: a call of a URL that cannot be read goes no further than the lane.
            let base = HttpUrl::parse(url).expect("the URL of a known node was read before");
            Peer { base: Arc::new(base), idle: Vec::new(), stats: CallStats::new(), trouble: String::new() }
        })
    }

    /// Lets go of connections that were not used for a while, which the other end would do soon, and of nodes that are
    /// not known any more.
    pub fn close_idle(&mut self, is_known: impl Fn(&str) -> bool) {
        self.0.retain(|url, _| is_known(url));
        for peer in self.0.values_mut() {
            peer.idle.retain(|(conn, since)| since.elapsed() < IDLE_TIME && !conn.is_closed());
        }
    }
}

impl Peer {
    /// A connection to use again.
    pub fn take_idle(&mut self) -> Option<Conn> {
        std::iter::from_fn(|| self.idle.pop()).map(|(conn, _)| conn).find(|conn| !conn.is_closed())
    }

    /// Keeps the connection of a call that has ended, if there is one.
    pub fn keep(&mut self, conn: Option<Conn>) {
        self.idle.extend(conn.map(|conn| (conn, Instant::now())));
    }

    pub fn close_all(&mut self) {
        self.idle.clear();
    }

    /// As operators see it.
    pub fn show(&mut self, url: &str, state: &PeerState) -> PeerSnapshot {
        let (ends, quantiles) = self.stats.look();
        PeerSnapshot {
            url: url.into(),
            state: match (state.is_open, state.backs_off) {
                (true, _) => PeerStatus::Open,
                (false, true) => PeerStatus::BackingOff,
                (false, false) => PeerStatus::Closed,
            },
            connections: self.idle.len() + state.in_flight,
            in_flight: state.in_flight,
            waiting: state.waiting,
            owed: state.owed,
            ends,
            quantiles,
        }
    }
}

/// Time for which a connection is kept without a call; the other end keeps it for `http.keep_alive`, 75 s.
const IDLE_TIME: Duration = Duration::from_secs(30);
