//! Rules about callers: the user agents that may connect and register (`access.*`), and the app servers that may send
//! (`endpoint.allowed_keys`). Users that exist keep their endpoints when a rule becomes stricter.

use machine::ids::KeyDigest;
use protocol::webpush::errno::ApiError;
use protocol::webpush::key::BearerKeys;
use protocol::wire::http1::Head;

/// Rules of one configuration. The tokens must not be logged.
#[derive(Clone, Default)]
pub struct AccessRules {
    pub register: Register,
    /// `endpoint.allowed_keys`: digests of the keys whose POSTs are taken. Empty: any sender may send.
    pub senders: Vec<KeyDigest>,
}

/// `access.register`: user agents that may get endpoints.
#[derive(Clone, Default)]
pub enum Register {
    /// All.
    #[default]
    Open,
    /// Those whose upgrade carries one of these tokens.
    Token(Vec<String>),
    /// All, for app servers with one of these keys.
    Vapid(Vec<KeyDigest>),
}

/// Path of an upgrade with a token: `/t/TOKEN/`.
pub(super) const TOKEN_PATH: &str = "/t/";

/// Rules as an edge applies them.
pub(super) struct Access {
    tokens: Option<BearerKeys>,
    registers: Option<Vec<KeyDigest>>,
    senders: Vec<KeyDigest>,
}

impl Access {
    pub(super) fn new(rules: &AccessRules) -> Access {
        let (tokens, registers) = match &rules.register {
            Register::Open => (None, None),
            Register::Token(tokens) => (Some(BearerKeys::new(tokens)), None),
            Register::Vapid(keys) => (None, Some(keys.clone())),
        };
        Access { tokens, registers, senders: rules.senders.clone() }
    }

    /// Checks the token of an upgrade, in its path or in `Authorization: Bearer`.
    pub(super) fn admits(&self, head: &Head<'_, '_>) -> bool {
        let Some(tokens) = &self.tokens else { return true };
        let in_path = head.path.strip_prefix(TOKEN_PATH).map(|token| token.strip_suffix('/').unwrap_or(token));
        in_path.is_some_and(|token| tokens.admit(token.as_bytes())) || tokens.allow(head.header("authorization"))
    }

    /// Returns true if a channel may be registered for the app server of this key.
    pub(super) fn may_register(&self, key: Option<KeyDigest>) -> bool {
        self.registers.as_ref().is_none_or(|keys| key.is_some_and(|key| keys.contains(&key)))
    }

    /// Returns the sentence of the page of `/` about registration.
    pub(super) fn sentence(&self) -> &'static str {
        match (&self.tokens, &self.registers) {
            (Some(_), _) => "Registration needs a token: append t/TOKEN/ to the URL.",
            (None, Some(_)) => "Registration is open for the sites of this server's operator only.",
            (None, None) => "Registration is open.",
        }
    }

    /// Refuses a sender that is not in `endpoint.allowed_keys`.
    pub(super) fn may_send(&self, key: Option<KeyDigest>) -> Result<(), ApiError> {
        let keys = &self.senders;
        let may = keys.is_empty() || key.is_some_and(|key| keys.contains(&key));
        may.then_some(()).ok_or(ApiError::SenderNotAllowed)
    }
}
