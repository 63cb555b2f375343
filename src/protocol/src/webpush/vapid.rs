//! VAPID: the right to send to an endpoint (RFC 8292 and draft 01; the rules are PROTOCOL.md 2.5).
//!
//! Verifying a signature costs more than everything else a POST does, and senders use one token for hours, so a
//! shard remembers what it verified. The key of that memory is a digest of the token's bytes *and* the public key:
//! the same token shown with another key is another entry, and verified anew.

use machine::ids::KeyDigest;
use machine::time::UnixSeconds;
use ring::digest::{Context, SHA256};
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny};
use serde_json::Value;

use super::errno::ApiError;
use super::generation_cache::GenerationCache;
use super::headers::parameter;
use super::key::{POINT_BYTES, key_digest, parse_point};
use crate::wire::number::Whole;
use crate::wire::text::trim;
use crate::wire::url::{HttpUrl, Origin};
use crate::wire::{base64url, list};

/// Longest time by which `exp` may lie ahead, in seconds.
pub const EXPIRY_AHEAD_MAX: u64 = 24 * 60 * 60;
/// Seconds by which the clock of a sender may differ from this one, at both ends of the time in which a token counts.
pub const CLOCK_LEEWAY: u64 = 60;

/// Verifies `Authorization` headers. One per shard.
pub struct Verifier {
    audience: Audience,
    known: GenerationCache<[u8; 32], CachedToken>,
    scratch: Vec<u8>,
    /// Tokens found in memory.
    pub hits: u64,
    /// Tokens whose signature was checked.
    pub misses: u64,
    /// Tokens that were verified and name a sender that cannot be written to.
    pub odd_subs: u64,
    /// Times that a token was accepted whose `aud` leaves out the port of the origin.
    pub audiences_without_port: u64,
}

#[derive(Clone, Copy)]
struct CachedToken {
    key: KeyDigest,
    exp: u64,
    lacks_port: bool,
}

/// The audience that tokens must name: the origin of the endpoint URLs that this server hands out.
struct Audience {
    origin: Origin,
    /// The origin as most senders spell it.
    text: Box<str>,
}

/// Form in which a token names the audience.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Named {
    Whole,
    /// As `scheme://host`, although the origin has a port. Several libraries write it so.
    WithoutPort,
}

impl Audience {
    /// Reads the claim `aud`: a text, or a list of texts, of which one names us (RFC 7519 section 4.1.3).
    fn named_in(&self, aud: &Value) -> Option<Named> {
        let Value::Array(list) = aud else { return self.named_by(aud.as_str()?) };
        let texts = list.iter().map(Value::as_str).collect::<Option<Vec<&str>>>()?;
        texts.into_iter().filter_map(|text| self.named_by(text)).min()
    }

    /// Compares `aud` as an origin (RFC 6454 section 4): case, the default port and a slash at its end are no
    /// difference. `None`: it names another one.
    fn named_by(&self, aud: &str) -> Option<Named> {
        if *aud == *self.text {
            return Some(Named::Whole);
        }
        let url = HttpUrl::parse(aud).filter(|url| url.target() == "/")?;
        let Origin { https, host, port } = url.origin();
        let ours = &self.origin;
        if *https != ours.https || host.strip_suffix('.').unwrap_or(host) != ours.host {
            return None;
        }
        if *port == ours.port {
            return Some(Named::Whole);
        }
        // Another port is another origin, also the default one if it is written.
        let last = aud.trim_end_matches('/').rsplit(':').next().unwrap_or_default();
        let has_port = last.bytes().all(|byte| byte.is_ascii_digit());
        (!has_port).then_some(Named::WithoutPort)
    }
}

/// A token and the public key it is said to be signed with, as sent.
struct PresentedToken<'a> {
    token: &'a [u8],
    key: Result<[u8; POINT_BYTES], ApiError>,
}

impl Verifier {
    /// Accepts tokens whose `aud` is `origin`; remembers at most `limit` of them.
    pub fn new(origin: &Origin, limit: usize) -> Verifier {
        Verifier {
            audience: Audience { origin: origin.clone(), text: origin.to_string().into() },
            known: GenerationCache::new(limit),
            scratch: Vec::new(),
            hits: 0,
            misses: 0,
            odd_subs: 0,
            audiences_without_port: 0,
        }
    }

    /// The digest of the key that signed, or the rule that is broken. `crypto_key` is read for draft 01 only.
    pub fn check(
        &mut self,
        now: UnixSeconds,
        authorization: &[u8],
        crypto_key: Option<&[u8]>,
    ) -> Result<KeyDigest, ApiError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = read(authorization, crypto_key, &mut scratch).and_then(|shown| self.verify(now, &shown));
        scratch.clear();
        self.scratch = scratch;
        result
    }

    fn verify(&mut self, now: UnixSeconds, shown: &PresentedToken<'_>) -> Result<KeyDigest, ApiError> {
        let key = shown.key?;
        let mut context = Context::new(&SHA256);
        context.update(shown.token);
        context.update(&key);
        let mut name = [0; 32];
        name.copy_from_slice(context.finish().as_ref());
        if let Some(known) = self.known.get(&name) {
            self.hits += 1;
            check_expiry(now, known.exp)?;
            self.audiences_without_port += u64::from(known.lacks_port);
            return Ok(known.key);
        }
        self.misses += 1;
        let verified = verify_token(now, shown.token, &key, &self.audience)?;
        self.odd_subs += u64::from(verified.odd_sub);
        let lacks_port = verified.named == Named::WithoutPort;
        self.audiences_without_port += u64::from(lacks_port);
        let known = CachedToken { key: key_digest(&key), exp: verified.exp, lacks_port };
        self.known.insert(name, known);
        Ok(known.key)
    }
}

