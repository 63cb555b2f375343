//! Answers: 100, methods, pages of other origins, refusals, cancels.

use super::{GOOD, Wire, path, post, receive};
use crate::common::World;

#[test]
fn whoever_asks_first_is_told_to_go_on_or_not() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let head = |path: &str, version: &str, lines: &str| {
        format!("POST {path} HTTP/{version}\r\nHost: h\r\n{GOOD}Expect: 100-continue\r\n{lines}\r\n")
    };
    let mut wire = Wire::open(world.server.endpoint());
    for (lines, body) in
        [("Content-Length: 4\r\n", "body"), ("Transfer-Encoding: chunked\r\n", "4\r\nbody\r\n0\r\n\r\n")]
    {
        assert_eq!(wire.send(head(path(&to), "1.1", lines)).status(), 100);
        assert_eq!(wire.send(body).status(), 201);
        receive(&mut agent, &["body"]);
    }
    // Nothing to go on with.
    assert_eq!(wire.send(head(path(&to), "1.1", "Content-Length: 0\r\n")).status(), 201);
    agent.note();
    for (what, path, lines, status) in [
        ("unknown token", "/wpush/v3/x", "Content-Length: 4\r\n", 404),
        ("too large", path(&to), "Content-Length: 6000\r\n", 413),
        ("unknown scheme", path(&to), "Content-Length: 4\r\nAuthorization: Basic x\r\n", 401),
        ("wrong method", "/m/x", "Content-Length: 4\r\n", 405),
    ] {
        let mut wire = Wire::open(world.server.endpoint());
        assert_eq!(wire.send(head(path, "1.1", lines)).until_the_end(), [status], "{what}");
    }
    // An old client cannot have asked (RFC 9110 section 10.1.1).
    let mut wire = Wire::open(world.server.endpoint());
    assert_eq!(wire.send(head(path(&to), "1.0", "Content-Length: 4\r\n") + "body").until_the_end(), [201]);
    receive(&mut agent, &["body"]);
}

#[test]
fn head_and_options_are_answered_everywhere_and_say_nothing() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let ask = |method: &str, path: &str| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let text = Wire::open(world.server.endpoint()).send(request).rest();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse::<u16>().unwrap(), head.to_owned(), body.to_owned())
    };
    for (target, refused) in [(path(&to), "PUT"), ("/wpush/v1/unknown", "PUT"), ("/m/unknown", "GET")] {
        let (status, head, body) = ask("HEAD", target);
        assert_eq!((status, body.as_str()), (200, ""), "{target}: {head}");
        let (status, head, _) = ask("OPTIONS", target);
        assert_eq!(status, 204, "{target}");
        assert!(head.contains(", HEAD, OPTIONS") && !head.contains("Content-Length"), "{head}");
        let (status, head, body) = ask(refused, target);
        assert_eq!(status, 405, "{target}");
        assert!(head.contains("\r\nAllow: ") && body.contains("\"errno\":null"), "{head} {body}");
    }
    // As GET would be answered, without the body (RFC 9110 section 9.3.2).
    for target in ["/health", "/__version__", "/no/such/path", path(&to), "/wpush/unknown"] {
        let (get, head) = (ask("GET", target), ask("HEAD", target));
        let length = format!("\r\nContent-Length: {}", get.2.len());
        assert_eq!((get.0, head.2.as_str()), (head.0, ""), "{target}");
        assert!(get.1.contains(&length) && head.1.contains(&length), "{target}");
    }
    assert_eq!(ask("OPTIONS", "*").0, 204);
    assert_eq!(ask("GET", "*").0, 400);
    agent.silence();
}

