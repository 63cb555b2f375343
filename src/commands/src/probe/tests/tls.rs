//! The probe through proxies that end TLS in front of a running server, as in production.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::{Args, ConfigArgs, PATIENCE, Step, check, public};
use config::{Config, Sources};
use fixtures::TestCertificates;
use host::Verdict;

fn acceptor(papers: &TestCertificates) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(papers.cert()).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(papers.key()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()))
}

/// Ends TLS in front of `behind`; a connection whose handshake fails is closed.
fn front(listener: TcpListener, papers: &TestCertificates, behind: SocketAddr) {
    let acceptor = acceptor(papers);
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut caller) = acceptor.accept(stream).await else { return };
                let mut server = tokio::net::TcpStream::connect(behind).await.unwrap();
                // The probe ends a connection when it has its answer.
                let _ = tokio::io::copy_bidirectional(&mut caller, &mut server).await;
            });
        }
    });
}

/// The outcome of a probe with `--ca`.
async fn probe(ws: String, ca: Option<&Path>) -> Result<(), (Step, String)> {
    let args = Args {
        server: None,
        ws,
        endpoint: None,
        ca: ca.map(Path::to_owned),
        timeout: PATIENCE,
        quiet: true,
        quick: false,
        config: ConfigArgs::default(),
    };
    let probed = tokio::task::spawn_blocking(move || check(&args).1);
    probed.await.unwrap().map_err(|(step, why)| (step, why.to_string()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_makes_the_whole_way_through_proxies_that_end_tls() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["localhost"]));
    let [sockets, posts] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [at_sockets, at_posts] = [&sockets, &posts].map(|listener| listener.local_addr().unwrap().port());
    let sets = [
        format!("data_dir={}", dir.path().join("data").display()),
        format!("endpoint.url=https://localhost:{at_posts}"),
        "websocket.listen=127.0.0.1:0".to_owned(),
        "endpoint.listen=127.0.0.1:0".to_owned(),
        "node.listen=127.0.0.1:0".to_owned(),
        "admin.listen=".to_owned(),
        "shards.count=1".to_owned(),
        "delivery.ledger_bytes=4MiB".to_owned(),
        "max_connections=1000".to_owned(),
    ];
    let config = Config::load(&Sources { sets: sets.to_vec(), ..Sources::default() }).unwrap();
    let running = server::start(&config).unwrap();
    front(sockets, &papers, running.addresses().websocket[0]);
    front(posts, &papers, running.addresses().endpoint[0]);

    let ws = format!("wss://localhost:{at_sockets}/");
    assert_eq!(probe(ws.clone(), Some(&papers.ca())).await, Ok(()));

    let (step, why) = probe(ws.clone(), None).await.unwrap_err();
    assert_eq!(step, Step::Connect);
    assert!(why.contains("certificate of localhost is not trusted") && why.contains("--ca"), "{why}");
    let (step, why) = probe(format!("wss://127.0.0.1:{at_sockets}/"), Some(&papers.ca())).await.unwrap_err();
    assert_eq!(step, Step::Connect);
    assert!(why.contains("certificate of 127.0.0.1 is not trusted"), "another name: {why}");
    let plain = running.addresses().websocket[0];
    let (step, why) = probe(format!("wss://{plain}/"), Some(&papers.ca())).await.unwrap_err();
    assert_eq!(step, Step::Connect);
    assert!(why.contains("TLS"), "no TLS there: {why}");
    let (step, why) = probe(ws, Some(&dir.path().join("absent.pem"))).await.unwrap_err();
    assert_eq!(step, Step::Connect);
    assert!(why.starts_with("cannot read --ca ") && why.contains("absent.pem"), "{why}");
    let server = Some(public::server_url(&format!("https://localhost:{at_sockets}")).unwrap());
    let args = Args {
        server,
        ws: String::new(),
        endpoint: None,
        ca: Some(papers.ca()),
        timeout: PATIENCE,
        quiet: true,
        quick: false,
        config: ConfigArgs::default(),
    };
    let (report, outcome) = tokio::task::spawn_blocking(move || check(&args)).await.unwrap();
    let (step, why) = outcome.unwrap_err();
    assert_eq!((step, step.status()), (Step::Public, 17), "{why}");
    assert!(why.to_string().contains(&format!("{at_posts} is not 443")), "{why}");
    let verdicts: Vec<Verdict> = report.rows.iter().map(|row| row.verdict).collect();
    use Verdict::{Fail, Good};
    assert_eq!(verdicts, [Good, Fail, Good, Fail, Good], "{:?}", report.rows);
    assert!(report.rows[3].found.contains("127.0.0.1"), "{:?}", report.rows);
    assert!(report.steps.iter().map(|(step, _)| *step).eq(Step::ALL.into_iter().chain([Step::Public])));
    tokio::task::spawn_blocking(move || running.stop().unwrap()).await.unwrap();
}
