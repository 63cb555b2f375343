//! `acme.*`: certificates that the server orders by itself.

use std::path::PathBuf;

use protocol::wire::url::HttpUrl;

use super::error::ConfigError;
use super::parse::Raw;
use super::settings::{Challenge, Config};

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
