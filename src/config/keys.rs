//! The one table of keys: it drives all four sources, every refusal, and the table in docs/OPERATIONS.md.

use std::time::Duration;

use shards::ledger::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use shards::limits::{BACKLOG_MAX, BACKLOG_MIN, RELAY_MEMBERS_MAX};

use super::error::{ConfigError, Origin};
use super::parse::{self, Raw};
use super::values::{log_format, roles, steer, store_kind, token_form};
use super::{Config, Level, MAX_CONNECTIONS_MAX};

/// One setting.
pub struct Key {
    /// `section.key`, as in the TOML file.
    pub name: &'static str,
    /// The flag of `murre serve` without its dashes, and what its value is called.
    pub flag: Option<(&'static str, &'static str)>,
    /// As it would be written in the environment.
    pub default: &'static str,
    /// What it accepts, continuing "it takes".
    pub allowed: &'static str,
    /// What it means, one sentence.
    pub help: &'static str,
    /// Its value is never shown.
    pub secret: bool,
    /// Puts an accepted value where it belongs; `None` refuses it.
    pub set: fn(&mut Config, &Raw) -> Option<()>,
}

impl Key {
    /// `MURRE_SECTION__KEY`.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.replace('.', "__").to_ascii_uppercase())
    }
}

/// What every variable of ours begins with; one that matches no key is refused.
pub const VARIABLE_PREFIX: &str = "MURRE_";

/// The one variable of ours that is no key: the configuration file, as `--config`.
pub const FILE_VARIABLE: &str = "MURRE_CONFIG";

/// Whether keys begin with this name and a dot.
pub fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The key of this name.
///
/// # Errors
/// [`ConfigError::UnknownKey`] with the nearest name.
pub fn find(name: &str, origin: &Origin) -> Result<&'static Key, ConfigError> {
    KEYS.iter().find(|key| key.name == name).ok_or_else(|| ConfigError::UnknownKey {
        origin: origin.clone(),
        name: name.to_owned(),
        nearest: nearest(name),
    })
}

/// The key whose name is most like `name`, if any is like it at all.
fn nearest(name: &str) -> Option<&'static Key> {
    let likeness = |key: &Key| {
        // Somebody who forgets the section, or puts the key in another, still means the key.
        let last = |text: &str| text.rsplit('.').next().map_or(String::new(), str::to_owned);
        let whole = strsim::normalized_damerau_levenshtein(name, key.name);
        whole.max(strsim::normalized_damerau_levenshtein(&last(name), &last(key.name)) * 0.95)
    };
    let best = KEYS.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= LIKENESS_MIN).then_some(best)
}

/// Below this two names have nothing to do with each other.
const LIKENESS_MIN: f64 = 0.4;

const ADDRESSES: &str = "addresses as 127.0.0.1:8080 or [::1]:8080, separated by commas";
const SECONDS: &str = "seconds from 0.001 to a year, as 5, 2.5, \"250ms\", \"5s\", \"10m\" or \"1h\"";
const SECONDS_OR_ZERO: &str = "seconds from 0 (off) to a year, as 5, 2.5, \"250ms\", \"5s\", \"10m\" or \"1h\"";
const RATE: &str = "a number from 0 (no limit) to 1000000";
const BYTES: &str = "a number of bytes, as 33554432, 32MiB or 4GiB";
const URL: &str = "a URL that begins with http:// or https://, without query and user";
const LEVEL: &str = "one, local_one, quorum, local_quorum or all";
const PEM: &str = "a file, or nothing";
const CALL_URL: &str = "a URL that begins with http:// or https://, without user and fragment, or nothing";

