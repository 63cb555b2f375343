//! `store.*`: what follows from the kind of store, what `store.scylla.*` must be together, and what nodes that share a
//! store must have in common.

use store::shared::error::DatabaseError;
use store::shared::options::Level;

use super::error::ConfigError;
use super::settings::{Config, Store, StoreKind};

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
