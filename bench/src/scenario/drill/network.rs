//! Every node in a network namespace of its own, joined by the kernel. `links-down` cuts the links.
//!
//! ```text
//!   here --- front bridge --- node 1, 2, ...   user agents, app servers
//!                 |----------- database         (198.18.N.0/24)
//!             back bridge  --- node 1, 2, ...   the node API: only this is cut (198.19.N.0/24)
//! ```
//!
//! The bridges stand in a namespace too, so here there is one interface, `murre` and the id of this process. No name
//! outlives this process. A namespace exists as long as a process is in it. Each is held by a `cat` that ends with this
//! process. The contents of a namespace go with it, both ends of every link. Addresses are those set aside for
//! measurements (RFC 2544). Needs root, iproute2 and util-linux.

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

/// Network namespaces, bridges and links of a drill.
pub(super) struct Network {
    nodes: Vec<Namespace>,
    database: Namespace,
    bridges: Namespace,
    number: u8,
}

impl Network {
    /// Creates the network for `nodes` nodes.
    ///
    /// # Errors
    /// This process is not root, or the system has no namespaces, bridges or `ip`.
    pub(super) fn build(nodes: usize) -> io::Result<Network> {
        if !geteuid().is_root() {
            let said = "network namespaces need root; run it with sudo, or leave it out: --faults";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, said));
        }
        let process = std::process::id();
        let (bridges, database) = (Namespace::make()?, Namespace::make()?);
        let nodes = (0..nodes).map(|_| Namespace::make()).collect::<io::Result<Vec<_>>>()?;
        let network = Network { nodes, database, bridges, number: (process % 256) as u8 };
        let mut plan = String::new();
        for bridge in ["front", "back"] {
            plan += &format!("link add {bridge} type bridge\nlink set {bridge} up\n");
        }
        plan += &plug("front", "here", &format!("murre{process}"), process);
        plan += &plug("front", "database", "front", network.database.pid());
        for (n, node) in network.nodes.iter().enumerate() {
            plan += &plug("front", &format!("node{n}"), "front", node.pid());
            plan += &plug("back", &format!("line{n}"), "back", node.pid());
        }
        network.bridges.ip(&plan)?;
        let databases: String = (0..DATABASES).map(|n| address(network.database_address(n), "front")).collect();
        network.database.ip(&format!("link set lo up\n{databases}link set front up\n"))?;
        for (n, node) in network.nodes.iter().enumerate() {
            let (front, back) = (address(network.front(n), "front"), address(network.back(n), "back"));
            node.ip(&format!("link set lo up\n{front}{back}link set front up\nlink set back up\n"))?;
        }
        let here = format!("murre{process}");
        let ours = address(Ipv4Addr::new(198, 18, network.number, 250), &here);
        feed(Command::new("ip"), &format!("{ours}link set {here} up\n"))?;
        Ok(network)
    }

    /// Address of node `n` from here.
    pub(super) fn front(&self, n: usize) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 101 + n as u8)
    }

    /// Address of node `n` for other nodes.
    pub(super) fn back(&self, n: usize) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, self.number, 101 + n as u8)
    }

    /// Address of the nodes of the database, from the first on.
    pub(super) fn database_address(&self, n: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1 + n)
    }

    /// Words in front of a command that runs in the namespace of node `n`.
    pub(super) fn at_node(&self, n: usize) -> Vec<String> {
        // It keeps its process id, and dies with this process: it would keep the namespace.
        [self.nodes[n].enter(), ["setpriv", "--pdeathsig", "KILL", "--"].map(str::to_owned).into()].concat()
    }

    /// Words in front of a command that runs in the namespace of the database, which ends by itself with this process.
    pub(super) fn at_database(&self) -> Vec<String> {
        self.database.enter()
    }

    /// Drops all packets from the database to a node, or none again. Neither side gets an error.
    pub(super) fn cut_from_database(&self, n: usize, cut: bool) -> io::Result<()> {
        let verb = if cut { "add" } else { "del" };
        self.database.ip(&format!("route {verb} blackhole {}/32\n", self.front(n)))
    }

    /// Takes the links between the nodes down, or up again. A node sees that its end has no carrier, and nothing else:
    /// its packets wait for a neighbour that does not answer.
    pub(super) fn cut(&self, cut: bool) -> io::Result<()> {
        let state = if cut { "down" } else { "up" };
        let plan: String = (0..self.nodes.len()).map(|n| format!("link set line{n} {state}\n")).collect();
        self.bridges.ip(&plan)
    }
}

