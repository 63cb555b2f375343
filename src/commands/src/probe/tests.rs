//! The probe against a server of a few lines that can do each thing wrong.

mod quick;
mod tls;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver as Inbox, Sender as Outbox, channel};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tungstenite::protocol::{CloseFrame, Message, WebSocket};

use super::*;

/// Fault of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    NoUpgrade,
    SilentAfterUpgrade,
    CloseAtHello,
    Register500,
    SecureEndpoint,
    Post410,
    NoLocation,
    OtherVersion,
    OtherBody,
    NoNotification,
    Unregister500,
}

/// A server for one session and one POST; its WebSocket address.
fn server(fault: Fault) -> String {
    listening(fault).0
}

/// As `server`, and the names of the messages that it gets.
fn listening(fault: Fault) -> (String, Inbox<String>) {
    let (asked, heard) = channel();
    let (sockets, posts) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let url = format!("ws://{}/", sockets.local_addr().unwrap());
    let scheme = if fault == Fault::SecureEndpoint { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}/wpush/v2/token", posts.local_addr().unwrap());
    let (outbox, inbox) = channel();
    thread::spawn(move || take_post(&posts, fault, &outbox));
    thread::spawn(move || serve_agent(&sockets, fault, &endpoint, &inbox, &asked));
    (url, heard)
}

/// Type of a TLS record that begins a handshake (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 22;

fn take_post(listener: &TcpListener, fault: Fault, outbox: &Outbox<Vec<u8>>) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = Vec::new();
    let (head, body) = loop {
        let mut chunk = [0; 1024];
        let Ok(read @ 1..) = stream.read(&mut chunk) else { return };
        request.extend_from_slice(&chunk[..read]);
        if request[0] == TLS_HANDSHAKE {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
            return;
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some(end) = text.find("\r\n\r\n") else { continue };
        let length = text.split("Content-Length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse::<usize>();
        if request.len() >= end + 4 + length.unwrap() {
            break (text[..end].to_string(), request[end + 4..].to_vec());
        }
    };
    assert!(
        head.starts_with("POST /wpush/v2/token HTTP/1.1\r\n") && head.contains("Authorization: vapid t="),
        "{head}"
    );
    let answer = match fault {
        Fault::Post410 => "HTTP/1.1 410 Gone\r\nContent-Length: 13\r\n\r\n{\"errno\":106}",
        Fault::NoLocation => "HTTP/1.1 201 Created\r\nTTL: 60\r\nContent-Length: 0\r\n\r\n",
        _ => "HTTP/1.1 201 Created\r\nLocation: http://x/m/id-1\r\nTTL: 60\r\nContent-Length: 0\r\n\r\n",
    };
    stream.write_all(answer.as_bytes()).unwrap();
    let _ = outbox.send(body);
}

fn serve_agent(listener: &TcpListener, fault: Fault, endpoint: &str, inbox: &Inbox<Vec<u8>>, asked: &Outbox<String>) {
    let (mut stream, _) = listener.accept().unwrap();
    if fault == Fault::NoUpgrade {
        stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0; 1024]);
        return;
    }
    let mut socket = tungstenite::accept(stream).unwrap();
    while let Ok(message) = socket.read() {
        let Message::Text(text) = message else { continue };
        let message: Value = serde_json::from_str(&text).unwrap();
        let _ = asked.send(message["messageType"].as_str().unwrap().to_owned());
        if !answer(&mut socket, &message, fault, endpoint, inbox) {
            break;
        }
    }
    // The other side ends the session; of what it still sends only the names are for us.
    while let Ok(message) = socket.read() {
        if let Message::Text(text) = message {
            let message: Value = serde_json::from_str(&text).unwrap();
            let _ = asked.send(message["messageType"].as_str().unwrap().to_owned());
        }
    }
}

/// Answers one message. Returns false if the session is over.
fn answer(
    socket: &mut WebSocket<TcpStream>,
    message: &Value,
    fault: Fault,
    endpoint: &str,
    inbox: &Inbox<Vec<u8>>,
) -> bool {
    let channel = &message["channelID"];
    let mut say = |value: Value| socket.send(Message::text(value.to_string())).is_ok();
    let status = |faulty: bool| if faulty { 500 } else { 200 };
    match message["messageType"].as_str().unwrap() {
        "hello" if fault == Fault::SilentAfterUpgrade => true,
        "hello" if fault == Fault::CloseAtHello => {
            let _ = socket.close(Some(CloseFrame { code: 1013.into(), reason: "full".into() }));
            false
        }
        "hello" => say(json!({ "messageType": "hello", "status": 200, "uaid": "0".repeat(32), "broadcasts": {} })),
        "register" => {
            say(json!({ "messageType": "broadcast", "broadcasts": {} }));
            say(json!({ "messageType": "register", "channelID": channel, "pushEndpoint": endpoint,
                        "status": status(fault == Fault::Register500) }));
            if matches!(fault, Fault::Register500 | Fault::NoNotification | Fault::Post410 | Fault::NoLocation) {
                return true;
            }
            let Ok(mut body) = inbox.recv() else { return false };
            if fault == Fault::OtherBody {
                *body.last_mut().unwrap() ^= 1;
            }
            let version = if fault == Fault::OtherVersion { "id-2" } else { "id-1" };
            say(json!({ "messageType": "notification", "channelID": channel, "version": version,
                        "data": URL_SAFE_NO_PAD.encode(body), "headers": { "encoding": "aes128gcm" } }))
        }
        "ack" => message["updates"][0]["version"] == "id-1",
        "unregister" => say(json!({ "messageType": "unregister", "channelID": channel,
                                    "status": status(fault == Fault::Unregister500) })),
        other => panic!("{other}"),
    }
}

