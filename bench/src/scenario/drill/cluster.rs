//! The nodes and their database.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cassandra::Database;
use tempfile::TempDir;

use super::certificates::Certificates;
use super::fault::Fault;
use super::fault_proxy::FaultProxy;
use super::network::Network;
use super::options::Options;
use crate::metrics::Metrics;
use crate::process::{self, Server};

/// Addresses that user agents and app servers may use now.
#[derive(Default)]
pub(super) struct Addresses {
    pub websocket: Vec<SocketAddr>,
    pub endpoint: Vec<SocketAddr>,
}

/// Nodes, database and network of a drill.
pub(super) struct TestCluster {
    // The processes in the network end before it.
    servers: Vec<Node>,
    database: Option<Database>,
    network: Option<Network>,
    databases: usize,
    tls: bool,
    papers: Option<Certificates>,
    program: String,
    count: usize,
    directory: TempDir,
    drills: usize,
    addresses: Arc<Mutex<Addresses>>,
}

struct Node {
    server: Server,
    /// On loopback; in a network the kernel has it.
    line: Option<FaultProxy>,
    connects: bool,
    posts: bool,
}

/// Made up for drills: all nodes share them.
const CRYPTO_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const NODE_KEY: &str = "a-key-that-all-nodes-of-a-drill-share";

impl TestCluster {
    /// Nothing yet.
    pub(super) fn build(options: &Options) -> io::Result<TestCluster> {
        let program = match &options.murre {
            Some(path) => path.clone(),
            None => std::env::current_exe()?,
        };
        Ok(TestCluster {
            servers: Vec::new(),
            database: None,
            network: None,
            databases: options.databases,
            tls: options.tls,
            papers: None,
            program: program.to_string_lossy().into_owned(),
            count: options.nodes.max(2),
            directory: tempfile::tempdir()?,
            drills: 0,
            addresses: Arc::default(),
        })
    }

    /// Starts the database that the fault requires, unless it runs.
    fn settle(&mut self, fault: Fault) -> io::Result<()> {
        if self.database.is_some() && fault.wants_network() == self.network.is_some() {
            return Ok(());
        }
        self.database = None;
        self.network = None;
        let count = self.databases.to_string();
        // A replica that was away has only the rows that reads and repair give it.
        let mut options = vec!["--nodes", count.as_str(), "--no-hints"];
        if self.tls {
            options.push("--client-cert");
        }
        if self.asks_for_password() {
            options.push("--auth");
        }
        self.database = Some(if fault.wants_network() {
            let network = self.network.insert(Network::build(self.count)?);
            Database::start_at(&network.database_address(0).to_string(), network.at_database(), &options)?
        } else {
            Database::start(&options)?
        });
        Ok(())
    }

    /// Starts the nodes for a drill, on tables and data directories of their own.
    pub(super) fn open(&mut self, fault: Fault) -> io::Result<()> {
        self.settle(fault)?;
        self.drills += 1;
        self.papers = self.tls.then(|| self.papers()).transpose()?;
        let keyspace = cassandra::keyspace();
        let settings = self.settings(&keyspace, fault);
        self.schema(&settings)?;
        for n in 0..self.count {
            let (connects, posts) = match fault {
                // The last one takes the POSTs.
                Fault::Split => (n + 1 < self.count, n + 1 == self.count),
                _ => (true, true),
            };
            let mut arguments = settings.clone();
            if fault == Fault::Split {
                arguments.extend(["--roles".into(), if connects { "connect" } else { "endpoint" }.into()]);
            }
            let ahead = fault.clock_ahead().filter(|_| n == 0);
            ahead.map_or(Ok(()), |ahead| self.set_clock(ahead))?;
            self.servers.push(self.start(n, arguments, ahead.is_some(), (connects, posts))?);
        }
        self.publish();
        Ok(())
    }

