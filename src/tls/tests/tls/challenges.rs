//! TLS-ALPN-01 (RFC 8737): an authority that validates a name, before and after there is a certificate.

use std::io::Write as _;
use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use runtime::tls::{Next, Stage, Tls as _};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{AlertDescription, DigitallySignedStruct, Error, SignatureScheme};
use tls::{ACME_TLS, AlpnChallenges, ServerTls, ShardTls};

use crate::peer::{Pair, Papers, SLOT, SUITES};

/// Protocol of all other connections.
const HTTP: &[u8] = b"http/1.1";

/// A client that offers these protocols, and the server that it talks to.
fn pair(papers: &Papers, server: &ServerTls, name: &str, protocols: &[&[u8]]) -> Pair {
    let mut config = papers.client(&SUITES);
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Pair::new(ShardTls::new(Some(server.clone()), None), &Arc::new(config), name)
}

/// The alert that ends a handshake.
fn refused(mut pair: Pair) -> AlertDescription {
    let hello = pair.sent_by_client();
    let (next, wire) = pair.give(&hello);
    assert_eq!(next, Next::Failed);
    pair.client.read_tls(&mut &wire[..]).unwrap();
    match pair.client.process_new_packets() {
        Err(Error::AlertReceived(alert)) => alert,
        other => panic!("no alert: {other:?}"),
    }
}

/// An authority: it looks at the certificate itself.
#[derive(Debug)]
struct NoVerifier;

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[test]
fn an_authority_sees_the_certificate_of_its_challenge_and_gets_nothing_else() {
    let papers = Papers::none();
    let (key, challenges) = (KeyPair::generate().unwrap(), AlpnChallenges::default());
    let mut params = CertificateParams::new(vec!["proof.test".to_owned()]).unwrap();
    params.custom_extensions.push(CustomExtension::new_acme_identifier(&[7; 32]));
    let proof = params.self_signed(&key).unwrap().der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    challenges.insert("proof.test", proof.clone(), key).unwrap();
    let mut settings = papers.settings(&[1]);
    settings.challenges = Some(challenges.clone());
    let server = ServerTls::new(settings).unwrap();
    for split in [false, true] {
        let mut config = papers.client(&SUITES);
        config.alpn_protocols = vec![ACME_TLS.to_vec()];
        config.dangerous().set_certificate_verifier(Arc::new(NoVerifier));
        let tls = ShardTls::new(Some(server.clone()), None);
        let mut pair = Pair::new(tls, &Arc::new(config), "Proof.TEST");
        let hello = pair.sent_by_client();
        let (_, wire) = pair.give(&hello);
        pair.client.read_tls(&mut &wire[..]).unwrap();
        pair.client.process_new_packets().unwrap();
        assert_eq!(pair.client.peer_certificates().unwrap()[0], proof);
        assert_eq!(pair.client.alpn_protocol(), Some(ACME_TLS));
        let mut finished = pair.sent_by_client();
        if !split {
            pair.client.writer().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            finished.extend(pair.sent_by_client());
        }
        let (next, wire) = pair.give(&finished);
        assert_eq!((next, pair.server.stage(SLOT)), (Next::Failed, Stage::Failed));
        pair.client.read_tls(&mut &wire[..]).unwrap();
        assert!(pair.client.process_new_packets().unwrap().peer_has_closed(), "it is told the end");
    }
    challenges.remove("proof.test");
    assert_eq!(refused(pair(&papers, &server, "proof.test", &[ACME_TLS])), AlertDescription::AccessDenied);
}

#[test]
fn a_server_without_a_certificate_refuses_all_others_with_a_reason_until_it_has_one() {
    let papers = Papers::local();
    let mut settings = papers.settings(&[1]);
    let certificates = std::mem::take(&mut settings.certificates);
    assert!(ServerTls::new(settings).is_err(), "it could never answer");
    let waiting = || {
        let mut settings = papers.settings(&[1]);
        settings.certificates.clear();
        settings.challenges = Some(AlpnChallenges::default());
        settings
    };
    let server = ServerTls::new(waiting()).unwrap();
    for protocols in [&[][..], &[HTTP], &[HTTP, ACME_TLS], &[ACME_TLS, HTTP], &[ACME_TLS]] {
        assert_eq!(refused(pair(&papers, &server, "localhost", protocols)), AlertDescription::AccessDenied);
        let reason = server.take_failure().unwrap();
        assert!(reason.starts_with("no certificate has been issued yet: "), "{reason}");
    }
    let mut settings = waiting();
    settings.certificates = certificates;
    server.replace(settings).unwrap();
    let mut pair = pair(&papers, &server, "localhost", &[HTTP]);
    pair.shake();
    pair.assert_alive();
}

#[test]
fn a_server_without_challenges_does_not_speak_their_protocol() {
    let papers = Papers::local();
    let server = papers.server(&[1]);
    let alert = refused(pair(&papers, &server, "localhost", &[ACME_TLS]));
    assert_eq!(alert, AlertDescription::NoApplicationProtocol);
}
