//! State of the registration API of mobile bridges: its settings, and calls between head and answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use machine::ids::{Chid, Uaid};
use machine::upstream::BridgeKind;
use protocol::webpush::registration::{SecretKeys, UserType};

/// Maximum length of the body of a call.
pub const BODY_BYTES_MAX: u64 = 5_630;

/// Names of the configured profiles of each bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeProfiles(BTreeMap<BridgeKind, BTreeSet<Box<str>>>);

impl BridgeProfiles {
    /// Adds a profile.
    pub fn add(&mut self, kind: BridgeKind, app: &str) {
        self.0.entry(kind).or_default().insert(app.into());
    }

    /// Returns true if the bridge has this profile.
    pub fn has(&self, kind: BridgeKind, app: &str) -> bool {
        self.0.get(&kind).is_some_and(|apps| apps.contains(app))
    }
}

/// Settings of the registration API. Must not be logged.
#[derive(Clone, Default)]
pub struct RegistrationSettings {
    /// `bridge.auth_keys`: the first makes the secrets of registered users, all verify; without keys the API is off.
    pub auth_keys: Vec<String>,
    pub profiles: BridgeProfiles,
}

/// State of the API on one shard.
pub(super) struct Registrations {
    pub(super) secrets: SecretKeys,
    pub(super) settings: Arc<RegistrationSettings>,
}

impl Registrations {
    pub(super) fn new(settings: &Arc<RegistrationSettings>) -> Registrations {
        Registrations { secrets: SecretKeys::new(&settings.auth_keys), settings: Arc::clone(settings) }
    }

    /// Returns true if the bridge has this profile.
    pub(super) fn has(&self, kind: BridgeKind, app: &str) -> bool {
        self.settings.profiles.has(kind, app)
    }
}

/// A call whose body is read.
pub(super) struct RegistrationDraft {
    pub(super) call: Draft,
    pub(super) uaid: Uaid,
    pub(super) kind: UserType,
    pub(super) app: Option<Box<str>>,
    /// The UAID as the path spells it.
    pub(super) spelled: Box<str>,
    pub(super) agent_family: u16,
    /// Address of the caller that the head names.
    pub(super) caller: Option<IpAddr>,
    pub(super) body: Vec<u8>,
}

#[derive(Clone, Copy)]
pub(super) enum Draft {
    Create,
    Update,
    Subscribe,
    List,
    Remove,
    Unsubscribe(Option<Chid>),
}

/// Facts of a call that its answer repeats.
pub(super) struct Registering {
    pub(super) call: Draft,
    pub(super) spelled: Box<str>,
    pub(super) agent_family: u16,
}

impl RegistrationDraft {
    /// Heap memory, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<RegistrationDraft>() + self.body.capacity() + self.spelled.len()
    }

    /// Returns true if the body has a meaning.
    pub(super) fn wants_body(&self) -> bool {
        matches!(self.call, Draft::Create | Draft::Update | Draft::Subscribe)
    }

    /// Keeps a piece of the body, of which `seen` bytes have come.
    pub(super) fn extend(&mut self, piece: &[u8], seen: u64) {
        if self.wants_body() && seen <= BODY_BYTES_MAX {
            self.body.extend_from_slice(piece);
        }
    }
}
