//! Network namespaces without a name: they end with the process, and the host's own namespace is never touched.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sys;

/// Path from the peers to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Link {
    /// One namespace, the loopback device.
    Loopback,
    /// Two namespaces, joined by a veth pair.
    Veth,
    /// Two namespaces, each with a TUN device. This program carries the packets between them, with delay, loss,
    /// reordering and duplication: what tc netem does, which not every kernel has.
    Impaired,
}

/// The namespaces of server and peers.
pub struct Network {
    pub server: File,
    pub peers: File,
    pub address: Ipv4Addr,
    /// The two TUN devices of an impaired link.
    pub tun: Option<[File; 2]>,
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

impl Network {
    pub fn new(link: Link) -> io::Result<Self> {
        let server = namespace()?;
        if link == Link::Loopback {
            let peers = server.try_clone()?;
            return Ok(Self { server, peers, address: Ipv4Addr::LOCALHOST, tun: None });
        }
        let peers = namespace()?;
        let tun = if link == Link::Veth {
            let other = format!("/proc/{}/fd/{}", std::process::id(), peers.as_raw_fd());
            inside(&server, || ip(&format!("link add m0 type veth peer name m1 netns {other}")))??;
            None
        } else {
            Some([inside(&server, || tun("m0"))??, inside(&peers, || tun("m1"))??])
        };
        for (namespace, device, address) in [(&server, "m0", "10.9.0.1/16"), (&peers, "m1", "10.9.0.2/16")] {
            inside(namespace, || {
                ip(&format!("addr add {address} dev {device}"))?;
                ip(&format!("link set {device} up"))
            })??;
        }
        Ok(Self { server, peers, address: SERVER, tun })
    }
}

/// Moves the calling thread into a namespace.
pub fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Runs a closure on a thread in a namespace.
pub fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| enter(namespace).map(|()| work()));
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in the namespace panicked")))
    })
}

/// Makes a namespace with its loopback device up.
fn namespace() -> io::Result<File> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sys::unshare_network()?;
            ip("link set lo up")?;
            File::open("/proc/thread-self/ns/net")
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the namespace panicked")))
    })
}

fn tun(name: &str) -> io::Result<File> {
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    sys::tun_device(&tun, name)?;
    Ok(tun)
}

/// Runs `ip` in the namespace of the calling thread.
pub fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| io::Error::other(format!("cannot run ip (iproute2): {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(format!("cannot run ip {arguments}: {said}")));
    }
    Ok(())
}
