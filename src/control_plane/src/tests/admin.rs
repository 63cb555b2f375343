//! Strangers at the admin listener: connections that say nothing, and pages that call it by a name of their own.

use std::io::ErrorKind;

use super::*;

/// A connection that the server has not answered, with a read timeout short enough to look at many in turn.
fn idle(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    stream
}

/// True while the server has neither closed nor answered.
fn is_open(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Waits until at most `count` of these connections are open.
fn until_open_at_most(streams: &[TcpStream], count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let open = streams.iter().filter(|stream| is_open(stream)).count();
        if open <= count {
            return;
        }
        assert!(Instant::now() < deadline, "{open} of {} idle connections stay open; {count} may", streams.len());
    }
}

#[test]
fn idle_connections_are_bounded_in_number_and_time() {
    let (control_plane, _) = control_plane();
    let streams: Vec<TcpStream> = (0..400).map(|_| idle(control_plane.admin()[0])).collect();
    until_open_at_most(&streams, 64);
    until_open_at_most(&streams, 0);
    assert_eq!(ask(&control_plane, "GET", "/status", "").0, 200);
}

/// The status of a GET with this head.
fn status(control_plane: &ControlPlane, head: &str) -> u16 {
    let mut stream = TcpStream::connect(control_plane.admin()[0]).unwrap();
    write!(stream, "GET /stats HTTP/1.{head}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[9..12].parse::<u16>().unwrap()
}

#[test]
fn a_host_that_is_not_configured_is_refused() {
    let (control_plane, _) = control_plane();
    let with = |host: &str| status(&control_plane, &format!("1\r\nhost: {host}\r\n"));
    for host in ["evil.example", "evil.example:8083", "127.0.0.1.evil.example", "localhost.evil.example", "[::1"] {
        assert_eq!(with(host), 421, "{host}");
    }
    for host in ["127.0.0.1", "10.1.2.3:8083", "[::1]:8083", "localhost", "localhost:8083", "murre.internal:8083"] {
        assert_eq!(with(host), 200, "{host}");
    }
    // Health checks of HTTP/1.0 send no Host; every browser does.
    assert_eq!(status(&control_plane, "0\r\n"), 200);
    assert_eq!(
        ask(&control_plane, "GET", "/metrics", "").2.matches("\nmurre_admin_hosts_refused_total 5\n").count(),
        1
    );
}

#[test]
fn changes_need_the_token_of_the_operator() {
    let (control_plane, host) = control_plane();
    let admin = control_plane.admin()[0];
    for token in [None, Some(""), Some("another-token-of-an-operator"), Some(&TOKEN[1..])] {
        for (path, body) in [("/broadcasts", "{\"a\":\"1\"}"), ("/backups/monday", "")] {
            let (status, head, _) = ask_as(token, admin, "PUT", path, body);
            assert_eq!(status, 401, "{path} with {token:?}");
            assert!(head.contains("www-authenticate: Bearer"), "{head}");
        }
    }
    assert!(host.heard().is_empty() && host.backups.load(Ordering::Relaxed) == 0, "nothing was done");
    assert!(ask(&control_plane, "GET", "/metrics", "").2.contains("\nmurre_admin_unauthorized_total 8\n"));
    assert_eq!(ask_as(Some(TOKEN), admin, "PUT", "/broadcasts", "{\"a\":\"1\"}").0, 204);
    assert_eq!(ask_as(None, admin, "GET", "/broadcasts", "").2, "{\"a\":\"1\"}", "what all may know");
}

#[test]
fn the_listener_of_metrics_is_only_read() {
    let (control_plane, host) = control_plane();
    let metrics = control_plane.metrics()[0];
    for path in ["/metrics", "/health", "/status", "/__heartbeat__", "/__lbheartbeat__", "/__version__"] {
        assert_eq!(ask_as(None, metrics, "GET", path, "").0, 200, "{path}");
        assert_eq!(ask_as(Some(TOKEN), metrics, "PUT", path, "").0, 405, "{path}");
    }
    for path in ["/", "/stats", "/broadcasts", "/backups/monday"] {
        for method in ["GET", "PUT"] {
            assert_eq!(ask_as(Some(TOKEN), metrics, method, path, "{\"a\":\"1\"}").0, 404, "{method} {path}");
        }
    }
    assert!(host.heard().is_empty() && host.backups.load(Ordering::Relaxed) == 0);
}

#[test]
fn silent_connections_leave_a_place_for_those_who_ask() {
    let (control_plane, _) = control_plane();
    for address in [control_plane.admin()[0], control_plane.metrics()[0]] {
        let silent: Vec<TcpStream> = (0..64).map(|_| idle(address)).collect();
        for _ in 0..8 {
            assert_eq!(ask_as(None, address, "GET", "/health", "").0, 200);
        }
        let open = silent.iter().filter(|stream| is_open(stream)).count();
        assert!(open < 64, "the oldest gave way: {open} are open");
    }
}
