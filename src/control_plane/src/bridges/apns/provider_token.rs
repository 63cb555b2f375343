//! Provider tokens of APNs: ES256 JSON Web Tokens (RFC 7518 section 3.4) that name the key and the team.
//!
//! Apple refuses one that is older than an hour, and a new one within 20 minutes of the last.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::header::HeaderValue;
use protocol::wire::base64url;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;
use tokio::time::Instant;

/// The tokens of one key.
pub(in crate::bridges) struct ProviderTokens {
    key: EcdsaKeyPair,
    key_id: String,
    team_id: String,
    last: Mutex<Option<Token>>,
}

struct Token {
    header: HeaderValue,
    generation: u64,
    made: Instant,
    /// No other token is made before this time.
    not_before: Instant,
    /// Apple calls it expired.
    is_refused: bool,
}

impl ProviderTokens {
    /// Takes a P-256 key in PKCS #8 DER; `None` if it is no such key.
    pub fn new(pkcs8: &[u8], key_id: &str, team_id: &str) -> Option<ProviderTokens> {
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &SystemRandom::new()).ok()?;
        Some(ProviderTokens { key, key_id: key_id.to_owned(), team_id: team_id.to_owned(), last: Mutex::new(None) })
    }

    /// Returns true if Apple takes tokens of both for tokens of one key.
    pub fn is_of_key(&self, other: &ProviderTokens) -> bool {
        let name = |tokens: &ProviderTokens| (tokens.key_id.clone(), tokens.team_id.clone());
        name(self) == name(other) && self.key.public_key().as_ref() == other.key.public_key().as_ref()
    }

    /// The value of `authorization` and its generation. Makes a token if there is none, and another if the last is 50
    /// minutes old or refused. `None` if signing fails.
    pub fn current(&self, now: Instant, unix_seconds: u64) -> Option<(HeaderValue, u64)> {
        let mut last = self.last();
        if let Some(token) = &*last {
            let is_old = now.saturating_duration_since(token.made) >= RENEWED_AFTER;
            if !(is_old || token.is_refused) || now < token.not_before {
                return Some((token.header.clone(), token.generation));
            }
        }
        let generation = last.as_ref().map_or(1, |token| token.generation + 1);
        let header = self.sign(unix_seconds)?;
        let (made, not_before) = (now, now + INTERVAL_MIN);
        *last = Some(Token { header: header.clone(), generation, made, not_before, is_refused: false });
        Some((header, generation))
    }

    /// Notes that Apple calls the token of this generation expired. Returns true if there is or can be another one.
    pub fn renew(&self, generation: u64, now: Instant) -> bool {
        let mut last = self.last();
        let Some(token) = last.as_mut() else { return true };
        if token.generation != generation {
            return true;
        }
        if now < token.not_before {
            return false;
        }
        token.is_refused = true;
        true
    }

    /// Keeps the last token for 20 minutes from now: Apple says that tokens change too often.
    pub fn hold(&self, now: Instant) {
        if let Some(token) = self.last().as_mut() {
            token.not_before = token.not_before.max(now + INTERVAL_MIN);
        }
    }

    /// Returns the age of the last token.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.last().as_ref().map(|token| now.saturating_duration_since(token.made))
    }

    fn sign(&self, unix_seconds: u64) -> Option<HeaderValue> {
        let header = json!({"alg": "ES256", "kid": self.key_id}).to_string();
        let claims = json!({"iss": self.team_id, "iat": unix_seconds}).to_string();
        let mut text = b"bearer ".to_vec();
        let start = text.len();
        base64url::encode_into(header.as_bytes(), &mut text);
        text.push(b'.');
        base64url::encode_into(claims.as_bytes(), &mut text);
        let signature = self.key.sign(&SystemRandom::new(), &text[start..]).ok()?;
        text.push(b'.');
        base64url::encode_into(signature.as_ref(), &mut text);
        let mut value = HeaderValue::from_maybe_shared(text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    fn last(&self) -> MutexGuard<'_, Option<Token>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Age at which a token is replaced. Apple refuses one of 60 minutes.
const RENEWED_AFTER: Duration = Duration::from_secs(50 * 60);
/// Least time between two tokens.
const INTERVAL_MIN: Duration = Duration::from_secs(20 * 60);

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
    use serde_json::Value;

    use super::*;

    fn tokens() -> ProviderTokens {
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        ProviderTokens::new(pkcs8.as_ref(), "ABC123DEFG", "DEF123GHIJ").unwrap()
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_token_has_the_members_that_apple_names_and_is_not_shown() {
        let tokens = tokens();
        let (value, _) = tokens.current(Instant::now(), 1_700_000_000).unwrap();
        assert!(value.is_sensitive());
        let text = value.to_str().unwrap().strip_prefix("bearer ").unwrap();
        let parts: Vec<&str> = text.split('.').collect();
        let decoded = |at: usize| URL_SAFE_NO_PAD.decode(parts[at]).unwrap();
        let json = |at| serde_json::from_slice::<Value>(&decoded(at)).unwrap();
        assert_eq!(json(0), json!({"alg": "ES256", "kid": "ABC123DEFG"}));
        assert_eq!(json(1), json!({"iss": "DEF123GHIJ", "iat": 1_700_000_000}));
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, tokens.key.public_key().as_ref());
        let (signed, _) = text.rsplit_once('.').unwrap();
        key.verify(signed.as_bytes(), &decoded(2)).unwrap();
    }

    #[tokio::test]
    async fn a_token_lives_fifty_minutes() {
        let (tokens, start) = (tokens(), Instant::now());
        let generation = |minutes| tokens.current(start + MINUTE * minutes, 0).unwrap().1;
        assert_eq!([0, 20, 49].map(generation), [1; 3]);
        assert_eq!(tokens.age(start + MINUTE * 49), Some(MINUTE * 49));
        assert_eq!([50, 99].map(generation), [2; 2]);
        assert_eq!(generation(100), 3);
    }

    #[tokio::test]
    async fn a_refused_token_is_replaced_after_twenty_minutes_and_not_before() {
        let (tokens, start) = (tokens(), Instant::now());
        assert_eq!(tokens.current(start, 0).unwrap().1, 1);
        assert!(!tokens.renew(1, start + MINUTE * 19));
        assert_eq!(tokens.current(start + MINUTE * 19, 0).unwrap().1, 1);
        assert!(tokens.renew(1, start + MINUTE * 20));
        assert_eq!(tokens.current(start + MINUTE * 20, 0).unwrap().1, 2);
        // A call that was made with the first token.
        assert!(tokens.renew(1, start + MINUTE * 21));
        assert_eq!(tokens.current(start + MINUTE * 21, 0).unwrap().1, 2);
    }

    #[tokio::test]
    async fn a_token_is_held_for_twenty_minutes_when_apple_says_that_they_change_too_often() {
        let (tokens, start) = (tokens(), Instant::now());
        assert_eq!(tokens.current(start, 0).unwrap().1, 1);
        tokens.hold(start + MINUTE * 45);
        assert_eq!(tokens.current(start + MINUTE * 64, 0).unwrap().1, 1);
        assert!(!tokens.renew(1, start + MINUTE * 64));
        assert_eq!(tokens.current(start + MINUTE * 65, 0).unwrap().1, 2);
    }

    #[tokio::test]
    async fn tokens_are_of_one_key_by_name_and_point() {
        let (one, other) = (tokens(), tokens());
        assert!(one.is_of_key(&one) && !one.is_of_key(&other));
    }
}
