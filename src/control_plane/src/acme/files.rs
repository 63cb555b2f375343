//! Account and certificates in the data directory.
//!
//! ```text
//! acme/account-HOST.json  key and URL of the account with the authority at HOST 0600
//! acme/NAME.order     key and URL of the order for NAME, until its end          0600
//! acme/NAME.pem       key and chain of the certificate for NAME, in one file,   0600
//!                     so that they always fit; its first line is the directory of the authority
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use instant_acme::{AccountCredentials, CertificateIdentifier};
use protocol::wire::url::HttpUrl;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use tls::Certificate;

use crate::validity::Validity;
use host::files::{make_dir, write_whole};

/// The directory `acme`.
pub(super) struct Files {
    dir: PathBuf,
    /// URL of the directory of the authority.
    directory: String,
}

/// An order without its certificate.
#[derive(Serialize, Deserialize)]
pub(super) struct Pending {
    /// URL of the directory of the authority.
    directory: String,
    profile: Option<String>,
    pub url: String,
    /// PEM.
    pub key: String,
}

/// A certificate that was issued.
#[derive(Clone)]
pub(super) struct Issued {
    pub validity: Validity,
    /// Identity for renewal information (RFC 9773 section 4.1); `None` if it lacks what makes one.
    pub id: Option<CertificateIdentifier<'static>>,
}

impl Files {
    pub(super) fn new(dir: PathBuf, directory: String) -> Files {
        Files { dir, directory }
    }

    /// Returns the account with this authority, if there is one.
    ///
    /// # Errors
    /// If its file cannot be read, is no account, or is that of another directory at the same host: a new one in its
    /// place would lose the old one for ever.
    pub(super) fn account(&self) -> io::Result<Option<AccountCredentials>> {
        let text = match fs::read_to_string(self.account_path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let of: serde_json::Value = serde_json::from_str(&text)?;
        if of["directory"] != self.directory.as_str() {
            let path = self.account_path();
            let other = format!("{} is that of {}; move it away", path.display(), of["directory"]);
            return Err(io::Error::other(other));
        }
        Ok(Some(serde_json::from_str(&text)?))
    }

    pub(super) fn set_account(&self, account: &AccountCredentials) -> io::Result<()> {
        make_dir(&self.dir)?;
        write_whole(&self.account_path(), &serde_json::to_string(account)?)
    }

    /// Forgets an account that the authority does not know any more.
    pub(super) fn remove_account(&self) {
        let _ = fs::remove_file(self.account_path());
    }

    /// Returns the order for `name` with this profile that has no certificate yet.
    pub(super) fn pending(&self, name: &str, profile: Option<&str>) -> Option<Pending> {
        let pending: Pending = serde_json::from_str(&fs::read_to_string(self.pending_path(name)).ok()?).ok()?;
        // A process may end between the certificate and the end of its order.
        if fs::read_to_string(self.path(name)).is_ok_and(|issued| issued.contains(&pending.key)) {
            self.remove_pending(name);
            return None;
        }
        (pending.directory == self.directory && pending.profile.as_deref() == profile).then_some(pending)
    }

    /// Keeps an order with the key of its certificate, in PEM.
    pub(super) fn set_pending(&self, name: &str, profile: Option<&str>, url: &str, key: &str) -> io::Result<()> {
        make_dir(&self.dir)?;
        let (directory, profile) = (self.directory.clone(), profile.map(str::to_owned));
        let pending = Pending { directory, profile, url: url.to_owned(), key: key.to_owned() };
        write_whole(&self.pending_path(name), &serde_json::to_string(&pending)?)
    }

    /// Forgets an order that has ended.
    pub(super) fn remove_pending(&self, name: &str) {
        let _ = fs::remove_file(self.pending_path(name));
    }

    /// Returns the certificate for `name`, if this authority issued one.
    pub(super) fn issued(&self, name: &str) -> Option<Issued> {
        let path = self.path(name);
        let text = fs::read_to_string(&path).ok()?;
        (text.lines().next() == Some(&*self.first_line())).then_some(())?;
        read(&path, name).ok()
    }

    /// Keeps a certificate with its key, both in PEM, in the place of the former one.
    ///
    /// # Errors
    /// One sentence, if it is none for `name`, the key does not fit, or it is over and the former one is not; then the
    /// former one stays.
    pub(super) fn set_issued(&self, name: &str, key: &str, chain: &str) -> Result<Issued, String> {
        let failed = |error: io::Error| format!("cannot write {}: {error}", self.dir.display());
        let text = format!("{}\n{key}{chain}", self.first_line());
        make_dir(&self.dir).map_err(failed)?;
        let draft = self.dir.join(format!("{name}.new"));
        write_whole(&draft, &text).map_err(failed)?;
        let issued = self.judge(&draft, name);
        let _ = fs::remove_file(&draft);
        // A certificate of no use would come again with its order. One that could not be written is fetched again.
        if issued.is_ok() {
            write_whole(&self.path(name), &text).map_err(failed)?;
        }
        self.remove_pending(name);
        issued
    }

    /// Reads a new certificate for `name` and judges it beside the former one.
    fn judge(&self, draft: &Path, name: &str) -> Result<Issued, String> {
        let issued = read(draft, name)?;
        let is_over = |issued: &Issued| issued.validity.is_over();
        if is_over(&issued) && self.issued(name).is_some_and(|former| !is_over(&former)) {
            let last_day = issued.validity.last_day();
            return Err(format!("the new certificate ended on {last_day}; check the clock of this host"));
        }
        Ok(issued)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pem"))
    }

    fn pending_path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.order"))
    }

