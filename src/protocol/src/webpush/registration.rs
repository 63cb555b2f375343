//! The registration API of mobile bridges (PROTOCOL.md 3): its paths, its secret and the JSON bodies of its requests.

pub mod fault;

pub use fault::RegistrationFault;
use machine::limits::{APS_BYTES_MAX, BRIDGE_APP_BYTES_MAX, DEVICE_TOKEN_BYTES_MAX};
use machine::upstream::BridgeKind;
use ring::hmac;
use serde::Deserialize;
use serde_json::Value;

use super::errno::ApiError;
use crate::wire::number::Whole;
use crate::wire::text::parse_uuid;

/// Prefix of every path of the API.
pub const PATH: &str = "/v1/";

/// A path of the API, not decoded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path<'a> {
    pub kind: &'a str,
    pub app: &'a str,
    pub target: Target<'a>,
}

/// The object that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    Users,
    User(&'a str),
    /// The channels of a user.
    Channels(&'a str),
    Channel {
        uaid: &'a str,
        chid: &'a str,
    },
}

impl<'a> Path<'a> {
    /// Reads what follows [`PATH`]. One slash at the end is left out.
    pub fn parse(rest: &'a str) -> Option<Path<'a>> {
        let mut parts = rest.strip_suffix('/').unwrap_or(rest).split('/');
        let (kind, app) = (parts.next()?, parts.next()?);
        if kind.is_empty() || app.is_empty() || parts.next()? != "registration" {
            return None;
        }
        let target = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (None, ..) => Target::Users,
            (Some(uaid), None, ..) => Target::User(uaid),
            (Some(uaid), Some("subscription"), None, _) => Target::Channels(uaid),
            (Some(uaid), Some("subscription"), Some(chid), None) => Target::Channel { uaid, chid },
            _ => return None,
        };
        Some(Path { kind, app, target })
    }

    /// Returns the name of the profile: decoded, 1 to 64 characters of `[A-Za-z0-9._-]`.
    pub fn app(&self) -> Option<Box<str>> {
        let mut name = String::new();
        let mut bytes = self.app.bytes();
        while let Some(byte) = bytes.next() {
            let byte = if byte == b'%' { hex(bytes.next()?)? << 4 | hex(bytes.next()?)? } else { byte };
            if !(byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) || name.len() == BRIDGE_APP_BYTES_MAX {
                return None;
            }
            name.push(char::from(byte));
        }
        (!name.is_empty()).then(|| name.into())
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// Way in which a registered user is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserType {
    /// By a WebSocket that names its UAID.
    WebPush,
    Bridge(BridgeKind),
}

impl UserType {
    /// Reads the type in a path. `gcm` is another name of `fcm`.
    pub fn parse(text: &str) -> Option<UserType> {
        let is = |name: &str| text.eq_ignore_ascii_case(name);
        Some(match () {
            () if is("webpush") => UserType::WebPush,
            () if is("fcm") || is("gcm") => UserType::Bridge(BridgeKind::Fcm),
            () if is("apns") => UserType::Bridge(BridgeKind::Apns),
            () => return None,
        })
    }
}

/// Reads a UUID with dashes or without, in either case.
pub fn read_uuid(text: &str) -> Option<[u8; 16]> {
    if matches!(text.len(), 32 | 36) { parse_uuid(text.as_bytes()) } else { None }
}

/// Device of a user, as a request names it.
#[derive(PartialEq, Eq)]
pub struct Device {
    pub token: Box<str>,
    /// JSON text of an object with known members; only for APNs.
    pub aps: Option<Box<str>>,
}

/// Channel that a request creates.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Subscribe {
    /// `None`: the server chooses one.
    pub chid: Option<[u8; 16]>,
    /// Text of the key that locks the endpoint.
    pub key: Option<Box<str>>,
}

#[derive(Deserialize)]
struct DeviceBody {
    token: String,
    aps: Option<Value>,
}

#[derive(Default, Deserialize)]
struct ChannelBody {
    #[serde(rename = "channelID")]
    channel: Option<String>,
    key: Option<String>,
}

/// Reads the device in the body of a registration or an update.
///
/// # Errors
/// The refusal for the first rule that it breaks.
pub fn read_device(kind: UserType, body: &[u8]) -> Result<Device, ApiError> {
    let DeviceBody { token, aps } = read_object(body)?;
    let bytes_min = match kind {
        UserType::WebPush => 0,
        UserType::Bridge(BridgeKind::Fcm | BridgeKind::Apns) => TOKEN_BYTES_MIN,
    };
    let is_odd = |c: char| c.is_whitespace() || c.is_control();
    if !(bytes_min..=DEVICE_TOKEN_BYTES_MAX).contains(&token.len()) || token.contains(is_odd) {
        return Err(ApiError::Registration(RegistrationFault::Token));
    }
    let aps = aps.map(read_aps).transpose()?.filter(|_| kind == UserType::Bridge(BridgeKind::Apns));
    Ok(Device { token: token.into(), aps })
}

/// Reads the channel in the body of a registration or a subscription. A body without bytes names none.
///
/// # Errors
/// The refusal for the first rule that it breaks.
pub fn read_subscribe(body: &[u8]) -> Result<Subscribe, ApiError> {
    let ChannelBody { channel, key } =
        if body.trim_ascii().is_empty() { ChannelBody::default() } else { read_object(body)? };
    let chid = match channel.as_deref() {
        None | Some("") => None,
        Some(text) => Some(read_uuid(text).ok_or(ApiError::Registration(RegistrationFault::Channel))?),
    };
    Ok(Subscribe { chid, key: key.map(Into::into) })
}

/// Reads an object. The derived reader would take an array of its fields too.
fn read_object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::Registration(RegistrationFault::Body));
    }
    serde_json::from_slice(body).map_err(|_| ApiError::Registration(RegistrationFault::Body))
}

