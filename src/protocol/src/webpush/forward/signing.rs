//! The key of a forward endpoint, and what it signs.

use machine::upstream::ForwardKey;
use p256::SecretKey;
use p256::elliptic_curve::sec1::ToSec1Point as _;
use serde_json::{Map, Value};

use super::super::identity::Identity;

/// Returns the `Authorization` of an outgoing call: the claims of the sender for another audience, signed with the key
/// of the token. `None` if the claims are no JSON object or the key is none.
pub fn authorization(claims: &[u8], audience: &str, key: &ForwardKey) -> Option<String> {
    let mut claims: Map<String, Value> = serde_json::from_slice(claims).ok()?;
    claims.insert("aud".to_owned(), audience.into());
    let identity = identity(key)?;
    Some(format!("vapid t={},k={}", identity.sign(&Value::Object(claims)), identity.public_key()))
}

fn identity(key: &ForwardKey) -> Option<Identity> {
    Identity::of(&key.0, &public_point(&SecretKey::from_slice(&key.0).ok()?))
}

/// The public key of a private one, as an uncompressed point.
pub(super) fn public_point(key: &SecretKey) -> Box<[u8]> {
    key.public_key().to_sec1_point(false).as_bytes().into()
}
