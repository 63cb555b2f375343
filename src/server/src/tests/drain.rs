//! Responses of the public ports while a stopping node still listens.

use super::*;

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
}

#[test]
fn a_node_that_was_told_to_stop_says_so_on_its_ports_before_it_closes_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &["store.kind=memory"])).unwrap();
    let addresses = running.addresses().clone();
    let (mut socket, _) = hello(&running, "");
    let endpoint = register(&mut socket);
    let ports = [addresses.websocket[0], addresses.endpoint[0], addresses.node[0]];
    for path in ["/status", "/health", "/__heartbeat__", "/__lbheartbeat__"] {
        for port in ports {
            assert!(get(port, path).starts_with("HTTP/1.1 200 "), "{path} at {port}");
        }
    }
    running.stage.announce_stop();
    for path in ["/status", "/health", "/__heartbeat__", "/__lbheartbeat__"] {
        for port in ports {
            assert!(get(port, path).starts_with("HTTP/1.1 503 "), "{path} at {port}");
        }
    }
    assert!(get(ports[0], "/__version__").starts_with("HTTP/1.1 200 "), "that says nothing of health");
    let refused = Agent::connect(ports[0]).err().expect("no upgrade").to_string();
    assert!(refused.contains("503"), "{refused}");
    assert!(post(&endpoint, &running).starts_with("HTTP/1.1 201 "));
    assert_eq!(hear(&mut socket)["messageType"], "notification", "who is there is served");
    drop(socket);
    running.stop().unwrap();
}

#[test]
fn a_stop_closes_no_session_before_the_drain_delay_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &["store.kind=memory", "drain.delay=1.5"])).unwrap();
    let (mut socket, _) = hello(&running, "");
    let begun = std::time::Instant::now();
    let stopping = std::thread::spawn(move || running.stop().unwrap());
    let closed = socket.receive(PATIENCE).unwrap();
    assert!(matches!(closed, Received::Close(_)) && closed != Received::Close(1005), "{closed:?}");
    assert!(begun.elapsed() >= Duration::from_millis(1_500), "{:?}", begun.elapsed());
    drop(socket);
    assert_eq!(stopping.join().unwrap(), StopOutcome::InOrder);
}
