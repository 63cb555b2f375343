//! Connection and guarantees of the shared store, as its configuration says.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The settings `store.scylla.*`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Contact points as `host:port`; the driver finds the other nodes through them.
    pub nodes: Vec<String>,
    /// The keyspace: lower case, so that it is never quoted.
    pub keyspace: String,
    /// Number of nodes of a datacenter that have each row.
    pub replication_factor: u16,
    /// The datacenter that requests go to and that the keyspace is made in; `None`: all are one.
    pub datacenter: Option<String>,
    /// Replicas that a read asks.
    pub read_consistency: Level,
    /// Replicas that a write waits for.
    pub write_consistency: Level,
    /// Login; `None`: the database asks for no password.
    pub user: Option<String>,
    /// Goes with `user`.
    pub password: Option<Password>,
    pub tls: Tls,
    /// For one connection to one node.
    pub connect_timeout: Duration,
    /// For one statement, its retries included.
    pub request_timeout: Duration,
    /// Statements of one shard that may be unanswered; more wait.
    pub in_flight: u16,
}

impl Options {
    /// Returns true if every read meets the write before it on at least one replica.
    ///
    /// With a level that is not local the replicas of all datacenters count; each has `replication_factor`, so one
    /// datacenter is the worst case and the only one to look at.
    pub fn overlap(&self) -> bool {
        let replicas = self.replication_factor;
        self.read_consistency.answers(replicas) + self.write_consistency.answers(replicas) > replicas
    }
}

/// The settings `store.scylla.tls*`.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Connections are encrypted; the rest counts only then.
    pub enabled: bool,
    /// Certificates that sign those of the nodes, PEM; `None`: those of the host.
    pub ca: Option<PathBuf>,
    /// Certificate of murre, PEM, when nodes ask for one.
    pub cert: Option<PathBuf>,
    /// The key of `cert`, PEM.
    pub key: Option<PathBuf>,
    /// The certificate of a node must name its address.
    pub verify_host: bool,
}

/// A password that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    pub fn new(text: impl Into<String>) -> Password {
        Password(text.into())
    }

    /// The text. Never log it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// Number of replicas of a row that answer before a request is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Level {
    One,
    /// Any one of our datacenter.
    LocalOne,
    /// More than half, over all datacenters.
    #[default]
    Quorum,
    /// More than half of those in our datacenter.
    LocalQuorum,
    All,
}

impl Level {
    /// The level of this name, as `Display` writes it.
    pub fn named(name: &str) -> Option<Level> {
        let all = [Level::One, Level::LocalOne, Level::Quorum, Level::LocalQuorum, Level::All];
        all.into_iter().find(|level| level.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Level::One => "one",
            Level::LocalOne => "local_one",
            Level::Quorum => "quorum",
            Level::LocalQuorum => "local_quorum",
            Level::All => "all",
        }
    }

    /// Number of `replicas` that it waits for.
    pub fn answers(self, replicas: u16) -> u16 {
        match self {
            Level::One | Level::LocalOne => 1,
            Level::Quorum | Level::LocalQuorum => replicas / 2 + 1,
            Level::All => replicas,
        }
    }

    /// Returns true if it counts replicas of one datacenter only.
    pub fn is_local(self) -> bool {
        matches!(self, Level::LocalOne | Level::LocalQuorum)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
