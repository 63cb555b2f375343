//! Key exchange X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem, group 0x11EC): ML-KEM-768 (FIPS 203) beside X25519, so that
//! a recorded connection stays closed as long as one of the two is unbroken.
//!
//! | | ML-KEM-768 | X25519 |
//! |---|---|---|
//! | share of the client | encapsulation key, 1,184 bytes | public key, 32 bytes |
//! | share of the server | ciphertext, 1,088 bytes | public key, 32 bytes |
//! | secret | shared secret, 32 bytes | shared secret, 32 bytes |
//!
//! The parts stand behind each other in this order. Secrets of this file are overwritten when they are dropped; copies
//! on the stack and in freed blocks are the business of the caller, as with those of rustls (crate `wipe`).

use libcrux_ml_kem::mlkem768;
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::kx_group::X25519;
use rustls::crypto::{
    ActiveKeyExchange, CompletedKeyExchange, CryptoProvider, GetRandomFailed, SharedSecret, SupportedKxGroup,
};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};
use zeroize::Zeroizing;

/// Cryptography of every connection: that of *ring*, and [`X25519MLKEM768`] before its groups.
///
/// A client sends shares of the first group and of X25519, which is a part of it. rustls as the server takes the first
/// group of the client's list that both know.
pub fn provider() -> CryptoProvider {
    let mut provider = default_provider();
    provider.kx_groups.insert(0, X25519MLKEM768);
    provider
}

/// The group by which the two keys are agreed on together. TLS 1.3 only.
pub static X25519MLKEM768: &dyn SupportedKxGroup = &Hybrid { classical: X25519, fill };

const ENCAPSULATION_KEY_LEN: usize = 1_184;
const CIPHERTEXT_LEN: usize = 1_088;
/// Bytes from which a key pair of ML-KEM is made.
const SEED_LEN: usize = 64;
/// Random bytes of one encapsulation.
const MESSAGE_LEN: usize = 32;

/// Makes rustls send illegal_parameter (RFC 8446 section 4.2.8).
const INVALID_SHARE: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

/// The group. Tests put known values in the place of both fields.
#[derive(Debug)]
struct Hybrid {
    classical: &'static dyn SupportedKxGroup,
    /// Source of random bytes.
    fill: fn(&mut [u8]) -> Result<(), Error>,
}

impl Hybrid {
    fn random<const N: usize>(&self) -> Result<Zeroizing<[u8; N]>, Error> {
        let mut bytes = Zeroizing::new([0; N]);
        (self.fill)(&mut *bytes)?;
        Ok(bytes)
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), Error> {
    SystemRandom::new().fill(bytes).map_err(|_| GetRandomFailed.into())
}

impl SupportedKxGroup for Hybrid {
    /// Begins as a client.
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let classical = self.classical.start()?;
        let keys = Box::new(mlkem768::generate_key_pair(*self.random::<SEED_LEN>()?));
        let share = [keys.pk(), classical.pub_key()].concat();
        Ok(Box::new(Started { keys, classical, share }))
    }