    /// One for each host of authorities, so that another `acme.directory` leaves the former account alone.
    fn account_path(&self) -> PathBuf {
        let host = HttpUrl::parse(&self.directory).map_or_else(String::new, |url| url.origin().authority());
        self.dir.join(format!("account-{}.json", host.replace(':', "_")))
    }

    fn first_line(&self) -> String {
        format!("# {}", self.directory)
    }
}

fn read(path: &Path, name: &str) -> Result<Issued, String> {
    let certificate =
        Certificate::read(("certificate", path), ("key", path)).map_err(|unusable| unusable.to_string())?;
    if !certificate.names(name) {
        return Err(format!("the certificate is not for {name}"));
    }
    let validity = Validity::of(certificate.der()).ok_or("the certificate has no last day")?;
    let der = CertificateDer::from(certificate.der());
    let id = CertificateIdentifier::try_from(&der).ok().map(CertificateIdentifier::into_owned);
    Ok(Issued { validity, id })
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    pub(in crate::acme) fn made(name: &str, last_year: i32) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(last_year, 1, 1);
        let made = params.self_signed(&key).unwrap();
        [key.serialize_pem(), made.pem()]
    }

    #[test]
    fn a_certificate_is_kept_for_its_owner_and_belongs_to_its_authority() {
        let dir = tempfile::tempdir().unwrap();
        let acme = dir.path().join("acme");
        let files = Files::new(acme.clone(), "https://a/dir".to_owned());
        assert!(files.issued("n.example").is_none());
        let [key, chain] = made("n.example", 2999);
        let issued = files.set_issued("n.example", &key, &chain).unwrap();
        assert_eq!(files.issued("n.example").unwrap().validity, issued.validity);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&acme), mode(&files.path("n.example"))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&acme).unwrap().count(), 1, "no draft is left");
        let other = Files::new(acme, "https://b/dir".to_owned());
        assert!(other.issued("n.example").is_none(), "another authority must issue its own");
    }

    #[test]
    fn a_certificate_of_no_use_does_not_replace_the_former_one() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), "https://a/dir".to_owned());
        let ([key, chain], [other_key, _]) = (made("n.example", 2999), made("n.example", 2999));
        files.set_issued("n.example", &key, &chain).unwrap();
        let before = fs::read(files.path("n.example")).unwrap();
        for (name, key, chain) in
            [("m.example", &key, &chain), ("n.example", &other_key, &chain), ("n.example", &key, &String::new())]
        {
            assert!(files.set_issued(name, key, chain).is_err());
        }
        assert_eq!(fs::read(files.path("n.example")).unwrap(), before);
        assert!(files.issued("m.example").is_none());
    }

    #[test]
    fn a_certificate_that_is_over_replaces_only_one_that_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), "https://a/dir".to_owned());
        let set = |last_year| {
            let [key, chain] = made("n.example", last_year);
            files.set_issued("n.example", &key, &chain)
        };
        for (last_year, is_taken) in [(2020, true), (2021, true), (2999, true), (2022, false), (2998, true)] {
            assert_eq!(set(last_year).is_ok(), is_taken, "{last_year}");
        }
        assert!(!files.issued("n.example").unwrap().validity.is_over());
    }

    #[test]
    fn an_order_is_kept_for_its_owner_until_its_certificate_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), "https://a/dir".to_owned());
        let other = Files::new(dir.path().to_owned(), "https://b/dir".to_owned());
        let begin = || files.set_pending("n.example", None, "https://a/order/1", "a key").unwrap();
        begin();
        let mode = fs::metadata(dir.path().join("n.example.order")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let pending = files.pending("n.example", None).unwrap();
        assert_eq!((&*pending.url, &*pending.key), ("https://a/order/1", "a key"));
        assert!(files.pending("n.example", Some("short")).is_none() && files.pending("m.example", None).is_none());
        assert!(other.pending("n.example", None).is_none(), "of another authority");
        // With the certificate, or with one of no use, the order is over.
        let [key, chain] = made("n.example", 2999);
        for key in [&*key, "no key"] {
            begin();
            let _ = files.set_issued("n.example", key, &chain);
            assert!(files.pending("n.example", None).is_none());
        }
    }

    #[test]
    fn an_account_of_another_authority_is_none_and_a_damaged_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), "https://a/dir".to_owned());
        assert!(files.account().unwrap().is_none());
        fs::write(files.account_path(), "{\"directory\":\"https://a/other\"}").unwrap();
        let error = files.account().err().expect("it is not overwritten");
        assert!(error.to_string().contains("https://a/other"), "{error}");
        let other = Files::new(dir.path().to_owned(), "https://b:14000/dir".to_owned());
        assert_eq!(other.account_path(), dir.path().join("account-b_14000.json"));
        assert!(other.account().unwrap().is_none());
        fs::write(files.account_path(), "{\"directory\":\"https://a/dir\"}").unwrap();
        assert!(files.account().is_err());
        files.remove_account();
        assert!(files.account().unwrap().is_none());
    }
}
