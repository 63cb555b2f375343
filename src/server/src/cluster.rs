//! A node among others on a shared store: its identity, its calls to other nodes, and its notices when it starts and
//! stops (ARCHITECTURE.md 8.9).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::ids::{StoreTicket, Uaid};
use machine::peers::RETRY_QUEUE_MAX;
use machine::{NodeId, Presence, StoreOp, StoreReply};
use ring::rand::{SecureRandom as _, SystemRandom};
use runtime::ports::Peers as Lane;
use store::nodes::{NodeTable, RENEW_INTERVAL};
use tls::Certificate;

use super::certificates::PUBLIC;
use super::error::NodeError;
use super::storage::Storage;
use config::{Config, Node};
use control_plane::{Answering, HAND_OVER_TIME_MAX, Lease, PeerCalls, PeerQueue, TrustRoots, settle, who_answers};
use edge::EdgeKeys;

/// This node and the others.
pub(super) struct Cluster {
    me: Arc<NodeId>,
    /// True if this node holds sessions, so that others must know of it.
    listed: bool,
    peers: Arc<PeerQueue>,
    nodes: Arc<dyn NodeTable>,
    /// [`PeerCalls::unwritten`].
    unwritten: PathBuf,
}

impl Cluster {
    /// Makes the queues to the other nodes; sends nothing yet.
    ///
    /// # Errors
    /// [`NodeError::Edge`] without keys in the configuration: made here, no other node would have them.
    pub(super) fn new(
        config: &Config,
        me: NodeId,
        keys: EdgeKeys,
        nodes: Arc<dyn NodeTable>,
    ) -> Result<Cluster, NodeError> {
        if config.endpoint.crypto_keys.is_empty() || config.node.keys.is_empty() {
            return Err(NodeError::Edge(
                "a shared store needs endpoint.crypto_keys and node.keys in the configuration, the same on every \
                 node; make them once with `murre keygen`"
                    .to_owned(),
            ));
        }
        let no_lane = |error| NodeError::Host { what: "a pair of sockets", error };
        let peers = Arc::new(PeerQueue::new(keys).map_err(no_lane)?);
        let unwritten = config.data_dir.join("debts");
        Ok(Cluster { me: Arc::new(me), listed: config.roles.connect, peers, nodes, unwritten })
    }

    pub(super) fn me(&self) -> &Arc<NodeId> {
        &self.me
    }

    /// Returns the peer calls that the control plane must make.
    pub(super) fn calls(&self, config: &Node, trust: TrustRoots) -> PeerCalls {
        PeerCalls {
            id: self.me.boot,
            retry_queue_max: RETRY_QUEUE_MAX,
            unwritten: Some(self.unwritten.clone()),
            peers: Arc::clone(&self.peers),
            nodes: Arc::clone(&self.nodes),
            connections_max: usize::from(config.connections),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            gone_time: GONE_TIME,
            trust,
        }
    }

