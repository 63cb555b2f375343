//! `store.*`: what follows from the kind of store, what `store.scylla.*` must be together, and what nodes that share a
//! store must have in common.

use std::time::Duration;

use store::shared::error::DatabaseError;
use store::shared::options::{Level, Options};

use super::allowed::{BYTES, LEVEL, PEM, SECONDS};
use super::error::ConfigError;
use super::key::settings;
use super::parse;
use super::settings::Config;

settings! {
    /// `store.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Store as STORE at [store] {
        pub kind: StoreKind = "store.kind" ("store" "KIND"), "embedded",
            "embedded, scylla for one store that several nodes share, or memory for trials that may forget everything",
            "Place of users, channels and stored messages.",
            parse::word([
                ("embedded", StoreKind::Embedded),
                ("memory", StoreKind::Memory),
                ("scylla", StoreKind::Scylla),
            ]);
        /// Bytes.
        pub cache: u64 = "store.cache", "32MiB",
            BYTES,
            "Memory for blocks of the embedded store.",
            parse::bytes;
        /// Bytes on disk at which messages are refused with 503; 0: no bound but the disk.
        pub max_bytes: u64 = "store.max_bytes", "0",
            "a number of bytes, as 107374182400 or 100GiB; 0 is no bound but the disk",
            "Size on disk at which messages that would be stored are refused with 503; registers and saves go on for an eighth more.",
            parse::bytes;
        /// Bytes stored for one user in a UTC day beyond which messages are refused with 429; 0: no bound; `None`: as
        /// the kind of store has it.
        pub user_bytes_per_day: Option<u64> = "store.user_bytes_per_day", "",
            "a number of bytes, as 16777216 or 16MiB; 0 is no bound; nothing is 16MiB, and 4MiB on a shared store",
            "Maximum bytes stored for one user, or handed to its bridge, in a UTC day, counted by each node; further POSTs are answered 429.",
            parse::optional(parse::bytes);
        /// Backups without a name that stay when another is made; 0: all.
        pub backups_keep: usize = "store.backups_keep", "7",
            "a number from 0 (all) to 31",
            "Number of backups made without --name that stay in data_dir; after a further one, the server removes the oldest. It never removes one whose name has a letter.",
            parse::number(0, 31);
        pub max_skew: Duration = "store.max_skew", "15",
            "seconds from 1 to 15, as 10 or \"10s\"",
            "Maximum difference between the time of a node and the clocks of the database; beyond it the node refuses to start, and stamps nothing.",
            parse::seconds(1.0, 15.0);
    } with {
        pub scylla: Options,
    }
}

/// `store.kind`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    #[default]
    Embedded,
    Memory,
    Scylla,
}

settings! {
    SCYLLA at [store scylla] {
        nodes = "store.scylla.nodes" ("scylla" "HOST:PORT"), "",
            "addresses or names with ports, as 10.0.0.1:9042,db2:9042 or [::1]:9042",
            "Contact points of the database; they name its other nodes.",
            parse::hosts;
        keyspace = "store.scylla.keyspace", "murre",
            "1 to 48 lower case letters, digits and _, a letter first",
            "Keyspace of the tables.",
            parse::keyspace;
        replication_factor = "store.scylla.replication_factor", "3",
            "a number from 1 to 9",
            "Number of nodes of each datacenter that hold a row; `murre schema create` creates the keyspace with it.",
            parse::number(1, 9);
        datacenter = "store.scylla.datacenter", "",
            "the name of a datacenter, or nothing where there is one only",
            "Datacenter that receives the requests and, from `murre schema create`, all rows.",
            parse::name;
        read_consistency = "store.scylla.read_consistency", "quorum",
            LEVEL,
            "Replicas that must answer a read. Reads and writes must overlap.",
            |raw| Level::named(raw.text()?);
        write_consistency = "store.scylla.write_consistency", "quorum",
            LEVEL,
            "Replicas that must have a write before it is acknowledged.",
            |raw| Level::named(raw.text()?);
        user = "store.scylla.user" [live], "",
            "up to 128 visible characters, or nothing",
            "User name for a database that requires a login; a new value is for new connections.",
            parse::name;
        password = "store.scylla.password" [secret live], "",
            "up to 1024 characters, none a control character",
            "Password of store.scylla.user; a new value is for new connections.",
            parse::password;
        connect_timeout = "store.scylla.connect_timeout", "5",
            SECONDS,
            "Time limit for a connection to a database node; later the connection has failed.",
            parse::positive_duration;
        request_timeout = "store.scylla.request_timeout", "5",
            "seconds from 0.001 to 30, as 5, 2.5 or \"250ms\"",
            "Time limit for a statement, its retries included; later the statement has failed.",
            parse::seconds(0.001, 30.0);
        in_flight = "store.scylla.in_flight", "256",
            "a number from 1 to 4096",
            "Maximum number of statements of one shard in flight; further ones wait. A slow database lowers the number.",
            parse::number(1, 4_096);
    }
}

