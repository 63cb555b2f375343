//! The data directory: locked by one process, with keys that are made once.
//!
//! ```text
//! lock             held with flock while a process uses the directory
//! keys/crypto      Fernet key of endpoint tokens, unless endpoint.crypto_keys is set      0600
//! keys/node        bearer key of the node API, unless node.keys is set                    0600
//! keys/tickets     key of TLS tickets, unless tls.ticket_keys is set                      0600
//! keys/admin       token of operators for changes through the admin listener               0600
//! keys/placement   32 hex digits: the secret key of the placement hash                    0600
//! acme/            account and certificates of an ACME authority, with `acme.agree`         0600
//! store/           the embedded store
//! ledger/          ledger logs of the shards
//! hibernation      frozen sessions and packet rules that the process may leave to the next one
//! backups/         copies of keys and store that `murre maintain backup` made
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use machine::NodeId;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::error::NodeError;
use config::{Config, Secret};
use edge::EdgeKeys;
use host::files::{self, write_whole};

/// A data directory that this process holds. Released when dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

/// Secrets of a node: configured ones, else those of the data directory.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Fernet keys of endpoint tokens; the first seals. Never empty.
    pub crypto: Vec<Secret>,
    /// Bearer keys of the node API; the first is presented. Never empty.
    pub node: Vec<Secret>,
    /// Keys of TLS tickets; the first seals. Never empty.
    pub tickets: Vec<Secret>,
    /// Token of operators.
    pub admin: Secret,
    /// Key of the placement hash (ARCHITECTURE.md 8.1).
    pub placement: PlacementKey,
}

impl Keys {
    /// Returns the keys of an edge.
    pub fn for_edge(&self) -> EdgeKeys {
        let reveal = |keys: &[Secret]| keys.iter().map(|key| key.reveal().to_owned()).collect();
        EdgeKeys { crypto: reveal(&self.crypto), node: reveal(&self.node) }
    }
}

/// Rule for a missing key file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// Every key is made: the store has no user yet, or the operator asks for new keys.
    Make,
    /// The key of endpoint URLs is not made: the store has users, and no URL that they have would be good any more.
    /// The others are, since they are the secret of this node alone.
    Refuse,
}

/// 16 secret bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PlacementKey(pub [u8; 16]);

impl std::fmt::Debug for PlacementKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlacementKey(..)")
    }
}