    /// Returns a shard's lane to the other nodes.
    pub(super) fn lane(&self, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Lane> {
        self.peers.lane(waker)
    }

    /// Replaces keys and trusted authorities.
    pub(super) fn renew(&self, keys: EdgeKeys, trust: TrustRoots) {
        self.peers.renew(keys, trust);
    }

    /// Writes that this boot has begun, and that the `last` one of this data directory is over. Called before its first
    /// session.
    ///
    /// # Errors
    /// [`NodeError::StoreAway`].
    pub(super) fn register_boot(&self, last: Option<&NodeId>) -> Result<(), NodeError> {
        // No node writes the row of an old URL again: without this, others would call there for as long as it lasts.
        if let Some(last) = last.filter(|last| last.url != self.me.url || !self.listed) {
            self.nodes.leave(last).map_err(NodeError::StoreAway)?;
        }
        if self.listed { self.nodes.enter(&self.me).map_err(NodeError::StoreAway) } else { Ok(()) }
    }

    /// Renewal of the lease of this boot; `None` for a node that is not listed.
    pub(super) fn lease(&self) -> Option<Lease> {
        self.listed.then(|| Lease::new(Arc::clone(&self.nodes), Arc::clone(&self.me)))
    }

    /// Notifies the nodes that hold these users that storage has saved messages for them.
    pub(super) fn notify_holders(&self, storage: &Storage, users: Vec<Uaid>) {
        let mut told = 0;
        let asked = users.len();
        let unknown = find(storage, users, LOOK_UP_TIME_MAX, |uaid, presence| {
            // Earlier boots of this node are over, and this one has no session yet.
            for Presence { node, .. } in presence.iter().filter(|presence| presence.node.url != self.me.url) {
                self.peers.tell(Arc::clone(node), uaid);
                told += 1;
            }
        });
        if asked > 0 {
            tracing::info!(users = asked, notified = told, "nodes of the users in the ledger notified");
        }
        if unknown > 0 {
            tracing::warn!(
                users = unknown,
                "nodes of users in the ledger not found; these users read their messages at their next hello"
            );
        }
    }

    /// For a node that will not start again: makes the calls, and writes that its last boot is over. Blocks.
    ///
    /// # Errors
    /// [`NodeError::StoreAway`], [`NodeError::Host`].
    pub(super) fn retire_previous_boot(
        &self,
        last: Option<&NodeId>,
        config: &Node,
        trust: TrustRoots,
    ) -> Result<(), NodeError> {
        if let Some(last) = last {
            self.nodes.leave(last).map_err(NodeError::StoreAway)?;
        }
        let no_runtime = |error| NodeError::Host { what: "a runtime", error };
        let left = settle(self.calls(config, trust), SETTLE_TIME_MAX).map_err(no_runtime)?;
        if left > 0 {
            tracing::warn!(
                left,
                "nodes not notified, and the database did not take that; run `murre maintain replay` once more"
            );
        }
        Ok(())
    }

    /// Waits until every call is answered and every queued notification has arrived, for `SETTLE_TIME_MAX` at most.
    /// Debts that stay are left in the database to the nodes they are owed to. Then writes that this boot is over.
    pub(super) fn retire_boot(&self) {
        let settled = |within| {
            let until = Instant::now() + within;
            while self.peers.unsettled() > 0 && Instant::now() < until {
                std::thread::sleep(SETTLE_LOOK);
            }
            self.peers.unsettled()
        };
        let owed = settled(SETTLE_TIME_MAX);
        if owed > 0 {
            tracing::info!(owed, "nodes that do not answer left to read storage for their sessions");
            self.peers.end();
            settled(HAND_OVER_TIME_MAX);
            let left = self.peers.owed();
            if left > 0 {
                tracing::warn!(
                    left,
                    "notifications to other nodes left to the next start on this data directory, because the database \
                     did not take them; until then their messages wait for the next refresh or hello"
                );
            }
        }
        if self.listed
            && let Err(reason) = self.nodes.leave(&self.me)
        {
            tracing::warn!(%reason, "end of this boot not written; other nodes find it out by its lease");
        }
    }
}

/// Refuses a `node.url` at which another boot of a node answers: others would call one node for the sessions of both.
/// Called before this node listens. Where nothing answers, as for a node that starts again, it takes no time.
///
/// # Errors
/// [`NodeError::UrlTaken`], [`NodeError::Host`].
pub(super) fn check_url(config: &Config, trust: Option<&TrustRoots>) -> Result<(), NodeError> {
    let Some((url, trust)) = config.node.url.as_deref().zip(trust).filter(|_| config.roles.connect) else {
        return Ok(());
    };
    if !config.store.kind.is_shared() {
        return Ok(());
    }
    let node_keys = config.node.keys.iter().map(|key| key.reveal().to_owned()).collect();
    let keys = EdgeKeys { crypto: Vec::new(), node: node_keys };
    let within = config.node.connect_timeout + config.node.request_timeout;
    // On its own thread, because the caller can be inside a runtime.
    let asked = std::thread::scope(|scope| scope.spawn(|| who_answers(url, &keys, trust, within)).join());
    let asked = asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let who = match asked.map_err(|error| NodeError::Host { what: "a runtime", error })? {
        Answering::Nothing => return Ok(()),
        Answering::Node(boot) => format!("the run {boot:016x} of a node answers there"),
        Answering::Locked => "a server that takes none of our node.keys answers there".to_owned(),
        Answering::Stranger(said) => {
            // Perhaps a proxy in front of this node, which does not listen yet.
            tracing::warn!(
                url,
                answer = said,
                "answer of another program received at node.url; other nodes may not reach this node"
            );
            return Ok(());
        }
    };
    Err(NodeError::UrlTaken { url: url.to_owned(), who })
}

/// Authorities that calls to other nodes trust, and the certificate that they show; `None` when there are no such
/// calls. A configured file is read in any case, so that an error in it shows before the file is needed.
///
/// # Errors
/// [`NodeError::Edge`] for a file that is not a certificate, or not its key.
pub(super) fn trust(config: &Config) -> Result<Option<TrustRoots>, NodeError> {
    if !config.store.kind.is_shared() && config.node.ca.is_none() {
        return Ok(None);
    }
    let no_ca = |error| NodeError::Edge(format!("node.ca cannot be used: {error}; name a file of PEM certificates"));
    let settings = if config.node.tls.cert.is_some() { ["node.tls.cert", "node.tls.key"] } else { PUBLIC };
    let own = |(cert, key)| Certificate::read((settings[0], cert), (settings[1], key)).map_err(NodeError::Certificate);
    let own = config.node_client_pair().map(own).transpose()?;
    TrustRoots::showing(config.node.ca.as_deref(), own.as_ref()).map(Some).map_err(no_ca)
}

/// URL of this node for other nodes: `node.url`, or its first address, with TLS if `node.tls.listen` is set. A node
/// without sessions is never called.
pub(super) fn url(config: &Node, bound: &[SocketAddr], bound_tls: &[SocketAddr]) -> Box<str> {
    let tls = || bound_tls.first().or(config.tls.listen.first()).map(|address| format!("https://{address}"));
    let plain = || bound.first().or(config.listen.first()).map(|address| format!("http://{address}"));
    config.url.clone().or_else(tls).or_else(plain).unwrap_or_default().into()
}

/// Random id of this boot of the node.
///
/// # Errors
/// [`NodeError::Host`] when the kernel gives no random bytes.
pub(super) fn random_boot() -> Result<u64, NodeError> {
    let mut bytes = [0; 8];
    let no_bytes = |_| NodeError::Host { what: "random bytes", error: std::io::Error::other("getrandom failed") };
    SystemRandom::new().fill(&mut bytes).map_err(no_bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Looks up the nodes that hold these users, some users at a time. Blocks for `within` at most. Returns the number of
/// users for which storage gave no answer.
fn find(storage: &Storage, mut users: Vec<Uaid>, within: Duration, mut found: impl FnMut(Uaid, &[Presence])) -> usize {
    users.sort_unstable();
    users.dedup();
    let waiting = std::thread::current();
    let mut port = storage.port(Arc::new(move || waiting.unpark()));
    let until = Instant::now() + within;
    let (mut asked, mut answered, mut unknown) = (0, 0, 0);
    while answered < users.len() && Instant::now() < until {
        while asked < users.len() && asked - answered < LOOK_UPS_MAX {
            let ticket = StoreTicket { index: asked as u32, generation: 0 };
            port.submit(ticket, StoreOp::LoadUser { uaid: users[asked] });
            asked += 1;
        }
        let Some((ticket, reply)) = port.collect() else {
            std::thread::park_timeout(SETTLE_LOOK);
            continue;
        };
        answered += 1;
        match reply {
            Ok(StoreReply::User(Some(row))) => found(users[ticket.index as usize], &row.presence),
            // The user is gone: there is no node to notify.
            Ok(_) => {}
            Err(_) => unknown += 1,
        }
    }
    unknown + users.len() - answered
}

/// Users that are looked up at a time.
const LOOK_UPS_MAX: usize = 64;
/// Time for all users together. Messages of users that are not looked up by then wait for the next hello.
const LOOK_UP_TIME_MAX: Duration = Duration::from_secs(30);
/// Time without an answer after which a node with a lapsed lease counts as gone.
const GONE_TIME: Duration = RENEW_INTERVAL.saturating_mul(2);
/// Longest wait of a leaving node for the last answers.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(5);
const SETTLE_LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Sources, StoreKind};
    use store::model::Model;
    use store::testing::nodes::FakeNodes;

    const KEYS: [&str; 2] =
        ["endpoint.crypto_keys=YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=", "node.keys=0123456789abcdef"];

    fn config(sets: &[&str]) -> Config {
        let sets = sets.iter().map(|text| (*text).to_owned()).collect();
        Config::load(&Sources { sets, ..Sources::default() }).unwrap()
    }

    fn cluster(sets: &[&str]) -> Result<Cluster, NodeError> {
        cluster_of(sets, no_table())
    }

    /// A store that no node can enter.
    fn no_table() -> Arc<FakeNodes> {
        let nodes = Arc::<FakeNodes>::default();
        nodes.answers().entered = Err("no table".to_owned());
        nodes
    }

    fn cluster_of(sets: &[&str], nodes: Arc<FakeNodes>) -> Result<Cluster, NodeError> {
        let config = config(sets);
        let me = NodeId { url: url(&config.node, &[], &[]), boot: 1 };
        Cluster::new(&config, me, EdgeKeys::default(), nodes)
    }

    #[test]
    fn keys_that_no_other_node_has_are_refused() {
        for sets in [&KEYS[..1], &KEYS[1..]] {
            let fault = cluster(sets).err().unwrap();
            assert!(fault.to_string().contains("make them once with `murre keygen`"), "{fault}");
            assert_eq!(fault.status(), crate::status::CONFIG);
        }
        assert!(cluster(&KEYS).is_ok());
    }

    #[test]
    fn a_node_is_reached_by_its_url_or_its_first_address() {
        let bound = ["10.0.0.7:1".parse().unwrap(), "10.0.0.8:1".parse().unwrap()];
        assert_eq!(&*url(&config(&[]).node, &bound, &[]), "http://10.0.0.7:1");
        assert_eq!(&*url(&config(&["node.url=https://n/"]).node, &bound, &bound), "https://n");
        assert_eq!(&*url(&config(&["node.listen=[::1]:81"]).node, &[], &[]), "http://[::1]:81");
        let tls = ["node.tls.listen=10.0.0.7:2", "node.tls.cert=c", "node.tls.key=k"];
        assert_eq!(&*url(&config(&tls).node, &bound, &[]), "https://10.0.0.7:2");
        assert_eq!(&*url(&config(&tls).node, &bound, &["10.0.0.7:3".parse().unwrap()]), "https://10.0.0.7:3");
    }

    #[test]
    fn only_a_node_with_sessions_is_listed() {
        assert!(cluster(&KEYS).unwrap().register_boot(None).is_err());
        assert!(cluster(&[KEYS[0], KEYS[1], "roles=endpoint"]).unwrap().register_boot(None).is_ok());
    }

    #[test]
    fn a_run_under_another_url_is_said_to_be_over() {
        let last = |url: &str| NodeId { url: url.into(), boot: 7 };
        for (sets, url, left) in [
            (&[KEYS[0], KEYS[1], "node.url=https://n"][..], "http://n", true),
            (&[KEYS[0], KEYS[1], "node.url=https://n"], "https://n", false),
            (&[KEYS[0], KEYS[1], "node.url=https://n", "roles=endpoint"], "https://n", true),
        ] {
            let nodes = no_table();
            let _ = cluster_of(sets, Arc::clone(&nodes)).unwrap().register_boot(Some(&last(url)));
            assert_eq!(nodes.answers().left, if left { vec![last(url)] } else { vec![] }, "{url}");
        }
    }

    #[test]
    fn users_are_looked_up_and_those_that_storage_does_not_know_are_nowhere() {
        let storage = Storage::Memory(Model::new(u64::MAX));
        let users: Vec<Uaid> = (0..200u8).map(|n| Uaid([n; 16])).collect();
        let unknown = find(&storage, users, Duration::from_secs(20), |_, _| panic!("nobody is there"));
        assert_eq!(unknown, 0);
        cluster(&KEYS).unwrap().notify_holders(&storage, vec![Uaid([1; 16])]);
        assert!(!StoreKind::Memory.is_shared());
    }
}
