//! Lane between the shards and the calls of targets.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use machine::ids::StoreTicket;
use machine::limits;
use machine::upstream::{ForwardCall, ForwardOutcome, UpstreamOp, UpstreamReply};
use shards::ports::Upstreams;

use super::super::http_client::HttpClient;
use super::super::lane::{Call, Lane, ShardEnd};
use super::call::{ForwardLimits, Forwarder};

type ForwardLane = Lane<Arc<ForwardCall>, ForwardOutcome>;

/// Calls of targets: every shard makes some, one task of the control plane carries them out.
pub struct ForwardQueue {
    lane: ForwardLane,
}

impl ForwardQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new() -> io::Result<ForwardQueue> {
        Ok(ForwardQueue { lane: Lane::new(WAITING_MAX)? })
    }

    /// A shard's handle, made on the thread of the shard. `waker` is called when there are replies. Calls of another
    /// kind go to `others`.
    pub fn port(
        self: &Arc<ForwardQueue>,
        waker: Arc<dyn Fn() + Send + Sync>,
        others: Box<dyn Upstreams>,
    ) -> Box<dyn Upstreams> {
        Box::new(ForwardPort { queue: Arc::clone(self), end: ShardEnd::new(waker), others })
    }
}

/// One shard's handle.
struct ForwardPort {
    queue: Arc<ForwardQueue>,
    end: ShardEnd<ForwardOutcome>,
    others: Box<dyn Upstreams>,
}

impl Upstreams for ForwardPort {
    fn submit(&mut self, ticket: StoreTicket, op: UpstreamOp) {
        match op {
            UpstreamOp::Forward(call) => {
                let push = |back| self.queue.lane.push(call, Some(back));
                self.end.submit(ticket, limits::UPSTREAM_CALLS_MAX, push);
            }
            op @ UpstreamOp::Bridge { .. } => self.others.submit(ticket, op),
        }
    }

    fn collect(&mut self) -> Option<(StoreTicket, UpstreamReply)> {
        let forwarded = self.end.collect(ForwardOutcome::Unavailable);
        let forwarded = forwarded.map(|(ticket, outcome)| (ticket, UpstreamReply::Forward(outcome)));
        forwarded.or_else(|| self.others.collect())
    }
}

/// Task that carries the calls out.
pub(in crate::control_plane) struct ForwardDriver {
    queue: Arc<ForwardQueue>,
    forwarder: Arc<Forwarder>,
}

impl ForwardDriver {
    pub fn new(queue: Arc<ForwardQueue>, limits: ForwardLimits) -> ForwardDriver {
        ForwardDriver::with(queue, Forwarder::new(HttpClient::for_strangers(), limits))
    }

    pub fn with(queue: Arc<ForwardQueue>, forwarder: Forwarder) -> ForwardDriver {
        ForwardDriver { queue, forwarder: Arc::new(forwarder) }
    }

    /// Carries calls out for ever, each in a task of its own: the forwarder bounds them.
    ///
    /// # Errors
    /// If the operating system refuses to listen for the bell.
    pub async fn run(self) -> io::Result<()> {
        let bell = self.queue.lane.bell()?;
        loop {
            let Call { op, back, .. } = self.queue.lane.pop(&bell).await?;
            let (queue, forwarder) = (Arc::clone(&self.queue), Arc::clone(&self.forwarder));
            tokio::spawn(async move {
                let outcome = forwarder.call(&op).await;
                queue.lane.unsettled.fetch_sub(1, Ordering::SeqCst);
                if let Some((shard, ticket)) = back {
                    shard.push(ticket, outcome);
                }
            });
        }
    }
}

/// Calls that the control plane has not taken yet: 1,024 x 5 KiB = 5 MB with their bodies. Refuse: 503.
const WAITING_MAX: usize = 1_024;
