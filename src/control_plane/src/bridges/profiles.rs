//! Texts of the configuration that name profiles: JSON, or a file with it.

use std::fs;
use std::path::Path;

use machine::limits::BRIDGE_APP_BYTES_MAX;
use serde_json::{Map, Value};

use config::nearest_of;

/// Returns `text` if it is a JSON object, else the content of the file that it names.
///
/// # Errors
/// A sentence.
pub(super) fn read_text(text: &str) -> Result<String, String> {
    if text.trim_start().starts_with('{') {
        return Ok(text.to_owned());
    }
    let path = Path::new(text);
    warn_if_readable(path);
    match fs::metadata(path) {
        Ok(file) if file.len() > FILE_BYTES_MAX => Err(format!("{text} has more than {FILE_BYTES_MAX} bytes")),
        _ => {
            fs::read_to_string(path).map_err(|error| format!("cannot read {text}: {error}; check the name of the file"))
        }
    }
}

/// Refuses members that a profile does not have, except comments (`_...`).
///
/// # Errors
/// A sentence with the nearest name.
pub(super) fn check_members(members: &Map<String, Value>, known: &[&str]) -> Result<(), String> {
    let unknown = members.keys().find(|name| !name.starts_with('_') && !known.contains(&name.as_str()));
    let Some(name) = unknown else { return Ok(()) };
    let nearest = nearest_of(known, name).map(|nearest| format!("; did you mean {nearest:?}?"));
    Err(format!("unknown member {name:?}{}", nearest.unwrap_or_default()))
}

/// Returns true for the name of a profile.
pub(super) fn is_app(app: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=BRIDGE_APP_BYTES_MAX).contains(&app.len()) && app.bytes().all(fits)
}

/// Warns of a file with credentials that others than its owner and group can read.
fn warn_if_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    if fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o007 != 0) {
        tracing::warn!(path = %path.display(), "credentials of a bridge readable by others; chmod 640 the file");
    }
}

/// Bytes of one file of credentials. Refuse: the start.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