/// Reads `aps`: a text that holds a JSON object, or the object itself.
fn read_aps(value: Value) -> Result<Box<str>, ApiError> {
    let bad = ApiError::Registration(RegistrationFault::Aps);
    let (text, sent) = match value {
        Value::String(text) if text.len() <= APS_BYTES_MAX => {
            let object: Value = serde_json::from_str(&text).map_err(|_| bad)?;
            (Some(text), object)
        }
        value => (None, value),
    };
    let mut kept = sent.clone();
    let members = kept.as_object_mut().ok_or(bad)?;
    if !members.iter_mut().all(|(name, value)| fits(name, value)) {
        return Err(bad);
    }
    let text = text.filter(|_| kept == sent).unwrap_or_else(|| kept.to_string());
    if text.len() <= APS_BYTES_MAX { Ok(text.into()) } else { Err(bad) }
}

/// Returns true if a member of `aps` is known and has its type. A number becomes the integer that Apple requires.
fn fits(name: &str, value: &mut Value) -> bool {
    match name {
        "title_loc_args" | "loc_args" => {
            value.as_array().is_some_and(|arguments| arguments.iter().all(Value::is_string))
        }
        "mutable-content" | "badge" | "content-available" => {
            let whole = Whole::of(value).and_then(|whole| u64::try_from(whole.get()).ok());
            whole.map(|whole| *value = whole.into()).is_some()
        }
        name => APS_TEXTS.contains(&name) && value.is_string(),
    }
}

/// Members of `aps` whose values are texts.
const APS_TEXTS: [&str; 9] =
    ["title", "subtitle", "body", "title_loc_key", "action_loc_key", "loc_key", "launch_image", "sound", "category"];
/// Minimum length of a token of FCM or APNs.
const TOKEN_BYTES_MIN: usize = 8;

/// The keys of the secrets of registered users: the first makes them, every key verifies. Never shown.
pub struct SecretKeys(Vec<hmac::Key>);

impl SecretKeys {
    /// Keys as configured: their text is the key.
    pub fn new(keys: &[String]) -> SecretKeys {
        SecretKeys(keys.iter().map(|key| hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes())).collect())
    }

    /// Returns true if there is no key: nobody can register.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the secret of a user.
    pub fn push_secret(&self, uaid: &[u8; 16], out: &mut Vec<u8>) {
        let Some(key) = self.0.first() else { return };
        for byte in hmac::sign(key, &message(uaid)).as_ref() {
            out.extend([byte >> 4, byte & 15].map(|digit| HEX_DIGITS[usize::from(digit)]));
        }
    }

    /// Returns true if an `Authorization` value carries the secret of this user. The time does not depend on the
    /// secret, nor on the key that it was made with.
    pub fn verify(&self, authorization: Option<&[u8]>, uaid: &[u8; 16]) -> bool {
        let Some(given) = authorization.and_then(read_secret) else { return false };
        let message = message(uaid);
        self.0.iter().fold(false, |found, key| found | hmac::verify(key, &message, &given).is_ok())
    }
}

/// The UAID as 32 lower-case digits.
fn message(uaid: &[u8; 16]) -> [u8; 32] {
    let mut text = [0; 32];
    uuid::Uuid::from_bytes(*uaid).simple().encode_lower(&mut text);
    text
}

