//! State of the control plane itself, which the admin page and the metrics show.

use std::sync::{Arc, Mutex};

use machine::stats::Board;

use super::acme::OrderBook;
use super::bridges::ProfileSnapshots;
use super::broadcast_poller;
use super::broadcasts::Broadcasts;
use super::peer_client::PeerSnapshots;

/// State of the control plane itself, for the admin page and the metrics.
#[derive(Default)]
pub(super) struct Own {
    pub broadcasts: Arc<Broadcasts>,
    pub source: Option<Arc<Mutex<broadcast_poller::State>>>,
    /// Boards of the parts of the control plane.
    pub boards: Vec<Arc<Board>>,
    /// The other nodes, on a shared store.
    pub nodes: Option<Arc<PeerSnapshots>>,
    /// The profiles of mobile bridges, if there are any.
    pub profiles: Option<Arc<ProfileSnapshots>>,
    /// Orders of certificates, if there are any.
    pub orders: Option<Arc<OrderBook>>,
}
