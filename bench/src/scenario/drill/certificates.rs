//! Certificates for the nodes of a drill, and the authority that signs them.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Files of the certificates. All nodes show the same one: a drill breaks other things than names.
pub(super) struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    /// Creates certificates for nodes with these addresses.
    ///
    /// # Errors
    /// The directory takes no files.
    pub(super) fn make(directory: &Path, addresses: Vec<String>) -> io::Result<Certificates> {
        let papers = Certificates { directory: directory.to_owned() };
        let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let authority = params.self_signed(&key).map_err(io::Error::other)?;
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let own = CertificateParams::new(addresses).map_err(io::Error::other)?;
        let own = own.signed_by(&key, &issuer).map_err(io::Error::other)?;
        std::fs::write(papers.file("ca"), pem("CERTIFICATE", authority.der()))?;
        std::fs::write(papers.file("node"), pem("CERTIFICATE", own.der()))?;
        std::fs::write(papers.file("key"), pem("PRIVATE KEY", &key.serialize_der()))?;
        Ok(papers)
    }

    /// Settings of every node. Nodes show their certificates to each other, both ways.
    pub(super) fn settings(&self) -> Vec<String> {
        let files =
            [("node.ca", "ca"), ("node.tls.client_ca", "ca"), ("node.tls.cert", "node"), ("node.tls.key", "key")];
        let files = files.map(|(setting, name)| format!("{setting}={}", self.file(name).display()));
        files.into_iter().chain(["node.tls.client_required=true".to_owned()]).collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.pem"))
    }
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n")
}