fn read_secret(authorization: &[u8]) -> Option<[u8; 32]> {
    let space = authorization.iter().position(|byte| *byte == b' ')?;
    let (scheme, secret) = authorization.split_at(space);
    if !(scheme.eq_ignore_ascii_case(b"webpush") || scheme.eq_ignore_ascii_case(b"bearer")) {
        return None;
    }
    let digits: [u8; 64] = secret.trim_ascii().try_into().ok()?;
    let digit = |digit: u8| HEX_DIGITS.iter().position(|known| *known == digit);
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
    const UAID: [u8; 16] = 0x729e_5104_f5f0_4abc_9196_0853_4031_7dea_u128.to_be_bytes();
    const SECRET: &str = "f694963453adf5dedcc379bbdd6900d692b6e09f1c91f44169bfcd2f941bf36c";

    fn admits(keys: &[&str], value: &str) -> bool {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        SecretKeys::new(&keys).verify(Some(value.as_bytes()), &UAID)
    }

    /// The vector of autopush-rs 1.83.1 (`extractors/authorization_check.rs`).
    #[test]
    fn the_secret_is_that_of_the_services_before_this_one() {
        let mut out = Vec::new();
        SecretKeys::new(&[KEY.to_owned(), "another".to_owned()]).push_secret(&UAID, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), SECRET);
    }

    #[test]
    fn every_key_verifies_and_nothing_else_does() {
        for scheme in ["webpush", "Bearer", "WEBPUSH", "bearer"] {
            assert!(admits(&["new", KEY], &format!("{scheme} {SECRET}")), "{scheme}");
        }
        assert!(!admits(&["new"], &format!("webpush {SECRET}")));
        assert!(!admits(&[], &format!("webpush {SECRET}")));
        let odd = [
            "webpush".to_owned(),
            "webpush ".to_owned(),
            SECRET.to_owned(),
            format!("vapid {SECRET}"),
            format!("webpush {}", &SECRET[1..]),
            format!("webpush {}", SECRET.to_uppercase()),
            format!("webpush {SECRET}0"),
            format!("webpush 0{}", &SECRET[1..]),
        ];
        for value in odd {
            assert!(!admits(&[KEY], &value), "{value}");
        }
        assert!(!SecretKeys::new(&[KEY.to_owned()]).verify(None, &UAID));
    }

    #[test]
    fn paths_are_read() {
        let of = |rest: &'static str| Path::parse(rest).map(|path| (path.kind, path.app, path.target));
        assert_eq!(of("fcm/app/registration"), Some(("fcm", "app", Target::Users)));
        assert_eq!(of("fcm/app/registration/"), Some(("fcm", "app", Target::Users)));
        assert_eq!(of("fcm/app/registration/u"), Some(("fcm", "app", Target::User("u"))));
        assert_eq!(of("x/y/registration/u/subscription"), Some(("x", "y", Target::Channels("u"))));
        let channel = Target::Channel { uaid: "u", chid: "c" };
        assert_eq!(of("x/y/registration/u/subscription/c/"), Some(("x", "y", channel)));
        for odd in ["", "fcm", "fcm/app", "fcm/app/registrations", "/app/registration", "fcm//registration"] {
            assert_eq!(of(odd), None, "{odd}");
        }
        for odd in ["x/y/registration//", "x/y/registration/u/s", "x/y/registration/u/subscription/c/d"] {
            assert!(!matches!(of(odd), Some((.., Target::Channel { .. } | Target::Channels(_)))), "{odd}");
        }
    }

    #[test]
    fn names_of_profiles_are_decoded() {
        const LONG: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        let app = |app| Path { kind: "fcm", app, target: Target::Users }.app();
        assert_eq!(app("org.example%2eapp-1_x").as_deref(), Some("org.example.app-1_x"));
        assert_eq!(app(&LONG[1..]).map(|name| name.len()), Some(64));
        for odd in ["", "%2", "%zz", "a b", "a%20b", "a/b", "%", "\u{e4}", LONG] {
            assert_eq!(app(odd), None, "{odd}");
        }
    }

    #[test]
    fn types_are_read_in_any_case() {
        use BridgeKind::{Apns, Fcm};
        let known = [("fcm", Fcm), ("GCM", Fcm), ("Apns", Apns)];
        for (text, kind) in known {
            assert_eq!(UserType::parse(text), Some(UserType::Bridge(kind)), "{text}");
        }
        assert_eq!(UserType::parse("WebPush"), Some(UserType::WebPush));
        for removed in ["adm", "simplepush", "stub", "", "fcm2"] {
            assert_eq!(UserType::parse(removed), None, "{removed}");
        }
    }

    #[test]
    fn devices_are_checked() {
        let fcm = UserType::Bridge(BridgeKind::Fcm);
        let read = |kind, body: &str| read_device(kind, body.as_bytes());
        let token =
            |kind, token: &str| read(kind, &format!(r#"{{"token":{},"aps":null,"x":1}}"#, Value::from(token))).err();
        for good in ["12345678".to_owned(), "x".repeat(1_024)] {
            assert_eq!(token(fcm, &good), None);
        }
        for bad in ["1234567".to_owned(), "1234 5678".to_owned(), "1234\u{7f}5678".to_owned(), "x".repeat(1_025)] {
            assert_eq!(token(fcm, &bad), Some(ApiError::Registration(RegistrationFault::Token)), "{bad}");
        }
        assert_eq!(token(UserType::WebPush, ""), None);
        for bad in ["", "{", "[]", r#"["12345678",null]"#, "null", "{}", r#"{"token":1}"#, r#"{"token":null}"#] {
            assert_eq!(read(fcm, bad).err(), Some(ApiError::Registration(RegistrationFault::Body)), "{bad}");
        }
        assert_eq!(
            read_device(fcm, b"{\"token\":\"1234567\xff\"}").err(),
            Some(ApiError::Registration(RegistrationFault::Body))
        );
    }

    #[test]
    fn aps_is_an_object_with_known_members() {
        let apns = UserType::Bridge(BridgeKind::Apns);
        let read = |kind, aps: &str| {
            read_device(kind, format!(r#"{{"token":"12345678","aps":{aps}}}"#).as_bytes()).map(|device| device.aps)
        };
        let text = r#""{\"title\":\"x\",\"loc_args\":[\"y\"],\"badge\":1}""#;
        assert_eq!(read(apns, text).unwrap().as_deref(), Some(r#"{"title":"x","loc_args":["y"],"badge":1}"#));
        assert_eq!(read(apns, r#"{"mutable-content":1}"#).unwrap().as_deref(), Some(r#"{"mutable-content":1}"#));
        let numbers = r#"{"badge":3.0,"mutable-content":1e0,"content-available":1.9}"#;
        let read_numbers = read(apns, numbers).unwrap().unwrap();
        let whole = serde_json::json!({ "badge": 3, "mutable-content": 1, "content-available": 1 });
        assert_eq!(serde_json::from_str::<Value>(&read_numbers).unwrap(), whole, "{read_numbers}");
        for bad in [r#"{"badge":-1}"#, r#"{"badge":-0.5}"#, r#"{"badge":1e300}"#, r#"{"badge":"1"}"#] {
            assert_eq!(read(apns, bad), Err(ApiError::Registration(RegistrationFault::Aps)), "{bad}");
        }
        assert_eq!(read(UserType::Bridge(BridgeKind::Fcm), text), Ok(None));
        let long = format!(r#""{{\"title\":\"{}\"}}""#, "x".repeat(1_024));
        for bad in ["1", r#""x""#, "[]", r#""[]""#, r#"{"alert":{}}"#, r#"{"title":1}"#, r#"{"loc_args":[1]}"#, &long] {
            assert_eq!(read(apns, bad), Err(ApiError::Registration(RegistrationFault::Aps)), "{bad}");
        }
    }

    #[test]
    fn channels_may_be_left_to_the_server() {
        let read = |body: &str| read_subscribe(body.as_bytes());
        for none in ["", " ", "{}", r#"{"channelID":null,"key":null}"#, r#"{"channelID":"","token":5}"#] {
            assert_eq!(read(none), Ok(Subscribe::default()), "{none}");
        }
        let dashed = r#"{"channelID":"DECAFBAD-0000-0000-0000-0123456789ab"}"#;
        let plain = r#"{"channelID":"decafbad0000000000000123456789AB","key":"k"}"#;
        assert_eq!(read(dashed).unwrap().chid, read(plain).unwrap().chid);
        assert_eq!(read(plain).unwrap().key.as_deref(), Some("k"));
        for bad in ["x", "{}{}", "[]", r#"{"key":1}"#, r#"{"channelID":1}"#] {
            assert_eq!(read(bad), Err(ApiError::Registration(RegistrationFault::Body)), "{bad}");
        }
        for bad in ["x", "{decafbad-0000-0000-0000-0123456789ab}", "urn:uuid:decafbad-0000-0000-0000-0123456789ab"] {
            let body = format!(r#"{{"channelID":{bad:?}}}"#);
            assert_eq!(read(&body), Err(ApiError::Registration(RegistrationFault::Channel)), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn odd_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200), path in any::<String>()) {
            let _ = (read_device(UserType::Bridge(BridgeKind::Apns), &body), read_subscribe(&body));
            let _ = Path::parse(&path).map(|path| path.app());
            let _ = read_secret(&body);
        }
    }
}