    fn settings(&self, keyspace: &str, fault: Fault) -> Vec<String> {
        let mut sets = vec![
            format!("store.scylla.keyspace={keyspace}"),
            format!("store.scylla.replication_factor={}", self.databases),
            format!("endpoint.crypto_keys={CRYPTO_KEY}"),
            format!("node.keys={NODE_KEY}"),
            format!("delivery.durable={}", fault == Fault::KillForGood),
            "delivery.spill_after=3".to_owned(),
            "delivery.ledger_bytes=1MiB".to_owned(),
            // Connections without a reader are found while the drill waits.
            "websocket.auto_ping_interval=20".to_owned(),
        ];
        if let Some(database) = self.database.as_ref().filter(|_| self.tls) {
            sets.push("store.scylla.tls=true".to_owned());
            for (key, name) in [("tls_ca", "ca.pem"), ("tls_cert", "client.pem"), ("tls_key", "client.key")] {
                sets.push(format!("store.scylla.{key}={}", database.file(&format!("tls/{name}")).display()));
            }
        }
        if self.asks_for_password() {
            sets.extend(["store.scylla.user=cassandra".to_owned(), "store.scylla.password=cassandra".into()]);
        }
        let mut all = vec!["--store".to_owned(), "scylla".into(), "--scylla".into(), self.contact_points()];
        all.extend(["--shards".into(), "2".into(), "--max-connections".into(), "1000".into()]);
        all.extend(sets.into_iter().flat_map(|set| ["--set".to_owned(), set]));
        all
    }

    /// Returns true if the database has one node. Of several, one would keep the roles, and no node could log in while
    /// that one is away.
    fn asks_for_password(&self) -> bool {
        self.tls && self.databases == 1
    }

    fn papers(&self) -> io::Result<Certificates> {
        let of_network = |network: &Network| (0..self.count).map(|n| network.back(n).to_string()).collect();
        // On loopback they call each other's lines.
        let addresses = self.network.as_ref().map_or_else(|| vec!["127.0.0.1".to_owned()], of_network);
        Certificates::make(self.directory.path(), addresses)
    }

    fn contact_points(&self) -> String {
        self.database.as_ref().map(|database| database.nodes().to_owned()).unwrap_or_default()
    }