impl DataDir {
    /// Makes the directory if it is not there, checks that it can be written, and locks it.
    ///
    /// # Errors
    /// [`NodeError::DataDir`] and [`NodeError::InUse`].
    pub fn open(path: &Path) -> Result<DataDir, NodeError> {
        make_dir(path)?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
        let lock = lock.map_err(|error| fault(&lock_path, "write", error))?;
        match lock.try_lock() {
            Ok(()) => Ok(DataDir { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(NodeError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(fault(&lock_path, "lock", error)),
        }
    }

    /// Returns true if a process holds the directory.
    pub fn is_in_use(path: &Path) -> bool {
        File::open(path.join("lock")).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directory of the embedded store.
    pub fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    /// Directory of the ledger logs.
    pub fn ledger(&self) -> PathBuf {
        self.path.join("ledger")
    }

    /// Writes the identity of this node for [`DataDir::last_boot`].
    ///
    /// # Errors
    /// [`NodeError::DataDir`].
    pub fn set_boot(&self, node: &NodeId) -> Result<(), NodeError> {
        let path = self.path.join("run");
        let text = format!("{:016x} {}\n", node.boot, node.url);
        fs::write(&path, text).map_err(|error| fault(&path, "write", error))
    }

    /// Returns the last boot of a node on this directory; `None` when no run was in a cluster.
    pub fn last_boot(&self) -> Option<NodeId> {
        let text = fs::read_to_string(self.path.join("run")).ok()?;
        let (boot, url) = text.trim().split_once(' ')?;
        Some(NodeId { url: url.into(), boot: u64::from_str_radix(boot, 16).ok()? })
    }

    /// Returns the secrets of this node. Makes and keeps missing ones as far as `missing` allows.
    ///
    /// # Errors
    /// [`NodeError::DataDir`], and [`NodeError::Key`] for a key file that is damaged: making a new one would orphan
    /// every endpoint URL that was handed out. [`NodeError::LostKey`] for one that is gone.
    pub fn keys(&self, config: &Config, missing: Missing) -> Result<Keys, NodeError> {
        make_dir(&self.path.join("keys"))?;
        self.collect_keys(
            config,
            match missing {
                Missing::Make => made,
                Missing::Refuse => made_if_harmless,
            },
        )
    }

    /// Returns the secrets of a node that runs: as [`DataDir::keys`], but makes none except that of tickets.
    ///
    /// # Errors
    /// As [`DataDir::keys`], and [`NodeError::NoKey`]: a setting was removed, and a new key in its place would orphan
    /// every endpoint URL that was handed out.
    pub fn known_keys(&self, config: &Config) -> Result<Keys, NodeError> {
        self.collect_keys(config, |path, kind| match kind {
            // Nothing is orphaned: clients make a full handshake once, and operators read the file.
            KeyKind::Tickets | KeyKind::Admin => made(path, kind),
            KeyKind::Fernet | KeyKind::Bearer | KeyKind::Placement => Err(NodeError::NoKey { path: path.to_owned() }),
        })
    }

    fn collect_keys(
        &self,
        config: &Config,
        missing: fn(&Path, KeyKind) -> Result<Secret, NodeError>,
    ) -> Result<Keys, NodeError> {
        let dir = self.path.join("keys");
        let list = |configured: &[Secret], name: &str, kind: KeyKind| match configured {
            [] => Ok(vec![kept(&dir.join(name), kind, missing)?]),
            keys => Ok(keys.to_vec()),
        };
        let crypto = list(&config.endpoint.crypto_keys, "crypto", KeyKind::Fernet)?;
        let node = list(&config.node.keys, "node", KeyKind::Bearer)?;
        let tickets = list(&config.tls.ticket_keys, "tickets", KeyKind::Tickets)?;
        let admin = kept(&dir.join(ADMIN), KeyKind::Admin, missing)?;
        let path = dir.join("placement");
        let placement = kept(&path, KeyKind::Placement, missing)?;
        let placement = unhex(placement.reveal()).ok_or(NodeError::Key { path })?;
        Ok(Keys { crypto, node, tickets, admin, placement: PlacementKey(placement) })
    }
}

/// Name of the file in `keys` with the token of operators.
const ADMIN: &str = "admin";

/// Reads the token with which an operator asks the server that has this data directory.
///
/// # Errors
/// [`NodeError::DataDir`]: this user may not read it, or no server has made it. [`NodeError::Key`]: it is none.
pub fn admin_token(data_dir: &Path) -> Result<Secret, NodeError> {
    let none = |path: &Path, _| Err(fault(path, "read", io::ErrorKind::NotFound.into()));
    kept(&data_dir.join("keys").join(ADMIN), KeyKind::Admin, none)
}

pub(super) fn make_dir(path: &Path) -> Result<(), NodeError> {
    files::make_dir(path).map_err(|error| fault(path, "create", error))
}

pub(super) fn fault(path: &Path, verb: &'static str, error: io::Error) -> NodeError {
    NodeError::DataDir { path: path.to_owned(), verb, error }
}

/// Format of a key file.
#[derive(Clone, Copy)]
enum KeyKind {
    Fernet,
    Bearer,
    Tickets,
    Admin,
    Placement,
}

impl KeyKind {
    fn make(self) -> Result<String, io::Error> {
        let mut bytes = [0; 32];
        let random = SystemRandom::new();
        random.fill(&mut bytes).map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
        Ok(match self {
            KeyKind::Fernet | KeyKind::Tickets => base64::engine::general_purpose::URL_SAFE.encode(bytes),
            KeyKind::Bearer | KeyKind::Admin => base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes),
            KeyKind::Placement => bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    fn accepts(self, text: &str) -> bool {
        match self {
            KeyKind::Fernet | KeyKind::Tickets => {
                base64::engine::general_purpose::URL_SAFE.decode(text).is_ok_and(|bytes| bytes.len() == 32)
            }
            KeyKind::Bearer | KeyKind::Admin => text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_graphic()),
            KeyKind::Placement => unhex(text).is_some(),
        }
    }
}

/// Reads the key in this file; calls `missing` when there is no file.
fn kept(
    path: &Path,
    kind: KeyKind,
    missing: impl FnOnce(&Path, KeyKind) -> Result<Secret, NodeError>,
) -> Result<Secret, NodeError> {
    match fs::read_to_string(path) {
        Ok(text) if kind.accepts(text.trim()) => {
            warn_of_readers(path, NOT_THE_OWNER);
            Ok(Secret::new(text.trim()))
        }
        Ok(_) => Err(NodeError::Key { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(NodeError::Key { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(path, kind),
        Err(error) => Err(fault(path, "read", error)),
    }
}

/// Writes a new key to this file.
fn made(path: &Path, kind: KeyKind) -> Result<Secret, NodeError> {
    let key = kind.make().map_err(|error| fault(path, "make", error))?;
    write_whole(path, &format!("{key}\n")).map_err(|error| fault(path, "write", error))?;
    Ok(Secret::new(key))
}

/// As [`made`], beside a store that has users.
fn made_if_harmless(path: &Path, kind: KeyKind) -> Result<Secret, NodeError> {
    match kind {
        // Every endpoint URL that was handed out is sealed with it.
        KeyKind::Fernet => return Err(NodeError::LostKey { path: path.to_owned() }),
        KeyKind::Bearer => tracing::warn!(
            path = %path.display(),
            "node key lost and created anew; calls with the old key are refused"
        ),
        // One costs clients a full handshake, operators read the next, and the last decides which shard owns a user.
        KeyKind::Tickets | KeyKind::Admin | KeyKind::Placement => {}
    }
    made(path, kind)
}

/// Warns of a file with secrets that one of these permission bits opens to others.
pub fn warn_of_readers(path: &Path, bits: u32) {
    let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o777);
    if mode & bits != 0 {
        let (path, mode) = (path.display(), format!("{mode:o}"));
        tracing::warn!(%path, mode, "secret left readable by others; chmod 600 it");
    }
}

/// Permission bits of all but the owner: keys that this server makes are for the owner alone.
const NOT_THE_OWNER: u32 = 0o077;
/// Permission bits of strangers: files of the operator may be for a group.
pub const STRANGERS: u32 = 0o007;

fn unhex(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() == 32 { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use config::Sources;

    fn config(sets: &[&str]) -> Config {
        let sets = sets.iter().map(|text| (*text).to_owned()).collect();
        Config::load(&Sources { sets, ..Sources::default() }).unwrap()
    }

    #[test]
    fn keys_are_made_once_for_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::open(&path).unwrap().keys(&config(&[]), Missing::Make).unwrap();
        let again = DataDir::open(&path).unwrap().keys(&config(&[]), Missing::Make).unwrap();
        assert_eq!((&first.crypto, &first.node, first.placement), (&again.crypto, &again.node, again.placement));
        assert_eq!((&first.tickets, &first.admin), (&again.tickets, &again.admin));
        assert_eq!(admin_token(&path).unwrap(), first.admin);
        assert_ne!(first.admin, first.node[0]);
        assert_ne!(first.crypto[0].reveal(), first.node[0].reveal());
        for (name, mode) in [
            ("", 0o700),
            ("keys", 0o700),
            ("keys/crypto", 0o600),
            ("keys/node", 0o600),
            ("keys/tickets", 0o600),
            ("keys/admin", 0o600),
            ("keys/placement", 0o600),
        ] {
            assert_eq!(fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
        let shown = format!("{first:?}");
        assert!(!shown.contains(first.crypto[0].reveal()) && !shown.contains(first.node[0].reveal()), "{shown}");
    }

    #[test]
    fn configured_keys_are_used_and_none_is_made_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let fernet = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=";
        let config = config(&[&format!("endpoint.crypto_keys={fernet}"), "node.keys=0123456789abcdef"]);
        let keys = DataDir::open(dir.path()).unwrap().keys(&config, Missing::Make).unwrap();
        assert_eq!((keys.crypto[0].reveal(), keys.node[0].reveal()), (fernet, "0123456789abcdef"));
        assert!(!dir.path().join("keys/crypto").exists() && !dir.path().join("keys/node").exists());
    }

    #[test]
    fn a_running_node_makes_no_key_but_that_of_tickets() {
        let dir = tempfile::tempdir().unwrap();
        let fernet = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=";
        let configured = config(&[&format!("endpoint.crypto_keys={fernet}")]);
        let data = DataDir::open(dir.path()).unwrap();
        let first = data.keys(&configured, Missing::Make).unwrap();
        let again = data.known_keys(&configured).unwrap();
        assert_eq!((&first.crypto, &first.node, first.placement), (&again.crypto, &again.node, again.placement));
        let said = data.known_keys(&config(&[])).unwrap_err().to_string();
        let path = dir.path().join("keys/crypto");
        assert!(said.contains(&format!("there is no key file {}; set the key again", path.display())), "{said}");
        assert!(!path.exists());
        fs::remove_file(dir.path().join("keys/tickets")).unwrap();
        let renewed = data.known_keys(&configured).unwrap();
        assert_ne!(first.tickets, renewed.tickets);
        assert_eq!(renewed.tickets, data.known_keys(&configured).unwrap().tickets, "the new key is kept");
    }

    #[test]
    fn a_lost_key_of_endpoint_urls_is_refused_beside_users_and_the_others_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let first = data.keys(&config(&[]), Missing::Make).unwrap();
        for name in ["node", "tickets", "placement"] {
            fs::remove_file(dir.path().join("keys").join(name)).unwrap();
        }
        let again = data.keys(&config(&[]), Missing::Refuse).unwrap();
        assert_eq!(first.crypto, again.crypto);
        assert_ne!(first.node, again.node);
        let path = dir.path().join("keys/crypto");
        fs::remove_file(&path).unwrap();
        assert!(matches!(data.keys(&config(&[]), Missing::Refuse), Err(NodeError::LostKey { .. })));
        assert!(!path.exists());
        let fernet = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=";
        let configured = config(&[&format!("endpoint.crypto_keys={fernet}")]);
        assert_eq!(data.keys(&configured, Missing::Refuse).unwrap().crypto[0].reveal(), fernet);
        assert_ne!(data.keys(&config(&[]), Missing::Make).unwrap().crypto, first.crypto, "as the operator wants it");
    }

    #[test]
    fn the_last_run_is_known_if_there_was_one() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert_eq!(data.last_boot(), None);
        for boot in [1, u64::MAX] {
            let node = NodeId { url: "http://n:8081".into(), boot };
            data.set_boot(&node).unwrap();
            assert_eq!(data.last_boot(), Some(node));
        }
        fs::write(dir.path().join("run"), "x").unwrap();
        assert_eq!(data.last_boot(), None);
    }

    #[test]
    fn a_damaged_key_is_refused_and_kept() {
        for (name, damage) in [
            ("crypto", "x"),
            ("crypto", "\u{0}"),
            ("node", ""),
            ("tickets", "x"),
            ("admin", "x"),
            ("placement", "0123"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let data = DataDir::open(dir.path()).unwrap();
            data.keys(&config(&[]), Missing::Make).unwrap();
            let path = dir.path().join("keys").join(name);
            fs::write(&path, damage).unwrap();
            let said = data.keys(&config(&[]), Missing::Make).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{} is not a key; restore it from a backup", path.display())), "{said}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damage);
        }
    }

    #[test]
    fn a_directory_in_use_is_refused_until_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let held = DataDir::open(dir.path()).unwrap();
        let fault = DataDir::open(dir.path()).unwrap_err();
        assert_eq!(
            fault.to_string(),
            format!(
                "the data directory {} is in use by another process; stop it, or set another with --data-dir",
                dir.path().display()
            )
        );
        assert_eq!(fault.status(), crate::status::DATA_DIR);
        drop(held);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_or_written_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        // Root may write anywhere, so the obstacle is a file in the place of a directory, and /proc, where no user may.
        let said = DataDir::open(&dir.path().join("file/data")).unwrap_err().to_string();
        assert!(said.starts_with("cannot create ") && said.contains("Not a directory"), "{said}");
        assert!(said.ends_with("make data_dir writable for this user, or set another with --data-dir"), "{said}");
        let said = DataDir::open(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(said.starts_with("cannot write /proc/self/lock: "), "{said}");
    }
}
