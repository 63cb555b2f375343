//! Sessions with databases that require passwords or certificates, or are not there.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cassandra::Database;
use machine::StoreOp;
use machine::ids::Uaid;

use super::connect::connect;
use super::preflight;
use super::schema_apply::create;
use super::schema_tests::{run, session};
use super::tests::proxy::Proxy;
use super::tests::refresh::Bare;
use super::{Access, Scylla};
use crate::conformance::BlockingStore;
use crate::shared::options::{Options, Password, Tls};
use crate::testing::database::{make_tables, open_with, options};

const SKEW: Duration = Duration::from_secs(30);

/// A database that requires a password and a certificate of its clients.
fn guarded() -> &'static Database {
    static GUARDED: OnceLock<Database> = OnceLock::new();
    GUARDED.get_or_init(|| Database::start(&["--auth", "--client-cert"]).unwrap_or_else(|error| panic!("{error}")))
}

/// Everything that the guarded database requires.
fn guarded_config() -> Options {
    let file = |name: &str| Some(guarded().file(name));
    let tls = Tls {
        enabled: true,
        ca: file("tls/ca.pem"),
        cert: file("tls/client.pem"),
        key: file("tls/client.key"),
        verify_host: true,
    };
    Options { tls, ..with_login(guarded().nodes(), "cassandra", "cassandra") }
}

fn with_login(nodes: &str, user: &str, password: &str) -> Options {
    Options { user: Some(user.to_owned()), password: Some(Password::new(password)), ..options(nodes) }
}

