//! The process, its listeners and its callers: `data_dir`, `roles`, `websocket.*`, `endpoint.*`, `public.*`,
//! `access.*`, `http.*` and `tls.*`.

use super::allowed::{
    ADDRESSES, ADDRESSES_BY_DOMAIN, ADDRESSES_OR_NONE, PEMS, RATE, SECONDS, SECONDS_OR_ZERO, URL, VAPID_KEYS,
};
use super::key::keys;
use super::parse;
use super::settings::{MAX_CONNECTIONS_MAX, MinVersion, RegisterMode, UnknownName};
use super::values::{rate, roles};
use protocol::webpush::endpoint::TokenForm;

keys! {
    /// The process, its listeners and its callers.
    const LISTENERS;
    "data_dir" ("data-dir" "DIR") = "murre-data",
        "a directory",
        "Directory of the keys, the store and the ledgers. The server creates it with mode 0700; one process at a time can use it.",
        |c, raw| { c.data_dir = raw.text().filter(|text| !text.is_empty())?.into(); Some(()) };
    "roles" ("roles" "LIST") = "connect,endpoint",
        "connect, endpoint or both, separated by a comma",
        "connect holds WebSocket sessions and takes calls of other nodes; endpoint takes POSTs.",
        |c, raw| { c.roles = roles(raw)?; Some(()) };
    "max_connections" ("max-connections" "N") = "100000",
        "a number from 1 to 16777216",
        "Maximum number of WebSockets and other connections together; a further connection is answered 503 and closed. Half of it is for WebSockets alone. In addition, a sixteenth is reserved for app servers and a 64th for nodes.",
        |c, raw| { c.max_connections = parse::number(raw, 1, u64::from(MAX_CONNECTIONS_MAX))? as u32; Some(()) };

    "websocket.listen" ("websocket" "ADDR") = "127.0.0.1:8080",
        ADDRESSES,
        "Listen addresses for user agents.",
        |c, raw| { c.websocket.listen = parse::addresses(raw)?; Some(()) };
    "websocket.tls.listen" ("websocket-tls" "ADDR") = "",
        ADDRESSES_OR_NONE,
        "Listen addresses for user agents over TLS (wss); needs tls.cert and tls.key.",
        |c, raw| { c.websocket.tls_listen = parse::addresses(raw)?; Some(()) };
    "websocket.hello_timeout" = "5",
        SECONDS,
        "Time limit for the hello of a WebSocket; later it is closed with 1011.",
        |c, raw| { c.websocket.hello_timeout = parse::positive_duration(raw)?; Some(()) };
    "websocket.auto_ping_interval" = "300",
        SECONDS_OR_ZERO,
        "Time without a frame of the user agent after which the server pings a session.",
        |c, raw| { c.websocket.auto_ping_interval = parse::duration(raw)?; Some(()) };
    "websocket.auto_ping_timeout" = "4",
        SECONDS,
        "Time limit for the answer to a ping. Also the time after which a session is closed whose socket takes no byte while something is owed to it.",
        |c, raw| { c.websocket.auto_ping_timeout = parse::positive_duration(raw)?; Some(()) };
    "websocket.ping_min_interval" = "45",
        SECONDS_OR_ZERO,
        "Minimum time between two {} of a user agent; a user agent that sends one sooner is closed with 4774.",
        |c, raw| { c.websocket.ping_min_interval = parse::duration(raw)?; Some(()) };
    #[live] "websocket.welcome" = "0",
        "a number from 0 (no limit) to 16777216",
        "Number of WebSockets beyond which a new one is answered 503 with Retry-After, so that a load balancer spreads them.",
        |c, raw| { c.websocket.welcome = parse::number(raw, 0, 1 << 24)? as u32; Some(()) };

    "endpoint.listen" ("endpoint" "ADDR") = "127.0.0.1:8082",
        ADDRESSES,
        "Listen addresses for the POSTs of application servers.",
        |c, raw| { c.endpoint.listen = parse::addresses(raw)?; Some(()) };
    "endpoint.tls.listen" ("endpoint-tls" "ADDR") = "",
        ADDRESSES_OR_NONE,
        "Listen addresses for the POSTs of application servers over TLS (https); needs tls.cert and tls.key.",
        |c, raw| { c.endpoint.tls_listen = parse::addresses(raw)?; Some(()) };
    "endpoint.url" ("endpoint-url" "URL") = "",
        URL,
        "Start of the endpoint URLs, as application servers reach it; by default https:// and the first of public.domain, else https://, the first name of the first certificate and the port of public.listen or endpoint.tls.listen, else http:// and the first address of endpoint.listen, or localhost if that is 0.0.0.0 or [::].",
        |c, raw| { c.endpoint.url = parse::url(raw)?; Some(()) };
    #[secret] #[live] "endpoint.crypto_keys" = "",
        "Fernet keys as printed by `murre keygen`, [k1,k2] or k1,k2",
        "Keys of the endpoint tokens: the first key seals, every key opens. By default the server makes one in data_dir.",
        |c, raw| { c.endpoint.crypto_keys = parse::fernet_keys(raw)?; Some(()) };
    "endpoint.tokens" = "short",
        "short, or fernet for the tokens of the services before this one",
        "Form of new endpoint tokens; the server opens every form.",
        |c, raw| {
            let words = [("short", TokenForm::Short), ("fernet", TokenForm::Fernet)];
            c.endpoint.tokens = parse::word(raw, &words)?;
            Some(())
        };

    "public.domain" ("domain" "NAME") = "",
        "host names as push.example.org, each once and up to 250 bytes, without ports, separated by commas, or nothing",
        "Names of this server on the internet; the first makes endpoint.url.",
        |c, raw| { c.public.domain = parse::domains(raw)?; Some(()) };
    "public.listen" ("public" "ADDR") = "",
        ADDRESSES_BY_DOMAIN,
        "Listen addresses for user agents and application servers together, over TLS; needs tls.cert and tls.key. Nothing is 0.0.0.0:443,[::]:443 with public.domain, without [::] on a host without IPv6, else none.",
        |c, raw| { c.public.listen = parse::addresses_by_domain(raw)?; Some(()) };
    "public.http_listen" ("public-http" "ADDR") = "",
        ADDRESSES_BY_DOMAIN,
        "Listen addresses without TLS that send browsers to https:// and answer challenges of a certificate authority; needs public.domain. Nothing is 0.0.0.0:80,[::]:80 with public.domain, without [::] on a host without IPv6, else none.",
        |c, raw| { c.public.http_listen = parse::addresses_by_domain(raw)?; Some(()) };

    "http.request_timeout" = "30",
        SECONDS,
        "Time limit for a complete HTTP request on any port, and for the upgrade of a WebSocket; later it is answered 408 and the connection ends. Also the time limit for a WebSocket message that was begun; later the close code is 1008.",
        |c, raw| { c.http.request_timeout = parse::positive_duration(raw)?; Some(()) };
    "http.keep_alive" = "75",
        SECONDS,
        "Time after which an idle connection of an app server or node ends.",
        |c, raw| { c.http.keep_alive = parse::positive_duration(raw)?; Some(()) };
    "endpoint.token_rate" = "0",
        RATE,
        "Maximum POSTs per second to one endpoint, with a burst of ten seconds' worth; excess POSTs are answered 429.",
        |c, raw| { c.endpoint.token_rate = rate(raw)?; Some(()) };
    "endpoint.origin_rate" = "0",
        RATE,
        "Maximum POSTs per second for each VAPID key and shard; POSTs without a key are limited for each user to whom they go. Excess POSTs are answered 429.",
        |c, raw| { c.endpoint.origin_rate = rate(raw)?; Some(()) };

    #[live] "tls.cert" ("tls-cert" "FILE") = "",
        PEMS,
        "PEM certificates of the TLS listeners, each with its intermediate certificates. The name that a client asks for selects one; the first serves clients that name none.",
        |c, raw| { c.tls.cert = parse::paths(raw); Some(()) };
    #[live] "tls.key" ("tls-key" "FILE") = "",
        PEMS,
        "PEM keys of tls.cert without passwords, in the same order.",
        |c, raw| { c.tls.key = parse::paths(raw); Some(()) };
    #[live] "endpoint.allowed_keys" = "",
        VAPID_KEYS,
        "VAPID public keys of the app servers whose messages are taken; others are answered 401. Empty: all.",
        |c, raw| { c.endpoint.allowed_keys = parse::vapid_keys(raw)?; Some(()) };
    #[live] "access.register" = "open",
        "open, token or vapid",
        "User agents that get endpoints: all, those whose upgrade or first registration carries one of access.tokens, or all for app servers with one of access.vapid_keys.",
        |c, raw| {
            let words = [("open", RegisterMode::Open), ("token", RegisterMode::Token), ("vapid", RegisterMode::Vapid)];
            c.access.register = parse::word(raw, &words)?;
            Some(())
        };
    #[secret] #[live] "access.tokens" = "",
        "at most 256 tokens of 16 to 128 letters, digits and -._~=, [t1,t2] or t1,t2",
        "Tokens of user agents: wss://NAME/t/TOKEN/, or Authorization: Bearer TOKEN on the upgrade.",
        |c, raw| { c.access.tokens = parse::access_tokens(raw)?; Some(()) };
    #[live] "access.vapid_keys" = "",
        VAPID_KEYS,
        "VAPID public keys that a register must name with access.register = vapid; others are answered 401.",
        |c, raw| { c.access.vapid_keys = parse::vapid_keys(raw)?; Some(()) };
    #[live] "tls.unknown_name" = "refuse",
        "refuse, or default for the first certificate",
        "Certificate for a client that asks for a name that no certificate has.",
        |c, raw| {
            let words = [("refuse", UnknownName::Refuse), ("default", UnknownName::Default)];
            c.tls.unknown_name = parse::word(raw, &words)?;
            Some(())
        };
    #[live] "tls.min_version" = "1.3",
        "1.3, or 1.2 for TLS 1.2 too",
        "Oldest version of TLS on every listener.",
        |c, raw| {
            let words = [("1.3", MinVersion::Tls13), ("1.2", MinVersion::Tls12)];
            c.tls.min_version = parse::word(raw, &words)?;
            Some(())
        };
    "tls.handshake_timeout" = "10",
        SECONDS,
        "Time limit from the accept of a TLS connection to the end of its handshake; later it is closed.",
        |c, raw| { c.tls.handshake_timeout = parse::positive_duration(raw)?; Some(()) };
    "tls.hsts" = "",
        "seconds from 0 (off) to a year, as 31536000, \"10m\" or \"365d\"; nothing is a year with public.domain, else 0",
        "Time in the header Strict-Transport-Security of answers over TLS, for which browsers reach this name over TLS alone.",
        |c, raw| {
            let by_domain = raw.text()?.is_empty();
            c.tls.hsts = if by_domain { None } else { Some(parse::duration(raw)?.as_secs() as u32) };
            Some(())
        };
    #[secret] #[live] "tls.ticket_keys" = "",
        "secrets of 32 bytes in base64, [k1,k2] or k1,k2",
        "Keys of the tickets with which clients resume TLS connections: the first seals, every key opens. Nodes with the same keys resume each other's connections. By default the server makes one in data_dir.",
        |c, raw| { c.tls.ticket_keys = parse::fernet_keys(raw)?; Some(()) };
}
