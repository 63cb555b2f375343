//! Parts of a payload that both services carry.

use machine::message::Message;
use protocol::webpush::payload;
use protocol::wire::base64url;
use ring::digest;
use serde_json::{Map, Value};
use uuid::Uuid;

/// Returns the common map of a notification: its channel and, with a body, the body and its encryption headers. All
/// values are texts.
pub(super) fn common_map(message: &Message) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("chid".to_owned(), Uuid::from_bytes(message.chid.0).hyphenated().to_string().into());
    let Some(view) = payload::view(&message.payload) else { return map };
    let mut body = Vec::with_capacity(view.body.len() * 4 / 3 + 4);
    base64url::encode_into(view.body, &mut body);
    // Invariant: the alphabet of base64url is ASCII.
    map.insert("body".to_owned(), String::from_utf8_lossy(&body).into());
    map.insert("con".to_owned(), view.encoding.name().into());
    let [encryption, crypto_key, _] = view.headers;
    for (name, value) in [("enc", encryption), ("cryptokey", crypto_key)] {
        if let Some(value) = value {
            map.insert(name.to_owned(), value.into());
        }
    }
    map
}

/// Returns the key under which a service replaces notifications of one channel and topic; `None` without a topic. A
/// hash: two sites with one name of a topic do not replace each other's notifications.
pub(super) fn collapse_key(message: &Message) -> Option<String> {
    let topic = message.topic.as_ref()?;
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&message.chid.0);
    context.update(topic.as_bytes());
    let mut key = Vec::with_capacity(22);
    base64url::encode_into(&context.finish().as_ref()[..16], &mut key);
    Some(String::from_utf8_lossy(&key).into_owned())
}
