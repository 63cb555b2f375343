//! Bytes of the record of a bridged user, the same in every backend. Big-endian.
//!
//! ```text
//! 0 registered 8, 8 refused 8 (0: not), 16 kind (0 fcm, 1 apns), 17 app length 1, app, token length 2, token;
//! then aps, if there is one
//! ```
//!
//! The registration comes first: of two values at one timestamp, a shared store keeps the greater.

use machine::ids::Clock;
use machine::limits;
use machine::time::UnixSeconds;
use machine::upstream::{BridgeKind, Bridged};

/// Greatest number of bytes of a record.
pub(crate) const BYTES_MAX: usize =
    HEAD_BYTES + limits::BRIDGE_APP_BYTES_MAX + 2 + limits::DEVICE_TOKEN_BYTES_MAX + limits::APS_BYTES_MAX;
const HEAD_BYTES: usize = 18;

const _: () = assert!(limits::BRIDGE_APP_BYTES_MAX <= u8::MAX as usize && BYTES_MAX <= u16::MAX as usize);

/// Returns the record as bytes.
pub(crate) fn encode(bridge: &Bridged) -> Vec<u8> {
    // Invariant: the edge, the configuration and the import hold to the bounds.
    let app = u8::try_from(bridge.app.len()).expect("a bounded name");
    let token = u16::try_from(bridge.token.len()).expect("a bounded token");
    let refused = bridge.refused.map_or(0, |at| at.0);
    let mut out = Vec::with_capacity(HEAD_BYTES + bridge.app.len() + 2 + bridge.token.len());
    out.extend_from_slice(&bridge.registered.0.to_be_bytes());
    out.extend_from_slice(&refused.to_be_bytes());
    out.extend_from_slice(&[number(bridge.kind), app]);
    out.extend_from_slice(bridge.app.as_bytes());
    out.extend_from_slice(&token.to_be_bytes());
    out.extend_from_slice(bridge.token.as_bytes());
    out.extend_from_slice(bridge.aps.as_deref().unwrap_or_default().as_bytes());
    out
}

/// Reads the bytes of [`encode`]; `None` for anything else, also of a kind that this version does not know.
pub(crate) fn decode(bytes: &[u8]) -> Option<Bridged> {
    let (registered, rest) = bytes.split_first_chunk()?;
    let (refused, rest) = rest.split_first_chunk()?;
    let ([kind, app], rest) = rest.split_first_chunk::<2>()?;
    let (app, rest) = rest.split_at_checked(usize::from(*app))?;
    let (token, rest) = rest.split_first_chunk()?;
    let (token, aps) = rest.split_at_checked(usize::from(u16::from_be_bytes(*token)))?;
    let text = |bytes| std::str::from_utf8(bytes).ok().map(Box::<str>::from);
    Some(Bridged {
        kind: kind_of(*kind)?,
        app: text(app)?,
        token: text(token)?,
        aps: Some(text(aps)?).filter(|aps| !aps.is_empty()),
        registered: Clock(u64::from_be_bytes(*registered)),
        refused: Some(UnixSeconds(u64::from_be_bytes(*refused))).filter(|at| at.0 > 0),
    })
}

fn number(kind: BridgeKind) -> u8 {
    match kind {
        BridgeKind::Fcm => 0,
        BridgeKind::Apns => 1,
    }
}

fn kind_of(number: u8) -> Option<BridgeKind> {
    [BridgeKind::Fcm, BridgeKind::Apns].into_iter().find(|kind| self::number(*kind) == number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::sample::bridged;

    #[test]
    fn the_largest_record_is_bounded() {
        let of = |bytes| "x".repeat(bytes).into_boxed_str();
        let aps = Some(of(limits::APS_BYTES_MAX));
        let (app, token) = (of(limits::BRIDGE_APP_BYTES_MAX), of(limits::DEVICE_TOKEN_BYTES_MAX));
        let largest = Bridged { app, token, aps, ..*bridged(1) };
        assert_eq!(encode(&largest).len(), BYTES_MAX);
        assert_eq!(decode(&encode(&largest)), Some(largest));
        assert_eq!(decode(&[0; 17]), None);
        let mut unknown = encode(&bridged(1));
        unknown[16] = 9;
        assert_eq!(decode(&unknown), None, "a kind of a later version");
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            registered in any::<u64>(),
            refused in prop::option::of(1u64..),
            kind in prop::sample::select(vec![BridgeKind::Fcm, BridgeKind::Apns]),
            (app, token, aps) in ("[a-z]{0,9}", ".{0,30}", prop::option::of(".{1,30}")),
        ) {
            let (aps, refused) = (aps.map(Into::into), refused.map(UnixSeconds));
            let (app, token, registered) = (app.into(), token.into(), Clock(registered));
            let record = Bridged { kind, app, token, aps, registered, refused };
            prop_assert_eq!(decode(&encode(&record)), Some(record));
        }

        #[test]
        fn odd_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
