//! Tokens and keys that other programs made, and what is refused.

use super::super::endpoint::BadKey;
use super::super::key::key_digest;
use super::*;
use crate::wire::base64url;
use fernet::Fernet;
use machine::upstream::ForwardKey;
use proptest::prelude::*;
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use serde_json::Value;

const KEY_1: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
const KEY_2: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Three tokens, two public keys and a private key that Python's `cryptography` 48.0.0 made; see the first line.
const VECTORS: &str = include_str!("vectors.txt");

fn vector(name: &str) -> &'static str {
    let prefix = format!("{name} ");
    VECTORS.lines().find_map(|line| line.strip_prefix(&prefix)).expect("the file has it")
}

fn block(label: &str) -> &'static str {
    let end = format!("-----END {label}-----");
    let start = VECTORS.find(&format!("-----BEGIN {label}-----")).expect("the file has it");
    &VECTORS[start..start + VECTORS[start..].find(&end).expect("it ends") + end.len()]
}

fn tokens(keys: &[&str]) -> ForwardTokens {
    ForwardTokens::new(&keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn point(name: &str) -> [u8; 65] {
    base64url::decode(vector(name).as_bytes()).unwrap().try_into().unwrap()
}

fn scalar() -> ForwardKey {
    let hex = vector("scalar");
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    ForwardKey(std::array::from_fn(byte))
}

fn create(json: &Value) -> Result<ForwardToken, CreationError> {
    read_creation(json.to_string().as_bytes(), &Targets::default())
}

#[test]
fn tokens_that_another_program_made_are_opened_by_any_key() {
    let (sender, key) = (Some(key_digest(&point("sender"))), Some(scalar()));
    for keys in [&[KEY_1][..], &[KEY_2, KEY_1]] {
        for (name, sender, key) in [("plain", None, None), ("digest", sender, None), ("both", sender, key)] {
            let opened = tokens(keys).open(vector(name)).expect("it opens");
            assert_eq!(opened, ForwardToken { url: vector("url").into(), sender, key }, "{name}");
            assert_eq!(tokens(keys).open(&tokens(keys).seal(&opened)), Some(opened));
        }
    }
    assert_eq!(tokens(&[KEY_2]).open(vector("plain")), None);
}

#[test]
fn what_no_key_sealed_as_a_forward_endpoint_is_no_token() {
    let tokens = tokens(&[KEY_1]);
    let fernet = Fernet::new(KEY_1).unwrap();
    let sealed = |plain: &[u8]| fernet.encrypt(plain).trim_end_matches('=').to_owned();
    let with = |url: &str, digest: [u8; 32], scalar: [u8; 32]| sealed(&[url.as_bytes(), &digest, &scalar].concat());
    assert!(tokens.open(&with("https://a/", [1; 32], [1; 32])).is_some());
    assert!(tokens.open(&with("", [0; 32], [0; 32])).is_none(), "a WebPush endpoint has 64 bytes and no URL");
    assert!(tokens.open(&with("https://a/", [0; 32], [1; 32])).is_none(), "a key without a sender");
    assert!(tokens.open(&with("https://a/", [1; 32], [0xff; 32])).is_none(), "a scalar beyond the order");
    assert!(tokens.open(&sealed(&[b"\xff".as_slice(), &[0; 64]].concat())).is_none(), "no UTF-8");
    for bytes in [0, 1, 32, 63] {
        assert!(tokens.open(&sealed(&vec![7; bytes])).is_none(), "{bytes}");
    }
    let long = "x".repeat(TARGET_BYTES_MAX);
    assert!(tokens.open(&with(&long, [0; 32], [0; 32])).is_some());
    assert!(tokens.open(&with(&"x".repeat(TARGET_BYTES_MAX + 16), [0; 32], [0; 32])).is_none());
    let mut flipped = vector("plain").to_owned().into_bytes();
    flipped[50] ^= 1;
    assert!(tokens.open(std::str::from_utf8(&flipped).unwrap()).is_none());
    assert!(matches!(ForwardTokens::new(&[]), Err(BadKey::None)));
    assert!(matches!(ForwardTokens::new(&[KEY_1.into(), "x".into()]), Err(BadKey::Malformed(1))));
}

#[test]
fn an_endpoint_stays_within_a_thousand_bytes() {
    let token = ForwardToken { url: "x".repeat(TARGET_BYTES_MAX).into(), sender: None, key: None };
    assert_eq!(tokens(&[KEY_1]).seal(&token).len(), 866);
}

#[test]
fn a_request_is_read_with_both_forms_of_a_key() {
    let (url, sender) = (vector("url"), vector("sender"));
    let digest = Some(key_digest(&point("sender")));
    let plain = ForwardToken { url: url.into(), sender: None, key: None };
    assert_eq!(create(&serde_json::json!({ "url": url })), Ok(plain.clone()));
    let nulls = serde_json::json!({ "url": url, "server_pubkey": null, "forward_privkey": null, "more": 1 });
    assert_eq!(create(&nulls), Ok(plain));
    let locked = ForwardToken { url: url.into(), sender: digest, key: None };
    assert_eq!(create(&serde_json::json!({ "url": url, "server_pubkey": sender })), Ok(locked.clone()));
    let (pkcs8, sec1) = (block("PRIVATE KEY"), block("EC PRIVATE KEY"));
    let parameters = format!("-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{sec1}\n");
    let crlf = pkcs8.replace('\n', "\r\n");
    for pem in [pkcs8, sec1, &parameters, &crlf] {
        let made = create(&serde_json::json!({ "url": url, "server_pubkey": sender, "forward_privkey": pem }));
        assert_eq!(made, Ok(ForwardToken { key: Some(scalar()), ..locked.clone() }), "{pem}");
    }
}

#[test]
fn a_request_that_breaks_a_rule_is_refused_by_that_rule() {
    let (url, sender, pem) = (vector("url"), vector("sender"), block("PRIVATE KEY"));
    for body in ["", "[]", "{", r#"["https://a.example/"]"#, "{}", r#"{"url":1}"#, r#"{"url":"x","url":"y"}"#, "\u{ff}"]
    {
        assert_eq!(read_creation(body.as_bytes(), &Targets::default()), Err(CreationError::Json), "{body}");
    }
    let padded = format!(r#"{{"url":"{url}"{}}}"#, " ".repeat(CREATION_BYTES_MAX));
    assert_eq!(read_creation(padded.as_bytes(), &Targets::default()), Err(CreationError::Json));
    assert_eq!(create(&serde_json::json!({ "url": "http://a.example/" })), Err(CreationError::Url));
    let mut off = point("sender");
    off[64] ^= 1;
    for key in ["", "AAAA", &sender[1..], &base64url::encode(&off)] {
        let made = create(&serde_json::json!({ "url": url, "server_pubkey": key }));
        assert_eq!(made, Err(CreationError::PublicKey), "{key}");
    }
    assert_eq!(create(&serde_json::json!({ "url": url, "forward_privkey": pem })), Err(CreationError::PrivateKey));
    let own = serde_json::json!({ "url": url, "server_pubkey": vector("point"), "forward_privkey": pem });
    assert_eq!(create(&own), Err(CreationError::PrivateKey), "the key of the sender");
    let other_curve = include_str!("p384.pem");
    let encrypted = pem.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    for pem in ["", "x", "-----BEGIN PRIVATE KEY-----", &pem[..100], &encrypted, other_curve] {
        let made = create(&serde_json::json!({ "url": url, "server_pubkey": sender, "forward_privkey": pem }));
        assert_eq!(made, Err(CreationError::PrivateKey), "{pem}");
    }
}

#[test]
fn claims_are_kept_and_signed_for_another_audience() {
    let claims = br#"{"aud":"https://own.example","exp":1700000000,"sub":"mailto:a@b.example","jti":["x",1.5]}"#;
    let value = authorization(claims, "https://push.example.org", &scalar()).unwrap();
    let (token, key) = value.strip_prefix("vapid t=").unwrap().split_once(",k=").unwrap();
    assert_eq!(key, vector("point"));
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point("point"));
    public.verify(signed.as_bytes(), &base64url::decode(signature.as_bytes()).unwrap()).unwrap();
    let payload = base64url::decode(signed.split_once('.').unwrap().1.as_bytes()).unwrap();
    let expected = serde_json::json!({
        "aud": "https://push.example.org", "exp": 1_700_000_000, "sub": "mailto:a@b.example", "jti": ["x", 1.5],
    });
    assert_eq!(serde_json::from_slice::<Value>(&payload).unwrap(), expected);
    assert_eq!(authorization(b"[]", "https://a", &scalar()), None);
    assert_eq!(authorization(claims, "https://a", &ForwardKey([0; 32])), None);
}

#[test]
fn a_token_is_never_shown() {
    let opened = tokens(&[KEY_1]).open(vector("both")).unwrap();
    let shown = format!("{opened:?}");
    assert!(!shown.contains("example") && !shown.contains("59"), "{shown}");
}

#[test]
fn refusals_have_their_status_and_errno() {
    use ForwardFault::*;
    let rows: [(u16, Option<u16>, &[ForwardFault]); 13] = [
        (400, None, &[Refused]),
        (400, Some(108), &[Json, Target, PublicKey, PrivateKey]),
        (400, Some(110), &[Encoding]),
        (401, Some(109), &[Creator]),
        (404, Some(102), &[NotFound]),
        (410, Some(106), &[Gone]),
        (413, Some(104), &[TooLarge]),
        (429, Some(201), &[TooMany]),
        (429, Some(203), &[TooManyCreated]),
        (502, Some(901), &[Authentication]),
        (502, Some(902), &[Unreachable]),
        (502, Some(903), &[NoAnswer]),
        (503, Some(201), &[Unavailable]),
    ];
    for (status, errno, faults) in rows {
        for fault in faults {
            let (its_status, its_errno, _) = fault.row();
            assert_eq!((its_status, its_errno), (status, errno), "{fault:?}");
        }
    }
}

proptest! {
    #[test]
    fn nothing_panics(text in "\\PC{0,300}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let tokens = tokens(&[KEY_1]);
        let _ = tokens.open(&text);
        let sealed = Fernet::new(KEY_1).unwrap().encrypt(&bytes);
        if let Some(opened) = tokens.open(&sealed) {
            prop_assert_eq!(tokens.open(&tokens.seal(&opened)), Some(opened));
        }
        let _ = read_creation(&bytes, &Targets::default());
        let _ = create(&serde_json::json!({
            "url": "https://a.example/", "server_pubkey": vector("sender"),
            "forward_privkey": format!("-----BEGIN PRIVATE KEY-----{text}"),
        }));
        let _ = authorization(&bytes, &text, &scalar());
    }
}