/// Addresses that the database may use.
const DATABASES: u8 = 3;

/// A link from a bridge to a place: `port` is its end there, `end` the other one.
fn plug(bridge: &str, port: &str, end: &str, pid: u32) -> String {
    format!(
        "link add {port} type veth peer name {end} netns {pid}\nlink set {port} master {bridge}\nlink set {port} up\n"
    )
}

fn address(ip: Ipv4Addr, device: &str) -> String {
    format!("addr add {ip}/24 dev {device}\n")
}

/// A network namespace, and the process that holds it.
struct Namespace {
    holder: Child,
}

/// Longest wait for a new process to have its namespace.
const MADE_WITHIN: Duration = Duration::from_secs(60);

impl Namespace {
    fn make() -> io::Result<Namespace> {
        // Its input ends when this process does.
        let holder = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::other(format!("unshare (util-linux) does not run: {error}")))?;
        let mut place = Namespace { holder };
        let (ours, deadline) = (std::fs::read_link("/proc/self/ns/net")?, Instant::now() + MADE_WITHIN);
        loop {
            if place.holder.try_wait()?.is_some() || Instant::now() > deadline {
                let mut said = String::new();
                if let Some(mut stderr) = place.holder.stderr.take() {
                    let _ = place.holder.kill();
                    io::Read::read_to_string(&mut stderr, &mut said)?;
                }
                return Err(io::Error::other(format!("no network namespace: {}", said.trim_end())));
            }
            match std::fs::read_link(format!("/proc/{}/ns/net", place.pid())) {
                Ok(theirs) if theirs != ours => return Ok(place),
                _ => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    fn pid(&self) -> u32 {
        self.holder.id()
    }

    fn enter(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/proc/{}/ns/net", self.pid()), "--".into()]
    }

    /// Runs lines of `ip` in it.
    fn ip(&self, lines: &str) -> io::Result<()> {
        let words = self.enter();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("ip");
        feed(command, lines)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Gives lines to `ip -batch`.
fn feed(mut ip: Command, lines: &str) -> io::Result<()> {
    let missing = |error: io::Error| io::Error::other(format!("ip (iproute2) does not run: {error}"));
    let mut child = ip
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    if let Some(mut stdin) = child.stdin.take() {
        // It ends at the first line that fails and prints that line.
        let _ = stdin.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(io::Error::other(format!("the network: {}", said.trim_end()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces() -> String {
        std::fs::read_to_string("/proc/net/dev").unwrap()
    }

    /// Returns true if a ping of the kernel's own, a TCP connect that is refused, comes back.
    fn reaches(network: &Network, from: usize, to: Ipv4Addr) -> bool {
        let words = network.at_node(from);
        let connect = format!("exec 3<>/dev/tcp/{to}/9");
        let output = Command::new(&words[0]).args(&words[1..]).args(["timeout", "2", "bash", "-c", &connect]).output();
        String::from_utf8_lossy(&output.unwrap().stderr).contains("refused")
    }

    #[test]
    #[ignore = "needs root and iproute2: bench/check test"]
    fn links_between_nodes_go_down_and_come_back_and_nothing_is_left() {
        let ours = format!("murre{}:", std::process::id());
        let network = Network::build(2).unwrap();
        assert!(interfaces().contains(&ours));
        let database = network.database_address(0);
        let (to_back, to_front) = (network.back(1), network.front(1));
        // Two seconds are little for a process to begin on a busy host.
        let in_time = |from: usize, to: Ipv4Addr| (0..20).any(|_| reaches(&network, from, to));
        assert!(in_time(0, to_back) && in_time(0, database));
        network.cut(true).unwrap();
        assert!(!reaches(&network, 0, to_back));
        assert!(in_time(0, database) && in_time(1, database) && in_time(0, to_front));
        network.cut(false).unwrap();
        assert!(in_time(0, to_back));
        drop(network);
        let gone = (0..6_000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            !interfaces().contains(&ours)
        });
        assert!(gone, "the interface is still there");
    }

    #[test]
    #[ignore = "needs iproute2: bench/check test"]
    fn what_ip_does_not_take_is_said() {
        let refused = feed(Command::new("ip"), "link set no-such-device up\n").unwrap_err().to_string();
        assert!(refused.contains("no-such-device"), "{refused}");
    }
}