/// Longer than anything takes that goes well.
const PATIENCE: u64 = 60;

fn probe(ws: String, endpoint: Option<String>) -> (Result<(), (Step, String)>, Vec<Step>) {
    probe_within(PATIENCE, ws, endpoint)
}

fn probe_within(timeout: u64, ws: String, endpoint: Option<String>) -> (Result<(), (Step, String)>, Vec<Step>) {
    let (report, outcome) = check(&Args {
        server: None,
        ws,
        endpoint,
        ca: None,
        timeout,
        quiet: true,
        quick: false,
        config: ConfigArgs::default(),
    });
    (outcome.map_err(|(step, why)| (step, why.to_string())), report.steps.iter().map(|(step, _)| *step).collect())
}

#[test]
fn a_message_makes_the_whole_way() {
    let (outcome, steps) = probe(server(Fault::None), None);
    assert_eq!(outcome, Ok(()));
    assert_eq!(steps, Step::ALL);
}

#[test]
fn every_fault_ends_at_its_step_with_its_sentence() {
    for (fault, step, sentence) in [
        (Fault::NoUpgrade, Step::Connect, "503"),
        (Fault::SilentAfterUpgrade, Step::Hello, "no answer in time"),
        (Fault::CloseAtHello, Step::Hello, "closed with 1013"),
        (Fault::Register500, Step::Register, "status 500"),
        (Fault::SecureEndpoint, Step::Post, "TLS"),
        (Fault::Post410, Step::Post, "410 {\"errno\":106}"),
        (Fault::NoLocation, Step::Post, "without Location"),
        (Fault::OtherVersion, Step::Receive, "not the id in Location"),
        (Fault::NoNotification, Step::Receive, "no answer in time"),
        (Fault::OtherBody, Step::Decrypt, "changed on the way"),
        (Fault::Unregister500, Step::Unregister, "status 500"),
    ] {
        // The steps before a silence must succeed within the timeout.
        let silent = matches!(fault, Fault::SilentAfterUpgrade | Fault::NoNotification);
        let (outcome, steps) = probe_within(if silent { 5 } else { PATIENCE }, server(fault), None);
        let (failed, why) = outcome.expect_err("the fault must be seen");
        assert_eq!(failed, step, "{fault:?}: {why}");
        assert!(why.contains(sentence), "{fault:?}: {why}");
        assert_eq!(steps.last(), Some(&step), "{fault:?}");
    }
}

/// The user of a probe would stay at the server for 60 days.
#[test]
fn a_probe_that_fails_behind_its_register_unregisters() {
    for fault in [Fault::Register500, Fault::Post410, Fault::OtherVersion, Fault::NoNotification, Fault::OtherBody] {
        let (url, heard) = listening(fault);
        let silent = fault == Fault::NoNotification;
        probe_within(if silent { 3 } else { PATIENCE }, url, None).0.expect_err("the fault must be seen");
        // Ends with the server's thread, when the connection has ended.
        assert_eq!(heard.iter().last().as_deref(), Some("unregister"), "{fault:?}");
    }
}

/// Address without a listener. No other test listens there later, and a connection to it cannot reach its own socket.
fn nobody() -> std::net::SocketAddr {
    TcpListener::bind("127.255.255.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn nobody_listening_is_a_failure_to_connect() {
    let address = nobody();
    let (outcome, _) = probe(format!("ws://{address}/"), None);
    let (step, why) = outcome.unwrap_err();
    assert_eq!(step, Step::Connect);
    assert!(why.contains(&address.to_string()), "{why}");
    for other in ["http://127.0.0.1/", "wsx://127.0.0.1/", "127.0.0.1"] {
        let (outcome, _) = probe(other.into(), None);
        assert!(outcome.unwrap_err().1.contains("does not begin with ws:// or wss://"), "{other}");
    }
}

#[test]
fn the_endpoint_may_be_reached_elsewhere() {
    let (outcome, _) = probe(server(Fault::None), Some(format!("http://{}", nobody())));
    assert_eq!(outcome.unwrap_err().0, Step::Post);
}

#[test]
fn every_step_has_a_status_of_its_own() {
    let statuses: Vec<u8> = Step::ALL.iter().map(|s| s.status()).collect();
    assert_eq!(statuses, [10, 11, 12, 13, 14, 15, 16]);
}
