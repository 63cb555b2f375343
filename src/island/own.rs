//! State of the island itself, which the admin page and the metrics show.

use std::sync::{Arc, Mutex};

use machine::stats::Board;

use super::acme::OrderBook;
use super::broadcasts::Broadcasts;
use super::megaphone;
use super::peers::Showcase;

/// State of the island itself, for the admin page and the metrics.
#[derive(Default)]
pub(super) struct Own {
    pub broadcasts: Arc<Broadcasts>,
    pub source: Option<Arc<Mutex<megaphone::State>>>,
    /// Boards of the parts of the island.
    pub boards: Vec<Arc<Board>>,
    /// The other nodes, on a shared store.
    pub nodes: Option<Arc<Showcase>>,
    /// Orders of certificates, if there are any.
    pub orders: Option<Arc<OrderBook>>,
}
