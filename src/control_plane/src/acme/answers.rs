//! Answers to the challenges of an authority.

use std::sync::Arc;

use tls::AlpnChallenges;

use crate::challenges::Challenges;

/// Places in which the listeners of this node find the answers to an authority.
#[derive(Clone, Default)]
pub struct Answers {
    /// TLS-ALPN-01.
    pub tls_alpn: AlpnChallenges,
    /// HTTP-01.
    pub http: Arc<Challenges>,
}
