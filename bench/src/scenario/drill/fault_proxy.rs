//! The line to a node's API: a proxy that stands between the nodes and can be cut. Bytes that are sent into a cut line
//! are lost without an error, as when a router dies.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// One line. Its listener lives as long as the process.
pub(super) struct FaultProxy {
    address: SocketAddr,
    scheme: &'static str,
    cut: Arc<AtomicBool>,
}

impl FaultProxy {
    /// A line to this address, where this is spoken; it carries bytes.
    pub(super) fn to(scheme: &'static str, target: SocketAddr) -> io::Result<FaultProxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, cut) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&cut);
        thread::Builder::new().name("line".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                // A node that is down refuses: so does its line.
                let Ok(other) = TcpStream::connect_timeout(&target, Duration::from_secs(1)) else { continue };
                carry(stream, other, &flag);
            }
        })?;
        Ok(FaultProxy { address, scheme, cut })
    }

    /// URL of the node through it.
    pub(super) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Cuts it, or makes it whole.
    pub(super) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }
}

/// Carries both directions, each on a thread that ends with its connection.
fn carry(one: TcpStream, other: TcpStream, cut: &Arc<AtomicBool>) {
    let pairs = [(one.try_clone(), other.try_clone()), (Ok(other), Ok(one))];
    for (from, to) in pairs {
        let (Ok(mut from), Ok(mut to)) = (from, to) else { return };
        let cut = Arc::clone(cut);
        let carrier = thread::Builder::new().name("carrier".into());
        // Without a thread the connection just ends.
        let _ = carrier.spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(n) = from.read(&mut buffer) {
                while cut.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
                if n == 0 || to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}
