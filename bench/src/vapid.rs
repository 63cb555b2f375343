//! An app server's VAPID identity (RFC 8292): key pair and signed tokens.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};

/// One application server's key.
pub struct Identity {
    key: EcdsaKeyPair,
    random: SystemRandom,
}

impl Identity {
    /// A new P-256 key.
    pub fn generate() -> Identity {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        // Invariant: generating and reading back our own key fails only when the host has no randomness.
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("the host has randomness");
        // Invariant: as above.
        let key = EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).expect("a key just made is well formed");
        Identity { key, random }
    }

    /// The public key as `register` and the header's `k` spell it.
    pub fn public_key(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.key.public_key().as_ref())
    }

    /// A signed token for `audience` that holds for `valid` from now.
    pub fn token(&self, audience: &str, valid: Duration) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let claims = serde_json::json!({
            "aud": audience, "exp": (now + valid).as_secs(), "sub": "mailto:bench@example.com",
        });
        self.sign(&claims)
    }

    /// A signed token with these claims.
    pub fn sign(&self, claims: &serde_json::Value) -> String {
        let head = URL_SAFE_NO_PAD.encode(br#"{"typ":"JWT","alg":"ES256"}"#);
        let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        // Invariant: signing fails only when the host has no randomness.
        let signature = self.key.sign(&self.random, signed.as_bytes()).expect("the host has randomness");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    /// The `Authorization` header of draft 02 for `audience`, good for an hour.
    pub fn authorization(&self, audience: &str) -> String {
        format!("vapid t={},k={}", self.token(audience, Duration::from_secs(3600)), self.public_key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    #[test]
    fn tokens_verify_with_the_public_key() {
        let identity = Identity::generate();
        let token = identity.token("http://a", Duration::from_secs(60));
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let public = URL_SAFE_NO_PAD.decode(identity.public_key()).unwrap();
        assert_eq!((public.len(), public[0]), (65, 4));
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public);
        key.verify(signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    }
}
