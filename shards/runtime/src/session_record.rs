//! The part of the record of a frozen session beside its connection: enough to say its hello again.
//!
//! ```text
//! uaid (16) | bytes of TLS u8 | TLS state | broadcasts u8 | each: id len u16, id, version len u16, version
//! ```
//! TLS state is that of [`crate::tls::Tls::export`]; without TLS it has no bytes. Numbers are little endian. A change
//! of this form, or of the TLS state, is a new version of the record files.

use machine::ids::Uaid;
use machine::{BroadcastVersion, Hello};

/// Returns the number of bytes that [`encode`] appends.
pub(crate) fn len(hello: &Hello, tls: &[u8]) -> usize {
    let texts = hello.broadcasts.iter().flat_map(|broadcast| [&broadcast.id, &broadcast.version]);
    16 + 1 + tls.len() + 1 + texts.map(|text| 2 + text.len()).sum::<usize>()
}

/// Appends a session. Returns `None` if a part of it is longer than its number can say.
pub(crate) fn encode(hello: &Hello, tls: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(&hello.uaid?.0);
    out.push(u8::try_from(tls.len()).ok()?);
    out.extend_from_slice(tls);
    out.push(u8::try_from(hello.broadcasts.len()).ok()?);
    for text in hello.broadcasts.iter().flat_map(|broadcast| [&broadcast.id, &broadcast.version]) {
        out.extend_from_slice(&u16::try_from(text.len()).ok()?.to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    Some(())
}

/// The TLS state of a session; empty without TLS. `None` for bytes that no session has.
pub(crate) fn tls(session: &mut [u8]) -> Option<&mut [u8]> {
    let len = usize::from(*session.get(16)?);
    session.get_mut(17..17 + len)
}

/// Reads the hello of a session. The user is known to no other shard, and keeps its UAID even if storage has nothing of
/// it yet.
pub(crate) fn hello(session: &[u8]) -> Option<Hello> {
    let (uaid, rest) = session.split_first_chunk()?;
    let (tls_len, rest) = rest.split_first()?;
    let (count, mut rest) = rest.get(usize::from(*tls_len)..)?.split_first()?;
    let mut text = || {
        let (len, behind) = rest.split_first_chunk()?;
        let (text, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        rest = behind;
        std::str::from_utf8(text).ok().map(Box::<str>::from)
    };
    let broadcasts = (0..*count).map(|_| Some(BroadcastVersion { id: text()?, version: text()? }));
    let broadcasts = broadcasts.collect::<Option<_>>()?;
    let uaid = Uaid(*uaid);
    Some(Hello { broadcasts, ..Hello::new(Some(uaid), uaid) })
}

/// UAID of a session, by which its shard is found.
pub fn uaid(session: &[u8]) -> Option<Uaid> {
    session.first_chunk().map(|uaid| Uaid(*uaid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_read_back_as_it_was_written_and_cut_ones_are_refused() {
        let broadcast = |id: &str, version: &str| BroadcastVersion { id: id.into(), version: version.into() };
        let broadcasts = vec![broadcast("a/b", "\"17\""), broadcast("c", "")];
        let written = Hello { broadcasts: broadcasts.clone(), ..Hello::new(Some(Uaid([9; 16])), Uaid([9; 16])) };
        for keys in [&[][..], &[5; 115][..]] {
            let mut bytes = Vec::new();
            encode(&written, keys, &mut bytes).unwrap();
            assert_eq!(bytes.len(), len(&written, keys));
            assert_eq!(tls(&mut bytes).unwrap(), keys);
            let read = hello(&bytes).unwrap();
            assert_eq!((read.uaid, read.fresh), (Some(Uaid([9; 16])), Uaid([9; 16])));
            assert_eq!((read.broadcasts, uaid(&bytes)), (broadcasts.clone(), Some(Uaid([9; 16]))));
            for len in 0..bytes.len() {
                assert!(hello(&bytes[..len]).is_none(), "{len}");
            }
        }
        let too_many = vec![broadcast("x", "y"); 256];
        assert!(encode(&Hello { broadcasts: too_many, ..written }, &[], &mut Vec::new()).is_none());
    }
}
