//! Secrets of TLS in the memory of a server after their connections have ended: none, on any port.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use murre_bench::host::of_process;
use murre_bench::process::own_address;
use procfs::process::{MMPermissions, Process};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ConnectionTrafficSecrets, KeyLog};

use crate::common::{PATIENCE, World};

/// Kinds of secrets and their bytes.
type Secrets = Vec<(String, Vec<u8>)>;
type Copies = BTreeMap<String, usize>;

#[derive(Default, Debug)]
struct Logged(Mutex<Secrets>);

impl KeyLog for Logged {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().push((label.to_owned(), secret.to_vec()));
    }
}

/// A connection behind its handshake.
struct Connection {
    socket: TcpStream,
    /// One request, sealed.
    request: Vec<u8>,
    /// The end of the connection, sealed.
    close: Vec<u8>,
    secrets: Secrets,
}

impl Connection {
    fn make(port: SocketAddr, ca: &Path) -> Connection {
        let logged = Arc::new(Logged::default());
        let mut config = tls::client_config(ca).unwrap();
        (config.key_log, config.enable_secret_extraction) = (Arc::clone(&logged) as Arc<dyn KeyLog>, true);
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(port).unwrap();
        while client.is_handshaking() {
            client.complete_io(&mut socket).unwrap();
        }
        let (mut request, mut close) = (Vec::new(), Vec::new());
        client.writer().write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        client.write_tls(&mut request).unwrap();
        client.send_close_notify();
        client.write_tls(&mut close).unwrap();
        let extracted = client.dangerous_extract_secrets().unwrap();
        let mut secrets = std::mem::take(&mut *logged.0.lock().unwrap());
        for (_, direction) in [extracted.rx, extracted.tx] {
            let ConnectionTrafficSecrets::Aes256Gcm { key, .. } = direction else { panic!("another suite") };
            secrets.push(("KEY".to_owned(), key.as_ref().to_vec()));
        }
        Connection { socket, request, close, secrets }
    }

    /// Makes the request and ends the connection, if the server has not.
    fn end(mut self) -> Secrets {
        self.socket.write_all(&self.request).unwrap();
        assert_ne!(self.socket.read(&mut [0; 4_096]).unwrap(), 0);
        // A server may have closed behind its answer, and answer close_notify by a reset.
        let _ = self.socket.write_all(&self.close);
        let _ = self.socket.read_to_end(&mut Vec::new());
        self.secrets
    }
}

/// Number of copies of each secret in all memory that the process can write.
fn copies(pid: u32, secrets: &Secrets) -> Copies {
    const PAGE: usize = 4_096;
    let mut copies: Copies = secrets.iter().map(|(kind, _)| (kind.clone(), 0)).collect();
    let mut page = vec![0; PAGE + 64];
    let memory = of_process(pid, Process::mem).unwrap();
    for map in of_process(pid, Process::maps).unwrap() {
        if !map.perms.contains(MMPermissions::READ | MMPermissions::WRITE) {
            continue;
        }
        let (start, end) = (map.address.0 as usize, map.address.1 as usize);
        for from in (start..end).step_by(PAGE) {
            // Pages overlap, because a copy may lie across their border.
            let wanted = (end - from).min(page.len());
            let Ok(read) = memory.read_at(&mut page[..wanted], from as u64) else { continue };
            if page[..read] == [0; PAGE + 64][..read] {
                continue;
            }
            for (kind, secret) in secrets {
                let starts = (0..read.min(PAGE)).filter(|at| page[*at] == secret[0]);
                let found = starts.filter(|at| page[*at..read].starts_with(secret)).count();
                *copies.get_mut(kind).unwrap() += found;
            }
        }
    }
    copies
}

#[test]
fn secrets_of_connections_end_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let papers = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|file| directory.path().join(file));
    let pem = |what, der| format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", STANDARD.encode(der));
    fs::write(&cert, pem("CERTIFICATE", papers.cert.der().as_ref())).unwrap();
    fs::write(&key, pem("PRIVATE KEY", papers.signing_key.serialized_der())).unwrap();
    let names = ["websocket.tls.listen", "endpoint.tls.listen", "node.tls.listen", "admin.tls.listen"];
    let ports = names.map(|name| (name, SocketAddr::from((own_address(), 8443))));
    let mut settings = ports.map(|(name, port)| format!("{name}={port}")).to_vec();
    settings.extend([format!("tls.cert={}", cert.display()), format!("tls.key={}", key.display())]);
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting.as_str()]).collect();
    let world = World::with(&arguments);
    for (name, port) in ports {
        for number in 0..3 {
            let connection = Connection::make(port, &cert);
            let begin = Instant::now();
            let mut live = copies(world.server.pid(), &connection.secrets);
            while live["KEY"] == 0 {
                assert!(begin.elapsed() < PATIENCE, "{name}: the scan does not see the keys of a connection: {live:?}");
                live = copies(world.server.pid(), &connection.secrets);
            }
            let (secrets, begin) = (connection.end(), Instant::now());
            let mut left = copies(world.server.pid(), &secrets);
            println!("{name}, {number}: {live:?}, then {left:?}");
            while left.values().any(|copies| *copies > 0) {
                assert!(begin.elapsed() < PATIENCE, "{name}: {left:?} {}", world.server.log());
                sleep(Duration::from_millis(100));
                left = copies(world.server.pid(), &secrets);
            }
        }
    }
}