    /// Answers as a server.
    fn start_and_complete(&self, client_share: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (key, point) = split::<ENCAPSULATION_KEY_LEN>(client_share)?;
        let key = mlkem768::MlKem768PublicKey::from(key);
        // The check of FIPS 203 section 7.2. That of the length is done.
        if !mlkem768::validate_public_key(&key) {
            return Err(INVALID_SHARE);
        }
        let classical = self.classical.start_and_complete(point)?;
        let (ciphertext, secret) = mlkem768::encapsulate(&key, *self.random::<MESSAGE_LEN>()?);
        Ok(CompletedKeyExchange {
            group: NamedGroup::X25519MLKEM768,
            pub_key: [ciphertext.as_slice(), &classical.pub_key[..]].concat(),
            secret: joined(&Zeroizing::new(secret), &classical.secret),
        })
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

/// Key exchange of a client that waits for the share of its server.
struct Started {
    keys: Box<mlkem768::MlKem768KeyPair>,
    classical: Box<dyn ActiveKeyExchange>,
    share: Vec<u8>,
}

impl ActiveKeyExchange for Started {
    fn complete(self: Box<Self>, server_share: &[u8]) -> Result<SharedSecret, Error> {
        let (ciphertext, point) = split::<CIPHERTEXT_LEN>(server_share)?;
        let classical = self.classical.complete(point)?;
        let ciphertext = mlkem768::MlKem768Ciphertext::from(ciphertext);
        // A ciphertext of another key gives a secret that the server does not have (FIPS 203 section 6.3).
        let secret = Zeroizing::new(mlkem768::decapsulate(self.keys.private_key(), &ciphertext));
        Ok(joined(&secret, &classical))
    }

    /// The public key of X25519, which rustls sends as a share of its own, too: a server without ML-KEM needs no
    /// HelloRetryRequest.
    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((self.classical.group(), self.classical.pub_key()))
    }

    fn complete_hybrid_component(self: Box<Self>, server_share: &[u8]) -> Result<SharedSecret, Error> {
        self.classical.complete(server_share)
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

/// Takes a share apart: the part of ML-KEM, which has `N` bytes, and that of X25519, whose length its own group checks.
fn split<const N: usize>(share: &[u8]) -> Result<(&[u8; N], &[u8]), Error> {
    share.split_first_chunk().ok_or(INVALID_SHARE)
}

/// The secret of both, which is in one block from the start: a vector that grows would leave a copy behind.
fn joined(ml_kem: &[u8; 32], classical: &SharedSecret) -> SharedSecret {
    SharedSecret::from([&ml_kem[..], classical.secret_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Group of X25519 with a known key.
    #[derive(Debug)]
    struct Known {
        own: &'static str,
        peer: &'static str,
    }

    /// Public keys of the private keys 11..11 and 22..22, and their shared secret.
    const OF_CLIENT: &str = "7b4e909bbe7ffe44c465a220037d608ee35897d31ef972f07f74892cb0f73f13";
    const OF_SERVER: &str = "0faa684ed28867b97f4a6a2dee5df8ce974e76b7018e3f22a1c4cf2678570f20";
    const SHARED: &str = "9e004098efc091d4ec2663b4e9f5cfd4d7064571690b4bea97ab146ab9f35056";
    static CLIENT: Known = Known { own: OF_CLIENT, peer: OF_SERVER };
    static SERVER: Known = Known { own: OF_SERVER, peer: OF_CLIENT };

    impl SupportedKxGroup for Known {
        fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
            Ok(Box::new(KnownExchange { share: bytes(self.own), peer: bytes(self.peer) }))
        }

        fn name(&self) -> NamedGroup {
            NamedGroup::X25519
        }
    }

    struct KnownExchange {
        share: Vec<u8>,
        peer: Vec<u8>,
    }

    impl ActiveKeyExchange for KnownExchange {
        fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
            assert_eq!(peer, self.peer);
            Ok(SharedSecret::from(bytes(SHARED)))
        }

        fn pub_key(&self) -> &[u8] {
            &self.share
        }

        fn group(&self) -> NamedGroup {
            NamedGroup::X25519
        }
    }

    /// The seed 00, 01, .. 3f of a key pair, and the message 80, 81, .. 9f of an encapsulation.
    #[expect(clippy::unnecessary_wraps, reason = "a source of random bytes can fail")]
    fn known(random: &mut [u8]) -> Result<(), Error> {
        let first = if random.len() == MESSAGE_LEN { 0x80 } else { 0 };
        random.iter_mut().zip(first..).for_each(|(byte, value)| *byte = value);
        Ok(())
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn digest(bytes: &[u8]) -> Vec<u8> {
        ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().to_vec()
    }

    /// Values of Go 1.26: `crypto/mlkem/mlkemtest` and `crypto/ecdh`.
    #[test]
    fn shares_and_secret_are_those_of_another_implementation() {
        let client = Hybrid { classical: &CLIENT, fill: known }.start().unwrap();
        assert_eq!(client.pub_key().len(), ENCAPSULATION_KEY_LEN + 32);
        assert_eq!(digest(client.pub_key()), bytes("0b2ac0363dc991a425661aa219e3a4176866eb9896bdf467040425b4d9b3b90a"));
        let server = Hybrid { classical: &SERVER, fill: known }.start_and_complete(client.pub_key()).unwrap();
        assert_eq!((server.group, server.pub_key.len()), (NamedGroup::X25519MLKEM768, CIPHERTEXT_LEN + 32));
        assert_eq!(digest(&server.pub_key), bytes("28760d134b8d5d139a0fd3255cc4bb285b7c95cf57285a51d5ff69a60e51a83a"));
        let secret =
            [bytes("ef91db44b6cd5b2c50f483481a3d6e2a08cc149764fcb8dc568851332da45ed9"), bytes(SHARED)].concat();
        assert_eq!(server.secret.secret_bytes(), secret);
        assert_eq!(client.complete(&server.pub_key).unwrap().secret_bytes(), secret);
    }

    #[test]
    fn both_ends_have_one_secret_which_is_another_one_each_time() {
        let exchange = || {
            let client = X25519MLKEM768.start().unwrap();
            let server = X25519MLKEM768.start_and_complete(client.pub_key()).unwrap();
            let secret = client.complete(&server.pub_key).unwrap().secret_bytes().to_vec();
            assert_eq!(secret, server.secret.secret_bytes());
            secret
        };
        let (first, second) = (exchange(), exchange());
        assert_eq!((first.len(), second.len()), (64, 64));
        assert!(first[..32] != second[..32] && first[32..] != second[32..]);
    }

    #[test]
    fn a_client_refuses_shares_that_break_a_rule_and_passes_over_a_changed_ciphertext() {
        let complete = |change: &dyn Fn(&mut Vec<u8>)| {
            let client = X25519MLKEM768.start().unwrap();
            let server = X25519MLKEM768.start_and_complete(client.pub_key()).unwrap();
            let mut share = server.pub_key;
            change(&mut share);
            client.complete(&share).map(|secret| secret.secret_bytes() == server.secret.secret_bytes())
        };
        for len in [0, 32, CIPHERTEXT_LEN, CIPHERTEXT_LEN + 31, CIPHERTEXT_LEN + 33, ENCAPSULATION_KEY_LEN + 32] {
            assert_eq!(complete(&|share| share.resize(len, 1)), Err(INVALID_SHARE), "{len} bytes");
        }
        assert_eq!(complete(&|share| share[CIPHERTEXT_LEN..].fill(0)), Err(INVALID_SHARE));
        assert_eq!(complete(&|share| share[0] ^= 1), Ok(false));
        assert_eq!(complete(&|_| ()), Ok(true));
    }

    #[test]
    fn the_classical_part_is_completed_alone() {
        let client = X25519MLKEM768.start().unwrap();
        let (group, share) = client.hybrid_component().unwrap();
        assert_eq!((group, share), (NamedGroup::X25519, &client.pub_key()[ENCAPSULATION_KEY_LEN..]));
        let server = X25519.start_and_complete(share).unwrap();
        let secret = client.complete_hybrid_component(&server.pub_key).unwrap();
        assert_eq!(secret.secret_bytes(), server.secret.secret_bytes());
    }

    #[test]
    fn the_group_is_the_first_of_four_and_of_tls_1_3_alone() {
        let names: Vec<NamedGroup> = provider().kx_groups.iter().map(|group| group.name()).collect();
        let classical = [NamedGroup::X25519, NamedGroup::secp256r1, NamedGroup::secp384r1];
        assert_eq!(names, [&[NamedGroup::X25519MLKEM768][..], &classical].concat());
        assert_eq!(u16::from(X25519MLKEM768.name()), 0x11ec);
        assert!(X25519MLKEM768.usable_for_version(ProtocolVersion::TLSv1_3));
        assert!(!X25519MLKEM768.usable_for_version(ProtocolVersion::TLSv1_2));
    }
}
