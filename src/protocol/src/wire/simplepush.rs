//! Messages that differ in SimplePush mode (PROTOCOL.md 1.5, 1.6 and 1.12): the hello that chooses it and carries wake
//! data, acks of versions, updates, and the form of app servers.
//!
//! Read only where SimplePush is enabled: elsewhere these fields are unknown ones, which may hold anything.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use machine::AckVersion;
use machine::ids::Chid;
use machine::limits::ACK_UPDATES_MAX;
use machine::simplepush::{Mode, Update, WakeData};

use super::client_message::{BadMessage, Id};
use super::number::Whole;
use super::text::{push_dashed, push_json, push_u64};

/// The part of a hello that SimplePush adds.
#[derive(Debug, PartialEq, Eq)]
pub struct HelloPart {
    /// WebPush only when it was asked for.
    pub mode: Mode,
    /// Only of a user agent in SimplePush mode that sent it.
    pub wake: Option<WakeData>,
}

/// Reads that part of a hello.
pub fn read_hello(message: &str) -> Result<HelloPart, BadMessage> {
    let hello: Hello = serde_json::from_str(message).map_err(|_| BadMessage)?;
    let mode = if hello.use_webpush == Some(true) { Mode::WebPush } else { Mode::Simple };
    let wake = hello.host.zip(hello.network).filter(|_| mode == Mode::Simple);
    let wake = wake.and_then(|(host, network)| wake_data(&host, &network));
    Ok(HelloPart { mode, wake })
}

/// Reads an ack of versions; at most `ACK_UPDATES_MAX`.
pub fn read_acks(message: &str) -> Result<Vec<AckVersion>, BadMessage> {
    let acks: Acks<'_> = serde_json::from_str(message).map_err(|_| BadMessage)?;
    if acks.message_type != "ack" || acks.updates.len() > ACK_UPDATES_MAX {
        return Err(BadMessage);
    }
    let version = |ack: &Ack| {
        let is_version = ack.version.get() >= 0;
        is_version.then(|| AckVersion { chid: Chid(ack.channel.0), version: ack.version.to_u64() }).ok_or(BadMessage)
    };
    acks.updates.iter().map(version).collect()
}

/// Appends a version update.
pub fn update(channel: &[u8; 16], update: &Update<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageType":"notification","updates":[{"channelID":""#);
    push_dashed(channel, out);
    out.extend_from_slice(br#"","version":"#);
    push_u64(update.version, out);
    if !update.data.is_empty() {
        out.extend_from_slice(br#","data":"#);
        push_json(update.data, out);
    }
    out.extend_from_slice(b"}]}");
}

/// Form of an app server: parameters of the body, or of the query when there is no body.
#[derive(Debug, PartialEq, Eq)]
pub struct Form<'f> {
    /// At least 1.
    pub version: u64,
    /// May be empty.
    pub data: Cow<'f, str>,
}

/// A version that is no integer below 2^63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadVersion;

/// Reads a form. A version below 1, and none at all, is `default`; of a parameter named twice the first counts.
pub fn read_form(form: &[u8], default: u64) -> Result<Form<'_>, BadVersion> {
    let (mut version, mut data) = (None, None);
    for (name, value) in form_urlencoded::parse(form) {
        match &*name {
            "version" if version.is_none() => version = Some(value),
            "data" if data.is_none() => data = Some(value),
            _ => {}
        }
    }
    let version = match version.filter(|text| !text.is_empty()) {
        Some(text) => text.parse::<i64>().map_err(|_| BadVersion)?,
        None => 0,
    };
    let version = u64::try_from(version).ok().filter(|version| *version > 0).unwrap_or(default);
    Ok(Form { version, data: data.unwrap_or_default() })
}

#[derive(Deserialize)]
struct Hello {
    #[serde(default)]
    use_webpush: Option<bool>,
    #[serde(default, rename = "wakeup_host")]
    host: Option<Host>,
    #[serde(default, rename = "mobilenetwork")]
    network: Option<Network>,
}

#[derive(Deserialize)]
struct Host {
    ip: IpAddr,
    port: PortNumber,
}

struct PortNumber(u16);

