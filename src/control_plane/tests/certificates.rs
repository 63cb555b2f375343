//! Certificates of an authority that a test makes for itself.

use std::path::PathBuf;

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Files of an authority, and of a certificate that it signed.
pub(crate) struct TestCertificates {
    dir: tempfile::TempDir,
}

impl TestCertificates {
    /// For these names.
    pub(crate) fn of(names: &[&str]) -> TestCertificates {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let own_key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(names).unwrap().signed_by(&own_key, &issuer).unwrap();
        let papers = TestCertificates { dir: tempfile::tempdir().unwrap() };
        std::fs::write(papers.ca(), pem("CERTIFICATE", authority.der())).unwrap();
        std::fs::write(papers.cert(), pem("CERTIFICATE", own.der())).unwrap();
        std::fs::write(papers.key(), pem("PRIVATE KEY", &own_key.serialize_der())).unwrap();
        papers
    }

    /// One that signed itself, and is its own authority, marked as one or not.
    pub(crate) fn self_signed(name: &str, is_marked: bool) -> TestCertificates {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.is_ca = if is_marked { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        let papers = TestCertificates { dir: tempfile::tempdir().unwrap() };
        for file in [papers.ca(), papers.cert()] {
            std::fs::write(file, pem("CERTIFICATE", own.der())).unwrap();
        }
        std::fs::write(papers.key(), pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        papers
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub(crate) fn cert(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.dir.path().join("key.pem")
    }
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n")
}
