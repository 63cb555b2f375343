//! Parsers of values. Each returns `None` for a text that it does not accept; the table of keys has the accepted ones.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use machine::ids::KeyDigest;
use machine::token_bucket::RATE_MAX;
use protocol::webpush::key::PointChecker;
use protocol::wire::url::{BaseUrl, HttpUrl};
use runtime::strangers::Prefix;
use store::shared::options::Password;
use zeroize::Zeroize as _;

use super::allowed::ACCESS_LIST_MAX;

/// A value before it is typed: one text, or the items of a TOML list.
#[derive(Clone, PartialEq, Eq)]
pub enum Raw {
    /// From anywhere. A list is written `a,b` or `[a,b]`.
    One(String),
    /// A TOML list of texts or numbers.
    Many(Vec<String>),
}

impl Raw {
    /// One text.
    pub fn one(text: &str) -> Raw {
        Raw::One(text.to_owned())
    }

    /// The text of a key that takes one; `None` for a list.
    pub fn text(&self) -> Option<&str> {
        match self {
            Raw::One(text) => Some(text.trim()),
            Raw::Many(_) => None,
        }
    }

    /// The items of a key that takes a list; blank items are left out.
    pub fn items(&self) -> Vec<&str> {
        let items: Vec<&str> = match self {
            Raw::One(text) => {
                let text = text.trim();
                let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
                bare.split(',').collect()
            }
            Raw::Many(items) => items.iter().map(String::as_str).collect(),
        };
        let unquoted = items.into_iter().map(|item| item.trim().trim_matches(['"', '\'']).trim());
        unquoted.filter(|item| !item.is_empty()).collect()
    }

    /// As an operator would write it.
    pub fn spelled(&self) -> String {
        match self {
            Raw::One(text) => text.clone(),
            Raw::Many(items) => items.join(","),
        }
    }
}

/// The value of every key as its last source had it, in the order of the table of keys. Never shown: some are secret.
#[derive(Clone, Default)]
pub struct Written(pub(super) Vec<Raw>);

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written(..)")
    }
}

/// A text that is never shown: a key or a token. Overwritten when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Secret {
    /// Takes a text into custody.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text. Never log it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Seconds (`5`, `2.5`) or with a unit (`250ms`, `5s`, `10m`, `1h`, `1d`), at most 365 days.
pub fn duration(raw: &Raw) -> Option<Duration> {
    let text = raw.text()?;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    let seconds = digits.trim_end().parse::<f64>().ok()? * scale;
    let whole_year = 365.0 * 86_400.0;
    if (0.0..=whole_year).contains(&seconds) { Some(Duration::from_secs_f64(seconds)) } else { None }
}

/// As [`duration`], and longer than nothing (at least one millisecond).
pub fn positive_duration(raw: &Raw) -> Option<Duration> {
    duration(raw).filter(|span| *span >= Duration::from_millis(1))
}

/// Reads a time between two bounds in seconds, both included.
pub fn seconds(from: f64, to: f64) -> impl Fn(&Raw) -> Option<Duration> {
    move |raw| duration(raw).filter(|span| (from..=to).contains(&span.as_secs_f64()))
}

/// Time for a call that a POST waits for: many senders and reverse proxies give a POST 30 s, of which the way needs
/// some.
pub fn call_time(raw: &Raw) -> Option<Duration> {
    seconds(0.001, 25.0)(raw)
}

/// A number of bytes, with an optional unit (`KiB`, `MiB`, `GiB`, `TiB`; `K`, `M`, `G`, `T` mean the same).
pub fn bytes(raw: &Raw) -> Option<u64> {
    let text = raw.text()?;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    whole(digits)?.checked_mul(1 << shift)
}

/// Reads a number of bytes between two bounds, both included.
pub fn size<N: TryFrom<u64>>(from: u64, to: u64) -> impl Fn(&Raw) -> Option<N> {
    move |raw| bytes(raw).filter(|n| (from..=to).contains(n)).and_then(|n| n.try_into().ok())
}

/// Reads a whole number between two bounds, both included.
pub fn number<N: TryFrom<u64>>(from: u64, to: u64) -> impl Fn(&Raw) -> Option<N> {
    move |raw| whole(raw.text()?).filter(|n| (from..=to).contains(n)).and_then(|n| n.try_into().ok())
}

/// A rate of [`machine::token_bucket`]; 0 for no limit.
pub fn rate(raw: &Raw) -> Option<u32> {
    number(0, u64::from(RATE_MAX))(raw)
}

/// Reads a value by a parser. It tells the compiler what a closure takes.
pub(super) fn by<T>(parse: impl Fn(&Raw) -> Option<T>, raw: &Raw) -> Option<T> {
    parse(raw)
}

