//! Certificates: their files, and the choice by name and kind of key.

use std::sync::Arc;

use rcgen::KeyPair;
use runtime::tls::Next;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::{AlertDescription, ClientConfig, Error, SignatureScheme};
use tls::{Certificate, ServerTls, ShardTls, UnknownName};

use crate::peer::{Pair, Papers, SUITES, pem, rsa};

/// A client that takes RSA only, or all kinds but RSA.
fn client_by_kind(papers: &Papers, takes_rsa: bool) -> ClientConfig {
    let provider = rustls::crypto::ring::default_provider();
    let all = provider.signature_verification_algorithms;
    let is_rsa = |scheme: &SignatureScheme| format!("{scheme:?}").starts_with("RSA");
    let mapping: Vec<_> = all.mapping.iter().copied().filter(|(scheme, _)| is_rsa(scheme) == takes_rsa).collect();
    let signature_verification_algorithms = WebPkiSupportedAlgorithms { all: all.all, mapping: mapping.leak() };
    papers.client_of(CryptoProvider { signature_verification_algorithms, ..provider })
}

/// Five certificates: 0 first.test (RSA), 1 *.wild.test, 2 exact.wild.test, 3 both.test (RSA), 4 both.test (ECDSA).
fn papers() -> Papers {
    let mut papers = Papers::none();
    papers.add(&["first.test"], &rsa());
    papers.add(&["*.wild.test"], &KeyPair::generate().unwrap());
    papers.add(&["exact.wild.test", "Other.TEST"], &KeyPair::generate().unwrap());
    papers.add(&["both.test"], &rsa());
    papers.add(&["both.test"], &KeyPair::generate().unwrap());
    papers
}

/// The number of the certificate that a client with this name is shown, or the alert.
fn shown(
    papers: &Papers,
    config: ClientConfig,
    name: &str,
    unknown_name: UnknownName,
) -> Result<usize, AlertDescription> {
    let mut settings = papers.settings(&[1]);
    settings.unknown_name = unknown_name;
    let mut pair = Pair::new(ShardTls::new(ServerTls::new(settings).ok(), None), &Arc::new(config), name);
    let hello = pair.sent_by_client();
    let (next, wire) = pair.give(&hello);
    pair.client.read_tls(&mut &wire[..]).unwrap();
    match pair.client.process_new_packets() {
        Err(Error::AlertReceived(alert)) => {
            assert_eq!(next, Next::Failed);
            Err(alert)
        }
        _ => {
            let own = &pair.client.peer_certificates().expect("a certificate")[0];
            Ok(papers.ders.iter().position(|der| der == own).unwrap())
        }
    }
}

#[test]
fn certificates_are_chosen_by_name() {
    let papers = papers();
    let shown = |name: &str, unknown| shown(&papers, papers.client(&SUITES), name, unknown);
    let table = [
        ("first.test", Ok(0)),
        ("a.wild.test", Ok(1)),
        ("EXACT.wild.test", Ok(2)),
        ("other.test", Ok(2)),
        ("both.test", Ok(4)),
        ("a.b.wild.test", Err(AlertDescription::AccessDenied)),
        ("wild.test", Err(AlertDescription::AccessDenied)),
        ("unknown.test", Err(AlertDescription::AccessDenied)),
    ];
    for (name, number) in table {
        assert_eq!(shown(name, UnknownName::Refuse), number, "{name}");
        // The client refuses the certificate of another name by itself, so only the known ones are compared.
        if number.is_ok() {
            assert_eq!(shown(name, UnknownName::Default), number, "{name}");
        }
    }
}

#[test]
fn clients_without_sni_and_on_demand_unknown_names_get_the_first() {
    let mut papers = Papers::none();
    papers.add(&["127.0.0.1", "first.test"], &KeyPair::generate().unwrap());
    papers.add(&["second.test"], &KeyPair::generate().unwrap());
    let client = || papers.client(&SUITES);
    assert_eq!(shown(&papers, client(), "127.0.0.1", UnknownName::Refuse), Ok(0));
    let mut pair = {
        let mut settings = papers.settings(&[1]);
        settings.unknown_name = UnknownName::Default;
        Pair::new(ShardTls::new(ServerTls::new(settings).ok(), None), &Arc::new(client()), "unknown.test")
    };
    let hello = pair.sent_by_client();
    let (next, wire) = pair.give(&hello);
    assert_eq!(next, Next::More, "the server does not refuse");
    pair.client.read_tls(&mut &wire[..]).unwrap();
    assert!(matches!(pair.client.process_new_packets(), Err(Error::InvalidCertificate(_))), "the client does");
}

#[test]
fn the_kind_of_key_follows_the_client() {
    let papers = papers();
    let shown = |takes_rsa, name| shown(&papers, client_by_kind(&papers, takes_rsa), name, UnknownName::Refuse);
    assert_eq!(shown(false, "both.test"), Ok(4));
    assert_eq!(shown(true, "both.test"), Ok(3));
    assert_eq!(shown(false, "first.test"), Err(AlertDescription::HandshakeFailure));
}

#[test]
fn names_of_a_certificate() {
    let papers = papers();
    assert_eq!(papers.certificates[2].host_names(), ["exact.wild.test", "other.test"]);
    let wild = &papers.certificates[1];
    assert_eq!(wild.host_names(), ["*.wild.test"]);
    assert!(wild.names("a.wild.test") && !wild.names("wild.test") && !wild.names("a.b.wild.test"));
}

#[test]
fn files_of_no_use_are_refused_with_setting_file_and_reason() {
    let papers = papers();
    let (cert, key, other_key) = (papers.path("1.pem"), papers.path("1.key"), papers.path("2.key"));
    let (none, empty) = (papers.path("none"), papers.path("empty"));
    std::fs::write(&empty, pem("OTHER", b"x")).unwrap();
    let table = [
        (&none, &key, "node.tls.cert: ", "none"),
        (&empty, &key, "node.tls.cert: ", "no certificate in it"),
        (&cert, &none, "node.tls.key: ", "none"),
        (&cert, &empty, "node.tls.key: ", "no key in it"),
        (&cert, &other_key, "node.tls.key (", "is not the key of node.tls.cert ("),
    ];
    for (cert, key, start, part) in table {
        let error = Certificate::read(("node.tls.cert", cert), ("node.tls.key", key)).err().unwrap().to_string();
        assert!(error.starts_with(start) && error.contains(part), "{error}");
    }
    assert!(Certificate::read(("node.tls.cert", &cert), ("node.tls.key", &key)).is_ok());
}
