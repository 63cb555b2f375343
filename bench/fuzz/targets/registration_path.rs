//! Paths of the registration API: each part comes from the path, has no slash, and the name of an app is short and
//! plain.

#![no_main]

use libfuzzer_sys::fuzz_target;
use machine::limits::BRIDGE_APP_BYTES_MAX;
use protocol::webpush::registration::{Path, Target, UserType, read_uuid};

fuzz_target!(|text: &str| {
    let Some(path) = Path::parse(text) else { return };
    let rest = match path.target {
        Target::Users => String::new(),
        Target::User(uaid) => format!("/{uaid}"),
        Target::Channels(uaid) => format!("/{uaid}/subscription"),
        Target::Channel { uaid, chid } => format!("/{uaid}/subscription/{chid}"),
    };
    let again = format!("{}/{}/registration{rest}", path.kind, path.app);
    assert!(text == again || text.strip_suffix('/') == Some(&again), "{path:?}");
    assert!(!path.kind.contains('/') && !path.app.contains('/'));
    let _ = UserType::parse(path.kind);
    if let Some(app) = path.app() {
        assert!((1..=BRIDGE_APP_BYTES_MAX).contains(&app.len()));
        assert!(app.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)));
    }
    if let Target::User(uaid) | Target::Channels(uaid) | Target::Channel { uaid, .. } = path.target {
        let _ = read_uuid(uaid);
    }
});
