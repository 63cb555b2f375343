//! Every source, their order, and refusals.

mod access;
mod acme;
mod hibernate;
mod log;
mod proxy;
mod public;
mod shared_store;
mod strangers;
mod tls;

use std::time::Duration;

use ::store::shared::options::Password;

use super::keys::KEYS;
use super::*;

/// A configuration file in a directory of its own.
struct File {
    dir: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> File {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("murre.toml"), text).expect("a file in it");
        File { dir }
    }

    fn sources(&self) -> Sources {
        Sources { file: Some(self.dir.path().join("murre.toml")), ..Sources::default() }
    }

    /// The refusal, without the directory of this run.
    fn refusal(&self) -> String {
        refusal(&self.sources()).replace(&format!("{}/", self.dir.path().display()), "")
    }
}

fn variables(pairs: &[(&str, &str)]) -> Sources {
    let variables = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Sources { variables, ..Sources::default() }
}

fn sets(settings: &[&str]) -> Sources {
    Sources { sets: settings.iter().map(|text| (*text).to_owned()).collect(), ..Sources::default() }
}

fn load(sources: &Sources) -> Config {
    Config::load(sources).unwrap_or_else(|error| panic!("refused: {error}"))
}

fn refusal(sources: &Sources) -> String {
    Config::load(sources).expect_err("must be refused").to_string()
}

#[test]
fn defaults_are_those_of_the_design() {
    let config = load(&Sources::default());
    assert_eq!(config.websocket.listen, ["127.0.0.1:8080".parse().unwrap()]);
    assert_eq!(config.node.listen, ["127.0.0.1:8081".parse().unwrap()]);
    assert_eq!(config.endpoint.listen, ["127.0.0.1:8082".parse().unwrap()]);
    assert_eq!(config.admin.listen, ["127.0.0.1:8083".parse().unwrap()]);
    assert_eq!(config.websocket.hello_timeout, Duration::from_secs(5));
    assert_eq!(config.websocket.auto_ping_interval, Duration::from_secs(300));
    assert_eq!(config.websocket.auto_ping_timeout, Duration::from_secs(4));
    assert_eq!(config.websocket.ping_min_interval, Duration::from_secs(45));
    assert_eq!(config.broadcast.interval, Duration::from_secs(30));
    assert!(config.broadcast.url.is_none() && config.broadcast.token.is_none());
    assert_eq!(config.delivery.window, machine::limits::WINDOW_DEFAULT);
    assert_eq!(config.delivery.spill_after, Duration::from_secs(10));
    assert_eq!(config.delivery.retry_after, Duration::from_secs(60));
    assert_eq!(config.delivery.release_on_activity, Duration::ZERO);
    assert_eq!(config.store.kind, StoreKind::Embedded);
    assert_eq!(config.store.cache, 32 << 20);
    assert_eq!(config.roles, Roles { connect: true, endpoint: true });
    assert!(!config.delivery.durable);
    assert!(config.endpoint.crypto_keys.is_empty() && config.endpoint.url.is_none());
}

#[test]
fn a_later_source_wins_over_an_earlier_one() {
    let file = File::new("[delivery]\nwindow = 1\nspill_after = 1.5\nretry_after = \"1m\"\n[drain]\nrate = 7\n");
    let mut sources = file.sources();
    assert_eq!(load(&sources).delivery.window, 1);
    sources.variables = variables(&[("MURRE_DELIVERY__WINDOW", "2"), ("MURRE_DRAIN__RATE", "8")]).variables;
    assert_eq!(load(&sources).delivery.window, 2);
    assert_eq!(load(&sources).drain.rate, 8);
    sources.flags = vec![("--window".to_owned(), "delivery.window", "3".to_owned())];
    assert_eq!(load(&sources).delivery.window, 3);
    sources.sets = vec!["delivery.window=4".to_owned()];
    let config = load(&sources);
    assert_eq!(config.delivery.window, 4);
    assert_eq!(config.delivery.spill_after, Duration::from_millis(1500));
    assert_eq!(config.delivery.retry_after, Duration::from_secs(60));
}

