//! Sessions with databases that require passwords or certificates, or are not there.

use std::sync::OnceLock;

use super::cassandra::Database;
use super::connect::connect;
use super::preflight;
use super::schema_apply::create;
use super::schema_tests::{at, run, session};
use super::tests::proxy::Proxy;
use crate::config::Config;

/// A database that requires a password and a certificate of its clients.
fn guarded() -> &'static Database {
    static GUARDED: OnceLock<Database> = OnceLock::new();
    GUARDED.get_or_init(|| Database::start(&["--auth", "--client-cert"]).unwrap_or_else(|error| panic!("{error}")))
}

/// Everything that the guarded database requires, and then `more`, which wins.
fn config(more: &[&str]) -> Config {
    let file = |key: &str, name: &str| format!("store.scylla.{key}={}", guarded().file(name).display());
    let sets = [
        "store.scylla.tls=true".to_owned(),
        file("tls_ca", "tls/ca.pem"),
        file("tls_cert", "tls/client.pem"),
        file("tls_key", "tls/client.key"),
        "store.scylla.user=cassandra".to_owned(),
        "store.scylla.password=cassandra".to_owned(),
    ];
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(more.iter().copied()).collect();
    at(guarded().nodes(), &sets)
}

async fn refusal(config: &Config) -> String {
    let refused = connect(&config.store.scylla).await.expect_err("must be refused").to_string();
    assert!(refused.starts_with("store.scylla."), "{refused}");
    refused
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn passwords_and_certificates_are_shown_and_wanted() {
    let config = config(&[]);
    let session = session(&config).await;
    create(&session, &config.store.scylla).await.unwrap();
    let (_, faults) = preflight::examine(&config).await;
    assert!(faults.is_empty(), "{faults:?}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_login_that_is_refused_says_so_and_never_shows_the_password() {
    let said = refusal(&config(&["store.scylla.password=open sesame"])).await;
    assert!(said.ends_with("it does not take store.scylla.user with store.scylla.password"), "{said}");
    let said = refusal(&config(&["store.scylla.user=", "store.scylla.password="])).await;
    assert!(said.ends_with("set store.scylla.user and store.scylla.password"), "{said}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn certificates_that_do_not_fit_are_refused() {
    let ours = config(&[]);
    let ca = ours.store.scylla.tls.ca.as_ref().unwrap().display();
    let key = ours.store.scylla.tls.key.as_ref().unwrap().display();
    // The database gets no certificate, or one of an authority that it does not trust.
    let said = refusal(&config(&["store.scylla.tls_cert=", "store.scylla.tls_key="])).await;
    assert!(said.contains("ertificate"), "{said}");
    // The database speaks TLS and the client does not: no answer can be parsed.
    let off = ["store.scylla.tls=false", "store.scylla.tls_ca=", "store.scylla.tls_cert=", "store.scylla.tls_key="];
    refusal(&config(&[&off[..], &["store.scylla.connect_timeout=2"]].concat())).await;
    // The client trusts another authority.
    let said = refusal(&config(&["store.scylla.tls_ca="])).await;
    assert!(said.contains("UnknownIssuer") || said.contains("trusts no certificates"), "{said}");
    // Files that are none, swapped, or not there.
    let said = refusal(&config(&["store.scylla.tls_ca=/nonexistent/ca.pem"])).await;
    assert!(said.starts_with("store.scylla.tls_ca: /nonexistent/ca.pem cannot be used"), "{said}");
    let said = refusal(&config(&[&format!("store.scylla.tls_ca={key}")])).await;
    assert!(said.contains("there is no certificate in it"), "{said}");
    let said = refusal(&config(&[&format!("store.scylla.tls_key={ca}")])).await;
    assert!(said.starts_with("store.scylla.tls_key: "), "{said}");
    let said = refusal(&config(&[&format!("store.scylla.tls_cert={ca}")])).await;
    assert!(said.starts_with("store.scylla.tls_key is not the key of store.scylla.tls_cert"), "{said}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_certificate_without_the_address_is_taken_only_when_it_may_be() {
    let unnamed = Database::start(&["--unnamed"]).unwrap_or_else(|error| panic!("{error}"));
    let ca = format!("store.scylla.tls_ca={}", unnamed.file("tls/ca.pem").display());
    let sets = ["store.scylla.tls=true", &ca];
    let said = refusal(&at(unnamed.nodes(), &sets)).await;
    assert!(said.contains("NotValidForName") || said.contains("not valid for name"), "{said}");
    session(&at(unnamed.nodes(), &[&sets[..], &["store.scylla.tls_verify_host=false"]].concat())).await;
    // The signature is checked all the same.
    let stranger = format!("store.scylla.tls_ca={}", guarded().file("tls/ca.pem").display());
    let strange = at(unnamed.nodes(), &["store.scylla.tls=true", &stranger, "store.scylla.tls_verify_host=false"]);
    let said = refusal(&strange).await;
    assert!(said.contains("UnknownIssuer") || said.contains("BadSignature"), "{said}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_database_that_is_not_there_is_named() {
    let said = refusal(&at("127.255.255.254:9042", &[])).await;
    assert!(said.contains("127.255.255.254:9042: Connection refused") && said.contains("does not run there"), "{said}");
    let said = refusal(&at("nowhere.invalid:9042", &[])).await;
    assert!(said.contains("no name in it resolves"), "{said}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nodes = silent.local_addr().unwrap().to_string();
    for tls in ["store.scylla.tls=false", "store.scylla.tls=true"] {
        let ca = format!("store.scylla.tls_ca={}", guarded().file("tls/ca.pem").display());
        let sets = [tls, "store.scylla.connect_timeout=250ms", &ca];
        let said = refusal(&at(&nodes, if tls.ends_with("true") { &sets } else { &sets[..2] })).await;
        assert!(said.contains("is TLS on or off at both ends?"), "{said}");
    }
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_permission_that_is_missing_is_named_with_what_grants_it() {
    let admin = config(&[]);
    let scylla = &admin.store.scylla;
    let keyspace = scylla.keyspace.clone();
    let session = session(&admin).await;
    create(&session, scylla).await.unwrap();
    let user = format!("u_{keyspace}");
    run(&session, scylla, &format!("CREATE ROLE {user} WITH PASSWORD = 'p' AND LOGIN = true")).await;
    run(&session, scylla, &format!("GRANT SELECT ON KEYSPACE KS TO {user}")).await;
    let limited = config(&[
        &format!("store.scylla.keyspace={keyspace}"),
        &format!("store.scylla.user={user}"),
        "store.scylla.password=p",
    ]);
    let (_, faults) = preflight::examine(&limited).await;
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 4, "{said:?}");
    for (said, table) in said.iter().zip(["user", "message", "node", "lease"]) {
        assert!(said.starts_with(&format!("{keyspace}.{table} cannot be written: this user may not")), "{said}");
        assert!(said.ends_with(&format!("; GRANT MODIFY ON TABLE {keyspace}.{table} TO {user}")), "{said}");
    }
    run(&session, scylla, &format!("GRANT MODIFY ON KEYSPACE KS TO {user}")).await;
    run(&session, scylla, &format!("REVOKE SELECT ON KEYSPACE KS FROM {user}")).await;
    for table in ["user", "node", "lease", "schema_version"] {
        run(&session, scylla, &format!("GRANT SELECT ON TABLE KS.{table} TO {user}")).await;
    }
    let (_, faults) = preflight::examine(&limited).await;
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].ends_with(&format!("; GRANT SELECT ON TABLE {keyspace}.message TO {user}")), "{said:?}");
    run(&session, scylla, &format!("GRANT SELECT ON KEYSPACE KS TO {user}")).await;
    let (_, faults) = preflight::examine(&limited).await;
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
    let login = ["store.scylla.user=cassandra", "store.scylla.password=cassandra"];
    let admin = at(&proxy.address.to_string(), &login);
    let scylla = &admin.store.scylla;
    let session = session(&admin).await;
    create(&session, scylla).await.unwrap();
    run(&session, scylla, "CREATE ROLE plain WITH PASSWORD = 'p' AND LOGIN = true").await;
    run(&session, scylla, "GRANT SELECT ON KEYSPACE KS TO plain").await;
    run(&session, scylla, "GRANT MODIFY ON KEYSPACE KS TO plain").await;
    let keyspace = format!("store.scylla.keyspace={}", scylla.keyspace);
    let plain = ["store.scylla.user=plain", "store.scylla.password=p", &keyspace];
    let plain = at(&proxy.address.to_string(), &plain);
    let (serves, faults) = preflight::examine(&plain).await;
    assert!(faults.is_empty(), "{faults:?}");
    // A command that makes tables must know the version.
    let refused = create(&serves.expect("a session"), &plain.store.scylla).await.expect_err("it may not").to_string();
    assert!(refused.starts_with("cannot read the version of the database: "), "{refused}");
    assert!(refused.ends_with("or GRANT SELECT ON TABLE system.versions"), "{refused}");
}
