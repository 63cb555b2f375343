//! `store.scylla.*`: connection and guarantees of the shared store.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::parse::{Raw, Secret};
use super::{Config, ConfigError, StoreKind};

/// `store.scylla.*`. Read when `store.kind` is `scylla`, and by the commands that look after that store.
#[derive(Clone, Debug, Default)]
pub struct Scylla {
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
    pub password: Option<Secret>,
    pub tls: Tls,
    /// For one connection to one node.
    pub connect_timeout: Duration,
    /// For one statement, its retries included.
    pub request_timeout: Duration,
    /// Statements of one shard that may be unanswered; more wait.
    pub in_flight: u16,
}

/// `store.scylla.tls*`.
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
    pub(super) fn parse(raw: &Raw) -> Option<Level> {
        Some(match raw.text()? {
            "one" => Level::One,
            "local_one" => Level::LocalOne,
            "quorum" => Level::Quorum,
            "local_quorum" => Level::LocalQuorum,
            "all" => Level::All,
            _ => return None,
        })
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
        f.write_str(match self {
            Level::One => "one",
            Level::LocalOne => "local_one",
            Level::Quorum => "quorum",
            Level::LocalQuorum => "local_quorum",
            Level::All => "all",
        })
    }
}

impl Scylla {
    /// Returns true if every read meets the write before it on at least one replica.
    ///
    /// With a level that is not local the replicas of all datacenters count; each has `replication_factor`, so one
    /// datacenter is the worst case and the only one to look at.
    fn overlap(&self) -> bool {
        let replicas = self.replication_factor;
        self.read_consistency.answers(replicas) + self.write_consistency.answers(replicas) > replicas
    }

    /// Checks settings that depend on each other.
    pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
        let scylla = &config.store.scylla;
        let (read, write) = (scylla.read_consistency, scylla.write_consistency);
        if config.store.kind == StoreKind::Scylla && scylla.nodes.is_empty() {
            return Err(ConfigError::Conflict("store.kind = scylla needs a contact point in store.scylla.nodes"));
        }
        if !scylla.overlap() {
            return Err(ConfigError::Conflict(
                "store.scylla.read_consistency and write_consistency together must be more than replication_factor, \
                 else a read can miss what was just written and an accepted message is lost; quorum for both is right",
            ));
        }
        if (read.is_local() || write.is_local()) && scylla.datacenter.is_none() {
            return Err(ConfigError::Conflict(
                "local_quorum and local_one need store.scylla.datacenter, else each node may count another's",
            ));
        }
        if read.is_local() != write.is_local() && Level::All != read && Level::All != write {
            return Err(ConfigError::Conflict(
                "store.scylla.read_consistency and write_consistency must both be local or both not",
            ));
        }
        let tls = &scylla.tls;
        if tls.cert.is_some() != tls.key.is_some() {
            return Err(ConfigError::Conflict("store.scylla.tls_cert and store.scylla.tls_key need each other"));
        }
        if !tls.enabled && (tls.ca.is_some() || tls.cert.is_some()) {
            return Err(ConfigError::Conflict(
                "store.scylla.tls_ca and store.scylla.tls_cert need store.scylla.tls = true",
            ));
        }
        match (&scylla.user, &scylla.password) {
            (Some(_), None) => Err(ConfigError::Conflict("store.scylla.user needs store.scylla.password")),
            (None, Some(_)) => Err(ConfigError::Conflict("store.scylla.password needs store.scylla.user")),
            _ => Ok(()),
        }
    }
}
