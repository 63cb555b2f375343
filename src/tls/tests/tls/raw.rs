//! The client's side of an established connection without rustls: it seals records that no client should, with its
//! own reading of RFC 8446 sections 5 and 7. TLS_AES_128_GCM_SHA256 only.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use runtime::ports::Port;
use runtime::tls::{Next, Tls as _};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

use crate::peer::{Pair, SLOT};

struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand<const N: usize>(secret: &[u8], label: &str) -> [u8; N] {
    let label = format!("tls13 {label}");
    let info = [&[0, N as u8, label.len() as u8], label.as_bytes(), &[0]].concat();
    let mut out = [0; N];
    Prk::new_less_safe(HKDF_SHA256, secret).expand(&[&info], Len(N)).unwrap().fill(&mut out).unwrap();
    out
}

/// One direction.
pub struct Half {
    secret: [u8; 32],
    pub seq: u64,
}

impl Half {
    /// Reads sequence number and secret of an exported state.
    fn read(state: &[u8]) -> Half {
        Half { seq: u64::from_be_bytes(state[..8].try_into().unwrap()), secret: state[8..].try_into().unwrap() }
    }

    pub fn of(secret: [u8; 32]) -> Half {
        Half { secret, seq: 0 }
    }

    /// Seals an inner plaintext as it is: its type must be its last byte.
    pub fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let [high, low] = ((inner.len() + 16) as u16).to_be_bytes();
        let header = [23, 3, 3, high, low];
        let mut body = inner.to_vec();
        let (key, nonce) = (self.key(), self.next_nonce());
        key.seal_in_place_append_tag(nonce, Aad::from(header), &mut body).unwrap();
        [&header[..], &body].concat()
    }

    /// Returns the inner plaintext of a record.
    pub fn open(&mut self, record: &[u8]) -> Vec<u8> {
        let mut body = record[5..].to_vec();
        let header: [u8; 5] = record[..5].try_into().unwrap();
        let (key, nonce) = (self.key(), self.next_nonce());
        key.open_in_place(nonce, Aad::from(header), &mut body).unwrap().to_vec()
    }

    fn key(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &expand::<16>(&self.secret, "key")).unwrap())
    }

    fn next_nonce(&mut self) -> Nonce {
        let iv: [u8; 12] = expand(&self.secret, "iv");
        let mut nonce = u128::from_be_bytes([&[0; 4][..], &iv].concat().try_into().unwrap());
        nonce ^= u128::from(self.seq);
        self.seq += 1;
        Nonce::assume_unique_for_key(nonce.to_be_bytes()[4..].try_into().unwrap())
    }
}

/// A server whose client is a script.
pub struct Raw {
    pub pair: Pair,
    pub write: Half,
    pub read: Half,
}

impl Raw {
    pub fn new() -> Raw {
        Raw::of(Pair::established(TLS13_AES_128_GCM_SHA256))
    }

    /// Takes the place of the client.
    pub fn of(mut pair: Pair) -> Raw {
        let state = pair.server.export(SLOT);
        pair.server.import(SLOT, Port::Endpoint, &mut state.clone());
        Raw { pair, write: Half::read(&state[3..43]), read: Half::read(&state[43..]) }
    }

    /// Seals an inner plaintext as it is: its type must be its last byte.
    pub fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        self.write.seal(inner)
    }

    /// Goes over to the next key, after a KeyUpdate.
    pub fn update(&mut self) {
        self.write = Half { secret: expand(&self.write.secret, "traffic upd"), seq: 0 };
    }

    /// Goes over to the next key of the server, after its KeyUpdate.
    pub fn server_updated(&mut self) {
        self.read = Half { secret: expand(&self.read.secret, "traffic upd"), seq: 0 };
    }

    /// Gives bytes to the server. Returns its result and the inner plaintexts of the records that it answered.
    pub fn give(&mut self, bytes: &[u8]) -> (Next, Vec<Vec<u8>>) {
        let (next, wire) = self.pair.give(bytes);
        (next, self.open(&wire))
    }

    pub fn open(&mut self, mut wire: &[u8]) -> Vec<Vec<u8>> {
        let mut inners = Vec::new();
        while let [kind, _, _, high, low, ..] = *wire {
            assert_eq!(kind, 23);
            let (record, rest) = wire.split_at(5 + usize::from(u16::from_be_bytes([high, low])));
            inners.push(self.read.open(record));
            wire = rest;
        }
        inners
    }
}

/// Inner plaintext of application data.
pub fn data(plain: &[u8]) -> Vec<u8> {
    [plain, &[23]].concat()
}

/// Inner plaintext of a fatal alert.
pub fn alert(number: u8) -> Vec<u8> {
    vec![2, number, 21]
}

/// Inner plaintext of a KeyUpdate.
pub fn key_update(request: u8) -> Vec<u8> {
    vec![24, 0, 0, 1, request, 22]
}
