//! Configurations of channels that are taken, and that are refused.

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::bridges::apns::channels::{Channel, Credential, read_channels};

const RSA_KEY: &str = include_str!("../../../../../tls/tests/tls/rsa.pem");

fn with_key(extra: &Value) -> Value {
    let key = KeyPair::generate().unwrap().serialize_pem();
    let mut channel = json!({"key": key, "key_id": "ABC123DEFG", "team_id": "DEF123GHIJ"});
    channel.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    channel
}

fn certified() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn read(channel: Value) -> Result<Channel, String> {
    read_channels(&json!({"firefox": channel}).to_string()).map(|mut channels| channels.remove(0))
}

#[test]
fn a_channel_with_a_key_has_the_defaults_of_apple() {
    let channel = read(with_key(&json!({"cert": "", "sandbox": false, "_comment": "ours"}))).unwrap();
    assert_eq!((&*channel.name, channel.topic.as_str()), ("firefox", "com.mozilla.org.firefox"));
    assert_eq!(channel.url.origin().authority(), "api.push.apple.com");
    assert!(matches!(channel.credential, Credential::Token(_)) && channel.certificate.is_none());
    let sandbox = read(with_key(&json!({"sandbox": true, "topic": "org.example.app"}))).unwrap();
    assert_eq!(sandbox.url.origin().authority(), "api.development.push.apple.com");
    assert_eq!(sandbox.topic, "org.example.app");
    let other = read(with_key(&json!({"url": "https://api.push.apple.com:2197"}))).unwrap();
    assert_eq!(other.url.origin().port, 2_197);
}

#[test]
fn a_channel_with_a_certificate_knows_its_end() {
    let (cert, key) = certified();
    let channel = read(json!({"cert": cert, "key": key, "key_id": null, "team_id": ""})).unwrap();
    assert!(matches!(channel.credential, Credential::Certificate { expires: Some(_) }));
    assert!(channel.certificate.is_some());
}

#[test]
fn each_fault_of_a_channel_is_named_and_no_secret_is() {
    let ((cert, key), other_key) = (certified(), KeyPair::generate().unwrap().serialize_pem());
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let faults = [
        (json!({"key": key, "key_id": "ABC123DEFG"}), "key_id needs team_id"),
        (json!({"key": key, "team_id": "ABC123DEFG"}), "team_id needs key_id"),
        (json!({"key": key}), "cert is missing"),
        (json!({"cert": cert}), "key is missing"),
        (json!({"cert": cert, "key": other_key}), "key is not the key of cert"),
        (json!({"cert": "-----no PEM", "key": key}), "cert has no certificate"),
        (json!({"cert": cert, "key": "-----no PEM"}), "key is not a private key in PEM"),
        (with_key(&json!({"key": RSA_KEY})), "key is an RSA key"),
        (with_key(&json!({"key": encrypted})), "key is encrypted"),
        (with_key(&json!({"key": 1})), "key is not a text"),
        (with_key(&json!({"key": "/nowhere/AuthKey.p8"})), "cannot read /nowhere/AuthKey.p8"),
        (with_key(&json!({"key_id": "short"})), "key_id is not an ID of ten letters and digits"),
        (with_key(&json!({"topic": "a topic"})), "topic is not the bundle ID"),
        (with_key(&json!({"sandbox": "yes"})), "sandbox is not true or false"),
        (with_key(&json!({"url": "http://api.push.apple.com"})), "url is not the https URL"),
        (with_key(&json!({"url": "https://api.push.apple.com/3/device"})), "url is not the https URL"),
        (with_key(&json!({"teamid": "x"})), "did you mean \"team_id\"?"),
        (json!("AuthKey.p8"), "is not a JSON object"),
    ];
    for (channel, wanted) in faults {
        let text = channel.to_string();
        let found = read(channel).err().unwrap();
        assert!(
            found.contains(wanted) && found.starts_with("channel \"firefox\" of bridge.apns.channels: "),
            "{found}"
        );
        assert!(!found.contains("BEGIN"), "{text}");
    }
    assert_eq!(
        read_channels("[]").err().unwrap(),
        "cannot read []: No such file or directory (os error 2); check the name of the file"
    );
    assert!(read_channels("{").err().unwrap().contains("is not a JSON object"));
    assert!(read_channels(r#"{"a b":{}}"#).err().unwrap().contains("a name has 1 to 64 characters"));
}
