//! Request for a new forward endpoint: `{"url", "server_pubkey"?, "forward_privkey"?}`.

use machine::upstream::ForwardKey;
use p256::{PublicKey, SecretKey};
use serde::Deserialize;

use super::super::key::{POINT_BYTES, key_digest, parse_point};
use super::signing::public_point;
use super::target::Targets;
use super::token::ForwardToken;

/// Body of the request. Other members are ignored, and `null` is as good as nothing.
#[derive(Deserialize)]
struct Creation {
    url: String,
    server_pubkey: Option<String>,
    forward_privkey: Option<String>,
}

/// Rule that a request breaks. It never says what the request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreationError {
    /// The body is no JSON object of these members.
    Json,
    /// The URL is none that may be called.
    Url,
    /// `server_pubkey` is no point on P-256.
    PublicKey,
    /// `forward_privkey` is no P-256 key in PEM, stands alone, or is the key of the sender itself.
    PrivateKey,
}

/// Reads a request.
///
/// # Errors
/// The first rule that it breaks.
pub fn read_creation(body: &[u8], targets: &Targets) -> Result<ForwardToken, CreationError> {
    if body.len() > CREATION_BYTES_MAX || !body.trim_ascii_start().starts_with(b"{") {
        return Err(CreationError::Json);
    }
    let Creation { url, server_pubkey, forward_privkey } =
        serde_json::from_slice(body).map_err(|_| CreationError::Json)?;
    targets.read(&url).ok_or(CreationError::Url)?;
    let sender = match &server_pubkey {
        None => None,
        Some(text) => Some(read_point(text).ok_or(CreationError::PublicKey)?),
    };
    let key = match (&forward_privkey, &sender) {
        (None, _) => None,
        (Some(_), None) => return Err(CreationError::PrivateKey),
        (Some(pem), Some(sender)) => {
            let key = read_pem(pem).ok_or(CreationError::PrivateKey)?;
            // A token signed with the key of the sender would let this server speak as the sender everywhere.
            if *public_point(&key) == sender[..] {
                return Err(CreationError::PrivateKey);
            }
            Some(ForwardKey(key.to_bytes().into()))
        }
    };
    Ok(ForwardToken { url: url.into(), sender: sender.as_ref().map(key_digest), key })
}

fn read_point(text: &str) -> Option<[u8; POINT_BYTES]> {
    let point = parse_point(text.as_bytes())?;
    PublicKey::from_sec1_bytes(&point).ok().map(|_| point)
}

/// Reads a private key: PKCS#8 or SEC 1, without a password. Parameters that stand before it are skipped, as the
/// `openssl` command writes them.
fn read_pem(text: &str) -> Option<SecretKey> {
    let start =
        ["-----BEGIN PRIVATE KEY-----", "-----BEGIN EC PRIVATE KEY-----"].iter().find_map(|line| text.find(line))?;
    SecretKey::from_pem(text[start..].trim()).ok()
}

/// Bytes of a request. A URL of the greatest length and both keys take some 900.
pub const CREATION_BYTES_MAX: usize = 4_096;
