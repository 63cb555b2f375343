//! What TLS adds to a call between nodes (docs/decisions/0018-tls-ends-on-a-thread-of-its-own.md).
//!
//! One node in this process; connections that are kept ask it for users that it does not have, which is the whole way
//! of a call through edge and machine. Without and with TLS in turn; CPU time is that of the threads by name: shards,
//! the thread that ends TLS, and the callers, which here are plain blocking ones. The smallest of all rounds counts.
//!
//!     cargo run --release -p murre-bench --example node_tls -- --calls 100000

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use clap::Parser;
use murre::config::{Config, Sources};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

#[derive(Parser, Clone, Copy)]
struct Options {
    /// Calls of one round.
    #[arg(long, default_value_t = 20_000)]
    calls: usize,
    /// Connections, each with one call at a time.
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Rounds of each kind.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const KEY: &str = "0123456789abcdef";

/// Anything that a call goes over.
trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

fn main() -> Outcome<()> {
    let options = Options::parse();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let dir = tempfile::tempdir()?;
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, pem("CERTIFICATE", made.cert.der()))?;
    std::fs::write(&key, pem("PRIVATE KEY", &made.signing_key.serialize_der()))?;
    let sets = [
        format!("data_dir={}", dir.path().join("data").display()),
        "store.kind=memory".to_owned(),
        "shards.count=1".to_owned(),
        "websocket.listen=127.0.0.1:0".to_owned(),
        "endpoint.listen=127.0.0.1:0".to_owned(),
        "node.listen=127.0.0.1:0".to_owned(),
        "admin.listen=127.0.0.1:0".to_owned(),
        format!("node.keys={KEY}"),
        "node.tls.listen=127.0.0.1:0".to_owned(),
        format!("node.tls.cert={}", cert.display()),
        format!("node.tls.key={}", key.display()),
    ];
    let config = Config::load(&Sources { sets: sets.to_vec(), ..Sources::default() })?;
    let running = murre::node::start(&config)?;
    let trust = client(made.cert.der())?;
    let (plain, tls) = (running.addresses().node[0], running.addresses().node_tls[0]);
    let mut best: [BTreeMap<&str, f64>; 2] = Default::default();
    for _ in 0..options.rounds {
        for (kind, address) in [plain, tls].into_iter().enumerate() {
            let trust = (kind == 1).then(|| Arc::clone(&trust));
            for (thread, micros) in round(options, address, trust)? {
                let least = best[kind].entry(thread).or_insert(f64::INFINITY);
                *least = least.min(micros);
            }
        }
    }
    println!("CPU time of one call in us, {} connections, {} calls a round", options.connections, options.calls);
    let sum = |kind: usize| ["shard", "node-tls"].iter().map(|thread| best[kind][thread]).sum::<f64>();
    for (kind, name) in ["plain", "TLS"].into_iter().enumerate() {
        let [shard, front, caller, wall] = ["shard", "node-tls", "caller", "wall"].map(|thread| best[kind][thread]);
        println!(
            "{name:6} shards {shard:6.1}  TLS thread {front:6.1}  called node {:6.1}  caller {caller:6.1}  wall {wall:6.1}",
            sum(kind)
        );
    }
    println!(
        "called node with TLS / without: {:.2}; caller {:.2}",
        sum(1) / sum(0),
        best[1]["caller"] / best[0]["caller"]
    );
    println!("the TLS thread is full at {:.0} calls a second", 1e6 / best[1]["node-tls"]);
    running.stop()?;
    Ok(())
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n")
}

fn client(trusted: &CertificateDer<'static>) -> Outcome<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Microseconds of CPU for a call, by thread, and of the wall.
fn round(options: Options, address: SocketAddr, trust: Option<Arc<ClientConfig>>) -> Outcome<Vec<(&'static str, f64)>> {
    let mut streams: Vec<Box<dyn Stream>> = Vec::new();
    for _ in 0..options.connections {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        streams.push(match &trust {
            None => Box::new(stream),
            Some(trust) => {
                let conn = ClientConnection::new(Arc::clone(trust), ServerName::try_from("127.0.0.1")?)?;
                Box::new(StreamOwned::new(conn, stream))
            }
        });
    }
    // The handshakes are not part of a call.
    for stream in &mut streams {
        call(stream)?;
    }
    let each = options.calls / options.connections;
    let (before, began) = (cpu()?, Instant::now());
    let calling = streams.into_iter().map(|mut stream| {
        let body = move || -> Outcome<f64> {
            let before = own_cpu()?;
            for _ in 0..each {
                call(&mut stream)?;
            }
            Ok(own_cpu()? - before)
        };
        std::thread::Builder::new().name("caller".to_owned()).spawn(body)
    });
    let calling = calling.collect::<Result<Vec<_>, _>>()?;
    let mut callers = 0.0;
    for thread in calling {
        callers += thread.join().map_err(|_| "a caller panicked")??;
    }
    let (after, wall) = (cpu()?, began.elapsed());
    let calls = (each * options.connections) as f64;
    let spent = |name: &str| {
        let of = |all: &BTreeMap<String, f64>| {
            all.iter().filter(|(thread, _)| thread.starts_with(name)).map(|(_, us)| us).sum::<f64>()
        };
        (of(&after) - of(&before)) / calls
    };
    Ok(vec![
        ("shard", spent("shard")),
        ("node-tls", spent("node-tls")),
        ("caller", callers / calls),
        ("wall", wall.as_secs_f64() * 1e6 / calls),
    ])
}

/// Asks for a user that is nowhere.
fn call(stream: &mut impl Stream) -> Outcome<()> {
    let request = format!(
        "PUT /notif/0123456789abcdef0123456789abcdef HTTP/1.1\r\nhost: n\r\nauthorization: Bearer {KEY}\r\n\
         content-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let (mut heard, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err("the node closed".into());
        }
        heard.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&heard);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let lower = head.to_ascii_lowercase();
        let length = lower.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0");
        if body.len() >= length.trim().parse::<usize>()? {
            return if head.starts_with("HTTP/1.1 404 ") { Ok(()) } else { Err(head.to_owned().into()) };
        }
    }
}

/// Microseconds that each thread of this process has run, by its name and number.
fn cpu() -> Outcome<BTreeMap<String, f64>> {
    let mut all = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        // One that has just ended is of no interest.
        let (Ok(name), Ok(stat)) =
            (std::fs::read_to_string(path.join("comm")), std::fs::read_to_string(path.join("schedstat")))
        else {
            continue;
        };
        all.insert(format!("{} {}", name.trim(), path.display()), nanoseconds(&stat)? / 1e3);
    }
    Ok(all)
}

fn own_cpu() -> Outcome<f64> {
    Ok(nanoseconds(&std::fs::read_to_string("/proc/thread-self/schedstat")?)? / 1e3)
}

fn nanoseconds(schedstat: &str) -> Outcome<f64> {
    Ok(schedstat.split(' ').next().ok_or("an empty schedstat")?.parse()?)
}
