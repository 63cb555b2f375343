//! Everything behind the listeners: `acme.*`, `node.*`, `admin.*`, `store.*`, `delivery.*` and the other services.

use std::time::Duration;

use machine::limits::{BACKLOG_MAX, BACKLOG_MIN, RELAY_MEMBERS_MAX, WINDOW_MAX};
use runtime::ledger::{LOG_BYTES_MAX, LOG_BYTES_MIN};

use super::allowed::{ADDRESSES, ADDRESSES_OR_NONE, BYTES, CALL_URL, LEVEL, PEM, SECONDS, SECONDS_OR_ZERO, URL};
use super::key::keys;
use super::settings::{Challenge, DrainMode, LogFormat, PlaneChoice, Steer, StoreKind};
use super::values::consistency;
use super::{acme, parse, words};

keys! {
    /// Everything behind the listeners.
    const SERVICES;
    "acme.agree" ("acme-agree" "true") = "false",
        "true or false",
        "Agrees to the terms of the certificate authority: the server orders a certificate for each name of public.domain, and renews it.",
        |c, raw| { c.acme.agree = parse::flag(raw)?; Some(()) };
    "acme.email" ("acme-email" "ADDR") = "",
        "an e-mail address, or nothing",
        "Address that the certificate authority writes to; it gets it when the account is made.",
        |c, raw| { c.acme.email = acme::email(raw)?; Some(()) };
    "acme.directory" ("acme-directory" "URL") = "https://acme-v02.api.letsencrypt.org/directory",
        "a URL that begins with https://",
        "Directory of the certificate authority (RFC 8555).",
        |c, raw| { c.acme.directory = Some(acme::directory(raw)?); Some(()) };
    "acme.ca" = "",
        PEM,
        "PEM certificates of the authorities that acme.directory is verified with; by default those that this host trusts.",
        |c, raw| { c.acme.ca = parse::path(raw)?; Some(()) };
    "acme.challenge" = "tls-alpn-01",
        "tls-alpn-01 for a handshake on port 443, or http-01 for a request on port 80",
        "Proof of control over a name.",
        |c, raw| {
            let words = [("tls-alpn-01", Challenge::TlsAlpn01), ("http-01", Challenge::Http01)];
            c.acme.challenge = parse::word(raw, &words)?;
            Some(())
        };
    "acme.profile" = "",
        "up to 128 visible characters, or nothing",
        "Profile of the certificates, as the certificate authority names it; by default its default.",
        |c, raw| { c.acme.profile = parse::name(raw)?; Some(()) };

    "node.listen" ("node" "ADDR") = "127.0.0.1:8081",
        ADDRESSES,
        "Listen addresses for calls of other nodes.",
        |c, raw| { c.node.listen = parse::addresses(raw)?; Some(()) };
    "node.url" ("node-url" "URL") = "",
        URL,
        "URL at which other nodes reach this node; by default https:// and the first address of node.tls.listen, else http:// and that of node.listen.",
        |c, raw| { c.node.url = parse::url(raw)?.map(|url| url.to_string()); Some(()) };
    #[secret] #[live] "node.keys" = "",
        "keys of 16 to 256 visible characters, [k1,k2] or k1,k2",
        "Keys of the node API: other nodes must present one of them, and this node presents the first. By default the server makes one in data_dir.",
        |c, raw| { c.node.keys = parse::bearer_keys(raw)?; Some(()) };

    "node.connections" = "16",
        "a number from 1 to 256",
        "Maximum number of connections to each other node; further calls wait.",
        |c, raw| { c.node.connections = parse::number(raw, 1, 256)? as u16; Some(()) };
    "node.connect_timeout" = "1",
        SECONDS,
        "Time limit for a connection to another node; later the connection has failed.",
        |c, raw| { c.node.connect_timeout = parse::positive_duration(raw)?; Some(()) };
    "node.request_timeout" = "3",
        "seconds from 0.001 to 30, as 5, 2.5 or \"250ms\"",
        "Time limit for the response to a call of another node; later the call has failed.",
        |c, raw| {
            let allowed = |span: &Duration| *span <= Duration::from_secs(30);
            c.node.request_timeout = parse::positive_duration(raw).filter(allowed)?;
            Some(())
        };
    #[live] "node.ca" = "",
        PEM,
        "PEM certificates of the authorities of other nodes whose node.url begins with https; by default those that this host trusts. Read with any store.",
        |c, raw| { c.node.ca = parse::path(raw)?; Some(()) };

    "node.tls.listen" = "",
        ADDRESSES_OR_NONE,
        "Listen addresses of the node API over TLS.",
        |c, raw| { c.node.tls.listen = parse::addresses(raw)?; Some(()) };
    #[live] "node.tls.cert" = "",
        PEM,
        "PEM certificate of this node for node.tls.listen, which names the host of node.url, and its intermediate certificates; by default those of tls.cert.",
        |c, raw| { c.node.tls.cert = parse::path(raw)?; Some(()) };
    #[live] "node.tls.key" = "",
        PEM,
        "PEM key of node.tls.cert, without a password.",
        |c, raw| { c.node.tls.key = parse::path(raw)?; Some(()) };

    "admin.listen" ("admin" "ADDR") = "127.0.0.1:8083",
        ADDRESSES,
        "Listen addresses of the admin page, health routes, metrics, PUT /broadcasts and PUT /backups; changes need the token in keys/admin of data_dir. They must not be public.",
        |c, raw| { c.admin.listen = parse::addresses(raw)?; Some(()) };
    "admin.tls.listen" ("admin-tls" "ADDR") = "",
        ADDRESSES_OR_NONE,
        "Listen addresses of the same over TLS (https); needs tls.cert and tls.key. They must not be public either.",
        |c, raw| { c.admin.tls_listen = parse::addresses(raw)?; Some(()) };
    "admin.hosts" = "",
        "host names as murre.internal, without ports, separated by commas, or nothing",
        "Names by which admin.listen, admin.tls.listen and metrics.listen can be called, beside localhost and every IP address; a request with another Host is answered 421.",
        |c, raw| { c.admin.hosts = parse::host_names(raw)?; Some(()) };

    "metrics.listen" ("metrics" "ADDR") = "",
        ADDRESSES_OR_NONE,
        "Listen addresses of metrics and health routes alone, which change nothing and ask for no password: for scrapers and health checks of other hosts. They must not be public.",
        |c, raw| { c.metrics.listen = parse::addresses(raw)?; Some(()) };

    "shards.cores" ("cores" "LIST") = "all",
        "CPU numbers as 2-15,20, none twice, or all",
        "CPUs of the shards; each shard is pinned to one of them.",
        |c, raw| { c.shards.cores = parse::cores(raw)?; Some(()) };
    "shards.count" ("shards" "N") = "0",
        "a number from 0 (one per core) to 256",
        "Number of shards; a data directory can be opened with another number than it was written with.",
        |c, raw| { c.shards.count = parse::number(raw, 0, u64::from(machine::limits::SHARDS_MAX))? as u16; Some(()) };
    "shards.backlog" = "4096",
        "a number from 16 to 65535",
        "Connections that the kernel completes ahead of a shard, on each of its listening sockets; net.core.somaxconn also limits them.",
        |c, raw| {
            c.shards.backlog = parse::number(raw, u64::from(BACKLOG_MIN), u64::from(BACKLOG_MAX))? as u16;
            Some(())
        };
    "shards.steer" = "off",
        "off or cpu",
        "Shard of a new connection: any shard, or that of the CPU that received its first packet; for hosts with as many receive queues as shards.",
        |c, raw| { c.shards.steer = parse::word(raw, &[("off", Steer::Off), ("cpu", Steer::Cpu)])?; Some(()) };
    "shards.plane" = "auto",
        "auto, io_uring or poll",
        "System interface for sockets: io_uring rings or epoll. auto uses rings where they work, and epoll elsewhere. With hibernation, auto requires rings. Only poll gives up frozen sessions.",
        |c, raw| {
            use PlaneChoice::{Auto, IoUring, Poll};
            c.shards.plane = parse::word(raw, &[("auto", Auto), ("io_uring", IoUring), ("poll", Poll)])?;
            Some(())
        };

    "store.kind" ("store" "KIND") = "embedded",
        "embedded, scylla for one store that several nodes share, or memory for trials that may forget everything",
        "Place of users, channels and stored messages.",
        |c, raw| {
            use StoreKind::{Embedded, Memory, Scylla};
            let words = [("embedded", Embedded), ("memory", Memory), ("scylla", Scylla)];
            c.store.kind = parse::word(raw, &words)?;
            Some(())
        };
    "store.cache" = "32MiB",
        BYTES,
        "Memory for blocks of the embedded store.",
        |c, raw| { c.store.cache = parse::bytes(raw)?; Some(()) };
    "store.max_bytes" = "0",
        "a number of bytes, as 107374182400 or 100GiB; 0 is no bound but the disk",
        "Size on disk at which messages that would be stored are refused with 503; registers and saves go on for an eighth more.",
        |c, raw| { c.store.max_bytes = parse::bytes(raw)?; Some(()) };

    "store.user_bytes_per_day" = "",
        "a number of bytes, as 16777216 or 16MiB; 0 is no bound; nothing is 16MiB, and 4MiB on a shared store",
        "Maximum bytes stored for one user, or handed to its bridge, in a UTC day, counted by each node; further POSTs are answered 429.",
        |c, raw| {
            let by_kind = raw.text()?.is_empty();
            c.store.user_bytes_per_day = if by_kind { None } else { Some(parse::bytes(raw)?) };
            Some(())
        };
    "store.backups_keep" = "7",
        "a number from 0 (all) to 31",
        "Number of backups made without --name that stay in data_dir; after a further one, the server removes the oldest. It never removes one whose name has a letter.",
        |c, raw| { c.store.backups_keep = parse::number(raw, 0, 31)? as usize; Some(()) };

    "store.max_skew" = "15",
        "seconds from 1 to 15, as 10 or \"10s\"",
        "Maximum difference between the time of a node and the clocks of the database; beyond it the node refuses to start, and stamps nothing.",
        |c, raw| {
            let allowed = |skew: &Duration| (Duration::from_secs(1)..=Duration::from_secs(15)).contains(skew);
            c.store.max_skew = parse::duration(raw).filter(allowed)?;
            Some(())
        };

    "store.scylla.nodes" ("scylla" "HOST:PORT") = "",
        "addresses or names with ports, as 10.0.0.1:9042,db2:9042 or [::1]:9042",
        "Contact points of the database; they name its other nodes.",
        |c, raw| { c.store.scylla.nodes = parse::hosts(raw)?; Some(()) };
    "store.scylla.keyspace" = "murre",
        "1 to 48 lower case letters, digits and _, a letter first",
        "Keyspace of the tables.",
        |c, raw| { c.store.scylla.keyspace = parse::keyspace(raw)?; Some(()) };
    "store.scylla.replication_factor" = "3",
        "a number from 1 to 9",
        "Number of nodes of each datacenter that hold a row; `murre schema create` creates the keyspace with it.",
        |c, raw| { c.store.scylla.replication_factor = parse::number(raw, 1, 9)? as u16; Some(()) };
    "store.scylla.datacenter" = "",
        "the name of a datacenter, or nothing where there is one only",
        "Datacenter that receives the requests and, from `murre schema create`, all rows.",
        |c, raw| { c.store.scylla.datacenter = parse::name(raw)?; Some(()) };
    "store.scylla.read_consistency" = "quorum",
        LEVEL,
        "Replicas that must answer a read. Reads and writes must overlap.",
        |c, raw| { c.store.scylla.read_consistency = consistency(raw)?; Some(()) };
    "store.scylla.write_consistency" = "quorum",
        LEVEL,
        "Replicas that must have a write before it is acknowledged.",
        |c, raw| { c.store.scylla.write_consistency = consistency(raw)?; Some(()) };
    #[live] "store.scylla.user" = "",
        "up to 128 visible characters, or nothing",
        "User name for a database that requires a login; a new value is for new connections.",
        |c, raw| { c.store.scylla.user = parse::name(raw)?; Some(()) };
    #[secret] #[live] "store.scylla.password" = "",
        "up to 1024 characters, none a control character",
        "Password of store.scylla.user; a new value is for new connections.",
        |c, raw| { c.store.scylla.password = parse::password(raw)?; Some(()) };
    "store.scylla.tls" = "false",
        "true or false",
        "Encrypts connections to the database.",
        |c, raw| { c.store.scylla.tls.enabled = parse::flag(raw)?; Some(()) };
    #[live] "store.scylla.tls_ca" = "",
        PEM,
        "PEM certificates of the authorities of the database; by default those that this host trusts. A new value is for new connections.",
        |c, raw| { c.store.scylla.tls.ca = parse::path(raw)?; Some(()) };
    #[live] "store.scylla.tls_cert" = "",
        PEM,
        "PEM client certificate that murre presents when the database requires one; a new value is for new connections.",
        |c, raw| { c.store.scylla.tls.cert = parse::path(raw)?; Some(()) };
    #[live] "store.scylla.tls_key" = "",
        PEM,
        "PEM key of store.scylla.tls_cert.",
        |c, raw| { c.store.scylla.tls.key = parse::path(raw)?; Some(()) };
    #[live] "store.scylla.tls_verify_host" = "true",
        "true or false",
        "Requires that the certificate of a database node names its IP address; a new value is for new connections.",
        |c, raw| { c.store.scylla.tls.verify_host = parse::flag(raw)?; Some(()) };
    "store.scylla.connect_timeout" = "5",
        SECONDS,
        "Time limit for a connection to a database node; later the connection has failed.",
        |c, raw| { c.store.scylla.connect_timeout = parse::positive_duration(raw)?; Some(()) };
    "store.scylla.request_timeout" = "5",
        "seconds from 0.001 to 30, as 5, 2.5 or \"250ms\"",
        "Time limit for a statement, its retries included; later the statement has failed.",
        |c, raw| {
            let allowed = |span: &Duration| *span <= Duration::from_secs(30);
            c.store.scylla.request_timeout = parse::positive_duration(raw).filter(allowed)?;
            Some(())
        };
    "store.scylla.in_flight" = "256",
        "a number from 1 to 4096",
        "Maximum number of statements of one shard in flight; further ones wait. A slow database lowers the number.",
        |c, raw| { c.store.scylla.in_flight = parse::number(raw, 1, 4_096)? as u16; Some(()) };

    "delivery.window" = "500",
        "a number from 1 to 1024",
        "Maximum number of unacked notifications of one session; further ones wait in the store. They go out 50 at once, and 50 more for each second without an ack.",
        |c, raw| { c.delivery.window = parse::number(raw, 1, u64::from(WINDOW_MAX))? as u16; Some(()) };
    "delivery.durable" = "false",
        "true or false",
        "Stores every message on disk before it is sent, so that not even a power cut loses one.",
        |c, raw| { c.delivery.durable = parse::flag(raw)?; Some(()) };
    "delivery.spill_after" = "10",
        SECONDS,
        "Time after which an unacked notification is saved to storage.",
        |c, raw| { c.delivery.spill_after = parse::positive_duration(raw)?; Some(()) };
    "delivery.retry_after" = "60",
        SECONDS,
        "Time after which an unacked notification is sent again, at most 3 times.",
        |c, raw| { c.delivery.retry_after = parse::positive_duration(raw)?; Some(()) };
    "delivery.attempts_max" = "10",
        "a number from 3 to 31, or 0 (never)",
        "Number of deliveries, over at least three sessions, after which a message without an ack ends.",
        |c, raw| {
            let most = u64::from(machine::message::Tries::DELIVERIES_MAX);
            c.delivery.attempts_max = parse::number(raw, 0, most).filter(|number| *number == 0 || *number >= 3)? as u8;
            Some(())
        };
    "delivery.msg_limit" = "0",
        "a number from 0 (off) to 4294967295",
        "Number of stored messages in one drain beyond which the user is reset: all are discarded, and the user agent subscribes again.",
        |c, raw| { c.delivery.msg_limit = parse::number(raw, 0, u64::from(u32::MAX))? as u32; Some(()) };
    "delivery.ledger_bytes" = "32MiB",
        "a number of bytes from 1MiB to 16GiB, as 33554432 or 32MiB",
        "Size of the ledger log of each shard, in data_dir and in memory. Half of it holds unacked directs.",
        |c, raw| {
            let allowed = |bytes: &u64| (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(bytes);
            c.delivery.ledger_bytes = parse::bytes(raw).filter(allowed)?;
            Some(())
        };

    "hello.reconcile" = "false",
        "true or false",
        "Makes the channelIDs of a hello authoritative: channels that they lack are unregistered, and a user with an unknown channel is reset.",
        |c, raw| { c.hello.reconcile = parse::flag(raw)?; Some(()) };

    #[secret] "broadcast.url" = "",
        CALL_URL,
        "URL from which the versions of broadcasts are polled; by default only PUT /broadcasts sets them.",
        |c, raw| { c.broadcast.url = parse::call_url(raw)?; Some(()) };
    #[secret] "broadcast.token" = "",
        "up to 4096 visible characters",
        "Token that is sent as Authorization: Bearer to the host of broadcast.url, never to a host that it redirects to.",
        |c, raw| { c.broadcast.token = parse::token(raw)?; Some(()) };
    "broadcast.interval" = "30",
        SECONDS,
        "Time between two polls of broadcast.url.",
        |c, raw| { c.broadcast.interval = parse::positive_duration(raw)?; Some(()) };
    "broadcast.spread" = "10",
        SECONDS_OR_ZERO,
        "Time within which a changed broadcast reaches all sessions, so that they do not all answer in the same second.",
        |c, raw| { c.broadcast.spread = parse::duration(raw)?; Some(()) };

    #[secret] "simplepush.wake_url" = "",
        CALL_URL,
        "URL that gets a POST when a message is stored for a SimplePush user agent that can be woken; by default none.",
        |c, raw| { c.simplepush.wake_url = parse::call_url(raw)?; Some(()) };
    "simplepush.enabled" = "false",
        "true or false",
        "Gives SimplePush to user agents whose hello does not say use_webpush: version updates, of which the newest counts, and PUT /spush.",
        |c, raw| { c.simplepush.enabled = parse::flag(raw)?; Some(()) };
    "simplepush.wake_timeout" = "0",
        SECONDS_OR_ZERO,
        "Time of silence after which a SimplePush session of a user agent that can be woken is closed with 4774.",
        |c, raw| { c.simplepush.wake_timeout = parse::duration(raw)?; Some(()) };

    "relay.members" = "0",
        "a number from 0 (off) to 4096",
        "Maximum number of user agents at a time that a connection can represent if its hello says \"relay\":true.",
        |c, raw| { c.relay.members = parse::number(raw, 0, RELAY_MEMBERS_MAX as u64)? as u16; Some(()) };

    #[live] "drain.delay" = "5",
        SECONDS_OR_ZERO,
        "Time from SIGTERM to the first closed session; health pages and new WebSockets are answered 503 meanwhile.",
        |c, raw| { c.drain.delay = parse::duration(raw)?; Some(()) };
    #[live] "drain.rate" = "10000",
        "a number from 1 to 10000000",
        "Sessions closed per second during the drain.",
        |c, raw| { c.drain.rate = parse::number(raw, 1, 10_000_000)? as u32; Some(()) };
    "drain.mode" = "close",
        "close or hibernate",
        "What SIGTERM does to sessions: close closes them with 1001; hibernate freezes them for the next process on this host, without drain.delay. Needs hibernate.dir.",
        |c, raw| {
            let words = [("close", DrainMode::Close), ("hibernate", DrainMode::Hibernate)];
            c.drain.mode = parse::word(raw, &words)?;
            Some(())
        };

    #[live] "log.level" = "info",
        "error, warn, info, debug, trace or off, or directives as info,murre::clients=debug",
        "Level of the log on standard error. debug adds the events of each client.",
        |c, raw| { c.log.level = words::targets(raw.text()?)?; Some(()) };
    "log.format" = "text",
        "text, or json for one object a line",
        "Form of a log line.",
        |c, raw| {
            let words = [("text", LogFormat::Text), ("json", LogFormat::Json)];
            c.log.format = parse::word(raw, &words)?;
            Some(())
        };
    "log.color" = "false",
        "true or false",
        "Colours the log.",
        |c, raw| { c.log.color = parse::flag(raw)?; Some(()) };
}