#[test]
fn browsers_of_any_origin_may_post_and_read_where_the_message_is() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let preflight = format!(
        "OPTIONS {} HTTP/1.1\r\nHost: h\r\nOrigin: https://app.example\r\n\
         Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: ttl, content-encoding\r\n\r\n",
        path(&to)
    );
    let mut wire = Wire::open(world.server.endpoint());
    let response = wire.send(preflight).next().unwrap();
    assert_eq!(response.status, 204);
    assert_eq!(response.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(response.header("access-control-allow-methods"), Some("DELETE, GET, POST, PUT"));
    assert_eq!(response.header("access-control-allow-headers"), Some("ttl, content-encoding"));
    assert_eq!(response.header("access-control-max-age"), Some("3600"));
    let origin = "Origin: https://app.example\r\n";
    let response = wire.send(post(&to, origin, "from a page")).next().unwrap();
    assert_eq!(response.status, 201);
    assert_eq!(response.header("access-control-allow-origin"), Some("https://app.example"));
    assert!(response.header("access-control-expose-headers").unwrap().contains("location"));
    assert_eq!(response.header("vary"), Some("Origin"));
    assert_eq!(response.header("access-control-allow-credentials"), None);
    receive(&mut agent, &["from a page"]);
    // A page may also read the reason of a refusal.
    let response = wire.send(post(&to, &format!("{origin}Topic: !\r\n"), "x")).next().unwrap();
    assert_eq!((response.status, response.header("access-control-allow-origin")), (400, Some("https://app.example")));
}

#[test]
fn every_refusal_has_its_headers_and_its_body() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let gone = agent.register(None);
    agent.unregister(&gone.channel);
    let unknown = "POST /wpush/v3/x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n".to_owned();
    let cases = [
        (unknown, 404, Some(102), "Not Found", None),
        (
            post(&to, "Authorization: Basic x\r\n", "b"),
            401,
            Some(109),
            "Unauthorized",
            Some(("www-authenticate", "vapid")),
        ),
        (post(&gone, "", "b"), 410, Some(106), "Gone", Some(("cache-control", "max-age=86400"))),
        // The owner's 410 comes before every rule about headers and size (PROTOCOL.md 2.3).
        (post(&gone, "Topic: !\r\n", &"b".repeat(6_000)), 410, Some(106), "Gone", None),
        (post(&to, "Topic: !\r\n", "b"), 400, Some(113), "Bad Request", None),
        (post(&to, "Urgency: low\r\nUrgency: high\r\n", "b"), 400, None, "Bad Request", None),
        (post(&to, "Urgency: urgent\r\n", "b"), 400, None, "Bad Request", None),
        (post(&to, "Encryption: salt=AA\r\n", "b"), 400, Some(110), "Bad Request", None),
        (post(&to, "", &"b".repeat(6_000)), 413, Some(104), "Payload Too Large", None),
        ("DELETE /m/x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400, None, "Bad Request", None),
        (
            "PUT /m/x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
            405,
            None,
            "Method Not Allowed",
            Some(("allow", "DELETE, HEAD, OPTIONS")),
        ),
        ("GET /x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 404, None, "Not Found", None),
    ];
    let mut wire = Wire::open(world.server.endpoint());
    for (request, status, errno, error, header) in cases {
        let response = wire.send(&request).next().unwrap();
        assert_eq!((response.status, response.errno()), (status, errno), "{request}");
        assert_eq!(response.header("content-type"), Some("application/json"));
        if let Some((name, value)) = header {
            assert_eq!(response.header(name), Some(value), "{request}");
        }
        let body = String::from_utf8(response.body).unwrap();
        let begins = format!(
            r#"{{"code":{status},"errno":{},"error":"{error}","message":""#,
            errno.map_or("null".to_owned(), |errno| errno.to_string())
        );
        assert!(body.starts_with(&begins) && body.contains(r#"","more_info":"http"#), "{body}");
    }
    agent.silence();
}

#[test]
fn a_cancel_names_one_version_and_recalls_nothing() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let sent = world.post(&to, 3600, "already there").id();
    assert_eq!(agent.note().text(), "already there");
    assert_eq!(world.cancel(&sent).status, 204);
    agent.silence();
    let uaid = agent.uaid.clone();
    agent.leave();
    let topic = |body: &'static str| to.request(3600).header("topic", "mail").encrypted(body);
    let older = world.send(topic("older")).id();
    let newer = world.send(topic("newer")).id();
    for id in [&older, &sent] {
        assert_eq!(world.cancel(id).status, 204);
    }
    // The cancelled message and the replaced one do not come; the newer one does.
    let mut agent = world.agent(Some(&uaid));
    let note = agent.note();
    assert_eq!((note.text(), &note.version), ("newer", &newer));
    agent.silence();
}
