//! Lengths, versions, keys, and tokens that other programs made.

use super::*;
use proptest::prelude::*;

/// Prefix of these URLs.
const BASE: &str = "https://push.example.com";
const KEY_1: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
const KEY_2: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn tokens(form: TokenForm, keys: &[&str]) -> Tokens {
    let keys: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
    Tokens::new(&base(), form, &keys).unwrap()
}

fn base() -> BaseUrl {
    BaseUrl::parse("https://Push.example.com:443/").unwrap()
}

/// A fresh URL.
fn url(tokens: &mut Tokens, subscription: &Subscription) -> String {
    let mut out = Vec::new();
    tokens.seal(subscription, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Opens the token of a whole URL, under the version of the URL.
fn open_url(tokens: &Tokens, url: &str) -> Option<EndpointToken> {
    let (version, token) = parse_path(url.strip_prefix(BASE)?.strip_prefix("/wpush/")?)?;
    tokens.open(version, token).filter(|opened| opened.version == version)
}

const UNLOCKED: Subscription = Subscription { uaid: Uaid([1; 16]), chid: Chid([2; 16]), key: None };
const LOCKED: Subscription = Subscription { key: Some(KeyDigest([3; 32])), ..UNLOCKED };
const FORMS: [TokenForm; 2] = [TokenForm::Short, TokenForm::Fernet];

#[test]
fn urls_have_the_documented_lengths() {
    for (form, subscription, version, length) in [
        (TokenForm::Fernet, UNLOCKED, "v1", 140),
        (TokenForm::Fernet, LOCKED, "v2", 183),
        (TokenForm::Short, UNLOCKED, "v3", 87),
        (TokenForm::Short, LOCKED, "v3", 108),
    ] {
        let mut tokens = tokens(form, &[KEY_1]);
        let one = url(&mut tokens, &subscription);
        let token = one.strip_prefix(&format!("{BASE}/wpush/{version}/")).unwrap();
        assert_eq!(token.len(), length);
        assert_ne!(url(&mut tokens, &subscription), one, "every text is new");
    }
    assert_eq!(TokenForm::default(), TokenForm::Short);
}

/// The UAID, CHID and key digest of the tokens below.
fn counted(from: u8) -> impl Iterator<Item = u8> {
    (from..).take(32)
}

fn array<const N: usize>(bytes: impl Iterator<Item = u8>) -> [u8; N] {
    bytes.take(N).collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn tokens_that_other_programs_made_are_opened() {
    // By the classes Fernet, HKDF and AESGCM of Python's `cryptography` 48.0.0, with KEY_1.
    let v1 = "gAAAAABlU_EAs0JOZDS5M3Pcl3nhRB4JL066OK3xaGtcX4wOhAS6Xo-t61Gnhev3OMhFh5prVLfj3f0I9hv4pvoxhrp9qZB0xfFUQFkOIsTcAHq1dg8dZ22jnFwXR6QalKkmzr6vvRsr";
    let v2 = "gAAAAABlU_EAkODVnMl3i9hKrV6XdOs6fXWXK93uUWZmlzX-sOB3KSvSz21fyJPol3Xa9abUiBHsDZPOpFvaHppxUUUHmT1GCx54EaBHiNMRcjtdDW0umb6GJNP6cENeajxF0vbPyw5NBjm3EihZZbH3EYXY0I1U18W3IDnNgESBK4jIE2xyatg=";
    let v3 = "A8DBwsPExcbHyMnKy8zNzs_p_4dI8o5d7B-ZIFqM6YcszIblyPV6aJA9cubYl6QavHqj_hY_aHoTbgfFUpQN3GI";
    let v3_locked =
        "A8DBwsPExcbHyMnKy8zNzs_p_4dI8o5d7B-ZIFqM6YcszIblyPV6aJA9cubYl6QavPEJ4MbkOFdJHnle9tyzj9Cqakjx7M6SQgq8HMQZE9Tj";
    let digest = KeyDigest(array(counted(0x80)));
    for (version, token, locked) in [(1, v1, false), (2, v2, true), (3, v3, false), (3, v3_locked, true)] {
        for tokens in [tokens(TokenForm::Short, &[KEY_1]), tokens(TokenForm::Fernet, &[KEY_2, KEY_1])] {
            for token in [token, token.trim_end_matches('=')] {
                let opened = tokens.open(version, token).unwrap();
                assert_eq!((opened.uaid.0, opened.chid.0), (array(counted(0)), array(counted(0x40))));
                assert_eq!((opened.version, opened.lock.is_some()), (version, locked));
                assert!(opened.lock.is_none_or(|lock| lock.fits(&digest)));
            }
        }
        assert_eq!(tokens(TokenForm::Short, &[KEY_2]).open(version, token), None);
    }
}

#[test]
fn every_key_of_the_list_opens_and_the_first_seals() {
    for form in FORMS {
        let (mut old, mut new) = (tokens(form, &[KEY_1]), tokens(TokenForm::Short, &[KEY_2, KEY_1]));
        let (of_old, of_new) = (url(&mut old, &UNLOCKED), url(&mut new, &UNLOCKED));
        assert_eq!(open_url(&new, &of_old).unwrap().uaid, UNLOCKED.uaid);
        assert_eq!(open_url(&old, &of_new), None);
    }
}

#[test]
fn a_lock_fits_its_key_and_no_other() {
    for form in FORMS {
        let mut tokens = tokens(form, &[KEY_1]);
        let sealed = url(&mut tokens, &LOCKED);
        let lock = open_url(&tokens, &sealed).unwrap().lock.unwrap();
        assert!(lock.fits(&KeyDigest([3; 32])));
        for at in 0..lock.as_bytes().len() {
            let mut other = [3; 32];
            other[at] ^= 1;
            assert!(!lock.fits(&KeyDigest(other)), "{form:?} byte {at}");
        }
    }
}

#[test]
fn other_lengths_and_versions_are_refused() {
    let mut fernet = tokens(TokenForm::Fernet, &[KEY_1]);
    for length in [0, 16, 31, 33, 48, 63, 65, 96] {
        let token = fernet.seal.fernet.encrypt(&vec![7; length]);
        assert_eq!(fernet.open(1, token.trim_end_matches('=')), None, "{length}");
    }
    let (mut short, of_fernet) = (tokens(TokenForm::Short, &[KEY_1]), url(&mut fernet, &UNLOCKED));
    let of_short = url(&mut short, &UNLOCKED);
    for (wrong, url) in [
        ("v2", of_fernet.replace("/v1/", "/v2/")),
        ("v3", of_fernet.replace("/v1/", "/v3/")),
        ("v1", of_short.replace("/v3/", "/v1/")),
        ("v2", of_short.replace("/v3/", "/v2/")),
        ("none", of_short.replace("/v3/", "/")),
        ("v4", of_short.replace("/v3/", "/v4/")),
    ] {
        assert_eq!(open_url(&short, &url), None, "{wrong}");
    }
    assert!(open_url(&short, &of_fernet.replace("/v1/", "/")).is_some());
    assert!(open_url(&short, &format!("{of_fernet}=")).is_some());
    assert_eq!(parse_path("v4/x"), None);
    assert_eq!(parse_path("v3/x/y"), None);
}

#[test]
fn any_changed_character_is_noticed() {
    for subscription in [UNLOCKED, LOCKED] {
        let mut tokens = tokens(TokenForm::Short, &[KEY_1]);
        let url = url(&mut tokens, &subscription);
        let token = url.rsplit('/').next().unwrap();
        for at in 0..token.len() {
            let mut changed = token.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(tokens.open(3, &changed), None, "character {at}");
            assert_eq!(tokens.open(3, &token[..at]), None, "cut at {at}");
        }
    }
}

/// RFC 8030 section 8.2: two URLs of one user agent must not be known for such by their text.
#[test]
fn urls_of_one_user_agent_have_nothing_in_common() {
    let mut tokens = tokens(TokenForm::Short, &[KEY_1]);
    let mut bytes = |_| {
        let url = url(&mut tokens, &UNLOCKED);
        crate::wire::base64url::decode(url.rsplit('/').next().unwrap().as_bytes()).unwrap()
    };
    let all: Vec<Vec<u8>> = (0..200).map(&mut bytes).collect();
    for at in 1..all[0].len() {
        let mut values: Vec<u8> = all.iter().map(|bytes| bytes[at]).collect();
        values.sort_unstable();
        values.dedup();
        // Of 200 random bytes about 138 are distinct; below 90 is out of the question.
        assert!(values.len() > 90, "byte {at} takes {} values", values.len());
    }
}

#[test]
fn keys_are_checked() {
    let new = |keys: &[&str]| {
        let keys = keys.iter().map(|k| k.to_string()).collect::<Vec<_>>();
        Tokens::new(&base(), TokenForm::Short, &keys).map(|_| ()).unwrap_err()
    };
    assert_eq!(new(&[]), BadKey::None);
    assert_eq!(new(&[KEY_1, "short"]), BadKey::Malformed(1));
}

proptest! {
    #[test]
    fn opens_what_it_sealed(
        uaid in any::<[u8; 16]>(), chid in any::<[u8; 16]>(), key in any::<Option<[u8; 32]>>(), fernet in any::<bool>(),
    ) {
        let mut tokens = tokens(FORMS[usize::from(fernet)], &[KEY_2]);
        let subscription = Subscription { uaid: Uaid(uaid), chid: Chid(chid), key: key.map(KeyDigest) };
        let sealed = url(&mut tokens, &subscription);
        let opened = open_url(&tokens, &sealed).unwrap();
        prop_assert_eq!((opened.uaid, opened.chid), (subscription.uaid, subscription.chid));
        prop_assert_eq!(opened.lock.is_some(), key.is_some());
        prop_assert!(opened.lock.is_none_or(|lock| lock.fits(&subscription.key.unwrap())));
    }

    #[test]
    fn never_panics(token in any::<String>(), base64 in "A?[A-Za-z0-9_=-]{0,190}", version in 0u8..5) {
        let tokens = tokens(TokenForm::Short, &[KEY_1]);
        prop_assert_eq!(tokens.open(version, &token), None);
        prop_assert_eq!(tokens.open(version, &base64), None);
        let _ = parse_path(&token);
    }
}
