//! Every rule of PROTOCOL.md 2.5, and that what is remembered for one key is worth nothing to another.

use super::*;
use crate::webpush::identity::Identity;
use proptest::prelude::*;

const ORIGIN: &str = "https://push.example.com";
const NOW: u64 = 1_700_000_000;

/// A sender with a key of its own.
struct Sender(Identity);

impl Sender {
    fn new() -> Sender {
        Sender(Identity::generate())
    }

    fn key(&self) -> String {
        self.0.public_key()
    }

    fn digest(&self) -> KeyDigest {
        key_digest(self.0.point().try_into().unwrap())
    }

    fn token(&self, header: &str, claims: &str) -> String {
        self.0.sign_text(header, claims)
    }

    fn good_token(&self, exp: u64) -> String {
        self.token(HEADER, &format!(r#"{{"aud":"{ORIGIN}","exp":{exp},"sub":"mailto:a@b"}}"#))
    }
}

const HEADER: &str = r#"{"typ":"JWT","alg":"ES256"}"#;

fn verifier() -> Verifier {
    of_origin(ORIGIN, 16)
}

fn of_origin(origin: &str, limit: usize) -> Verifier {
    Verifier::new(HttpUrl::parse(origin).unwrap().origin(), limit)
}

fn check(verifier: &mut Verifier, authorization: &str, crypto_key: Option<&str>) -> Result<KeyDigest, ApiError> {
    verifier.check(UnixSeconds(NOW), authorization.as_bytes(), crypto_key.map(str::as_bytes))
}

#[test]
fn both_drafts_are_accepted() {
    let sender = Sender::new();
    let (token, key) = (sender.good_token(NOW + 3600), sender.key());
    let mut verifier = verifier();
    for authorization in [
        format!("vapid t={token},k={key}"),
        format!("Vapid  k={key}=, t={token}"),
        format!("VAPID t={token}, k={}", key.replace('-', "+").replace('_', "/")),
        format!("vapid t=\"{token}\", k=\"{key}\", x=y"),
    ] {
        assert_eq!(check(&mut verifier, &authorization, None), Ok(sender.digest()), "{authorization}");
    }
    for scheme in ["WebPush", "bearer"] {
        let crypto_key = format!("dh=AA, p256ecdsa=\"{key}\"");
        let result = check(&mut verifier, &format!("{scheme} {token}"), Some(&crypto_key));
        assert_eq!(result, Ok(sender.digest()));
    }
    assert_eq!((verifier.hits, verifier.misses), (5, 1));
}

#[test]
fn headers_that_lack_something() {
    let sender = Sender::new();
    let (token, key) = (sender.good_token(NOW + 3600), sender.key());
    let mut verifier = verifier();
    for (authorization, crypto_key, fault) in [
        ("".to_string(), None, ApiError::VapidScheme),
        ("vapid".to_string(), None, ApiError::VapidScheme),
        (format!("basic {token}"), None, ApiError::VapidScheme),
        (format!("vapid t={token}"), None, ApiError::VapidNoKey),
        (format!("vapid k={key}"), None, ApiError::VapidNoToken),
        (format!("vapid t={token},k={}", &key[4..]), None, ApiError::VapidBadKey),
        (format!("vapid t={token},k=!"), None, ApiError::VapidBadKey),
        (format!("webpush {token}"), None, ApiError::VapidCryptoKey),
        (format!("webpush {token}"), Some("dh=AA"), ApiError::VapidCryptoKey),
        (format!("webpush {token}"), Some("nonsense"), ApiError::VapidCryptoKey),
        (format!("webpush {token}"), Some("p256ecdsa=AA"), ApiError::VapidBadKey),
        (format!("vapid t=a.b,k={key}"), None, ApiError::VapidBadToken),
        (format!("vapid t={token}.x,k={key}"), None, ApiError::VapidBadToken),
        (format!("vapid t=!{token},k={key}"), None, ApiError::VapidBadToken),
    ] {
        assert_eq!(check(&mut verifier, &authorization, crypto_key), Err(fault), "{authorization}");
    }
}

#[test]
fn claims_follow_their_rules() {
    let sender = Sender::new();
    let mut verifier = verifier();
    let mut verdict = |header: &str, claims: &str| {
        let token = sender.token(header, claims);
        check(&mut verifier, &format!("vapid t={token},k={}", sender.key()), None).map(|_| ())
    };
    let good = NOW + 3600;
    for (aud, exp, expected) in [
        (format!("\"{ORIGIN}\""), (NOW + EXPIRY_AHEAD_MAX + CLOCK_LEEWAY).to_string(), Ok(())),
        (format!("\"{ORIGIN}\""), format!("{}.9", NOW + EXPIRY_AHEAD_MAX + CLOCK_LEEWAY), Ok(())),
        (format!("\"{ORIGIN}\""), (NOW + EXPIRY_AHEAD_MAX + CLOCK_LEEWAY + 1).to_string(), Err(ApiError::VapidTooLong)),
        (format!("\"{ORIGIN}\""), "1e300".to_string(), Err(ApiError::VapidTooLong)),
        (format!("\"{ORIGIN}\""), (NOW - CLOCK_LEEWAY).to_string(), Ok(())),
        (format!("\"{ORIGIN}\""), format!("{}.1", NOW - CLOCK_LEEWAY), Ok(())),
        (format!("\"{ORIGIN}\""), (NOW - CLOCK_LEEWAY - 1).to_string(), Err(ApiError::VapidExpired)),
        (format!("\"{ORIGIN}\""), format!("\"{good}\""), Err(ApiError::VapidExpiry)),
        (format!("\"{ORIGIN}\""), "null".to_string(), Err(ApiError::VapidExpiry)),
        (format!("\"{ORIGIN}\""), "-5".to_string(), Err(ApiError::VapidExpired)),
        (format!("\"{ORIGIN}\""), format!("{good}.5"), Ok(())),
        (format!("[\"{ORIGIN}\"]"), good.to_string(), Ok(())),
        (format!("[\"https://other.example\",\"{ORIGIN}:443/\"]"), good.to_string(), Ok(())),
        (format!("[\"{ORIGIN}\",5]"), good.to_string(), Err(ApiError::VapidAudience)),
        ("[\"https://other.example\"]".to_string(), good.to_string(), Err(ApiError::VapidAudience)),
        ("[]".to_string(), good.to_string(), Err(ApiError::VapidAudience)),
        (format!("[[\"{ORIGIN}\"]]"), good.to_string(), Err(ApiError::VapidAudience)),
        (format!("\"{ORIGIN}/\""), good.to_string(), Ok(())),
        (format!("\"{ORIGIN}:443\""), good.to_string(), Ok(())),
        (format!("\"{ORIGIN}/wpush\""), good.to_string(), Err(ApiError::VapidAudience)),
        ("null".to_string(), good.to_string(), Err(ApiError::VapidAudience)),
    ] {
        let claims = format!(r#"{{"aud":{aud},"exp":{exp}}}"#);
        assert_eq!(verdict(HEADER, &claims), expected, "{claims}");
    }
    assert_eq!(verdict(HEADER, &format!(r#"{{"exp":{good}}}"#)), Err(ApiError::VapidAudience));
    assert_eq!(verdict(HEADER, &format!(r#"{{"aud":"{ORIGIN}"}}"#)), Err(ApiError::VapidExpiry));
    assert_eq!(verdict(HEADER, "[]"), Err(ApiError::VapidBadToken));
    assert_eq!(verdict(r#"{"alg":"none"}"#, "{}"), Err(ApiError::VapidAlgorithm));
    assert_eq!(verdict(r#"{"alg":"HS256"}"#, "{}"), Err(ApiError::VapidAlgorithm));
    assert_eq!(verdict("{}", "{}"), Err(ApiError::VapidBadToken));
}

/// RFC 7519 section 4: the claims are an object; RFC 7515 section 4.1.11: an extension that must be understood and is
/// not makes the token invalid.
#[test]
fn arrays_in_place_of_objects_and_critical_extensions_are_refused() {
    let sender = Sender::new();
    let mut verifier = verifier();
    let mut verdict = |header: &str, claims: &str| {
        let token = sender.token(header, claims);
        check(&mut verifier, &format!("vapid t={token},k={}", sender.key()), None).map(|_| ())
    };
    let exp = NOW + 60;
    let (claims, list) = (format!(r#"{{"aud":"{ORIGIN}","exp":{exp}}}"#), format!(r#"[{exp},"{ORIGIN}",null]"#));
    assert_eq!(verdict(" {\"alg\":\"ES256\"}", &format!("\n{claims}")), Ok(()));
    assert_eq!(verdict(HEADER, &list), Err(ApiError::VapidBadToken));
    assert_eq!(verdict(r#"["ES256"]"#, &claims), Err(ApiError::VapidBadToken));
    for crit in [r#"["exp"]"#, r#"["b64"]"#, "[]", "null", "7"] {
        let header = format!(r#"{{"alg":"ES256","crit":{crit}}}"#);
        assert_eq!(verdict(&header, &claims), Err(ApiError::VapidBadToken), "{header}");
    }
}

#[test]
fn who_sends_is_not_asked_for() {
    // `sub` may be absent, empty or anything, and no other claim is looked at (PROTOCOL.md 2.5).
    let sender = Sender::new();
    let mut verifier = verifier();
    for rest in ["", r#","sub":"""#, r#","sub":"nobody""#, r#","sub":7"#, r#","nbf":99999999999,"iat":"x","x":[]"#] {
        let claims = format!(r#"{{"aud":"{ORIGIN}","exp":{}{rest}}}"#, NOW + 60);
        let authorization = format!("vapid t={},k={}", sender.token(HEADER, &claims), sender.key());
        assert_eq!(check(&mut verifier, &authorization, None), Ok(sender.digest()), "{claims}");
    }
    // The good token of every other test has a `sub` that can be written to.
    let authorization = format!("vapid t={},k={}", sender.good_token(NOW + 60), sender.key());
    assert!(check(&mut verifier, &authorization, None).is_ok());
    assert_eq!(verifier.odd_subs, 3, "counted, not refused");
}

/// web-push-php, webpush-java and Rust web-push make the audience of scheme and host only.
#[test]
fn an_audience_may_leave_out_the_port_of_the_origin_and_is_counted() {
    let sender = Sender::new();
    let mut verifier = of_origin("https://push.example.com:8443", 16);
    let mut verdict = |aud: &str| {
        let token = sender.token(HEADER, &format!(r#"{{"aud":"{aud}","exp":{}}}"#, NOW + 60));
        let result = check(&mut verifier, &format!("vapid t={token},k={}", sender.key()), None).map(|_| ());
        (result, verifier.audiences_without_port)
    };
    assert_eq!(verdict("https://push.example.com:8443"), (Ok(()), 0));
    assert_eq!(verdict("https://push.example.com"), (Ok(()), 1));
    assert_eq!(verdict("HTTPS://PUSH.example.com/"), (Ok(()), 2));
    for other in [
        "https://push.example.com:443",
        "https://push.example.com:8444",
        "http://push.example.com",
        "https://example.com",
    ] {
        assert_eq!(verdict(other), (Err(ApiError::VapidAudience), 2), "{other}");
    }
    // A token that is remembered counts again.
    let token = sender.token(HEADER, &format!(r#"{{"aud":"https://push.example.com","exp":{}}}"#, NOW + 60));
    for count in [3, 4] {
        assert!(check(&mut verifier, &format!("vapid t={token},k={}", sender.key()), None).is_ok());
        assert_eq!(verifier.audiences_without_port, count);
    }
    let mut on_443 = of_origin(ORIGIN, 16);
    assert!(check(&mut on_443, &format!("vapid t={token},k={}", sender.key()), None).is_ok());
    assert_eq!(on_443.audiences_without_port, 0);
}

#[test]
fn a_key_off_the_curve_verifies_nothing() {
    let sender = Sender::new();
    let mut point = sender.0.point().to_vec();
    point[64] ^= 1;
    let authorization = format!("vapid t={},k={}", sender.good_token(NOW + 60), base64url::encode(&point));
    assert_eq!(check(&mut verifier(), &authorization, None), Err(ApiError::VapidSignature));
}

#[test]
fn a_remembered_token_is_worth_nothing_to_another_key() {
    let (sender, thief) = (Sender::new(), Sender::new());
    let token = sender.good_token(NOW + 3600);
    let mut verifier = verifier();
    assert!(check(&mut verifier, &format!("vapid t={token},k={}", sender.key()), None).is_ok());
    let stolen = format!("vapid t={token},k={}", thief.key());
    assert_eq!(check(&mut verifier, &stolen, None), Err(ApiError::VapidSignature));
    let crypto_key = format!("p256ecdsa={}", thief.key());
    assert_eq!(check(&mut verifier, &format!("webpush {token}"), Some(&crypto_key)), Err(ApiError::VapidSignature));
    assert_eq!(verifier.hits, 0);
}

#[test]
fn the_example_of_rfc_8292_is_verified() {
    let authorization = concat!(
        "vapid t=eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJhdWQiOiJodHRwczovL3B1c2guZXhhbXBsZS5uZXQiLCJleHAiOjE0NTM1",
        "MjM3NjgsInN1YiI6Im1haWx0bzpwdXNoQGV4YW1wbGUuY29tIn0.i3CYb7t4xfxCDquptFOepC9GAu_HLGkMlMuCGSK2rpiUfnK9ojFwDX",
        "b1JrErtmysazNjjvW2L9OkSSHzvoD1oA, k=BA1Hxzyi1RUM1b5wjxsn7nGxAszw2u61m164i3MrAIxHF6YK5h4SDYic-dRuU_RCPCfA5a",
        "q9ojSwk5Y2EmClBPs"
    );
    let at = |origin: &str, now| of_origin(origin, 4).check(UnixSeconds(now), authorization.as_bytes(), None);
    assert!(at("https://push.example.net", 1_453_523_000).is_ok());
    assert_eq!(at("https://push.example.com", 1_453_523_000), Err(ApiError::VapidAudience));
    assert_eq!(at("https://push.example.net", 1_453_523_829), Err(ApiError::VapidExpired));
}

#[test]
fn a_remembered_token_expires() {
    let sender = Sender::new();
    let authorization = format!("vapid t={},k={}", sender.good_token(NOW + 10), sender.key());
    let mut verifier = verifier();
    let mut at = |now| verifier.check(UnixSeconds(now), authorization.as_bytes(), None);
    assert!(at(NOW).is_ok());
    assert!(at(NOW + 10 + CLOCK_LEEWAY).is_ok());
    assert_eq!(at(NOW + 11 + CLOCK_LEEWAY), Err(ApiError::VapidExpired));
    assert_eq!(verifier.hits, 2);
}

#[test]
fn memory_is_bounded() {
    let sender = Sender::new();
    let mut verifier = of_origin(ORIGIN, 4);
    for n in 0..20 {
        let authorization = format!("vapid t={},k={}", sender.good_token(NOW + n), sender.key());
        assert!(check(&mut verifier, &authorization, None).is_ok());
        assert!(verifier.known.len() <= 4);
    }
}

#[test]
fn what_is_not_verified_is_not_remembered() {
    let sender = Sender::new();
    let mut verifier = verifier();
    let good = format!("vapid t={},k={}", sender.good_token(NOW + 60), sender.key());
    assert!(check(&mut verifier, &good, None).is_ok());
    let before = (verifier.known.len(), verifier.known.bytes());
    // Refused before any signature is looked at, and so cheap to send a lot of.
    let header = base64url::encode(br#"{"alg":"none"}"#);
    for n in 0..20_000 {
        let stranger = format!("vapid t={header}.{}.{n},k={}", base64url::encode(b"{}"), sender.key());
        assert_eq!(check(&mut verifier, &stranger, None), Err(ApiError::VapidAlgorithm));
    }
    // And some that cost a verification.
    for n in 0..50 {
        let forged = format!("vapid t={},k={}", Sender::new().good_token(NOW + n), sender.key());
        assert_eq!(check(&mut verifier, &forged, None), Err(ApiError::VapidSignature));
    }
    assert_eq!((verifier.known.len(), verifier.known.bytes()), before);
    assert!(check(&mut verifier, &good, None).is_ok());
    assert_eq!(verifier.hits, 1);
}

proptest! {
    #[test]
    fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..120), text in "vapid [tk]=[A-Za-z0-9._=,-]{0,80}") {
        let mut verifier = verifier();
        prop_assert!(verifier.check(UnixSeconds(NOW), &bytes, Some(&bytes)).is_err());
        prop_assert!(verifier.check(UnixSeconds(NOW), text.as_bytes(), None).is_err());
    }
}