    fn schema(&self, settings: &[String]) -> io::Result<()> {
        // The command takes the settings that it knows: all `--set`, and the addresses of the database.
        let pairs = settings.chunks(2).filter(|pair| matches!(pair[0].as_str(), "--set" | "--scylla"));
        let arguments: Vec<&String> = pairs.flatten().collect();
        let words = self.command_at(0);
        let output = Command::new(&words[0]).args(&words[1..]).args(["schema", "create"]).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(io::Error::other(format!("schema create: {said}"))) }
    }

    /// The program, where node `n` is.
    fn command_at(&self, n: usize) -> Vec<String> {
        let mut words = self.network.as_ref().map(|network| network.at_node(n)).unwrap_or_default();
        words.push(self.program.clone());
        words
    }

    fn start(
        &self,
        n: usize,
        mut arguments: Vec<String>,
        own_clock: bool,
        (connects, posts): (bool, bool),
    ) -> io::Result<Node> {
        let mut command = self.command_at(n);
        if own_clock {
            command.extend(["serve-ahead".into(), self.clock().to_string_lossy().into_owned()]);
        } else {
            command.push("serve".into());
        }
        let (scheme, port) = self.node_port();
        let mut listen = |ip| {
            if let Some(papers) = &self.papers {
                let sets = papers.settings().into_iter().chain([format!("node.tls.listen={ip}:{port}")]);
                arguments.extend(sets.flat_map(|set| ["--set".to_owned(), set]));
            }
        };
        let data = self.directory.path().join(format!("drill{}-node{n}", self.drills));
        let patience = Duration::from_secs(60);
        if let Some(network) = &self.network {
            let (ip, back) = (network.front(n), network.back(n));
            listen(back);
            arguments.extend(["--node-url".into(), format!("{scheme}://{back}:{port}")]);
            let options = process::Options { command, arguments, patience };
            return Ok(Node { server: Server::start_apart(ip, back, options, &data)?, line: None, connects, posts });
        }
        // The line has to be there before the server, whose address is known only then.
        let ip = process::own_address();
        listen(ip);
        let line = FaultProxy::to(scheme, SocketAddr::from((ip, port)))?;
        arguments.extend(["--node-url".into(), line.url()]);
        let options = process::Options { command, arguments, patience };
        Ok(Node { server: Server::start_on(ip, options, &data)?, line: Some(line), connects, posts })
    }

    /// Stops what still runs.
    pub(super) fn close(&mut self) -> io::Result<()> {
        self.servers.clear();
        self.publish();
        Ok(())
    }

    /// Number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.servers.len()
    }

    /// Address of a node for user agents.
    pub(super) fn websocket(&self, n: usize) -> SocketAddr {
        self.servers[n].server.websocket()
    }

    /// Addresses to use now.
    pub(super) fn addresses(&self) -> Arc<Mutex<Addresses>> {
        Arc::clone(&self.addresses)
    }

    /// Kills a node with signal 9.
    pub(super) fn kill(&mut self, n: usize) -> io::Result<()> {
        let killed = self.servers[n].server.kill();
        self.publish();
        killed
    }

    /// Tells a node to stop and waits for it. The list of addresses does not hold it from the start of the stop.
    pub(super) fn stop(&mut self, n: usize) -> io::Result<()> {
        self.leave_out(Some(n));
        let code = self.servers[n].server.terminate()?;
        if code != Some(0) {
            return Err(io::Error::other(format!("ended with {code:?}\n{}", self.servers[n].server.log())));
        }
        Ok(())
    }

    /// Stops a node (SIGSTOP), or continues it.
    pub(super) fn pause(&self, n: usize, paused: bool) -> io::Result<()> {
        self.servers[n].server.pause(paused)
    }

    /// Cuts a node off from the database, or joins them again. In a network only.
    pub(super) fn cut_from_database(&self, n: usize, cut: bool) -> io::Result<()> {
        self.network.as_ref().map_or(Ok(()), |network| network.cut_from_database(n, cut))
    }

    /// Starts a node again on its data, at another address that others call by another URL. On loopback only.
    pub(super) fn revive_elsewhere(&mut self, n: usize) -> io::Result<()> {
        let (scheme, port) = self.node_port();
        let ip = process::own_address();
        let line = FaultProxy::to(scheme, SocketAddr::from((ip, port)))?;
        let node = &mut self.servers[n];
        node.server.replace_argument("--node-url", &line.url());
        node.server.move_to(ip);
        node.line = Some(line);
        self.revive(n)
    }

    fn node_port(&self) -> (&'static str, u16) {
        if self.tls { ("https", TLS_PORT) } else { ("http", process::NODE_PORT) }
    }

    /// Starts a node again on its data.
    pub(super) fn revive(&mut self, n: usize) -> io::Result<()> {
        self.servers[n].server.start_again()?;
        self.publish();
        Ok(())
    }

    /// Sets the clock of the node with a clock of its own to `ahead` milliseconds ahead of the host's.
    pub(super) fn set_clock(&self, ahead: i64) -> io::Result<()> {
        std::fs::write(self.clock(), ahead.to_string())
    }

    fn clock(&self) -> PathBuf {
        self.directory.path().join("clock")
    }

    /// The sum of a metric over the nodes that run.
    pub(super) fn sum(&mut self, metric: &str) -> f64 {
        let running = self.servers.iter_mut().filter_map(|node| node.server.running().then(|| node.server.admin()));
        let metrics = running.filter_map(|admin| Metrics::read(admin).ok());
        metrics.map(|metrics| metrics.sum(metric)).sum()
    }

    /// Cuts the nodes off from each other, or joins them again.
    pub(super) fn cut(&self, cut: bool) -> io::Result<()> {
        self.servers.iter().filter_map(|node| node.line.as_ref()).for_each(|line| line.cut(cut));
        self.network.as_ref().map_or(Ok(()), |network| network.cut(cut))
    }

    /// Does something to a node of the database, counted from 1.
    pub(super) fn database(&self, verb: &str, n: usize) -> io::Result<()> {
        let none = || io::Error::other("there is no database");
        self.database.as_ref().ok_or_else(none)?.node(verb, n as u8)
    }

    /// Does something to all of them.
    pub(super) fn all_databases(&self, verb: &str) -> io::Result<()> {
        (1..=self.databases).try_for_each(|n| self.database(verb, n))
    }

    /// The ends of the nodes' logs.
    pub(super) fn logs(&self) -> String {
        let tail = |node: &Node| {
            let log = node.server.log();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(8)..].join("\n")
        };
        self.servers.iter().map(tail).collect::<Vec<_>>().join("\n--\n")
    }

    fn publish(&mut self) {
        self.leave_out(None);
    }

    fn leave_out(&mut self, who: Option<usize>) {
        let mut found = Addresses::default();
        for (n, node) in self.servers.iter_mut().enumerate() {
            if who == Some(n) || !node.server.running() {
                continue;
            }
            if node.connects {
                found.websocket.push(node.server.websocket());
            }
            if node.posts {
                found.endpoint.push(node.server.endpoint());
            }
        }
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

/// Port on which a node terminates TLS.
const TLS_PORT: u16 = 8443;
