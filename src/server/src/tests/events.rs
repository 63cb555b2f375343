//! Lines of the log about clients at debug.

use fixtures::Log;

use super::*;

/// "My browser does not connect" is answered by these lines.
#[test]
fn what_clients_meet_is_logged_at_debug_and_shows_no_secret() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::default());
    let running = log.of("debug", || start(&config(dir.path(), &["store.kind=memory"])).unwrap());
    let (mut socket, uaid) = hello(&running, "");
    let endpoint = register(&mut socket);
    log.says(&["WebSocket upgraded", "shard="]);
    log.says(&["hello answered", "mode=\"webpush\""]);

    let address = running.addresses().endpoint[0];
    let get = "GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(ask(address, get).starts_with("HTTP/1.1 404 "));
    log.says(&["request refused", "status=404"]);
    let path = endpoint.strip_prefix(&running.addresses().endpoint_url).unwrap();
    let post = format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: vapid x\r\nconnection: close\r\n\r\n");
    assert!(ask(address, &post).starts_with("HTTP/1.1 401 "));
    log.says(&["request refused", "status=401", "errno=109", "Missing VAPID public key"]);
    let websocket = running.addresses().websocket[0];
    let get = "GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: close\r\n\r\n";
    assert!(ask(websocket, get).starts_with("HTTP/1.1 426 "));
    log.says(&["request refused", "port=\"websocket\"", "status=426"]);

    say(&mut socket, json!({ "messageType": "hello", "use_webpush": true }));
    log.says(&["session ended", "code=1011", "reason=WrongState", "minutes=0"]);
    log.says(&["session ended", "acks=0", "registers=1", "nacks=0"]);
    drop(socket);
    let (socket, _) = hello(&running, &uaid);
    drop(socket);
    log.says(&["session ended", "reason=PeerClosed", "by=\"peer\""]);
    let token = path.rsplit('/').next().unwrap();
    let text = log.text();
    assert!(!text.contains(&uaid) && !text.contains(token), "{text}");
    running.stop().unwrap();
}
