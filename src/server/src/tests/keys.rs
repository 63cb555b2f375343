//! Keys that are gone while the endpoint URLs that they sealed are still in use.

use std::fs;

use super::*;

/// A data directory in which one user has one channel; returns its endpoint.
fn filled(dir: &Path) -> String {
    let running = start(&config(dir, &[])).unwrap();
    let (mut socket, _) = hello(&running, "");
    let endpoint = register(&mut socket);
    drop(socket);
    running.stop().unwrap();
    endpoint
}

#[test]
fn a_filled_store_without_the_key_of_its_endpoint_urls_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let path = dir.path().join("keys/crypto");
    fs::remove_file(&path).unwrap();
    let again = config(dir.path(), &[]);
    let (said, code) = refusal(&again);
    assert!(said.starts_with(&format!("cannot find the key {}: ", path.display())), "{said}");
    assert!(said.contains("restore it from a backup") && said.ends_with("start with --new-keys"), "{said}");
    assert_eq!(code, status::CONFIG);
    assert!(!path.exists(), "no key was made");

    let surroundings = Environment { new_keys: true, ..Environment::default() };
    let again = config(dir.path(), &[]);
    start_with(&again, surroundings).unwrap().stop().unwrap();
    assert!(path.exists(), "the operator wanted one");
    let again = config(dir.path(), &[]);
    start(&again).unwrap().stop().unwrap();
}

#[test]
fn a_key_file_that_others_may_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, log) = (tempfile::tempdir().unwrap(), fixtures::Log::default());
    filled(dir.path());
    let path = dir.path().join("keys/crypto");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let (again, kept) = (config(dir.path(), &[]), log.clone());
    let restart = move || kept.of("warn", || start(&again).unwrap().stop().unwrap());
    restart();
    let text = log.text();
    let line = text.lines().find(|line| line.contains("secret left readable by others")).expect("a warning");
    assert!(line.contains(&format!("path={}", path.display())) && line.contains("mode=\"644\""), "{line}");
    assert_eq!(text.matches("secret left readable").count(), 1, "{text}");
}
