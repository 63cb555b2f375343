//! TLS in front of a listener that echoes: what goes through, what does not, and what each bound does.

use std::io::ErrorKind::ConnectionReset;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;
use crate::island::tests::papers::Papers;

/// Longer than anything takes that goes well.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends back what it is sent, and closes after `bye`.
struct Echo {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Echo {
    fn new() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, accepted) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&accepted);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map(Result::unwrap) {
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let mut piece = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut piece) {
                        let sent = stream.write_all(&piece[..count]);
                        if sent.is_err() || piece[..count].ends_with(b"bye") {
                            return;
                        }
                    }
                });
            }
        });
        Echo { address, accepted }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn certificate(papers: &Papers) -> Certificate {
    Certificate::read(&papers.cert(), &papers.key()).unwrap()
}

struct Kit {
    front: Front,
    address: SocketAddr,
}

impl Kit {
    fn new(behind: SocketAddr, papers: &Papers, limits: Limits) -> Kit {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Kit { front: Front::start(vec![listener], behind, certificate(papers), limits).unwrap(), address }
    }

    fn plain(&self) -> std::net::TcpStream {
        let stream = std::net::TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn call(&self, trusted: &Papers) -> StreamOwned<ClientConnection, std::net::TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.authority()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), self.plain())
    }

    fn number(&self, name: &str) -> u64 {
        self.front.board().read().find(|(meaning, _)| meaning.name == name).unwrap().1
    }

    fn await_number(&self, name: &str, wanted: u64) {
        let until = Instant::now() + PATIENCE;
        while self.number(name) != wanted {
            assert!(Instant::now() < until, "{name} is {}, not {wanted}", self.number(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn echoed(stream: &mut (impl io::Read + io::Write), said: &[u8]) -> io::Result<()> {
    stream.write_all(said)?;
    stream.flush()?;
    let mut heard = vec![0; said.len()];
    stream.read_exact(&mut heard)?;
    assert_eq!(heard, said);
    Ok(())
}

#[test]
fn bytes_go_both_ways_and_the_end_is_told() {
    let (papers, echo) = (Papers::of(&["127.0.0.1"]), Echo::new());
    let kit = Kit::new(echo.address, &papers, LIMITS);
    let mut caller = kit.call(&papers);
    for length in [1, 100, 100_000] {
        echoed(&mut caller, &vec![7; length]).unwrap();
    }
    assert_eq!(caller.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!((kit.number("node_tls_handshakes"), kit.number("node_tls_connections")), (1, 1));
    echoed(&mut caller, b"bye").unwrap();
    // Without the last alert this would be an error.
    assert_eq!(caller.read(&mut [0; 1]).unwrap(), 0);
    kit.await_number("node_tls_connections", 0);
    assert_eq!(echo.accepted(), 1);
}

#[test]
fn what_a_caller_that_has_said_all_is_owed_still_comes() {
    let (papers, echo) = (Papers::of(&["127.0.0.1"]), Echo::new());
    let kit = Kit::new(echo.address, &papers, LIMITS);
    let mut caller = kit.call(&papers);
    caller.write_all(&[7; 50_000]).unwrap();
    caller.conn.send_close_notify();
    caller.flush().unwrap();
    let mut heard = Vec::new();
    caller.read_to_end(&mut heard).unwrap();
    assert_eq!(heard.len(), 50_000);
    kit.await_number("node_tls_connections", 0);
}

#[test]
fn who_does_not_trust_us_does_not_get_through_and_is_counted() {
    let (papers, other, echo) = (Papers::of(&["127.0.0.1"]), Papers::of(&["127.0.0.1"]), Echo::new());
    let kit = Kit::new(echo.address, &papers, LIMITS);
    assert!(echoed(&mut kit.call(&other), b"x").is_err());
    kit.await_number("node_tls_handshakes_failed", 1);
    assert_eq!(kit.number("node_tls_handshakes"), 0);
    echoed(&mut kit.call(&papers), b"x").unwrap();
}

#[test]
fn plain_text_is_closed_and_reaches_nobody() {
    let (papers, echo) = (Papers::of(&["127.0.0.1"]), Echo::new());
    let kit = Kit::new(echo.address, &papers, LIMITS);
    let mut stream = kit.plain();
    stream.write_all(b"GET /__lbheartbeat__ HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut heard = Vec::new();
    // An alert, then the end; or the reset that follows unread bytes.
    let _ = stream.read_to_end(&mut heard);
    assert!(!heard.starts_with(b"HTTP"), "{heard:?}");
    kit.await_number("node_tls_handshakes_failed", 1);
    assert_eq!(echo.accepted(), 0);
}

#[test]
fn a_slow_handshake_is_cut_and_costs_the_node_nothing() {
    let (papers, echo) = (Papers::of(&["127.0.0.1"]), Echo::new());
    let limits = Limits { handshake_time: Duration::from_millis(100), ..LIMITS };
    let kit = Kit::new(echo.address, &papers, limits);
    let mut stream = kit.plain();
    // The head of a ClientHello, and no more.
    stream.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    // The end, or the reset that follows unread bytes.
    assert!(matches!(stream.read(&mut [0; 16]).map_err(|error| error.kind()), Ok(0) | Err(ConnectionReset)));
    kit.await_number("node_tls_handshakes_timeout", 1);
    assert_eq!(echo.accepted(), 0);
    // Its address is in the log, as that of one who speaks no TLS is, and the next one's is not until a minute is over.
    let until = Instant::now() + PATIENCE;
    while lock(&kit.front.shared.callers.0).is_none() {
        assert!(Instant::now() < until, "nobody was named");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!kit.front.shared.callers.due());
}

/// As when no descriptor is left: a listener that was shut down is told so by every accept.
#[test]
fn an_accept_that_fails_is_counted_and_said_once_a_minute() {
    let (papers, echo) = (Papers::of(&["127.0.0.1"]), Echo::new());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, same) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
    let kit = Kit { front: Front::start(vec![listener], echo.address, certificate(&papers), LIMITS).unwrap(), address };
    echoed(&mut kit.call(&papers), b"x").unwrap();
    rustix::net::shutdown(&same, rustix::net::Shutdown::Both).unwrap();
    let until = Instant::now() + PATIENCE;
    while kit.number("node_tls_accept_errors") < 3 {
        assert!(Instant::now() < until, "accepts fail and are not counted");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!kit.front.shared.accepts.due(), "the first was said, and the others were not");
}

#[test]
fn beyond_its_bounds_it_closes_at_once() {
    let (papers, echo) = (Papers::of(&["127.0.0.1"]), Echo::new());
    for limits in [Limits { connections: 2, ..LIMITS }, Limits { handshakes: 2, ..LIMITS }] {
        let kit = Kit::new(echo.address, &papers, limits);
        let _held = [kit.plain(), kit.plain()];
        kit.await_number("node_tls_connections", 2);
        assert_eq!(kit.plain().read(&mut [0; 1]).unwrap(), 0);
        kit.await_number("node_tls_refused", 1);
        drop(_held);
        kit.await_number("node_tls_connections", 0);
        echoed(&mut kit.call(&papers), b"x").unwrap();
    }
}

#[test]
fn a_connection_on_which_nothing_moves_is_closed() {
    let (papers, echo) = (Papers::of(&["127.0.0.1"]), Echo::new());
    let kit = Kit::new(echo.address, &papers, Limits { idle_time: Duration::from_secs(5), ..LIMITS });
    let mut caller = kit.call(&papers);
    echoed(&mut caller, b"x").unwrap();
    assert_eq!(caller.read(&mut [0; 1]).unwrap(), 0);
    kit.await_number("node_tls_idle_closed", 1);
}

#[test]
fn a_caller_that_cannot_be_served_is_not_let_through_its_handshake() {
    let papers = Papers::of(&["127.0.0.1"]);
    let nobody = TcpListener::bind("127.255.255.2:0").unwrap().local_addr().unwrap();
    let kit = Kit::new(nobody, &papers, LIMITS);
    let mut caller = kit.call(&papers);
    assert!(caller.conn.complete_io(&mut caller.sock).is_err());
    kit.await_number("node_tls_unserved", 1);
}

#[test]
fn a_renewed_certificate_is_shown_from_the_next_handshake_on() {
    let (before, after, echo) = (Papers::of(&["127.0.0.1"]), Papers::of(&["127.0.0.1"]), Echo::new());
    let kit = Kit::new(echo.address, &before, LIMITS);
    let mut there = kit.call(&before);
    echoed(&mut there, b"x").unwrap();
    kit.front.renew(certificate(&after));
    echoed(&mut kit.call(&after), b"x").unwrap();
    assert!(echoed(&mut kit.call(&before), b"x").is_err());
    echoed(&mut there, b"y").unwrap();
}

#[test]
fn files_that_are_of_no_use_are_refused_by_name() {
    let (papers, other) = (Papers::of(&["n1.example", "10.0.0.1"]), Papers::of(&["n1.example"]));
    let refusal = |cert: PathBuf, key: PathBuf| {
        let refused = Certificate::read(&cert, &key).err().expect("refused");
        assert!(!refused.contains("BEGIN") && !refused.contains('\n'), "{refused}");
        refused
    };
    let missing = papers.ca().with_file_name("missing.pem");
    for (refused, wanted) in [
        (refusal(missing.clone(), papers.key()), "node.tls.cert: "),
        (refusal(papers.cert(), missing), "node.tls.key: "),
        (refusal(papers.key(), papers.key()), "there is no certificate in it"),
        (refusal(papers.cert(), papers.cert()), "there is no key in it, or one with a password"),
        (refusal(papers.cert(), other.key()), "is not the key of node.tls.cert"),
    ] {
        assert!(refused.contains(wanted) && refused.contains(".pem"), "{refused}");
    }
    std::fs::write(papers.key(), "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n").unwrap();
    assert!(refusal(papers.cert(), papers.key()).starts_with("node.tls.key: "));
}

#[test]
fn a_certificate_says_whom_it_names() {
    let certificate = certificate(&Papers::of(&["n1.example", "10.0.0.1"]));
    assert!(certificate.names("n1.example") && certificate.names("10.0.0.1"));
    assert!(!certificate.names("n2.example") && !certificate.names("10.0.0.2") && !certificate.names("::1"));
}
