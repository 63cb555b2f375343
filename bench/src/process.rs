//! A server process: started on loopback addresses that no other process uses, stopped, killed, started again.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Options for the start of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The binary and its leading arguments, up to `serve`.
    pub command: Vec<String>,
    /// More arguments of `serve`.
    pub arguments: Vec<String>,
    /// Longest wait until it listens, and until it is gone after SIGTERM.
    pub patience: Duration,
}

/// Beginning of the endpoint URLs of these servers: a name without a port, as behind a load balancer. Some published
/// senders leave the port out of a VAPID `aud`. An app server connects to [`Server::endpoint`].
pub const ENDPOINT_URL: &str = "http://push.test";

/// A running server. Killed when dropped.
pub struct Server {
    options: Options,
    data: PathBuf,
    child: Child,
    ip: Ipv4Addr,
    /// Address for other nodes; a network of its own when it differs.
    node: Ipv4Addr,
}

/// Each server of this process listens on its own loopback address, so that ports never collide.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Port on which a server listens for other nodes.
pub const NODE_PORT: u16 = 8081;

/// A loopback address for one server, 127.64.0.0 to 127.191.255.255 by process id and count: neighbours of other
/// processes do not meet.
pub fn own_address() -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed) % 128;
    Ipv4Addr::new(127, 64 + count as u8, high, low.max(1))
}

impl Server {
    /// Starts a server on `data` and waits until all its listeners answer.
    pub fn start(options: Options, data: &Path) -> io::Result<Server> {
        Server::start_on(own_address(), options, data)
    }

    /// As [`Server::start`], on an address that [`own_address`] gave.
    pub fn start_on(ip: Ipv4Addr, options: Options, data: &Path) -> io::Result<Server> {
        Server::start_apart(ip, ip, options, data)
    }

    /// As [`Server::start_on`] with another address for other nodes, which need not be reachable from here.
    pub fn start_apart(ip: Ipv4Addr, node: Ipv4Addr, options: Options, data: &Path) -> io::Result<Server> {
        let child = spawn(&options, data, ip, node)?;
        let mut server = Server { options, data: data.to_owned(), child, ip, node };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Address for user agents.
    pub fn websocket(&self) -> SocketAddr {
        (self.ip, 8080).into()
    }

    /// Address for app servers.
    pub fn endpoint(&self) -> SocketAddr {
        (self.ip, 8082).into()
    }

    /// Address for other nodes.
    pub fn node(&self) -> SocketAddr {
        (self.node, NODE_PORT).into()
    }

    /// Address of the metrics.
    pub fn admin(&self) -> SocketAddr {
        (self.ip, 8083).into()
    }

    /// File with the token of its operator.
    pub fn admin_token_file(&self) -> PathBuf {
        self.data.join("keys/admin")
    }

    /// Token of its operator.
    pub fn admin_token(&self) -> io::Result<String> {
        std::fs::read_to_string(self.admin_token_file())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits for the end. Returns its exit code, `None` when a signal ended it.
    pub fn terminate(&mut self) -> io::Result<Option<i32>> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + self.options.patience;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(io::Error::other(format!("still running {:?} after SIGTERM\n{}", self.options.patience, self.log())))
    }

    /// Ends it at once, as a crash would, and waits until its ports are closed: the kernel takes the rings of a killed
    /// process down after the process is gone, and until then its listeners still complete handshakes.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        let deadline = Instant::now() + self.options.patience;
        for address in self.listeners() {
            while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                if Instant::now() > deadline {
                    return Err(io::Error::other(format!("{address} is still open after a kill")));
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Starts it again on the same addresses and data.
    pub fn start_again(&mut self) -> io::Result<()> {
        self.child = spawn(&self.options, &self.data, self.ip, self.node)?;
        self.wait_until_ready()
    }

    /// Stops the process (SIGSTOP), or continues it.
    pub fn pause(&self, paused: bool) -> io::Result<()> {
        self.signal(if paused { Signal::STOP } else { Signal::CONT })
    }

    /// Gives it another address for the next start, one that [`own_address`] gave.
    pub fn move_to(&mut self, ip: Ipv4Addr) {
        (self.ip, self.node) = (ip, ip);
    }

    /// Gives the argument after `flag` another value for the next start.
    pub fn replace_argument(&mut self, flag: &str, value: &str) {
        let arguments = &mut self.options.arguments;
        if let Some(at) = arguments.iter().position(|argument| argument == flag)
            && let Some(old) = arguments.get_mut(at + 1)
        {
            value.clone_into(old);
        }
    }

    /// Returns true if it still runs.
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Output that it has printed so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(log_path(&self.data)).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // Invariant: a child's id is a positive number.
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id is not zero");
        Ok(kill_process(pid, signal)?)
    }

    /// Addresses on which it listens by its roles and that are reachable from here.
    fn listeners(&self) -> Vec<SocketAddr> {
        let mut all = self.listeners_of_roles();
        all.retain(|address| self.node == self.ip || *address != self.node());
        all
    }

    fn listeners_of_roles(&self) -> Vec<SocketAddr> {
        let arguments = &self.options.arguments;
        let roles = arguments.iter().position(|argument| argument == "--roles").and_then(|at| arguments.get(at + 1));
        match roles.map(String::as_str) {
            Some("connect") => vec![self.admin(), self.node(), self.websocket()],
            Some("endpoint") => vec![self.admin(), self.endpoint()],
            _ => vec![self.admin(), self.node(), self.endpoint(), self.websocket()],
        }
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + self.options.patience;
        let mut waiting = self.listeners();
        while let Some(&address) = waiting.last() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("ended at start, {status}\n{}", self.log())));
            }
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                waiting.pop();
            } else if Instant::now() > deadline {
                return Err(io::Error::other(format!("does not listen on {address}\n{}", self.log())));
            } else {
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.kill();
    }
}

fn log_path(data: &Path) -> PathBuf {
    data.with_extension("log")
}

fn spawn(options: &Options, data: &Path, ip: Ipv4Addr, node: Ipv4Addr) -> io::Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(log_path(data))?;
    let (program, leading) = options.command.split_first().ok_or_else(|| io::Error::other("no server command"))?;
    // A variable of the calling shell must not configure the server.
    let inherited = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("MURRE_"));
    // The plane of the servers of a whole run of the tests.
    let plane = std::env::var_os("TEST_PLANE").map(|plane| ("MURRE_SHARDS__PLANE", plane));
    Command::new(program)
        .env_clear()
        .envs(inherited)
        .envs(plane)
        // A stop of a test has no load balancer to tell; an argument overrides it.
        .env("MURRE_DRAIN__DELAY", "0")
        .args(leading)
        .arg("--data-dir")
        .arg(data)
        .args(["--websocket", &format!("{ip}:8080"), "--node", &format!("{node}:{NODE_PORT}")])
        .args(["--endpoint", &format!("{ip}:8082"), "--admin", &format!("{ip}:8083")])
        .args(["--endpoint-url", ENDPOINT_URL])
        .args(&options.arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}
