//! The port of other nodes: `PUT /push`, `PUT /notif` and `DELETE /notif` (BEHAVIOUR.md 4, DESIGN.md 7.3).
//!
//! Everything but the health pages needs `Authorization: Bearer` with one of the configured keys.

use std::borrow::Cow;

use serde::Deserialize;
use shards::ids::{Chid, Uaid};
use shards::machine::{Command, NodeAnswer, NodeNotify};
use shards::message::Message;
use shards::time::UnixSeconds;

use super::PushEdge;
use super::answer::{self, Context};
use super::http::{Plan, Reply, method_refused};
use crate::webpush::errno::Fault;
use crate::webpush::headers::{Encryption, TTL_MAX, read_urgency};
use crate::webpush::payload::Draft;
use crate::wire::base64url;
use crate::wire::http1::Head;
use crate::wire::text::{parse_u64, parse_uuid};

/// The longest body of `PUT /push`: the largest payload in base64, and its headers.
pub(super) const BODY_BYTES_MAX: u64 = 32 * 1024;

/// BEHAVIOUR.md 4.2; the topic is taken from `version`, which seals it.
#[derive(Deserialize)]
struct Notification<'a> {
    #[serde(borrow, rename = "channelID")]
    channel: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    timestamp: u64,
    #[serde(default)]
    ttl: u64,
    #[serde(default)]
    urgency: Option<String>,
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    headers: Option<Headers>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Headers {
    encoding: Option<String>,
    encryption: Option<String>,
    crypto_key: Option<String>,
    encryption_key: Option<String>,
}

impl PushEdge {
    pub(super) fn plan_node(&mut self, head: &Head<'_, '_>) -> Plan {
        let (push, notif) = (head.path.strip_prefix("/push/"), head.path.strip_prefix("/notif/"));
        if push.is_none() && notif.is_none() {
            return self.plan_page(head);
        }
        if !self.node_keys.allow(head.header("authorization")) {
            return Plan::Reply(Reply::Fault(Fault::NodeKey));
        }
        self.stats.node_requests += 1;
        let uaid = |text: &str| parse_uuid(text.as_bytes()).map(Uaid);
        let plan = match (push, notif.map(|rest| rest.split_once('/').unwrap_or((rest, "")))) {
            (Some(text), _) if head.method == "PUT" => uaid(text).map(|uaid| Plan::NodePush { uaid, body: Vec::new() }),
            (Some(_), _) => return method_refused(head, "PUT, HEAD, OPTIONS"),
            (None, Some((text, ""))) if head.method == "PUT" => {
                uaid(text).map(|uaid| Plan::Ask(Command::NodeNotify(Box::new(NodeNotify { uaid, unsure: None }))))
            }
            (None, Some((_, ""))) => return method_refused(head, "PUT, HEAD, OPTIONS"),
            (None, Some((text, time))) if head.method == "DELETE" => uaid(text)
                .zip(parse_u64(time.as_bytes()))
                .map(|(uaid, connected_at)| Plan::Ask(Command::NodeDisconnect { uaid, connected_at })),
            (None, _) => return method_refused(head, "DELETE, HEAD, OPTIONS"),
        };
        plan.unwrap_or(Plan::Reply(Reply::Fault(Fault::NotFound)))
    }

    /// Reads the body of `PUT /push/{uaid}`. `version` must be an id sealed for this user and channel.
    pub(super) fn read_node_push(&self, uaid: Uaid, body: &[u8]) -> Result<Message, Fault> {
        let bad = Fault::BadNodeBody;
        let notification: Notification<'_> = serde_json::from_slice(body).map_err(|_| bad)?;
        let chid = parse_uuid(notification.channel.as_bytes()).map(Chid).ok_or(bad)?;
        let id = self.ids.open(notification.version.as_bytes()).ok_or(bad)?;
        if id.uaid != uaid || id.chid != chid {
            return Err(bad);
        }
        let data = base64url::decode(notification.data.as_deref().unwrap_or_default().as_bytes()).ok_or(bad)?;
        let headers = notification.headers.unwrap_or_default();
        let encryption = Encryption {
            encoding: headers.encoding.as_deref().map(str::as_bytes),
            encryption: headers.encryption.as_deref().map(str::as_bytes),
            crypto_key: headers.crypto_key.as_deref().map(str::as_bytes),
            encryption_key: headers.encryption_key.as_deref().map(str::as_bytes),
        };
        let mut draft = Draft::new(&encryption, data.len());
        draft.extend(&data);
        draft.verdict().map_err(|_| bad)?;
        Ok(Message {
            uaid,
            chid,
            stamp: id.stamp,
            ttl: notification.ttl.min(u64::from(TTL_MAX)) as u32,
            accepted: UnixSeconds(notification.timestamp),
            urgency: notification.urgency.map_or_else(Default::default, |text| read_urgency(text.as_bytes())),
            topic: id.topic,
            // The node that accepted it keeps its receipt.
            receipt: false,
            payload: draft.finish()?,
        })
    }

    pub(super) fn emit_node_answer(&mut self, context: &Context, node_answer: NodeAnswer, out: &mut Vec<u8>) {
        match node_answer {
            NodeAnswer::Done => answer::start(&self.date, context, 200, out).empty(),
            NodeAnswer::Noted => answer::start(&self.date, context, 202, out).empty(),
            NodeAnswer::NotHere => answer::fault(&self.date, context, Fault::NoSession, out),
            NodeAnswer::Busy => answer::fault(&self.date, context, Fault::Unavailable, out),
        }
    }
}
