//! Judges the certificates of the TLS listeners.

use tls::{Certificate, MARKED_AS_AUTHORITY};

use super::chain::{self, Known};
use config::{Config, Pair, UnknownName};
use control_plane::{Validity, is_of_authority};
use host::{Finding, Verdict};
use server::ordered;

/// Returns one finding for each certificate of this configuration.
pub fn examine(config: &Config) -> Vec<Finding> {
    let ordered = match ordered(config) {
        Ok(ordered) => ordered,
        Err(why) => return vec![unreadable(config, why.to_string())],
    };
    let (mut public, node) = (config.public_pairs(), config.node_pairs());
    public.extend(ordered.iter().map(|file| (file.as_path(), file.as_path())));
    let only_node = node.iter().filter(|pair| !public.contains(pair));
    let needs_names = config.tls.unknown_name == UnknownName::Refuse;
    if public.is_empty() && node.is_empty() {
        return Vec::new();
    }
    let known = Known::of_this_host();
    let of_public = public.iter().map(|pair| judge(pair, needs_names, &known));
    // The server compares the certificate for other nodes with `node.url`, which may have an IP address.
    of_public.chain(only_node.map(|pair| judge(pair, false, &known))).collect()
}

fn unreadable(config: &Config, why: String) -> Finding {
    let dir = config.data_dir.join("acme");
    Finding {
        what: "certificate",
        found: "unknown".to_owned(),
        wanted: format!("the certificates of acme.agree in {}", dir.display()),
        verdict: Verdict::Fail,
        why,
        mend: vec![format!("ls -ld {}   # as the user of murre", dir.display())],
    }
}

/// Judges one certificate. `needs_names`: clients that ask for a name get only a certificate with that name.
fn judge((cert, key): &Pair<'_>, needs_names: bool, known: &Known) -> Finding {
    let (cert_file, key_file) = (cert.display(), key.display());
    let finding = |found, verdict, why, mend| Finding {
        what: "certificate",
        found,
        wanted: format!("{cert_file} with the key {key_file}"),
        verdict,
        why,
        mend,
    };
    let look = format!("openssl x509 -noout -text -in {cert_file}");
    match Certificate::read(("certificate", *cert), ("key", *key)) {
        Err(why) => finding("of no use".to_owned(), Verdict::Fail, why.to_string(), vec![look]),
        Ok(certificate) => {
            let names = certificate.host_names();
            let has_names = !names.is_empty();
            let names = if has_names { names.join(",") } else { "no host names".to_owned() };
            let validity = Validity::of(certificate.der());
            let last_day = validity.map_or_else(|| "unknown".to_owned(), |validity| validity.last_day());
            let chain = chain::judge(certificate.chain(), known);
            let issuer = chain.as_ref().map_or("unknown", |chain| &chain.issuer);
            let fault = chain.as_ref().and_then(|chain| chain.fault.clone());
            let ending = if fault.is_some() { "the chain is not complete" } else { "the chain is complete" };
            let found = format!("{names}; issuer {issuer}; last day {last_day}; the key fits; {ending}");
            if validity.is_some_and(|validity| validity.is_over()) {
                let why = "the certificate expired: clients refuse it".to_owned();
                return finding(found, Verdict::Warn, why, vec![look, "systemctl reload murre   # after".to_owned()]);
            }
            if is_of_authority(certificate.der()) {
                let why = format!("clients such as other nodes and `murre probe` refuse it: {MARKED_AS_AUTHORITY}");
                return finding(found, Verdict::Warn, why, vec![look]);
            }
            if needs_names && !has_names {
                let why = "the certificate has no DNS name: clients that ask for a name do not get it".to_owned();
                let default = "tls.unknown_name = \"default\"   # or a certificate with its names".to_owned();
                return finding(found, Verdict::Warn, why, vec![look, default]);
            }
            if let Some(why) = fault {
                let append = format!("cat intermediate.pem >> {cert_file}   # the certificates that lead to a root");
                return finding(found, Verdict::Warn, why, vec![append]);
            }
            finding(found, Verdict::Good, String::new(), Vec::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;
    use fixtures::TestCertificates;

    #[test]
    fn a_directory_of_certificates_that_cannot_be_read_is_a_finding() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let data = format!("data_dir={}", file.path().display());
        let sets = ["acme.agree=true", "public.domain=a.example", "websocket.tls.listen=127.0.0.1:1", &data];
        let sets = sets.into_iter().chain(["public.listen=none"]).map(str::to_owned).collect();
        let found = examine(&Config::load(&Sources { sets, ..Sources::default() }).unwrap());
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Fail));
        assert!(found[0].why.starts_with("cannot look for the certificate "), "{found:?}");
    }

    #[test]
    fn a_certificate_that_is_marked_as_an_authority_is_told() {
        let papers = TestCertificates::self_signed("a.example", true);
        let found = judge(&(&papers.cert(), &papers.key()), true, &Known::of_this_host());
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.why.contains("CA:TRUE") && found.why.contains("basicConstraints=critical,CA:FALSE"), "{found:?}");
        let papers = TestCertificates::self_signed("a.example", false);
        assert_eq!(judge(&(&papers.cert(), &papers.key()), true, &Known::of_this_host()).verdict, Verdict::Good);
    }

    #[test]
    fn certificates_are_judged_with_their_names_and_keys() {
        let (papers, other) = (TestCertificates::of(&["a.example", "b.example"]), TestCertificates::of(&["127.0.0.1"]));
        let judged = |sets: &[String]| {
            let config = Config::load(&Sources { sets: sets.to_vec(), ..Sources::default() }).unwrap();
            examine(&config)
        };
        let shared = |cert: &TestCertificates, key: &TestCertificates| {
            let files = [("tls.cert", cert.cert()), ("tls.key", key.key())];
            let [cert, key] = files.map(|(setting, path)| format!("{setting}={}", path.display()));
            vec!["websocket.tls.listen=127.0.0.1:1".to_owned(), "node.tls.listen=127.0.0.1:2".to_owned(), cert, key]
        };
        assert!(judged(&[]).is_empty());
        let good = judged(&shared(&papers, &papers));
        assert_eq!((good.len(), good[0].verdict), (1, Verdict::Good), "both listeners show it: {good:?}");
        let found = &good[0].found;
        assert!(found.starts_with("a.example,b.example; issuer CN=rcgen self signed cert; last day "), "{found}");
        assert!(found.ends_with("; the key fits; the chain is complete"), "{found}");
        let bad = judged(&shared(&papers, &other));
        assert_eq!(bad[0].verdict, Verdict::Fail);
        assert!(bad[0].why.contains("is not the key of certificate"), "{bad:?}");
        let mut nameless = shared(&other, &other);
        let refused = judged(&nameless);
        assert!(refused[0].found.starts_with("no host names; "), "{refused:?}");
        assert_eq!(refused[0].verdict, Verdict::Warn, "{refused:?}");
        assert_eq!(judged(&nameless[1..])[0].verdict, Verdict::Good, "only other nodes see it");
        nameless.push("tls.unknown_name=default".to_owned());
        assert_eq!(judged(&nameless)[0].verdict, Verdict::Good, "clients that ask for a name get it");
    }
}