settings! {
    SCYLLA_TLS at [store scylla tls] {
        enabled = "store.scylla.tls", "false",
            "true or false",
            "Encrypts connections to the database.",
            parse::flag;
        ca = "store.scylla.tls_ca" [live], "",
            PEM,
            "PEM certificates of the authorities of the database; by default those that this host trusts. A new value is for new connections.",
            parse::path;
        cert = "store.scylla.tls_cert" [live], "",
            PEM,
            "PEM client certificate that murre presents when the database requires one; a new value is for new connections.",
            parse::path;
        key = "store.scylla.tls_key" [live], "",
            PEM,
            "PEM key of store.scylla.tls_cert.",
            parse::path;
        verify_host = "store.scylla.tls_verify_host" [live], "true",
            "true or false",
            "Requires that the certificate of a database node names its IP address; a new value is for new connections.",
            parse::flag;
    }
}

/// The default of `store.user_bytes_per_day`, and that of a store that several nodes share.
const USER_BYTES_PER_DAY: u64 = 16 << 20;
const SHARED_USER_BYTES_PER_DAY: u64 = 4 << 20;

impl Store {
    /// Bytes stored for one user in a UTC day, as one node counts them; 0: no bound. On a shared store every node
    /// counts by itself, so the default is less there.
    pub fn user_bytes_per_day(&self) -> u64 {
        let default = if self.kind.is_shared() { SHARED_USER_BYTES_PER_DAY } else { USER_BYTES_PER_DAY };
        self.user_bytes_per_day.unwrap_or(default)
    }
}

impl StoreKind {
    /// Returns true if several nodes share it: then each must be found by the others.
    pub fn is_shared(self) -> bool {
        match self {
            StoreKind::Embedded | StoreKind::Memory => false,
            StoreKind::Scylla => true,
        }
    }
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

/// Faults of settings that nodes of a shared store must have in common, and of those by which they find each other.
/// They are for the preflight of the store: a command that only makes its tables needs none of them.
pub fn shared_store_faults(config: &Config) -> Vec<DatabaseError> {
    let mut faults = Vec::new();
    for (key, missing) in
        [("endpoint.crypto_keys", config.endpoint.crypto_keys.is_empty()), ("node.keys", config.node.keys.is_empty())]
    {
        if missing {
            faults.push(DatabaseError::lasting(format!(
                "{key} is not set: nodes that share a store must have the same; make one with `murre keygen` and give it \
                 to every node"
            )));
        }
    }
    let tls = &config.node.tls.listen;
    let (key, listen) = if tls.is_empty() { ("node.listen", &config.node.listen) } else { ("node.tls.listen", tls) };
    let concrete = matches!(listen[..], [one] if !one.ip().is_unspecified());
    if config.roles.connect && config.node.url.is_none() && !concrete {
        faults.push(DatabaseError::lasting(format!(
            "node.url is not set and {key} is not one concrete address: other nodes would not find the users of this \
             one; set node.url to what they reach it by"
        )));
    }
    faults
}