impl<'de> Deserialize<'de> for PortNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PortNumber, D::Error> {
        let port = u16::try_from(Whole::deserialize(deserializer)?.get()).ok().filter(|port| *port > 0);
        port.map(PortNumber).ok_or_else(|| D::Error::custom("not a port"))
    }
}

/// ITU-T E.212: a country and a network in it; `netid` is the operator's own name of a part of it.
#[derive(Deserialize)]
struct Network {
    mcc: Digits,
    mnc: Digits,
    #[serde(default)]
    netid: Option<NetId>,
}

/// One to three digits, as a text or as a number.
struct Digits(String);

impl<'de> Deserialize<'de> for Digits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digits, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Spelling {
            Text(String),
            Number(Whole),
        }
        let digits = match Spelling::deserialize(deserializer)? {
            Spelling::Text(text) => text,
            Spelling::Number(number) => number.get().to_string(),
        };
        let right = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        right.then_some(Digits(digits)).ok_or_else(|| D::Error::custom("not one to three digits"))
    }
}

struct NetId(String);

impl<'de> Deserialize<'de> for NetId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NetId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let right = text.len() <= NETID_BYTES_MAX && text.bytes().all(plain);
        right.then_some(NetId(text)).ok_or_else(|| D::Error::custom("not the name of a network"))
    }
}

#[derive(Deserialize)]
struct Acks<'a> {
    #[serde(borrow, rename = "messageType")]
    message_type: Cow<'a, str>,
    updates: Vec<Ack>,
}

#[derive(Deserialize)]
struct Ack {
    #[serde(rename = "channelID")]
    channel: Id,
    version: Whole,
}

/// As the wake-up service takes it.
fn wake_data(host: &Host, network: &Network) -> Option<WakeData> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("ip", &host.ip.to_string()).append_pair("port", &host.port.0.to_string());
    form.append_pair("mcc", &network.mcc.0).append_pair("mnc", &network.mnc.0);
    if let Some(NetId(name)) = &network.netid {
        form.append_pair("netid", name);
    }
    WakeData::new(&form.finish())
}

