//! Forward endpoints of one edge: their tokens, the targets that they may have, and who may create them
//! (docs/FORWARD.md).

use std::sync::Arc;

use super::node_rate::NodeRate;
use protocol::webpush::endpoint::BadKey;
use protocol::webpush::forward::{ForwardToken, ForwardTokens, Targets};
use protocol::webpush::key::BearerKeys;
use protocol::wire::url::BaseUrl;

/// Start of the paths of forward endpoints.
pub(super) const PATH: &str = "/fpush/v1/";
/// Maximum length of an endpoint that a user agent of UnifiedPush takes.
const ENDPOINT_BYTES_MAX: usize = 1_000;

/// Rules of forward endpoints that can change while a node runs. The token must not be logged.
#[derive(Clone, Default)]
pub struct ForwardRules {
    pub targets: Targets,
    /// `forward.create_token`: secret of those who may create endpoints; `None`: anybody may.
    pub create_token: Option<String>,
    /// `forward.create_rate`: endpoints created per second and node; 0: no limit.
    pub create_rate: u32,
}

/// Forward endpoints of one edge.
pub(super) struct Forwards {
    tokens: ForwardTokens,
    pub(super) targets: Targets,
    pub(super) creators: Option<BearerKeys>,
    pub(super) rate: Arc<NodeRate>,
    /// Name of this server, which no target may have.
    host: String,
    prefix: String,
}

impl Forwards {
    pub(super) fn new(
        base: &BaseUrl,
        crypto_keys: &[String],
        rules: &ForwardRules,
        rate: Arc<NodeRate>,
    ) -> Result<Forwards, BadKey> {
        let (tokens, prefix) = (ForwardTokens::new(crypto_keys)?, format!("{base}{PATH}"));
        let host = base.origin().host.clone();
        let mut forwards = Forwards { tokens, targets: Targets::default(), creators: None, rate, host, prefix };
        forwards.set_rules(rules);
        Ok(forwards)
    }

    pub(super) fn rekey(&mut self, crypto_keys: &[String]) -> Result<(), BadKey> {
        self.tokens = ForwardTokens::new(crypto_keys)?;
        Ok(())
    }

    pub(super) fn set_rules(&mut self, rules: &ForwardRules) {
        self.targets = rules.targets.clone();
        self.targets.own.push(self.host.clone());
        // Every shard sets the same.
        self.rate.set(rules.create_rate);
        self.creators = rules.create_token.as_ref().map(|token| BearerKeys::new(std::slice::from_ref(token)));
    }

    /// Returns the endpoint of a token; `None` if it is too long.
    pub(super) fn endpoint(&self, token: &ForwardToken) -> Option<Box<str>> {
        let endpoint = format!("{}{}", self.prefix, self.tokens.seal(token));
        (endpoint.len() <= ENDPOINT_BYTES_MAX).then(|| endpoint.into())
    }

    /// Opens a token whose target may be called now.
    pub(super) fn open(&self, text: &str) -> Option<ForwardToken> {
        self.tokens.open(text).filter(|token| self.targets.read(&token.url).is_some())
    }
}
