//! Copies of secrets in this process's own memory after their connection has ended: none.
//!
//! The client is another process, which tells its secrets masked. So the only thing here that can hold one in the clear
//! is the server under test.

mod client;
mod scan;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rcgen::{CertificateParams, KeyPair};
use runtime::ports::Port;
use runtime::tls::{Next, Received, Stage, Tls as _};
use tls::{Certificate, MinVersion, ServerTls, Settings, ShardTls, TicketKey, UnknownName};

#[global_allocator]
static ALLOCATOR: wipe::Wiping = wipe::Wiping;

const SLOT: u32 = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, address, certificate, suite] = &arguments[..]
        && role == "client"
    {
        return client::run(address, certificate, suite);
    }
    for suite in client::every_suite() {
        leaves_nothing(&format!("{:?}", suite.suite()));
    }
}

/// Makes connections of a suite, of which the second may be resumed, and counts copies of their secrets while they live
/// and when they have ended.
fn leaves_nothing(suite: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut tls = ShardTls::new(Some(server(directory.path(), suite)), None);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::start(&listener, directory.path(), suite);
    for connection in ["the first", "the second"] {
        let (mut socket, _) = listener.accept().unwrap();
        tls.open(SLOT, Port::Endpoint);
        while turn(&mut tls, &mut socket) != client::LAST_WORDS {}
        let secrets = client.secrets();
        let live = scan::copies(&secrets);
        assert!(live["traffic key"] > 0, "the scan does not see the keys of a connection that lives: {live:?}");
        writeln!(client.to, "end").unwrap();
        while tls.stage(SLOT) == Stage::Established {
            turn(&mut tls, &mut socket);
        }
        let left = scan::copies(&secrets);
        println!("{suite}, {connection}: {live:?}, then {left:?}");
        assert!(left.values().all(|copies| *copies == 0), "{suite}, {connection}: {left:?}");
    }
    assert!(client.process.wait().unwrap().success());
}

/// As a turn of a shard: receives once, answers, and overwrites what it left on the stack. Returns what it received.
fn turn(tls: &mut ShardTls, socket: &mut TcpStream) -> Vec<u8> {
    let plain = receive_and_answer(tls, socket);
    if tls.take_leftovers() {
        wipe::stack::<{ wipe::SHARD_STACK_BYTES }>();
    }
    plain
}

#[inline(never)]
fn receive_and_answer(tls: &mut ShardTls, socket: &mut TcpStream) -> Vec<u8> {
    let (mut bytes, mut len, mut wire, mut heard) = (vec![0; 32_768], 0, Vec::new(), Vec::new());
    loop {
        len += socket.read(&mut bytes[len..]).unwrap();
        loop {
            let Received { plain, consumed, next } = tls.receive(SLOT, &mut bytes[..len], &mut wire);
            heard.extend_from_slice(&bytes[..plain]);
            bytes.copy_within(consumed..len, 0);
            len -= consumed;
            match next {
                Next::Again => {}
                Next::More => break,
                Next::Failed => panic!("the handshake failed: {heard:?}"),
            }
        }
        if len == 0 {
            break;
        }
    }
    if !heard.is_empty() {
        tls.control(SLOT, &mut wire);
        tls.seal(SLOT, b"an answer", &mut wire);
    }
    if tls.peer_closed(SLOT) {
        tls.close_notify(SLOT, &mut wire);
        tls.end(SLOT);
    }
    socket.write_all(&wire).unwrap();
    heard
}

fn server(directory: &Path, suite: &str) -> ServerTls {
    let key = if suite.contains("ECDHE_RSA") { client::rsa() } else { KeyPair::generate().unwrap() };
    let made = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let (cert_path, key_path) = (directory.join("cert"), directory.join("key"));
    std::fs::write(&cert_path, client::pem("CERTIFICATE", made.der())).unwrap();
    std::fs::write(&key_path, client::pem("PRIVATE KEY", &key.serialize_der())).unwrap();
    let certificate = Certificate::read(("tls.cert", &cert_path), ("tls.key", &key_path)).unwrap();
    let min_version = if suite.starts_with("TLS13") { MinVersion::Tls13 } else { MinVersion::Tls12 };
    ServerTls::new(Settings {
        certificates: vec![certificate],
        ticket_keys: vec![TicketKey::from([7; 32])],
        unknown_name: UnknownName::Refuse,
        min_version,
        challenges: None,
        clients: None,
    })
    .unwrap()
}

/// The other process.
struct Client {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Client {
    fn start(listener: &TcpListener, directory: &Path, suite: &str) -> Client {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let address = listener.local_addr().unwrap().to_string();
        command.args(["client", &address, directory.join("cert").to_str().unwrap(), suite]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Client { process, to, from }
    }

    /// Kinds of secrets of the connection, and their bytes, masked.
    fn secrets(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut secrets = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the client has ended");
            let Some((kind, hex)) = line.trim().split_once(": ") else { return secrets };
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            secrets.push((kind.to_owned(), (0..hex.len()).step_by(2).map(byte).collect()));
        }
    }
}