/// The longest `netid` accepted.
const NETID_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(fields: &str) -> Result<(Mode, Option<String>), BadMessage> {
        let part = read_hello(&format!(r#"{{"messageType":"hello"{fields}}}"#))?;
        Ok((part.mode, part.wake.map(|wake| wake.as_str().to_owned())))
    }

    #[test]
    fn only_who_asks_for_webpush_gets_it() {
        assert_eq!(hello(r#","use_webpush":true"#), Ok((Mode::WebPush, None)));
        for fields in ["", r#","use_webpush":false"#, r#","use_webpush":null,"extra":[1]"#] {
            assert_eq!(hello(fields), Ok((Mode::Simple, None)), "{fields}");
        }
        assert_eq!(hello(r#","use_webpush":"yes""#), Err(BadMessage));
    }

    #[test]
    fn wake_data_is_spelled_anew() {
        let host = r#","wakeup_host":{"ip":"2001:DB8::1","port":4500}"#;
        let network = r#","mobilenetwork":{"mcc":"310","mnc":26,"netid":"a.b-C_1","more":1}"#;
        let data = "ip=2001%3Adb8%3A%3A1&port=4500&mcc=310&mnc=26&netid=a.b-C_1";
        assert_eq!(hello(&format!("{host}{network}")), Ok((Mode::Simple, Some(data.to_owned()))));
        let in_fractions = format!("{host}{network}").replace("4500", "4500.0").replace("26,", "26.5,");
        assert_eq!(hello(&in_fractions), Ok((Mode::Simple, Some(data.to_owned()))));
        assert_eq!(hello(&format!(r#"{host}{network},"use_webpush":true"#)), Ok((Mode::WebPush, None)));
        for half in [host, network, r#","wakeup_host":null,"mobilenetwork":null"#] {
            assert_eq!(hello(half), Ok((Mode::Simple, None)));
        }
        let longest = r#","wakeup_host":{"ip":"1111:2222:3333:4444:5555:6666:7777:8888","port":65535},"mobilenetwork":{"mcc":"999","mnc":"999","netid":"NET"}"#;
        let longest = longest.replace("NET", &"n".repeat(NETID_BYTES_MAX));
        assert!(hello(&longest).is_ok_and(|(_, wake)| wake.is_some()), "the longest fits");
    }

    #[test]
    fn wake_data_that_is_none_is_refused() {
        for host in [
            r#""h""#,
            r#"{"ip":"host.name","port":1}"#,
            r#"{"ip":"1.2.3.4","port":0}"#,
            r#"{"ip":"1.2.3.4","port":65536}"#,
            r#"{"ip":"1.2.3.4","port":"1"}"#,
            r#"{"ip":"1.2.3.4"}"#,
        ] {
            assert_eq!(hello(&format!(r#","wakeup_host":{host}"#)), Err(BadMessage), "{host}");
        }
        for network in [
            r#"{"mcc":"3100","mnc":"1"}"#,
            r#"{"mcc":"","mnc":"1"}"#,
            r#"{"mcc":"3a","mnc":"1"}"#,
            r#"{"mcc":-1,"mnc":"1"}"#,
            r#"{"mcc":"310"}"#,
            r#"{"mcc":"310","mnc":"1","netid":"a&b=c"}"#,
            r#"{"mcc":"310","mnc":"1","netid":7}"#,
        ] {
            assert_eq!(hello(&format!(r#","mobilenetwork":{network}"#)), Err(BadMessage), "{network}");
        }
    }

    #[test]
    fn acks_name_versions() {
        let channel = "11111111-1111-1111-1111-111111111111";
        let ack = |versions: &[&str]| {
            let updates = versions.iter().map(|v| format!(r#"{{"channelID":"{channel}","version":{v},"code":100}}"#));
            read_acks(&format!(r#"{{"messageType":"ack","updates":[{}]}}"#, updates.collect::<Vec<_>>().join(",")))
        };
        let entry = |version| AckVersion { chid: Chid([0x11; 16]), version };
        assert_eq!(ack(&["7", "18446744073709551615"]), Ok(vec![entry(7), entry(u64::MAX)]));
        assert_eq!(ack(&[]), Ok(Vec::new()));
        assert_eq!(ack(&["1.5", "7.0", "7e0", "1e30"]), Ok([1, 7, 7, u64::MAX].map(entry).to_vec()));
        for wrong in [r#""7""#, "-1", "-0.5", "null"] {
            assert_eq!(ack(&[wrong]), Err(BadMessage), "{wrong}");
        }
        assert_eq!(ack(&vec!["7"; ACK_UPDATES_MAX + 1]), Err(BadMessage));
        assert_eq!(read_acks(r#"{"messageType":"nack","updates":[]}"#), Err(BadMessage));
    }

    #[test]
    fn updates_are_spelled_as_documented() {
        let text = |version, data| {
            let mut out = Vec::new();
            update(&[0x11; 16], &Update { version, data }, &mut out);
            String::from_utf8(out).unwrap()
        };
        let head = r#"{"messageType":"notification","updates":[{"channelID":"11111111-1111-1111-1111-111111111111""#;
        assert_eq!(text(7, ""), format!(r#"{head},"version":7}}]}}"#));
        assert_eq!(text(8, "a\"b"), format!(r#"{head},"version":8,"data":"a\"b"}}]}}"#));
    }

    #[test]
    fn forms_have_a_version_and_data() {
        let read = |form: &str| read_form(form.as_bytes(), 99).map(|form| (form.version, form.data.into_owned()));
        assert_eq!(read("version=7&data=a+b%26c"), Ok((7, "a b&c".to_owned())));
        assert_eq!(read("version=7&version=8&other=1"), Ok((7, String::new())));
        for default in ["", "version=", "version=0", "version=-4", "data="] {
            assert_eq!(read(default), Ok((99, String::new())), "{default}");
        }
        for wrong in ["version=x", "version=1.5", "version=9223372036854775808", "version=%00"] {
            assert_eq!(read(wrong), Err(BadVersion), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn forms_are_read_as_they_were_written(version in 1..i64::MAX, data in any::<String>()) {
            let mut form = form_urlencoded::Serializer::new(String::new());
            form.append_pair("data", &data).append_pair("version", &version.to_string());
            let form = form.finish();
            prop_assert_eq!(read_form(form.as_bytes(), 1), Ok(Form { version: version as u64, data: data.into() }));
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80), text in any::<String>()) {
            let _ = (read_form(&bytes, 1), read_hello(&text), read_acks(&text));
        }
    }
}
