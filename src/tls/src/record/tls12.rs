//! Records of TLS 1.2 with AEAD suites (RFC 5246 section 6.2.3.3, RFC 5288, RFC 7905): the type is in the header, and a
//! record of AES-GCM carries 8 bytes of its nonce.

use ring::aead::LessSafeKey;

use super::{ALERT, APPLICATION_DATA, Alert, HANDSHAKE, HEADER_LEN, Header, Opened, Plain, Session};
use crate::keys::{SALT_LEN, TAG_LEN};

/// Handshake type ClientHello (RFC 5246 section 7.4).
const CLIENT_HELLO: u8 = 1;

impl Session {
    /// Decrypts the record that lies at `at`, in place.
    pub(super) fn decrypt_12(
        &mut self,
        header: Header,
        (bytes, at): (&mut [u8], usize),
        key: &mut Option<LessSafeKey>,
    ) -> Result<Plain, Alert> {
        let explicit_len = self.suite.explicit_len();
        let len = header.len.checked_sub(explicit_len + TAG_LEN).ok_or(Alert::BadRecordMac)?;
        let additional = additional(self.read.seq, header.kind, len);
        let body = at + HEADER_LEN;
        let (explicit, sealed) = bytes[body..body + header.len].split_at_mut(explicit_len);
        self.read.open(self.suite, key, (&additional, explicit), sealed).ok_or(Alert::BadRecordMac)?;
        Ok(Plain { kind: header.kind, at: body + explicit_len, len })
    }

    /// A handshake message behind the handshake. Renegotiation is refused by a fatal alert: no_renegotiation is a
    /// warning (RFC 5246 section 7.2.2), after which the client could ask again.
    pub(super) fn handshake_12(message: &[u8]) -> Opened {
        match message.first() {
            Some(&CLIENT_HELLO) => Opened::Refused(Alert::HandshakeFailure),
            _ => Opened::Refused(Alert::UnexpectedMessage),
        }
    }

    /// Appends one record.
    pub(super) fn seal_12(&mut self, kind: u8, plain: &[u8], wire: &mut Vec<u8>) {
        let explicit_len = self.suite.explicit_len();
        let len = explicit_len + plain.len() + TAG_LEN;
        let [high, low] = (len as u16).to_be_bytes();
        wire.reserve(HEADER_LEN + len);
        wire.extend_from_slice(&[kind, 3, 3, high, low]);
        wire.extend_from_slice(&self.write.nonce()[SALT_LEN..SALT_LEN + explicit_len]);
        let at = wire.len();
        wire.extend_from_slice(plain);
        let additional = additional(self.write.seq, kind, plain.len());
        let tag = self.write.seal(self.suite, &additional, &mut wire[at..]);
        wire.extend_from_slice(&tag);
    }
}

/// Returns true for a content type that may come after the handshake.
pub(super) fn is_known(kind: u8) -> bool {
    matches!(kind, ALERT | HANDSHAKE | APPLICATION_DATA)
}

/// Additional data: sequence number, type, version and length of the plaintext (RFC 5246 section 6.2.3.3).
fn additional(seq: u64, kind: u8, len: usize) -> [u8; 13] {
    let mut data = [0; 13];
    data[..8].copy_from_slice(&seq.to_be_bytes());
    let [high, low] = (len as u16).to_be_bytes();
    data[8..].copy_from_slice(&[kind, 3, 3, high, low]);
    data
}