async fn refusal(config: &Options) -> String {
    let refused = connect(config).await.expect_err("must be refused").to_string();
    assert!(refused.starts_with("store.scylla."), "{refused}");
    refused
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn passwords_and_certificates_are_shown_and_wanted() {
    let config = guarded_config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    let (_, faults) = preflight::examine(&config, SKEW).await;
    assert!(faults.is_empty(), "{faults:?}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_login_that_is_refused_says_so_and_never_shows_the_password() {
    let ours = guarded_config();
    let said = refusal(&Options { password: Some(Password::new("open sesame")), ..ours.clone() }).await;
    assert!(said.ends_with("it does not take store.scylla.user with store.scylla.password"), "{said}");
    let said = refusal(&Options { user: None, password: None, ..ours }).await;
    assert!(said.ends_with("set store.scylla.user and store.scylla.password"), "{said}");
}

/// Runs operations until one ends as expected: connections of the driver come back by themselves.
fn until(store: &Scylla, works: bool) {
    let mut port = BlockingStore::new(store.port(Arc::new(|| {})));
    let patience = Instant::now() + Duration::from_secs(120);
    while port.ask(StoreOp::LoadUser { uaid: Uaid([7; 16]) }).is_ok() != works {
        assert!(Instant::now() < patience, "operations work: {}", !works);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A session lives for as long as the process, and passwords and authorities change meanwhile.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn new_connections_take_the_login_and_the_authority_of_the_last_reload() {
    let proxy = Proxy::new(guarded().nodes().parse().expect("an address"));
    let admin = Options { nodes: vec![proxy.address.to_string()], ..guarded_config() };
    let bare = Bare::new(&admin);
    make_tables(&admin);
    bare.send("CREATE ROLE IF NOT EXISTS changes WITH PASSWORD = 'old' AND LOGIN = true AND SUPERUSER = true");
    let ca = tempfile::NamedTempFile::new().expect("a file");
    let right = std::fs::read(guarded().file("tls/ca.pem")).expect("the authority");
    std::fs::write(ca.path(), &right).expect("it is written");
    let tls = Tls { ca: Some(ca.path().to_owned()), ..admin.tls.clone() };
    let with = |password: &str| Options {
        user: Some("changes".to_owned()),
        password: Some(Password::new(password)),
        tls: tls.clone(),
        request_timeout: Duration::from_secs(4),
        connect_timeout: Duration::from_secs(4),
        ..admin.clone()
    };
    let store = open_with(&with("old"));
    let renew = |password: &str| store.renew_access(&Access::read(&with(password)).expect("files that are read"));
    until(&store, true);
    bare.send("ALTER ROLE changes WITH PASSWORD = 'new'");
    drop(bare);
    // Every connection ends, and the next ones are made with the login of the start.
    proxy.refuse(true);
    proxy.refuse(false);
    until(&store, false);
    renew("new");
    until(&store, true);
    // Files that cannot be used are refused before anything is replaced.
    std::fs::write(ca.path(), "no certificate").expect("it is written");
    let refused = Access::read(&with("new")).err().expect("it is refused").to_string();
    assert!(refused.starts_with("store.scylla.tls_ca: "), "{refused}");
    // Another authority: the certificate of the client, which signs nothing.
    std::fs::copy(guarded().file("tls/client.pem"), ca.path()).expect("it is written");
    renew("new");
    proxy.refuse(true);
    proxy.refuse(false);
    until(&store, false);
    std::fs::write(ca.path(), &right).expect("it is written");
    renew("new");
    until(&store, true);
    store.close();
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn certificates_that_do_not_fit_are_refused() {
    let ours = guarded_config();
    let (ca, key) = (ours.tls.ca.clone(), ours.tls.key.clone());
    let with = |tls: Tls| Options { tls, ..ours.clone() };
    // The database gets no certificate, or one of an authority that it does not trust.
    let said = refusal(&with(Tls { cert: None, key: None, ..ours.tls.clone() })).await;
    assert!(said.contains("ertificate"), "{said}");
    // The database speaks TLS and the client does not: no answer can be parsed.
    refusal(&Options { connect_timeout: Duration::from_secs(2), ..with(Tls::default()) }).await;
    // The client trusts another authority.
    let said = refusal(&with(Tls { ca: None, ..ours.tls.clone() })).await;
    assert!(said.contains("UnknownIssuer") || said.contains("trusts no certificates"), "{said}");
    // Files that are none, swapped, or not there.
    let said = refusal(&with(Tls { ca: Some("/nonexistent/ca.pem".into()), ..ours.tls.clone() })).await;
    assert!(said.starts_with("store.scylla.tls_ca: /nonexistent/ca.pem cannot be used"), "{said}");
    let said = refusal(&with(Tls { ca: key, ..ours.tls.clone() })).await;
    assert!(said.contains("there is no certificate in it"), "{said}");
    let said = refusal(&with(Tls { key: ca.clone(), ..ours.tls.clone() })).await;
    assert!(said.starts_with("store.scylla.tls_key: "), "{said}");
    let said = refusal(&with(Tls { cert: ca, ..ours.tls.clone() })).await;
    assert!(said.starts_with("store.scylla.tls_key is not the key of store.scylla.tls_cert"), "{said}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_certificate_without_the_address_is_taken_only_when_it_may_be() {
    let unnamed = Database::start(&["--unnamed"]).unwrap_or_else(|error| panic!("{error}"));
    let with = |authority: &Database, verify_host| {
        let tls = Tls { enabled: true, ca: Some(authority.file("tls/ca.pem")), verify_host, ..Tls::default() };
        Options { tls, ..options(unnamed.nodes()) }
    };
    let said = refusal(&with(&unnamed, true)).await;
    assert!(said.contains("NotValidForName") || said.contains("not valid for name"), "{said}");
    session(&with(&unnamed, false)).await;
    // The signature is checked all the same.
    let said = refusal(&with(guarded(), false)).await;
    assert!(said.contains("UnknownIssuer") || said.contains("BadSignature"), "{said}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_database_that_is_not_there_is_named() {
    let said = refusal(&options("127.255.255.254:9042")).await;
    assert!(said.contains("127.255.255.254:9042: Connection refused") && said.contains("does not run there"), "{said}");
    let said = refusal(&options("nowhere.invalid:9042")).await;
    assert!(said.contains("no name in it resolves"), "{said}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nodes = silent.local_addr().unwrap().to_string();
    for tls in [Tls::default(), guarded_config().tls] {
        let said = refusal(&Options { tls, connect_timeout: Duration::from_millis(250), ..options(&nodes) }).await;
        assert!(said.contains("is TLS on or off at both ends?"), "{said}");
    }
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_permission_that_is_missing_is_named_with_what_grants_it() {
    let admin = guarded_config();
    let keyspace = admin.keyspace.clone();
    let session = session(&admin).await;
    create(&session, &admin).await.unwrap();
    let user = format!("u_{keyspace}");
    run(&session, &admin, &format!("CREATE ROLE {user} WITH PASSWORD = 'p' AND LOGIN = true")).await;
    run(&session, &admin, &format!("GRANT SELECT ON KEYSPACE KS TO {user}")).await;
    let limited = Options { user: Some(user.clone()), password: Some(Password::new("p")), ..admin.clone() };
    let (_, faults) = preflight::examine(&limited, SKEW).await;
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 5, "{said:?}");
    for (said, table) in said.iter().zip(["user", "message", "node", "lease", "debt"]) {
        assert!(said.starts_with(&format!("{keyspace}.{table} cannot be written: this user may not")), "{said}");
        assert!(said.ends_with(&format!("; GRANT MODIFY ON TABLE {keyspace}.{table} TO {user}")), "{said}");
    }
    run(&session, &admin, &format!("GRANT MODIFY ON KEYSPACE KS TO {user}")).await;
    run(&session, &admin, &format!("REVOKE SELECT ON KEYSPACE KS FROM {user}")).await;
    for table in ["user", "node", "lease", "debt", "schema_version"] {
        run(&session, &admin, &format!("GRANT SELECT ON TABLE KS.{table} TO {user}")).await;
    }
    let (_, faults) = preflight::examine(&limited, SKEW).await;
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].ends_with(&format!("; GRANT SELECT ON TABLE {keyspace}.message TO {user}")), "{said:?}");
    run(&session, &admin, &format!("GRANT SELECT ON KEYSPACE KS TO {user}")).await;
    let (_, faults) = preflight::examine(&limited, SKEW).await;
    assert!(faults.is_empty(), "{faults:?}");
}

/// ScyllaDB keeps its version in a table that an ordinary account may not read, and Cassandra has no such table. So the
/// relay asks Cassandra for another system table instead, which it keeps from such an account as well.
#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn an_account_with_select_and_modify_on_the_keyspace_serves_and_another_makes_the_tables() {
    let guarded = Database::start(&["--auth"]).unwrap_or_else(|error| panic!("{error}"));
    let proxy = Proxy::new(guarded.nodes().parse().expect("an address"));
    proxy.instead("table_name = 'versions'", "table_name = 'batches'");
    proxy.instead("SELECT version FROM system.versions WHERE key = 'local'", "SELECT version FROM system.batches");
    let nodes = proxy.address.to_string();
    let admin = with_login(&nodes, "cassandra", "cassandra");
    let session = session(&admin).await;
    create(&session, &admin).await.unwrap();
    run(&session, &admin, "CREATE ROLE plain WITH PASSWORD = 'p' AND LOGIN = true").await;
    run(&session, &admin, "GRANT SELECT ON KEYSPACE KS TO plain").await;
    run(&session, &admin, "GRANT MODIFY ON KEYSPACE KS TO plain").await;
    let plain = Options { keyspace: admin.keyspace.clone(), ..with_login(&nodes, "plain", "p") };
    let (serves, faults) = preflight::examine(&plain, SKEW).await;
    assert!(faults.is_empty(), "{faults:?}");
    // A command that makes tables must know the version.
    let refused = create(&serves.expect("a session").0, &plain).await.expect_err("it may not").to_string();
    assert!(refused.starts_with("cannot read the version of the database: "), "{refused}");
    assert!(refused.ends_with("or GRANT SELECT ON TABLE system.versions"), "{refused}");
}