/// Reads nothing as `None`, and anything else by `parse`.
pub fn optional<T>(parse: impl Fn(&Raw) -> Option<T>) -> impl Fn(&Raw) -> Option<Option<T>> {
    move |raw| if raw.text()?.is_empty() { Some(None) } else { parse(raw).map(Some) }
}

/// Digits with optional `_` between them.
fn whole(text: &str) -> Option<u64> {
    let digits: String = text.trim().chars().filter(|c| *c != '_').collect();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Reads one of these words as its meaning.
pub fn word<T: Copy, const N: usize>(words: [(&'static str, T); N]) -> impl Fn(&Raw) -> Option<T> {
    move |raw| {
        let text = raw.text()?;
        words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning)
    }
}

/// `true` or `false`.
pub fn flag(raw: &Raw) -> Option<bool> {
    word([("true", true), ("false", false)])(raw)
}

/// Socket addresses, IPv6 in brackets. An empty list is a value.
pub fn addresses(raw: &Raw) -> Option<Vec<SocketAddr>> {
    // A single IPv6 address starts with a bracket too; it is not a bracketed list.
    if let Some(one) = raw.text().and_then(|text| text.parse().ok()) {
        return Some(vec![one]);
    }
    // `[::1]:80,[::2]:81` neither: a list in brackets ends with one, an address ends with its port.
    raw.items().into_iter().map(|item| item.parse().ok()).collect()
}

/// Socket addresses, `none` for no address, or nothing for the default that `public.domain` decides on.
pub fn addresses_by_domain(raw: &Raw) -> Option<Option<Vec<SocketAddr>>> {
    match raw.items()[..] {
        [] => Some(None),
        ["none"] => Some(Some(Vec::new())),
        _ => addresses(raw).map(Some),
    }
}

/// At most 256 addresses and prefixes of addresses. An empty list is a value.
pub fn prefixes(raw: &Raw) -> Option<Vec<Prefix>> {
    let prefixes: Option<Vec<_>> = raw.items().into_iter().map(|item| item.parse().ok()).collect();
    prefixes.filter(|prefixes| prefixes.len() <= ACCESS_LIST_MAX)
}

/// CPU numbers as `2-15,20`; `all` or nothing is every CPU there is (an empty list). No number twice.
pub fn cores(raw: &Raw) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for item in raw.items() {
        if item == "all" {
            continue;
        }
        let (from, to) = item.split_once('-').unwrap_or((item, item));
        let (from, to) = (whole(from)?, whole(to)?);
        if from > to || to >= CORE_NUMBERS {
            return None;
        }
        for core in from..=to {
            if cores.contains(&(core as u32)) {
                return None;
            }
            cores.push(core as u32);
        }
    }
    Some(cores)
}

/// Linux supports at most 8,192 CPUs (`CONFIG_NR_CPUS`).
const CORE_NUMBERS: u64 = 8_192;

/// An absolute `http` or `https` URL without query or fragment; nothing is `None`.
pub fn url(raw: &Raw) -> Option<Option<BaseUrl>> {
    optional(|raw| BaseUrl::parse(raw.text()?))(raw)
}

/// A URL that murre calls; nothing is `None`.
pub fn call_url(raw: &Raw) -> Option<Option<HttpUrl>> {
    optional(|raw| HttpUrl::parse(raw.text()?))(raw)
}

/// Contact points of a database as `host:port`, IPv6 in brackets. An empty list is a value.
pub fn hosts(raw: &Raw) -> Option<Vec<String>> {
    // As with addresses: `[::1]:9042` begins with a bracket and is not a list.
    if let Some(one) = raw.text().filter(|text| text.parse::<SocketAddr>().is_ok()) {
        return Some(vec![one.to_owned()]);
    }
    raw.items().into_iter().map(|item| host(item).then(|| item.to_owned())).collect()
}

/// Host names without ports, in lower case. An empty list is a value.
pub fn host_names(raw: &Raw) -> Option<Vec<String>> {
    raw.items().into_iter().map(|item| is_host_name(item).then(|| item.to_ascii_lowercase())).collect()
}

/// Names of a host in the DNS (RFC 1035 section 2.3.4), in lower case, each once. An empty list is a value.
pub fn domains(raw: &Raw) -> Option<Vec<String>> {
    let is_domain = |name: &String| {
        let labels = name.split('.').all(|label| (1..=63).contains(&label.len()));
        labels && name.len() <= DOMAIN_BYTES_MAX && HttpUrl::parse(&format!("https://{name}")).is_some()
    };
    let is_once = |names: &[String]| (1..names.len()).all(|at| !names[..at].contains(&names[at]));
    host_names(raw).filter(|names| names.iter().all(is_domain) && is_once(names))
}

/// Bytes of a name that is also the name of a file, which has 255 bytes with its suffix.
const DOMAIN_BYTES_MAX: usize = 250;

/// Letters, digits, dots, dashes and underscores.
fn is_host_name(text: &str) -> bool {
    let letters = |c: u8| c.is_ascii_alphanumeric() || b".-_".contains(&c);
    (1..=253).contains(&text.len()) && text.bytes().all(letters)
}

fn host(text: &str) -> bool {
    if text.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let Some((name, port)) = text.rsplit_once(':') else { return false };
    is_host_name(name) && whole(port).is_some_and(|port| (1..=65_535).contains(&port))
}

/// A keyspace that needs no quotes: at most 48 characters, as both databases allow.
pub fn keyspace(raw: &Raw) -> Option<String> {
    let text = raw.text()?;
    let accepted = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.len() <= 48
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    accepted.then(|| text.to_owned())
}

/// A name from another system: up to 128 visible characters; nothing is `None`.
pub fn name(raw: &Raw) -> Option<Option<String>> {
    let text = raw.text()?;
    let accepted = text.len() <= 128 && text.bytes().all(|b| b.is_ascii_graphic());
    accepted.then(|| (!text.is_empty()).then(|| text.to_owned()))
}

/// A password of another system: up to 1,024 characters; nothing is `None`.
pub fn password(raw: &Raw) -> Option<Option<Password>> {
    let text = raw.text()?;
    let accepted = text.len() <= 1_024 && !text.chars().any(char::is_control);
    accepted.then(|| (!text.is_empty()).then(|| Password::new(text)))
}

/// A file; nothing is `None`.
pub fn path(raw: &Raw) -> Option<Option<PathBuf>> {
    let text = raw.text()?;
    Some((!text.is_empty()).then(|| PathBuf::from(text)))
}

/// Files. An empty list is a value.
pub fn paths(raw: &Raw) -> Option<Vec<PathBuf>> {
    Some(raw.items().into_iter().map(PathBuf::from).collect())
}

/// A bearer token of another system: up to 4,096 visible characters, so that a header can carry it; nothing is `None`.
pub fn token(raw: &Raw) -> Option<Option<Secret>> {
    let text = raw.text()?;
    let accepted = text.len() <= 4_096 && text.bytes().all(|b| b.is_ascii_graphic());
    accepted.then(|| (!text.is_empty()).then(|| Secret::new(text)))
}

/// Fernet keys: 32 bytes in base64, either alphabet, padded or not.
pub fn fernet_keys(raw: &Raw) -> Option<Vec<Secret>> {
    raw.items().into_iter().map(|item| fernet_key(item).map(Secret)).collect()
}

/// One Fernet key, respelled in the URL alphabet with padding, as libraries need it.
fn fernet_key(text: &str) -> Option<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
    let alphabet = text.trim_end_matches('=').replace('+', "-").replace('/', "_");
    let bytes = URL_SAFE_NO_PAD.decode(alphabet).ok()?;
    (bytes.len() == 32).then(|| URL_SAFE.encode(bytes))
}

