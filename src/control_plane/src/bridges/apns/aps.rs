//! The dictionary `aps` of a payload, and the parts of it that a registration overrides.

use serde_json::{Map, Value, json};

/// Members of a registration that stand in `alert`, with Apple's names.
const ALERT_MEMBERS: [(&str, &str); 9] = [
    ("title", "title"),
    ("subtitle", "subtitle"),
    ("body", "body"),
    ("title_loc_key", "title-loc-key"),
    ("title_loc_args", "title-loc-args"),
    ("action_loc_key", "action-loc-key"),
    ("loc_key", "loc-key"),
    ("loc_args", "loc-args"),
    ("launch_image", "launch-image"),
];

/// Members of a registration that stand in `aps` itself.
const APS_MEMBERS: [&str; 5] = ["mutable-content", "badge", "sound", "content-available", "category"];

/// Makes `aps` from the text of a registration. A text that is no JSON object changes nothing: only imported records
/// can have one.
pub(super) fn dictionary(text: Option<&str>) -> Map<String, Value> {
    let own: Map<String, Value> = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut alert = Map::new();
    // A plain text replaces the default key, which a device would prefer to it.
    for (text, key, name, default) in [
        ("title", "title_loc_key", "title-loc-key", "SentTab.NoTabArrivingNotification.title"),
        ("body", "loc_key", "loc-key", "SentTab.NoTabArrivingNotification.body"),
    ] {
        if !own.contains_key(text) && !own.contains_key(key) {
            alert.insert(name.to_owned(), default.into());
        }
    }
    for (name, of_apple) in ALERT_MEMBERS {
        if let Some(value) = own.get(name) {
            alert.insert(of_apple.to_owned(), value.clone());
        }
    }
    let mut aps = Map::new();
    aps.insert("alert".to_owned(), alert.into());
    aps.insert("mutable-content".to_owned(), json!(1));
    for name in APS_MEMBERS {
        if let Some(value) = own.get(name) {
            aps.insert(name.to_owned(), value.clone());
        }
    }
    aps
}
