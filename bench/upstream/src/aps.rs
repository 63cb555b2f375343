//! The payload of APNs: a JSON object with a dictionary `aps`, as Apple's "Generating a remote notification" has it.

use serde_json::{Map, Value};

/// Checks a payload.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn check(body: &str, is_alert: bool) -> Result<(), String> {
    let payload: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let aps = payload.get("aps").and_then(Value::as_object).ok_or("the payload has no dictionary aps")?;
    if is_alert && !["alert", "badge", "sound"].iter().any(|name| aps.contains_key(*name)) {
        return Err("push type alert, and neither alert nor badge nor sound".into());
    }
    for (name, value) in aps {
        let is_right = match name.as_str() {
            "alert" => value.is_string() || value.as_object().is_some_and(is_alert_dictionary),
            "badge" => value.as_u64().is_some(),
            "sound" => value.is_string() || value.is_object(),
            "content-available" | "mutable-content" => *value == 0 || *value == 1,
            "category" | "thread-id" | "target-content-id" | "interruption-level" => value.is_string(),
            "relevance-score" => value.is_number(),
            _ => false,
        };
        if !is_right {
            return Err(format!("aps cannot have {name} = {value}"));
        }
    }
    Ok(())
}

fn is_alert_dictionary(alert: &Map<String, Value>) -> bool {
    alert.iter().all(|(name, value)| match name.as_str() {
        "title" | "subtitle" | "body" | "launch-image" | "title-loc-key" | "subtitle-loc-key" | "loc-key"
        | "action-loc-key" => value.is_string(),
        "title-loc-args" | "subtitle-loc-args" | "loc-args" => {
            value.as_array().is_some_and(|args| args.iter().all(Value::is_string))
        }
        _ => false,
    })
}