/// Bearer keys: 16 to 256 visible characters each, so that guessing is hopeless and a header can carry them.
pub fn bearer_keys(raw: &Raw) -> Option<Vec<Secret>> {
    secrets(raw, |item| (16..=256).contains(&item.len()))
}

/// Tokens of user agents: 16 to 128 characters that every client writes into a path as they are (RFC 3986 section 2.3,
/// and the sign of base64).
pub fn access_tokens(raw: &Raw) -> Option<Vec<Secret>> {
    let in_path = |item: &str| item.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~=".contains(&b));
    let tokens = secrets(raw, |item| (16..=128).contains(&item.len()) && in_path(item));
    tokens.filter(|tokens| tokens.len() <= ACCESS_LIST_MAX)
}

/// Public keys of app servers.
pub fn vapid_keys(raw: &Raw) -> Option<Vec<KeyDigest>> {
    let mut points = PointChecker::new(ACCESS_LIST_MAX);
    let keys: Option<Vec<_>> = raw.items().into_iter().map(|item| points.check(item.as_bytes())).collect();
    keys.filter(|keys| keys.len() <= ACCESS_LIST_MAX)
}

fn secrets(raw: &Raw, fits: impl Fn(&str) -> bool) -> Option<Vec<Secret>> {
    let accepted = |item: &str| fits(item) && item.bytes().all(|b| b.is_ascii_graphic());
    raw.items().into_iter().map(|item| accepted(item).then(|| Secret::new(item))).collect()
}
