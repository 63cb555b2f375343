//! `acme.*`: certificates that the server orders by itself.

use std::path::PathBuf;

use protocol::wire::url::HttpUrl;

use super::allowed::PEM;
use super::error::ConfigError;
use super::key::settings;
use super::parse;
use super::parse::Raw;
use super::settings::Config;

settings! {
    /// `acme.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Acme as ACME at [acme] {
        pub agree: bool = "acme.agree" ("acme-agree" "true"), "false",
            "true or false",
            "Agrees to the terms of the certificate authority: the server orders a certificate for each name of public.domain, and renews it.",
            parse::flag;
        pub email: Option<String> = "acme.email" ("acme-email" "ADDR"), "",
            "an e-mail address, or nothing",
            "Address that the certificate authority writes to; it gets it when the account is made.",
            email;
        /// URL of the directory of the authority; `None` only before the defaults are set.
        pub directory: Option<HttpUrl> = "acme.directory" ("acme-directory" "URL"),
            "https://acme-v02.api.letsencrypt.org/directory",
            "a URL that begins with https://",
            "Directory of the certificate authority (RFC 8555).",
            |raw| directory(raw).map(Some);
        /// PEM certificates that the directory is verified with; `None`: those that this host trusts.
        pub ca: Option<PathBuf> = "acme.ca", "",
            PEM,
            "PEM certificates of the authorities that acme.directory is verified with; by default those that this host trusts.",
            parse::path;
        pub challenge: Challenge = "acme.challenge", "tls-alpn-01",
            "tls-alpn-01 for a handshake on port 443, or http-01 for a request on port 80",
            "Proof of control over a name.",
            parse::word([("tls-alpn-01", Challenge::TlsAlpn01), ("http-01", Challenge::Http01)]);
        /// Profile of the certificates; `None`: the default of the authority.
        pub profile: Option<String> = "acme.profile", "",
            "up to 128 visible characters, or nothing",
            "Profile of the certificates, as the certificate authority names it; by default its default.",
            parse::name;
    }
}

/// `acme.challenge`: proof of control over a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Challenge {
    /// A handshake on port 443 (RFC 8737).
    #[default]
    TlsAlpn01,
    /// A request on port 80 (RFC 8555 section 8.3).
    Http01,
}

impl Config {
    /// Names to order certificates for; empty unless `acme.agree` is set.
    pub fn acme_names(&self) -> &[String] {
        if self.acme.agree { &self.public.domain } else { &[] }
    }

    /// File of the certificate for a name and of its key.
    pub fn acme_file(&self, name: &str) -> PathBuf {
        self.data_dir.join("acme").join(format!("{name}.pem"))
    }
}

/// Reads `acme.email`; `None` for a text that is no address.
pub(super) fn email(raw: &Raw) -> Option<Option<String>> {
    let text = raw.text()?;
    let is_plain = text.len() <= 254 && text.bytes().all(|b| b.is_ascii_graphic() && !b"?,".contains(&b));
    let has_both_parts = text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && host.contains('.'));
    (text.is_empty() || (is_plain && has_both_parts)).then(|| (!text.is_empty()).then(|| text.to_owned()))
}

/// Reads `acme.directory`; `None` for a text that is no https URL.
pub(super) fn directory(raw: &Raw) -> Option<HttpUrl> {
    HttpUrl::parse(raw.text()?).filter(|url| url.origin().https)
}

/// Checks that certificates can be ordered, if they are to come from there.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let conflict = |sentence| Err(ConfigError::Conflict(sentence));
    if !config.acme.agree {
        return Ok(());
    }
    if config.store.kind.is_shared() {
        return conflict(
            "acme.agree serves one node, and store.kind = scylla is for several: order certificates outside of murre, \
             and set tls.cert and tls.key on every node",
        );
    }
    if config.public.domain.is_empty() {
        return conflict("acme.agree needs public.domain: the names to order certificates for");
    }
    if config.public.domain.len() > NAMES_MAX {
        return conflict("acme.agree takes at most 100 names in public.domain");
    }
    if !config.tls.cert.is_empty() {
        return conflict("acme.agree and tls.cert exclude each other: remove tls.cert and tls.key, or acme.agree");
    }
    if config.acme.challenge == Challenge::Http01 && config.public.http_listen().is_empty() {
        return conflict("acme.challenge = http-01 needs public.http_listen: the address that the authority asks");
    }
    Ok(())
}

/// Names that certificates are ordered for. Each has its own order, and one takes some seconds.
const NAMES_MAX: usize = 100;
