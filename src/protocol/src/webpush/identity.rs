//! The VAPID identity of an app server (RFC 8292): key pair and signed tokens. The probe, the load generator and the
//! tests sign with it.

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};

use crate::wire::base64url;

/// The key of one app server.
pub struct Identity {
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl Identity {
    /// Makes a new P-256 key.
    ///
    /// # Panics
    /// The host has no randomness.
    pub fn generate() -> Identity {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        // Invariant: both calls fail only on a host without randomness.
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("the host has randomness");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a new key is well formed");
        Identity { pair, random }
    }

    /// The point of the public key, uncompressed.
    pub fn point(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// The public key as `register` and the parameter `k` spell it.
    pub fn public_key(&self) -> String {
        base64url::encode(self.point())
    }

    /// Signs a token with these claims.
    ///
    /// # Panics
    /// The host has no randomness.
    pub fn sign(&self, claims: &serde_json::Value) -> String {
        self.sign_text(r#"{"typ":"JWT","alg":"ES256"}"#, &claims.to_string())
    }

    /// Signs a token of this header and these claims, which need not be JSON.
    ///
    /// # Panics
    /// The host has no randomness.
    pub fn sign_text(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", base64url::encode(header.as_bytes()), base64url::encode(claims.as_bytes()));
        // Invariant: signing fails only on a host without randomness.
        let signature = self.pair.sign(&self.random, signed.as_bytes()).expect("the host has randomness");
        format!("{signed}.{}", base64url::encode(signature.as_ref()))
    }

    /// The `Authorization` header of RFC 8292 for `audience`, good until `exp` (seconds since the epoch).
    ///
    /// # Panics
    /// The host has no randomness.
    pub fn authorization(&self, audience: &str, exp: u64) -> String {
        format!("vapid t={},k={}", self.token(audience, exp), self.public_key())
    }

    /// A token for `audience`, good until `exp` (seconds since the epoch).
    ///
    /// # Panics
    /// The host has no randomness.
    pub fn token(&self, audience: &str, exp: u64) -> String {
        self.sign(&serde_json::json!({ "aud": audience, "exp": exp, "sub": "mailto:murre@localhost" }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authorization_says_for_whom_until_when_and_by_which_key() {
        let identity = Identity::generate();
        let header = identity.authorization("https://push.example:8082", 1_700_000_000);
        let (token, key) = header.strip_prefix("vapid t=").unwrap().split_once(",k=").unwrap();
        assert_eq!(key, base64url::encode(identity.point()));
        let claims = base64url::decode(token.split('.').nth(1).unwrap().as_bytes()).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["aud"], "https://push.example:8082");
        assert_eq!(claims["exp"], 1_700_000_000);
    }
}