macro_rules! keys {
    ($($(#[$secret:ident])? $name:literal $(($flag:literal $value:literal))? = $default:literal,
       $allowed:expr, $help:literal, $set:expr;)+) => {
        /// Every key there is, in the order of the documentation.
        pub const KEYS: &[Key] = &[$(Key {
            name: $name,
            flag: keys!(@flag $($flag $value)?),
            default: $default,
            allowed: $allowed,
            help: $help,
            secret: keys!(@secret $($secret)?),
            set: $set,
        }),+];
    };
    (@flag) => { None };
    (@flag $flag:literal $value:literal) => { Some(($flag, $value)) };
    (@secret) => { false };
    (@secret secret) => { true };
}

keys! {
    "data_dir" ("data-dir" "DIR") = "murre-data",
        "a directory",
        "Keys, store and ledgers. Made with mode 0700 when it does not exist; one process at a time.",
        |c, raw| { c.data_dir = raw.text().filter(|text| !text.is_empty())?.into(); Some(()) };
    "roles" ("roles" "LIST") = "connect,endpoint",
        "connect, endpoint or both, separated by a comma",
        "connect holds WebSocket sessions and takes calls of other nodes, endpoint takes POSTs.",
        |c, raw| { c.roles = roles(raw)?; Some(()) };
    "max_connections" ("max-connections" "N") = "100000",
        "a number from 1 to 16777216",
        "WebSockets and other connections together; beyond it a connection is answered 503 and closed. Half is for WebSockets alone, and a sixteenth more for app servers and a 64th for nodes is kept free for them.",
        |c, raw| { c.max_connections = parse::number(raw, 1, u64::from(MAX_CONNECTIONS_MAX))? as u32; Some(()) };

    "websocket.listen" ("websocket" "ADDR") = "127.0.0.1:8080",
        ADDRESSES,
        "Where user agents connect.",
        |c, raw| { c.websocket.listen = parse::addresses(raw)?; Some(()) };
    "websocket.hello_timeout" = "5",
        SECONDS,
        "A WebSocket that has not said hello by then is closed with 1011.",
        |c, raw| { c.websocket.hello_timeout = parse::positive_duration(raw)?; Some(()) };
    "websocket.auto_ping_interval" = "300",
        SECONDS_OR_ZERO,
        "A session is pinged when its user agent has sent no frame for this long.",
        |c, raw| { c.websocket.auto_ping_interval = parse::duration(raw)?; Some(()) };
    "websocket.auto_ping_timeout" = "4",
        SECONDS,
        "A session is closed that has not answered a ping by then, or whose socket takes no byte for so long while something is owed to it.",
        |c, raw| { c.websocket.auto_ping_timeout = parse::positive_duration(raw)?; Some(()) };
    "websocket.ping_min_interval" = "45",
        SECONDS_OR_ZERO,
        "A user agent that sends {} again sooner than this is closed with 4774.",
        |c, raw| { c.websocket.ping_min_interval = parse::duration(raw)?; Some(()) };
    "websocket.welcome" = "0",
        "a number from 0 (no limit) to 16777216",
        "Beyond so many WebSockets a new one is answered 503 with Retry-After, so that a load balancer spreads them; read again on SIGHUP.",
        |c, raw| { c.websocket.welcome = parse::number(raw, 0, 1 << 24)? as u32; Some(()) };

    "endpoint.listen" ("endpoint" "ADDR") = "127.0.0.1:8082",
        ADDRESSES,
        "Where application servers POST.",
        |c, raw| { c.endpoint.listen = parse::addresses(raw)?; Some(()) };
    "endpoint.url" ("endpoint-url" "URL") = "",
        URL,
        "What endpoint URLs begin with, as application servers reach it; by default http:// and the first address of endpoint.listen.",
        |c, raw| { c.endpoint.url = parse::url(raw)?; Some(()) };
    #[secret] "endpoint.crypto_keys" = "",
        "Fernet keys as printed by `murre keygen`, [k1,k2] or k1,k2",
        "Endpoint tokens are sealed with the first key and opened with any. By default one is made in data_dir.",
        |c, raw| { c.endpoint.crypto_keys = parse::fernet_keys(raw)?; Some(()) };
    "endpoint.tokens" = "short",
        "short, or fernet for the tokens of the services before this one",
        "The form of new endpoint tokens; every form is always opened.",
        |c, raw| { c.endpoint.tokens = token_form(raw)?; Some(()) };

    "http.request_timeout" = "30",
        SECONDS,
        "An HTTP request on any port, and the upgrade of a WebSocket, must be complete by then; else 408 and the end. A WebSocket message that is begun must be, too; else close 1008.",
        |c, raw| { c.http.request_timeout = parse::positive_duration(raw)?; Some(()) };
    "http.keep_alive" = "75",
        SECONDS,
        "A connection of an app server or node without a request ends after this.",
        |c, raw| { c.http.keep_alive = parse::positive_duration(raw)?; Some(()) };
    "endpoint.token_rate" = "0",
        RATE,
        "POSTs per second to one endpoint, with a burst of ten seconds' worth; beyond it they are answered 429.",
        |c, raw| { c.endpoint.token_rate = rate(raw)?; Some(()) };
    "endpoint.origin_rate" = "0",
        RATE,
        "POSTs per second of one VAPID key on one shard, all without a key counting as one; beyond it they are answered 429.",
        |c, raw| { c.endpoint.origin_rate = rate(raw)?; Some(()) };

    "node.listen" ("node" "ADDR") = "127.0.0.1:8081",
        ADDRESSES,
        "Where other nodes of a cluster call.",
        |c, raw| { c.node.listen = parse::addresses(raw)?; Some(()) };
    "node.url" ("node-url" "URL") = "",
        URL,
        "How other nodes reach this one; by default https:// and the first address of node.tls.listen, else http:// and that of node.listen.",
        |c, raw| { c.node.url = parse::url(raw)?; Some(()) };
    #[secret] "node.keys" = "",
        "keys of 16 to 256 visible characters, [k1,k2] or k1,k2",
        "Other nodes must present one of them; the first is presented to them. By default one is made in data_dir.",
        |c, raw| { c.node.keys = parse::bearer_keys(raw)?; Some(()) };

    "node.connections" = "16",
        "a number from 1 to 256",
        "Connections to each other node; more calls than that wait.",
        |c, raw| { c.node.connections = parse::number(raw, 1, 256)? as u16; Some(()) };
    "node.connect_timeout" = "1",
        SECONDS,
        "A connection to another node that is not there by then counts as failed.",
        |c, raw| { c.node.connect_timeout = parse::positive_duration(raw)?; Some(()) };
    "node.request_timeout" = "3",
        "seconds from 0.001 to 30, as 5, 2.5 or \"250ms\"",
        "A call of another node that is not answered by then has failed.",
        |c, raw| {
            let allowed = |span: &Duration| *span <= Duration::from_secs(30);
            c.node.request_timeout = parse::positive_duration(raw).filter(allowed)?;
            Some(())
        };
    "node.ca" = "",
        PEM,
        "PEM certificates that sign those of other nodes whose node.url begins with https; by default those this host trusts. Read at start, with any store, and again on SIGHUP.",
        |c, raw| { c.node.ca = parse::path(raw)?; Some(()) };

    "node.tls.listen" = "",
        "addresses as 0.0.0.0:8443 or [::1]:8443, separated by commas, or nothing",
        "Where other nodes call over TLS: it ends here, in front of the first address of node.listen, which may then be one of 127.0.0.1.",
        |c, raw| { c.node.tls.listen = parse::addresses(raw)?; Some(()) };
    "node.tls.cert" = "",
        PEM,
        "PEM certificate of this node for node.tls.listen, which names the host of node.url, and those that lead to its authority; read again on SIGHUP.",
        |c, raw| { c.node.tls.cert = parse::path(raw)?; Some(()) };
    "node.tls.key" = "",
        PEM,
        "PEM key of node.tls.cert, without a password; read again on SIGHUP.",
        |c, raw| { c.node.tls.key = parse::path(raw)?; Some(()) };

    "admin.listen" ("admin" "ADDR") = "127.0.0.1:8083",
        ADDRESSES,
        "Where operators find the admin page, health routes, metrics and PUT /broadcasts. Not for the public.",
        |c, raw| { c.admin.listen = parse::addresses(raw)?; Some(()) };
    "admin.hosts" = "",
        "host names as murre.internal, without ports, separated by commas, or nothing",
        "Names by which admin.listen may be called, beside localhost and every IP address; a request with another Host is answered 421.",
        |c, raw| { c.admin.hosts = parse::host_names(raw)?; Some(()) };

    "shards.cores" ("cores" "LIST") = "all",
        "CPU numbers as 2-15,20, none twice, or all",
        "Each shard is pinned to one of these CPUs.",
        |c, raw| { c.shards.cores = parse::cores(raw)?; Some(()) };
    "shards.count" ("shards" "N") = "0",
        "a number from 0 (one per core) to 256",
        "How many shards; a data directory may be opened with another number than it was written with.",
        |c, raw| { c.shards.count = parse::number(raw, 0, u64::from(shards::limits::SHARDS_MAX))? as u16; Some(()) };
    "shards.backlog" = "4096",
        "a number from 16 to 65535",
        "Connections that the kernel completes ahead of a shard, on each of its listening sockets; net.core.somaxconn bounds it, too.",
        |c, raw| {
            c.shards.backlog = parse::number(raw, u64::from(BACKLOG_MIN), u64::from(BACKLOG_MAX))? as u16;
            Some(())
        };
    "shards.steer" = "off",
        "off or cpu",
        "Which shard gets a new connection: any, or that of the CPU which got its first packet; for hosts with as many receive queues as shards.",
        |c, raw| { c.shards.steer = steer(raw)?; Some(()) };

    "store.kind" ("store" "KIND") = "embedded",
        "embedded, scylla for one store that several nodes share, or memory for trials that may forget everything",
        "Where users, channels and stored messages live.",
        |c, raw| { c.store.kind = store_kind(raw)?; Some(()) };
    "store.cache" = "32MiB",
        BYTES,
        "Memory for blocks of the embedded store.",
        |c, raw| { c.store.cache = parse::bytes(raw)?; Some(()) };
    "store.max_bytes" = "0",
        "a number of bytes, as 107374182400 or 100GiB; 0 is no bound but the disk",
        "At this size on disk messages that would be stored are refused with 503; registers and saves go on for an eighth more.",
        |c, raw| { c.store.max_bytes = parse::bytes(raw)?; Some(()) };

    "store.user_bytes_per_day" = "",
        "a number of bytes, as 16777216 or 16MiB; 0 is no bound; nothing is 16MiB, and 4MiB on a shared store",
        "Bytes stored for one user in a UTC day, as one node counts them; beyond it POSTs that would be stored are answered 429.",
        |c, raw| {
            let by_kind = raw.text()?.is_empty();
            c.store.user_bytes_per_day = if by_kind { None } else { Some(parse::bytes(raw)?) };
            Some(())
        };

    "store.max_skew" = "15",
        "seconds from 1 to 15, as 10 or \"10s\"",
        "How far the time of a node may be from the clocks of the database; beyond it the node refuses to start, and stamps nothing.",
        |c, raw| {
            let allowed = |skew: &Duration| (Duration::from_secs(1)..=Duration::from_secs(15)).contains(skew);
            c.store.max_skew = parse::duration(raw).filter(allowed)?;
            Some(())
        };

    "store.scylla.nodes" ("scylla" "HOST:PORT") = "",
        "addresses or names with ports, as 10.0.0.1:9042,db2:9042 or [::1]:9042",
        "Nodes of the database to ask first; the others are found through them.",
        |c, raw| { c.store.scylla.nodes = parse::hosts(raw)?; Some(()) };
    "store.scylla.keyspace" = "murre",
        "1 to 48 lower case letters, digits and _, a letter first",
        "Where the tables are.",
        |c, raw| { c.store.scylla.keyspace = parse::keyspace(raw)?; Some(()) };
    "store.scylla.replication_factor" = "3",
        "a number from 1 to 9",
        "How many nodes of each datacenter have a row; `murre schema create` makes the keyspace so.",
        |c, raw| { c.store.scylla.replication_factor = parse::number(raw, 1, 9)? as u16; Some(()) };
    "store.scylla.datacenter" = "",
        "the name of a datacenter, or nothing where there is one only",
        "Requests go to it, and `murre schema create` puts rows nowhere else.",
        |c, raw| { c.store.scylla.datacenter = parse::name(raw)?; Some(()) };
    "store.scylla.read_consistency" = "quorum",
        LEVEL,
        "How many replicas answer a read. Reads and writes must overlap.",
        |c, raw| { c.store.scylla.read_consistency = Level::parse(raw)?; Some(()) };
    "store.scylla.write_consistency" = "quorum",
        LEVEL,
        "How many replicas have a write before it is acknowledged.",
        |c, raw| { c.store.scylla.write_consistency = Level::parse(raw)?; Some(()) };
    "store.scylla.user" = "",
        "up to 128 visible characters, or nothing",
        "Who we are to the database, where it asks.",
        |c, raw| { c.store.scylla.user = parse::name(raw)?; Some(()) };
    #[secret] "store.scylla.password" = "",
        "up to 1024 characters, none a control character",
        "The password of store.scylla.user.",
        |c, raw| { c.store.scylla.password = parse::password(raw)?; Some(()) };
    "store.scylla.tls" = "false",
        "true or false",
        "Encrypt connections to the database.",
        |c, raw| { c.store.scylla.tls.enabled = parse::flag(raw)?; Some(()) };
    "store.scylla.tls_ca" = "",
        PEM,
        "PEM certificates that sign those of the database; by default those this host trusts.",
        |c, raw| { c.store.scylla.tls.ca = parse::path(raw)?; Some(()) };
    "store.scylla.tls_cert" = "",
        PEM,
        "PEM certificate of ours, where the database asks for one.",
        |c, raw| { c.store.scylla.tls.cert = parse::path(raw)?; Some(()) };
    "store.scylla.tls_key" = "",
        PEM,
        "PEM key of store.scylla.tls_cert.",
        |c, raw| { c.store.scylla.tls.key = parse::path(raw)?; Some(()) };
    "store.scylla.tls_verify_host" = "true",
        "true or false",
        "Whether the certificate of a database node must name its IP address.",
        |c, raw| { c.store.scylla.tls.verify_host = parse::flag(raw)?; Some(()) };
    "store.scylla.connect_timeout" = "5",
        SECONDS,
        "A connection to a database node that is not there by then counts as failed.",
        |c, raw| { c.store.scylla.connect_timeout = parse::positive_duration(raw)?; Some(()) };
    "store.scylla.request_timeout" = "5",
        "seconds from 0.001 to 30, as 5, 2.5 or \"250ms\"",
        "A statement, its retries included, that is not answered by then has failed.",
        |c, raw| {
            let allowed = |span: &Duration| *span <= Duration::from_secs(30);
            c.store.scylla.request_timeout = parse::positive_duration(raw).filter(allowed)?;
            Some(())
        };
    "store.scylla.in_flight" = "256",
        "a number from 1 to 4096",
        "Statements of one shard that may be unanswered; more wait. While the database answers slowly they are fewer.",
        |c, raw| { c.store.scylla.in_flight = parse::number(raw, 1, 4_096)? as u16; Some(()) };

    "delivery.window" = "500",
        "a number from 1 to 1024",
        "Notifications of one session that may be unacked; more wait in storage. They go out 50 at once, and 50 more for each second without an ack.",
        |c, raw| { c.delivery.window = parse::number(raw, 1, u64::from(shards::limits::WINDOW_MAX))? as u16; Some(()) };
    "delivery.durable" = "false",
        "true or false",
        "Store every message on disk before it is sent, so that not even a power cut loses one.",
        |c, raw| { c.delivery.durable = parse::flag(raw)?; Some(()) };
    "delivery.spill_after" = "10",
        SECONDS,
        "A notification unacked for this long is saved to storage.",
        |c, raw| { c.delivery.spill_after = parse::positive_duration(raw)?; Some(()) };
    "delivery.retry_after" = "60",
        SECONDS,
        "A notification unacked for this long is sent again, at most 3 times.",
        |c, raw| { c.delivery.retry_after = parse::positive_duration(raw)?; Some(()) };
    "delivery.attempts_max" = "10",
        "a number from 3 to 31, or 0 (never)",
        "A message that was delivered this often, over three sessions at least, and never acked ends.",
        |c, raw| {
            let most = u64::from(shards::message::Tries::DELIVERIES_MAX);
            c.delivery.attempts_max = parse::number(raw, 0, most).filter(|number| *number == 0 || *number >= 3)? as u8;
            Some(())
        };
    "delivery.msg_limit" = "0",
        "a number from 0 (off) to 4294967295",
        "A user whose drain comes to more stored messages than this is reset: all are discarded and it subscribes anew.",
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
        "Take the channelIDs of a hello as the truth: unregister what they lack, reset a user who has more than we know.",
        |c, raw| { c.hello.reconcile = parse::flag(raw)?; Some(()) };

    #[secret] "broadcast.url" = "",
        CALL_URL,
        "Where the versions of broadcasts are asked for; by default only PUT /broadcasts sets them.",
        |c, raw| { c.broadcast.url = parse::call_url(raw)?; Some(()) };
    #[secret] "broadcast.token" = "",
        "up to 4096 visible characters",
        "Sent as Authorization: Bearer to the host of broadcast.url, never to one that it redirects to.",
        |c, raw| { c.broadcast.token = parse::token(raw)?; Some(()) };
    "broadcast.interval" = "30",
        SECONDS,
        "How often broadcast.url is asked.",
        |c, raw| { c.broadcast.interval = parse::positive_duration(raw)?; Some(()) };
    "broadcast.spread" = "10",
        SECONDS_OR_ZERO,
        "A changed broadcast reaches all sessions within this time, so that they do not all answer in the same second.",
        |c, raw| { c.broadcast.spread = parse::duration(raw)?; Some(()) };

    #[secret] "simplepush.wake_url" = "",
        CALL_URL,
        "Where a POST goes when a message is stored for a SimplePush user agent that can be woken; by default nowhere.",
        |c, raw| { c.simplepush.wake_url = parse::call_url(raw)?; Some(()) };
    "simplepush.enabled" = "false",
        "true or false",
        "User agents whose hello does not say use_webpush get SimplePush: version updates, of which the newest counts, and PUT /spush.",
        |c, raw| { c.simplepush.enabled = parse::flag(raw)?; Some(()) };
    "simplepush.wake_timeout" = "0",
        SECONDS_OR_ZERO,
        "A SimplePush session of a user agent that can be woken is closed with 4774 when nothing was said on it for this long.",
        |c, raw| { c.simplepush.wake_timeout = parse::duration(raw)?; Some(()) };

    "relay.members" = "0",
        "a number from 0 (off) to 4096",
        "A connection whose hello says \"relay\":true may speak for this many user agents at a time.",
        |c, raw| { c.relay.members = parse::number(raw, 0, RELAY_MEMBERS_MAX as u64)? as u16; Some(()) };

    "drain.delay" = "5",
        SECONDS_OR_ZERO,
        "From SIGTERM to the first session that is closed; health pages and new WebSockets are answered 503 meanwhile.",
        |c, raw| { c.drain.delay = parse::duration(raw)?; Some(()) };
    "drain.rate" = "10000",
        "a number from 1 to 10000000",
        "Sessions closed per second when the server is told to stop.",
        |c, raw| { c.drain.rate = parse::number(raw, 1, 10_000_000)? as u32; Some(()) };

    "log.level" = "info",
        "error, warn, info, debug, trace or off, or directives as info,murre::clients=debug",
        "What is logged to standard error. At debug also what each client meets.",
        |c, raw| { c.log.level = super::words::directives(raw.text()?)?; Some(()) };
    "log.format" = "text",
        "text, or json for one object a line",
        "How a line of the log is spelled.",
        |c, raw| { c.log.format = log_format(raw)?; Some(()) };
    "log.color" = "false",
        "true or false",
        "Colour the log.",
        |c, raw| { c.log.color = parse::flag(raw)?; Some(()) };
}

fn rate(raw: &Raw) -> Option<u32> {
    Some(parse::number(raw, 0, u64::from(shards::rates::RATE_MAX))? as u32)
}

/// The Markdown table of docs/OPERATIONS.md.
pub fn markdown() -> String {
    let mut table = String::from("| key | flag | default | takes | meaning |\n|---|---|---|---|---|\n");
    for key in KEYS {
        let flag = key.flag.map_or(String::new(), |(flag, value)| format!("`--{flag} {value}`"));
        let default = if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
        table += &format!("| `{}` | {flag} | {default} | {} | {} |\n", key.name, key.allowed, key.help);
    }
    table
}
