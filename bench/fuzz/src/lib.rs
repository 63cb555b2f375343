//! A TLS server and a client in memory, and the edits that a fuzzer makes to the bytes between them.

use std::sync::LazyLock;

use rcgen::{CertificateParams, KeyPair};
use runtime::ports::Port;
use runtime::tls::{Next, Received, Stage, Tls as _};
use tempfile::TempDir;
use tls::{Certificate, Clients, MinVersion, ServerTls, Settings, ShardTls, UnknownName, client_config};

/// Slot of the connection at the server.
const SLOT: u32 = 7;

/// Files of a certificate for `localhost`: itself, and its key.
static PAPERS: LazyLock<TempDir> = LazyLock::new(|| {
    let (papers, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(papers.path().join("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(papers.path().join("key.pem"), key.serialize_pem()).unwrap();
    papers
});

/// A server with one connection.
pub struct Server {
    tls: ShardTls,
    /// Received and not consumed.
    rest: Vec<u8>,
    /// Plaintext that it has opened.
    pub heard: Vec<u8>,
    /// Ciphertext for the client.
    pub wire: Vec<u8>,
}

impl Server {
    /// A connection of which nothing was received.
    pub fn accepted() -> Server {
        let (cert, key) = (PAPERS.path().join("cert.pem"), PAPERS.path().join("key.pem"));
        let certificates = vec![Certificate::read(("tls.cert", &cert), ("tls.key", &key)).unwrap()];
        let settings = Settings {
            certificates,
            ticket_keys: vec![[1; 32].into()],
            unknown_name: UnknownName::Refuse,
            min_version: MinVersion::Tls12,
            challenges: None,
            clients: None,
        };
        let mut tls = ShardTls::new(Some(ServerTls::new(settings).unwrap()), None);
        tls.open(SLOT, Port::WebSocket);
        Server { tls, rest: Vec::new(), heard: Vec::new(), wire: Vec::new() }
    }

    /// Takes bytes as a socket brings them. Returns false when the connection has failed.
    pub fn receive(&mut self, bytes: &[u8]) -> bool {
        self.rest.extend_from_slice(bytes);
        loop {
            let before = self.tls.stage(SLOT);
            let Received { plain, consumed, next } = self.tls.receive(SLOT, &mut self.rest, &mut self.wire);
            assert!(plain <= consumed && consumed <= self.rest.len(), "{plain} of {consumed} of {}", self.rest.len());
            assert!(next != Next::Again || consumed > 0 || self.tls.stage(SLOT) != before, "it would go on for ever");
            if next == Next::Failed {
                assert_eq!(self.tls.stage(SLOT), Stage::Failed);
                return false;
            }
            self.heard.extend_from_slice(&self.rest[..plain]);
            self.rest.drain(..consumed);
            if next == Next::More {
                return true;
            }
        }
    }

    pub fn is_established(&self) -> bool {
        self.tls.stage(SLOT) == Stage::Established
    }
}

/// A client that trusts the server.
pub fn client() -> Clients {
    let config = client_config(&PAPERS.path().join("cert.pem")).unwrap();
    Clients::new(config, "localhost", 1).unwrap()
}

/// A server and a client behind their handshake.
pub fn established() -> (Server, Clients) {
    let (mut server, mut client, mut wire) = (Server::accepted(), client(), Vec::new());
    client.start(0, &mut wire);
    while !server.is_established() {
        assert!(server.receive(&std::mem::take(&mut wire)));
        let heard = client.receive(0, &mut std::mem::take(&mut server.wire), &mut wire);
        assert!(heard.is_some_and(|heard| heard.plain == 0));
    }
    (server, client)
}

/// Changes `bytes` as the front of `edits` says, two of them an edit: a bit is flipped, a byte is repeated or left out,
/// the rest is cut off. Returns true if nothing was changed.
pub fn edit(bytes: &mut Vec<u8>, edits: &mut impl Iterator<Item = u8>) -> bool {
    let before = bytes.clone();
    for _ in 0..edits.next().unwrap_or(0) % 4 {
        let (Some(kind), Some(place)) = (edits.next(), edits.next()) else { break };
        // Headers are short, and most of what can go wrong is in them.
        let at = if kind & 4 == 0 { usize::from(place) } else { usize::from(place) * bytes.len() / 256 };
        if at >= bytes.len() {
            continue;
        }
        match kind & 3 {
            0 => bytes[at] ^= 1 << (kind >> 5),
            1 => bytes.insert(at, bytes[at]),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at),
        }
    }
    *bytes == before
}
