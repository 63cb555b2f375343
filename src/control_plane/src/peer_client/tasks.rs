//! Tasks of the calls of other nodes: one for each call, probe, and question to the table of nodes.

use std::sync::Arc;
use std::time::Duration;

use machine::NodeId;
use machine::peers::{BootRow, DebtTime, PeerCall};
use store::nodes::NodeRow;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::calls::PeerCalls;
use super::connections::Peer;
use super::queue::{ReplyTo, TrustRoots};
use super::wire::{self, Called, Conn, PeerCodec};
use crate::http_client::HttpClient;

/// Tasks under way, and what they need. Lives on the control plane.
pub(super) struct Tasks {
    pub running: JoinSet<TaskResult>,
    client: Arc<HttpClient>,
    codec: Option<PeerCodec>,
    /// Number of the last change of keys and trust that was taken over (`PeerQueue::credentials_since`).
    credentials_version: u64,
    connect_timeout: Duration,
    request_timeout: Duration,
}

/// A task that has ended.
pub(super) enum TaskResult {
    Called { url: Arc<str>, call: PeerCall<ReplyTo>, called: Called },
    Probed { url: Arc<str>, called: Called },
    Looked { url: Arc<str>, boots: Vec<u64>, row: Option<NodeRow> },
    Buried { url: Arc<str>, boots: Vec<u64>, row: BootRow, done: bool },
    DebtWritten { url: Arc<str>, id: u64, time: DebtTime, done: bool },
    DebtCleared { url: Arc<str> },
}

impl Tasks {
    pub fn new(calls: &PeerCalls) -> Tasks {
        let TrustRoots(client) = calls.trust.clone();
        Tasks {
            running: JoinSet::new(),
            client,
            codec: None,
            credentials_version: 0,
            connect_timeout: calls.connect_timeout,
            request_timeout: calls.request_timeout,
        }
    }

    /// Takes over changed keys and trust.
    pub fn reload_credentials(&mut self, calls: &PeerCalls) {
        if let Some((credentials_version, credentials)) = calls.peers.credentials_since(self.credentials_version) {
            (self.credentials_version, self.codec) = (credentials_version, PeerCodec::new(&credentials.keys));
            if let Some(TrustRoots(client)) = credentials.trust {
                self.client = client;
            }
        }
    }

    /// Makes a call. Gives it back if it cannot be said: there are no keys, or no form for it.
    pub fn call(
        &mut self,
        url: &Arc<str>,
        peer: &Peer,
        call: PeerCall<ReplyTo>,
        kept: Option<Conn>,
    ) -> Option<PeerCall<ReplyTo>> {
        let request = self.codec.as_ref().and_then(|codec| codec.request(&call.op, &peer.base));
        let Some(request) = request else { return Some(call) };
        let within = (self.connect_timeout, self.request_timeout);
        let (client, base, url) = (Arc::clone(&self.client), Arc::clone(&peer.base), Arc::clone(url));
        self.running.spawn(async move {
            let called = wire::call(client, base, request, kept, within).await;
            TaskResult::Called { url, call, called }
        });
        None
    }

    pub fn probe(&mut self, url: &Arc<str>, peer: &Peer) {
        let within = (self.connect_timeout, self.request_timeout);
        let (client, base, url) = (Arc::clone(&self.client), Arc::clone(&peer.base), Arc::clone(url));
        let Some(request) = wire::probe(&base) else { return };
        self.running.spawn(async move {
            let called = wire::call(client, base, request, None, within).await;
            TaskResult::Probed { url, called }
        });
    }

    pub fn look(&mut self, url: Arc<str>, boots: Vec<u64>, calls: &PeerCalls) {
        let row = calls.nodes.read(&url);
        self.running.spawn(async move {
            let row = timeout(LOOK_TIME_MAX, row).await.ok().flatten();
            TaskResult::Looked { url, boots, row }
        });
    }

    pub fn bury(&mut self, url: Arc<str>, boots: Vec<u64>, row: BootRow, calls: &PeerCalls) {
        let buried = calls.nodes.bury(&NodeId { url: Box::from(&*url), boot: row.boot });
        self.running.spawn(async move {
            let done = timeout(BURY_TIME_MAX, buried).await.unwrap_or(false);
            TaskResult::Buried { url, boots, row, done }
        });
    }

    pub fn write_debt(&mut self, url: Arc<str>, id: u64, time: DebtTime, calls: &PeerCalls) {
        let written = calls.nodes.write_debt(&url, id, time);
        self.running.spawn(async move {
            let done = timeout(DEBT_TIME_MAX, written).await.unwrap_or(false);
            TaskResult::DebtWritten { url, id, time, done }
        });
    }

    pub fn clear_debt(&mut self, url: Arc<str>, id: u64, calls: &PeerCalls) {
        let cleared = calls.nodes.clear_debt(&url, id, None);
        self.running.spawn(async move {
            let _ = timeout(DEBT_TIME_MAX, cleared).await;
            TaskResult::DebtCleared { url }
        });
    }
}

/// For one look at a node's row.
const LOOK_TIME_MAX: Duration = Duration::from_secs(3);
/// For a write to a node's row.
const BURY_TIME_MAX: Duration = Duration::from_secs(20);
/// For a write of a debt: POSTs wait for it.
const DEBT_TIME_MAX: Duration = Duration::from_secs(3);