/// Takes the header apart. Blanks inside are dropped, which `compact` is for.
fn read<'a>(
    authorization: &[u8],
    crypto_key: Option<&[u8]>,
    compact: &'a mut Vec<u8>,
) -> Result<PresentedToken<'a>, ApiError> {
    let value = trim(authorization);
    let blank = value.iter().position(|b| matches!(b, b' ' | b'\t')).ok_or(ApiError::VapidScheme)?;
    let (scheme, rest) = value.split_at(blank);
    compact.clear();
    rest.split(|b| matches!(b, b' ' | b'\t')).for_each(|part| compact.extend_from_slice(part));
    if scheme.eq_ignore_ascii_case(b"vapid") {
        return read_parameters(compact);
    }
    if !scheme.eq_ignore_ascii_case(b"webpush") && !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(ApiError::VapidScheme);
    }
    let header = crypto_key.ok_or(ApiError::VapidCryptoKey)?;
    let text = parameter(header, "p256ecdsa").ok().flatten().ok_or(ApiError::VapidCryptoKey)?;
    Ok(PresentedToken { token: compact, key: parse_point(text).ok_or(ApiError::VapidBadKey) })
}

fn read_parameters(parameters: &[u8]) -> Result<PresentedToken<'_>, ApiError> {
    let (mut token, mut key) = (None, None);
    for item in list::elements(parameters) {
        match item {
            [b't' | b'T', b'=', rest @ ..] if token.is_none() => token = Some(unquote(rest)),
            [b'k' | b'K', b'=', rest @ ..] if key.is_none() => key = Some(unquote(rest)),
            _ => {}
        }
    }
    let key = key.ok_or(ApiError::VapidNoKey)?;
    let token = token.ok_or(ApiError::VapidNoToken)?;
    Ok(PresentedToken { token, key: parse_point(key).ok_or(ApiError::VapidBadKey) })
}

fn unquote(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text)
}

/// The parts of a JOSE header that are read.
#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that must be understood (RFC 7515 section 4.1.11). None is, so its mere presence refuses the token.
    #[serde(default, deserialize_with = "present")]
    crit: bool,
}

#[derive(Deserialize)]
struct Claims {
    exp: Option<Value>,
    aud: Option<Value>,
    sub: Option<Value>,
}

/// Reads a field of any value, `null` included, as present.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// Reads a JSON object (RFC 7519 section 7.2). Serde alone would also read a struct from an array of its fields.
fn read_object<T: DeserializeOwned>(json: &[u8]) -> Result<T, ApiError> {
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(ApiError::VapidBadToken);
    }
    serde_json::from_slice(json).map_err(|_| ApiError::VapidBadToken)
}

/// Claims of a valid token.
struct Verified {
    exp: u64,
    named: Named,
    /// There is a `sub`, and it is neither a `mailto:` nor an `https:` URL (RFC 8292 section 2.1): counted, never
    /// refused.
    odd_sub: bool,
}

/// Checks signature and claims.
fn verify_token(
    now: UnixSeconds,
    token: &[u8],
    key: &[u8; POINT_BYTES],
    audience: &Audience,
) -> Result<Verified, ApiError> {
    let mut parts = token.split(|&b| b == b'.');
    let (Some(header), Some(claims), Some(signature), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(ApiError::VapidBadToken);
    };
    let signed = &token[..header.len() + 1 + claims.len()];
    let decode = |part| base64url::decode(part).ok_or(ApiError::VapidBadToken);
    let header: Header = read_object(&decode(header)?)?;
    if header.crit {
        return Err(ApiError::VapidBadToken);
    }
    if header.alg != "ES256" {
        return Err(ApiError::VapidAlgorithm);
    }
    let signature = decode(signature)?;
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key);
    public.verify(signed, &signature).map_err(|_| ApiError::VapidSignature)?;
    let claims: Claims = read_object(&decode(claims)?)?;
    // RFC 7519 section 2: a date is any JSON number.
    let exp = claims.exp.as_ref().and_then(Whole::of).ok_or(ApiError::VapidExpiry)?.to_u64();
    check_expiry(now, exp)?;
    if exp > now.0.saturating_add(EXPIRY_AHEAD_MAX + CLOCK_LEEWAY) {
        return Err(ApiError::VapidTooLong);
    }
    let named = claims.aud.as_ref().and_then(|aud| audience.named_in(aud)).ok_or(ApiError::VapidAudience)?;
    let reachable = |sub: &str| sub.starts_with("mailto:") || sub.starts_with("https://");
    let odd_sub = claims.sub.is_some_and(|sub| !sub.as_str().is_some_and(reachable));
    Ok(Verified { exp, named, odd_sub })
}

fn check_expiry(now: UnixSeconds, exp: u64) -> Result<(), ApiError> {
    if now.0 > exp.saturating_add(CLOCK_LEEWAY) { Err(ApiError::VapidExpired) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
