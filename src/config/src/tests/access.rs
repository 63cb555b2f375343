//! Rules about callers.

use super::*;
use crate::RegisterMode;

const TOKEN: &str = "0123456789abcdef";
/// The generator of P-256: a point that every reader can look up.
const POINT: &str = "BGsX0fLhLEJH-Lzm5WOkQPJ3A32BLeszoPShOUXYmMKWT-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU";

#[test]
fn lists_need_their_mode_and_modes_their_list() {
    let tokens = format!("access.tokens={TOKEN},another-token-~._=");
    let keys = format!("access.vapid_keys={POINT}");
    let config = load(&sets(&["access.register=token", &tokens]));
    assert_eq!((config.access.register, config.access.tokens.len()), (RegisterMode::Token, 2));
    assert!(config.has_secrets() && !format!("{config:?}").contains(TOKEN));
    assert_eq!(load(&sets(&["access.register=vapid", &keys])).access.vapid_keys.len(), 1);
    assert_eq!(load(&sets(&[&format!("endpoint.allowed_keys={POINT}")])).endpoint.allowed_keys.len(), 1);
    for (settings, said) in [
        (&["access.register=token"][..], "access.register = token needs access.tokens"),
        (&["access.register=vapid"], "access.register = vapid needs access.vapid_keys"),
        (&[&tokens], "access.tokens has no effect without access.register = token"),
        (&[&keys], "access.vapid_keys has no effect without access.register = vapid"),
        (&["access.register=vapid", &keys, &tokens], "access.tokens has no effect"),
        (&["access.register=token", &keys, &tokens], "access.vapid_keys has no effect"),
    ] {
        let refused = refusal(&sets(settings));
        assert!(refused.starts_with(said), "{refused}");
    }
}

#[test]
fn tokens_fit_into_a_path_and_keys_are_points() {
    for bad in ["short", "with/slash/0123456789", "with%escape0123456789", "with\\backslash01234567", &"x".repeat(129)]
    {
        assert!(refusal(&sets(&[&format!("access.tokens={bad}")])).contains("expected at most 256 tokens"), "{bad}");
    }
    let off_the_curve = POINT.replace("UfU", "UfA");
    for bad in ["AAAA", &off_the_curve, &[POINT; 257].join(",")] {
        for key in ["access.vapid_keys", "endpoint.allowed_keys"] {
            let refused = refusal(&sets(&[&format!("{key}={bad}")]));
            assert!(refused.contains("expected at most 256 public keys"), "{refused}");
        }
    }
}
