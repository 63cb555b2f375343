//! `router_type` and `router_data` of a line: the bridge of a user, in the forms of autopush (docs/MIGRATING.md).

use machine::ids::Clock;
use machine::limits;
use machine::upstream::{BridgeKind, Bridged};
use serde_json::{Map, Value, json};

/// Router types whose users are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OtherRouter {
    /// The service before FCM; it has ended.
    Gcm,
    Adm,
    Unknown,
}

/// Returns the kind of the bridge; `None` for a user of WebSocket.
pub(super) fn read_type(name: Option<&str>) -> Result<Option<BridgeKind>, OtherRouter> {
    match name {
        None | Some("webpush") => Ok(None),
        Some("fcm") => Ok(Some(BridgeKind::Fcm)),
        Some("apns") => Ok(Some(BridgeKind::Apns)),
        Some("gcm") => Err(OtherRouter::Gcm),
        Some("adm") => Err(OtherRouter::Adm),
        Some(_) => Err(OtherRouter::Unknown),
    }
}

/// Returns the router type of such users.
pub(super) fn type_name(kind: BridgeKind) -> &'static str {
    match kind {
        BridgeKind::Fcm => "fcm",
        BridgeKind::Apns => "apns",
    }
}

/// Reads the members of autopush: an object, or JSON text that holds one. Without a token or an app the record has
/// none: its user ends at the first message.
pub(super) fn read_data(kind: BridgeKind, data: Option<&Value>, registered: Clock) -> Result<Bridged, String> {
    let parsed;
    let members = match data {
        None | Some(Value::Null) => &Map::new(),
        Some(Value::Object(members)) => members,
        Some(Value::String(text)) => {
            parsed = serde_json::from_str(text).map_err(|_| "its router_data is no JSON object")?;
            &parsed
        }
        Some(_) => return Err("its router_data is no object".into()),
    };
    // An early FCM registration names its project in the answer that the client got.
    let app = match kind {
        BridgeKind::Apns => members.get("rel_channel"),
        BridgeKind::Fcm => {
            let legacy = members.get("creds").and_then(|creds| creds.get("senderID"));
            members.get("app_id").filter(|app| !app.is_null()).or(legacy)
        }
    };
    let aps = match members.get("aps").filter(|_| kind == BridgeKind::Apns) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(bounded(text, "aps", limits::APS_BYTES_MAX)?).filter(|aps| !aps.is_empty()),
        Some(object) => Some(bounded(&object.to_string(), "aps", limits::APS_BYTES_MAX)?),
    };
    Ok(Bridged {
        kind,
        app: bounded(text(app, "app")?, "app", limits::BRIDGE_APP_BYTES_MAX)?,
        token: bounded(text(members.get("token"), "token")?, "token", limits::DEVICE_TOKEN_BYTES_MAX)?,
        aps,
        registered,
        refused: None,
    })
}

/// Returns the members of this bridge, as [`read_data`] reads them.
pub(super) fn data(bridge: &Bridged) -> Value {
    match bridge.kind {
        BridgeKind::Apns => match &bridge.aps {
            Some(aps) => json!({"token": bridge.token, "rel_channel": bridge.app, "aps": aps}),
            None => json!({"token": bridge.token, "rel_channel": bridge.app}),
        },
        BridgeKind::Fcm => json!({"token": bridge.token, "app_id": bridge.app}),
    }
}

fn text<'a>(member: Option<&'a Value>, name: &str) -> Result<&'a str, String> {
    match member {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("the {name} in its router_data is no text")),
    }
}

fn bounded(text: &str, name: &str, bytes_max: usize) -> Result<Box<str>, String> {
    if text.len() > bytes_max {
        return Err(format!("the {name} in its router_data has more than {bytes_max} bytes"));
    }
    Ok(text.into())
}