#[test]
fn every_key_can_be_set_from_every_source() {
    for key in KEYS {
        let (value, secret) = match key.name {
            "endpoint.crypto_keys" | "tls.ticket_keys" => ("YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=", true),
            "node.keys" => ("0123456789abcdef", true),
            "broadcast.token" => ("sesame", true),
            // These are no secrets, but people put passwords into URLs, and a refused one must not be shown.
            "broadcast.url" | "simplepush.wake_url" => (key.default, true),
            "store.scylla.password"
            | "access.tokens"
            | "bridge.auth_keys"
            | "bridge.fcm.credentials"
            | "bridge.apns.channels" => ("", true),
            _ => (key.default, false),
        };
        assert_eq!(key.secret, secret, "{}", key.name);
        load(&sets(&[&format!("{}={value}", key.name)]));
        load(&variables(&[(&key.variable(), value)]));
        load(&File::new(&format!("{} = \"{value}\"\n", key.name)).sources());
    }
}

#[test]
fn lists_are_written_as_toml_lists_or_as_text() {
    let wanted = ["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()];
    let file = File::new("[websocket]\nlisten = [\"127.0.0.1:1\", \"[::1]:2\"]\n");
    assert_eq!(load(&file.sources()).websocket.listen, wanted);
    for text in
        ["127.0.0.1:1,[::1]:2", "[127.0.0.1:1, [::1]:2]", " 127.0.0.1:1 , [::1]:2 ", "[\"127.0.0.1:1\",\"[::1]:2\"]"]
    {
        assert_eq!(load(&variables(&[("MURRE_WEBSOCKET__LISTEN", text)])).websocket.listen, wanted, "{text}");
    }
    assert_eq!(load(&sets(&["websocket.listen=[::1]:2,[::1]:3"])).websocket.listen.len(), 2);
    assert_eq!(load(&sets(&["websocket.listen=[::1]:2"])).websocket.listen.len(), 1);
    assert!(load(&sets(&["admin.listen="])).admin.listen.is_empty());
    assert_eq!(load(&sets(&["admin.hosts=Murre.internal, other"])).admin.hosts, ["murre.internal", "other"]);
    let names = ["public.domain=A.example,b.example", "public.listen=none"];
    assert_eq!(load(&sets(&names)).public.domain, ["a.example", "b.example"]);
}

#[test]
fn keys_are_a_list_and_never_shown() {
    let (one, two) = ("YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=", "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI");
    for text in [format!("[{one},{two}]"), format!("{one},{two}")] {
        let config = load(&sets(&[&format!("endpoint.crypto_keys={text}"), "node.keys=0123456789abcdef"]));
        let revealed: Vec<_> = config.endpoint.crypto_keys.iter().map(Secret::reveal).collect();
        assert_eq!(revealed, [one, "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI="]);
        let shown = format!("{config:?}");
        assert!(!shown.contains("YWFh") && !shown.contains("YmJi") && !shown.contains("0123456789abcdef"));
    }
    let refused = refusal(&sets(&["broadcast.url=https://user:opensesame@megaphone.example.org/"]));
    assert!(!refused.contains("opensesame"), "{refused}");
    let refused = refusal(&sets(&["endpoint.crypto_keys=YWFhYQ"]));
    assert!(!refused.contains("YWFhYQ"), "{refused}");
    let wanted = "flag --set: invalid value (not shown) for endpoint.crypto_keys; expected Fernet keys";
    assert!(refused.starts_with(wanted), "{refused}");
    assert!(!refusal(&sets(&["node.keys=shortsecret"])).contains("shortsecret"));
    let config = load(&sets(&["broadcast.url=http://a/", "broadcast.token=opensesame"]));
    assert_eq!(config.broadcast.token.as_ref().map(Secret::reveal), Some("opensesame"));
    assert!(!format!("{config:?}").contains("sesame"));
    assert!(!refusal(&sets(&["broadcast.token=open sesame"])).contains("sesame"));
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_name() {
    let file = File::new("# murre\n[websocket]\nlisten = \"127.0.0.1:0\"\nhello_timeot = 5\n");
    assert_eq!(
        file.refusal(),
        "murre.toml line 4: there is no key websocket.hello_timeot; did you mean websocket.hello_timeout?"
    );
    assert_eq!(
        File::new("[broadcast]\nur = \"https://a\"\n").refusal(),
        "murre.toml line 2: there is no key broadcast.ur; did you mean broadcast.url?"
    );
    assert_eq!(
        File::new("crypto_keys = []\n").refusal(),
        "murre.toml line 1: there is no key crypto_keys; did you mean endpoint.crypto_keys?"
    );
    assert_eq!(
        refusal(&variables(&[("MURRE_WEBSOCKET__HELO_TIMEOUT", "5")])),
        "variable MURRE_WEBSOCKET__HELO_TIMEOUT: there is no key websocket.helo_timeout; \
         did you mean MURRE_WEBSOCKET__HELLO_TIMEOUT?"
    );
    assert_eq!(
        refusal(&sets(&["shard.count=2"])),
        "flag --set: there is no key shard.count; did you mean shards.count?"
    );
    assert_eq!(
        refusal(&sets(&["zq=2"])),
        "flag --set: there is no key zq; the section Settings of docs/OPERATIONS.md lists them all"
    );
}

#[test]
fn an_empty_section_and_a_key_used_as_a_section_are_refused() {
    assert!(File::new("[webscket]\n").refusal().starts_with("murre.toml line 1: there is no key webscket;"));
    assert!(File::new("[data_dir]\npath = 1\n").refusal().contains("line 2: there is no key data_dir.path"));
    assert!(File::new("websocket = 1\n").refusal().contains("there is no key websocket;"));
}

#[test]
fn the_first_fault_of_a_file_is_named_first() {
    let file = File::new("[store]\nkind = 7\n[delivery]\nwindow = 0\n");
    assert_eq!(
        file.refusal(),
        "murre.toml line 2: invalid value \"7\" for store.kind; expected embedded, scylla for one store that several \
         nodes share, or memory for trials that may forget everything"
    );
}

#[test]
fn a_bad_value_names_the_key_the_value_and_what_is_allowed() {
    let refused = [
        ("delivery.window=0", "expected a number from 1 to 1024"),
        ("delivery.window=1025", "expected a number from 1 to 1024"),
        ("delivery.window=-1", "expected a number from 1 to 1024"),
        ("delivery.durable=yes", "expected true or false"),
        ("websocket.listen=localhost", "expected addresses as 127.0.0.1:8080"),
        ("websocket.hello_timeout=0", "expected seconds from 0.001"),
        ("websocket.hello_timeout=5 weeks", "expected seconds from 0.001"),
        ("websocket.hello_timeout=nan", "expected seconds from 0.001"),
        ("websocket.hello_timeout=1e300", "expected seconds from 0.001"),
        ("endpoint.url=push.example.org", "expected a URL that begins with http://"),
        ("endpoint.url=https://", "expected a URL that begins with http://"),
        ("endpoint.url=https://a/?q", "expected a URL that begins with http://"),
        ("endpoint.url=https://a:", "expected a URL that begins with http://"),
        ("endpoint.url=https://a:99999", "expected a URL that begins with http://"),
        ("endpoint.url=https://[::1", "expected a URL that begins with http://"),
        ("tls.unknown_name=first", "expected refuse, or default for the first certificate"),
        ("tls.handshake_timeout=0", "expected seconds from 0.001"),
        ("tls.ticket_keys=c2hvcnQ", "expected secrets of 32 bytes in base64"),
        ("admin.tls.listen=localhost", "expected addresses as 0.0.0.0:8443"),
        ("endpoint.tokens=long", "expected short, or fernet for the tokens of the services before this one"),
        ("broadcast.url=megaphone.example.org/v1", "expected a URL that begins with http://"),
        ("broadcast.url=https://user@a/", "without user and fragment"),
        ("broadcast.interval=0", "expected seconds from 0.001"),
        ("simplepush.wake_url=ftp://a/", "expected a URL that begins with http://"),
        ("store.kind=redis", "expected embedded, scylla for one store"),
        ("store.max_skew=0", "expected seconds from 1 to 15"),
        ("store.max_skew=16", "expected seconds from 1 to 15"),
        ("store.scylla.nodes=10.0.0.1", "expected addresses or names with ports"),
        ("store.scylla.nodes=db1:9042,db 2:9042", "expected addresses or names with ports"),
        ("store.scylla.nodes=db1:0", "expected addresses or names with ports"),
        ("store.scylla.keyspace=Murre", "expected 1 to 48 lower case letters"),
        ("store.scylla.keyspace=a;drop", "expected 1 to 48 lower case letters"),
        ("store.scylla.replication_factor=0", "expected a number from 1 to 9"),
        ("store.scylla.read_consistency=two", "expected one, local_one, quorum, local_quorum or all"),
        ("store.scylla.request_timeout=31", "expected seconds from 0.001 to 30"),
        ("node.connections=257", "expected a number from 1 to 256"),
        ("node.connect_timeout=0", "expected seconds from 0.001"),
        ("node.request_timeout=31", "expected seconds from 0.001 to 30"),
        ("store.scylla.in_flight=0", "expected a number from 1 to 4096"),
        ("store.cache=many", "expected a number of bytes"),
        ("store.cache=99999999999999TiB", "expected a number of bytes"),
        ("shards.cores=3-1", "expected CPU numbers"),
        ("shards.cores=1,1", "expected CPU numbers"),
        ("shards.cores=0-9999999", "expected CPU numbers"),
        ("roles=connect,bridge", "expected connect, endpoint or both"),
        ("roles=", "expected connect, endpoint or both"),
        ("max_connections=0", "expected a number from 1 to 16777216"),
        ("log.level=loudly=7", "expected error, warn, info"),
        ("data_dir=", "expected a directory"),
        ("admin.hosts=murre.internal:8083", "expected host names"),
    ];
    for (setting, allowed) in refused {
        let (name, value) = setting.split_once('=').expect("a setting");
        let said = refusal(&sets(&[setting]));
        let secret = KEYS.iter().any(|key| key.name == name && key.secret);
        let shown = if secret { "(not shown)".to_owned() } else { format!("{value:?}") };
        assert!(said.starts_with(&format!("flag --set: invalid value {shown} for {name}; ")), "{said}");
        assert!(said.contains(allowed), "{said}");
    }
    let listed = File::new("[delivery]\nwindow = [1, 2]\n").refusal();
    assert!(listed.starts_with("murre.toml line 2: invalid value \"1,2\" for delivery.window"), "{listed}");
}

#[test]
fn a_wrong_word_is_refused_with_the_nearest() {
    let said = refusal(&sets(&["store.kind=embeded"]));
    assert!(said.ends_with("; did you mean embedded?"), "{said}");
}

#[test]
fn durations_sizes_cores_and_urls_are_read_as_documented() {
    let config = load(&sets(&[
        "websocket.hello_timeout=250ms",
        "websocket.auto_ping_interval=2m",
        "websocket.auto_ping_timeout=1.25",
        "store.max_bytes=1_000_000",
        "delivery.ledger_bytes=8M",
        "shards.cores=2-4,8",
        "shards.count=2",
        "endpoint.url=HTTPS://Push.example.org:443/",
        "broadcast.url=https://Megaphone.example.org/v1/?env=a",
        "broadcast.interval=1m",
    ]));
    assert_eq!(config.websocket.hello_timeout, Duration::from_millis(250));
    assert_eq!(config.websocket.auto_ping_interval, Duration::from_secs(120));
    assert_eq!(config.websocket.auto_ping_timeout, Duration::from_millis(1250));
    assert_eq!(config.store.max_bytes, 1_000_000);
    assert_eq!(config.delivery.ledger_bytes, 8 << 20);
    assert_eq!(config.shards.cores, [2, 3, 4, 8]);
    assert_eq!(config.endpoint.url.as_ref().map(ToString::to_string).as_deref(), Some("https://push.example.org"));
    let source = config.broadcast.url.expect("a source");
    assert_eq!((source.origin().host.as_str(), source.target()), ("megaphone.example.org", "/v1/?env=a"));
    assert_eq!(config.broadcast.interval, Duration::from_secs(60));
    assert!(config.simplepush.wake_url.is_none());
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    let said = refusal(&sets(&["websocket.auto_ping_interval=3", "websocket.auto_ping_timeout=3"]));
    assert_eq!(said, "websocket.auto_ping_timeout must be shorter than websocket.auto_ping_interval");
    let said = refusal(&sets(&["simplepush.wake_url=http://a/"]));
    assert_eq!(said, "simplepush.wake_url needs simplepush.enabled");
    let said = refusal(&sets(&["simplepush.enabled=true", "simplepush.wake_timeout=3"]));
    assert!(said.starts_with("simplepush.wake_timeout requires simplepush.wake_url"), "{said}");
    assert!(load(&sets(&["websocket.auto_ping_interval=0"])).websocket.auto_ping_interval.is_zero());
    let said = refusal(&sets(&["endpoint.listen="]));
    assert_eq!(said, "the role endpoint needs an address in endpoint.listen, endpoint.tls.listen or public.listen");
    load(&sets(&["endpoint.listen=", "roles=connect"]));
}

#[test]
fn a_file_that_is_absent_or_not_toml_is_refused() {
    let said = refusal(&Sources { file: Some("/nonexistent/murre.toml".into()), ..Sources::default() });
    assert!(said.starts_with("cannot read the configuration /nonexistent/murre.toml: No such file"), "{said}");
    let said = File::new("[delivery]\nwindow = = 1\n").refusal();
    assert!(said.starts_with("murre.toml line 2: not TOML: "), "{said}");
    assert_eq!(refusal(&sets(&["delivery.window"])), "flag --set: \"delivery.window\" is not section.key=value");
}

#[test]
fn a_section_whose_keys_are_commented_out_sets_nothing() {
    load(&File::new("[broadcast]\n# url = \"http://a/\"\n").sources());
    assert!(File::new("[broadcasts]\n").refusal().contains("there is no key broadcasts"));
}

#[test]
fn variables_of_others_are_ignored() {
    load(&variables(&[("PATH", "/bin"), ("MURREN", "1"), ("murre_x", "2"), ("MURRE_CONFIG", "x")]));
}

#[test]
fn a_shared_store_is_configured_as_documented() {
    let config = load(&sets(&[
        "store.kind=scylla",
        "store.scylla.nodes=10.0.0.1:9042,db2.example.org:19042,[::1]:9042",
        "store.scylla.datacenter=dc1",
        "store.scylla.read_consistency=local_quorum",
        "store.scylla.write_consistency=local_quorum",
        "store.scylla.user=murre",
        "store.scylla.password=open sesame",
        "store.scylla.tls=true",
        "store.scylla.tls_ca=/etc/murre/ca.pem",
        "store.scylla.request_timeout=250ms",
    ]));
    let scylla = &config.store.scylla;
    assert_eq!(config.store.kind, StoreKind::Scylla);
    assert_eq!(scylla.nodes, ["10.0.0.1:9042", "db2.example.org:19042", "[::1]:9042"]);
    assert_eq!((scylla.keyspace.as_str(), scylla.replication_factor, scylla.in_flight), ("murre", 3, 256));
    assert_eq!(scylla.datacenter.as_deref(), Some("dc1"));
    assert_eq!(scylla.password.as_ref().map(Password::reveal), Some("open sesame"));
    assert!(scylla.tls.enabled && scylla.tls.verify_host);
    assert_eq!(scylla.request_timeout, Duration::from_millis(250));
    assert!(!format!("{config:?}").contains("sesame"));
    let refused = refusal(&sets(&["store.scylla.password=open\u{7}sesame"]));
    assert!(!refused.contains("sesame"), "{refused}");
    let flag =
        Sources { flags: vec![("--scylla".into(), "store.scylla.nodes", "db:9042".into())], ..Sources::default() };
    assert_eq!(load(&flag).store.scylla.nodes, ["db:9042"]);
}

#[test]
fn consistency_levels_that_can_miss_a_write_are_refused() {
    let levels = |replicas: u16, read: &str, write: &str, datacenter: &str| {
        Config::load(&sets(&[
            &format!("store.scylla.replication_factor={replicas}"),
            &format!("store.scylla.read_consistency={read}"),
            &format!("store.scylla.write_consistency={write}"),
            &format!("store.scylla.datacenter={datacenter}"),
        ]))
        .map(|_| ())
        .map_err(|error| error.to_string())
    };
    for (replicas, read, write) in [(1, "one", "one"), (3, "one", "all"), (3, "quorum", "quorum"), (5, "all", "one")] {
        assert_eq!(levels(replicas, read, write, ""), Ok(()), "{replicas} {read} {write}");
    }
    for (replicas, read, write) in [(2, "one", "one"), (3, "one", "quorum"), (3, "quorum", "one"), (9, "one", "one")] {
        let refused = levels(replicas, read, write, "").expect_err("no overlap");
        assert!(refused.contains("together must be more than replication_factor"), "{refused}");
    }
    assert_eq!(levels(3, "local_quorum", "local_quorum", "dc1"), Ok(()));
    assert_eq!(levels(3, "local_one", "all", "dc1"), Ok(()));
    assert!(levels(3, "local_quorum", "local_quorum", "").expect_err("which?").contains("store.scylla.datacenter"));
    assert!(levels(3, "local_quorum", "quorum", "dc1").expect_err("they differ").contains("both be local"));
}

#[test]
fn settings_of_a_shared_store_that_exclude_each_other_are_refused() {
    for (setting, said) in [
        ("store.kind=scylla", "store.kind = scylla needs a contact point in store.scylla.nodes"),
        ("store.scylla.user=murre", "store.scylla.user needs store.scylla.password"),
        ("store.scylla.password=x", "store.scylla.password needs store.scylla.user"),
        ("store.scylla.tls_key=/k", "store.scylla.tls_cert and store.scylla.tls_key need each other"),
        ("store.scylla.tls_ca=/c", "store.scylla.tls_ca and store.scylla.tls_cert need store.scylla.tls = true"),
    ] {
        assert_eq!(refusal(&sets(&[setting])), said);
    }
}

#[test]
fn two_listeners_on_one_address_are_refused() {
    for (one, other) in [
        ("websocket.listen=0.0.0.0:9", "endpoint.listen=127.0.0.1:9"),
        ("admin.listen=[::1]:9", "node.listen=[::]:9"),
        ("admin.listen=127.0.0.1:9", "node.listen=[::]:9"),
        ("websocket.listen=127.0.0.1:7,127.0.0.1:7", "drain.rate=1"),
        ("websocket.tls.listen=127.0.0.1:9", "endpoint.tls.listen=127.0.0.1:9"),
        ("admin.tls.listen=127.0.0.1:9", "websocket.listen=0.0.0.0:9"),
    ] {
        let said = refusal(&sets(&[one, other, "tls.cert=c", "tls.key=k"]));
        let (key, _) = one.split_once('=').unwrap();
        assert!(said.contains(key) && said.contains("listen on one address"), "{said}");
    }
    for free in [
        &["websocket.listen=127.0.0.1:0", "endpoint.listen=127.0.0.1:0"][..],
        &["websocket.listen=127.0.0.1:9", "endpoint.listen=127.0.0.2:9"],
        &["websocket.listen=127.0.0.1:9", "endpoint.listen=[::1]:9"],
        // A role that is not served has no listener.
        &["websocket.listen=127.0.0.1:9", "endpoint.listen=127.0.0.1:9", "roles=connect"],
    ] {
        load(&sets(free));
    }
}

/// The Markdown table of docs/OPERATIONS.md.
fn markdown() -> String {
    let mut table = String::from("| key | flag | default | takes | SIGHUP | meaning |\n|---|---|---|---|---|---|\n");
    for key in KEYS {
        let flag = key.flag.map_or(String::new(), |(flag, value)| format!("`--{flag} {value}`"));
        let default = if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
        let (name, live) = (key.name, key.live.name());
        table += &format!("| `{name}` | {flag} | {default} | {} | {live} | {} |\n", key.allowed, key.help);
    }
    table
}

/// With `WRITE_DOCS` in the environment it writes the table instead.
#[test]
fn the_table_in_the_documentation_is_this_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/OPERATIONS.md");
    let document = std::fs::read_to_string(path).expect("docs/OPERATIONS.md");
    let head = markdown().lines().next().map(|line| format!("{line}\n")).expect("a table has a head");
    let (before, rest) = document.split_once(&head).expect("the section Settings has a table");
    let (_, after) = rest.split_once("\n\n").expect("an empty line ends the table");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{}\n{after}", markdown())).expect("docs/OPERATIONS.md is writable");
    } else {
        let said = "the table of settings is out of date: WRITE_DOCS=1 cargo test the_table_in_the_documentation";
        assert!(document.contains(&markdown()), "{said}");
    }
}

#[test]
fn the_bytes_of_a_user_are_fewer_where_every_node_counts_by_itself() {
    let bytes = |sets: &[&str]| {
        let sets = sets.iter().map(|text| (*text).to_owned()).collect();
        Config::load(&Sources { sets, ..Sources::default() }).unwrap().store.user_bytes_per_day()
    };
    let shared = ["store.kind=scylla", "store.scylla.nodes=127.0.0.1:9042"];
    assert_eq!(bytes(&[]), 16 << 20);
    assert_eq!(bytes(&shared), 4 << 20);
    assert_eq!(bytes(&[shared[0], shared[1], "store.user_bytes_per_day=9MiB"]), 9 << 20);
    assert_eq!(bytes(&["store.user_bytes_per_day=0"]), 0);
}
