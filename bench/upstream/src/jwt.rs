//! Verification of JSON Web Tokens in compact form (RFC 7519), with the two algorithms that Google and Apple take.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde_json::Value;

/// Header and claims of a token whose signature is right.
pub struct Jwt {
    pub header: Value,
    pub claims: Value,
}

/// Verification key.
pub enum Key<'k> {
    /// RS256 (RFC 7518 section 3.3), DER of PKCS #1.
    Rsa(&'k [u8]),
    /// ES256 (RFC 7518 section 3.4), uncompressed point.
    P256(&'k [u8]),
}

impl Jwt {
    /// Reads and verifies a token.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn verify(text: &str, key: &Key<'_>) -> Result<Jwt, String> {
        let parts: Vec<&str> = text.split('.').collect();
        let [header, claims, signature] = parts[..] else { return Err("a token has three parts".into()) };
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| "a part is not base64url without padding");
        let object = |part: &str| -> Result<Value, String> {
            let value: Value = serde_json::from_slice(&decoded(part)?).map_err(|error| error.to_string())?;
            if value.is_object() { Ok(value) } else { Err("a part is no JSON object".into()) }
        };
        let jwt = Jwt { header: object(header)?, claims: object(claims)? };
        let (name, is_right) = match key {
            Key::Rsa(der) => {
                let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der);
                ("RS256", key.verify(signed(text), &decoded(signature)?))
            }
            Key::P256(point) => {
                let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
                ("ES256", key.verify(signed(text), &decoded(signature)?))
            }
        };
        if jwt.header["alg"] != name {
            return Err(format!("alg is {}, not {name}", jwt.header["alg"]));
        }
        is_right.map_err(|_| "the signature is wrong")?;
        Ok(jwt)
    }

    /// A claim that is a whole number.
    ///
    /// # Errors
    /// If it is missing or something else.
    pub fn number(&self, claim: &str) -> Result<i64, String> {
        self.claims[claim].as_i64().ok_or_else(|| format!("{claim} is no whole number"))
    }
}

fn signed(text: &str) -> &[u8] {
    text.rsplit_once('.').map_or(&[], |(signed, _)| signed.as_bytes())
}

/// Seconds since the epoch.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64)
}
