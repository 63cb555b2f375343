//! Values of settings that are words or rates: `None` for anything else.

use protocol::webpush::endpoint::TokenForm;
use store::scylla::options::Level;

use super::parse::{self, Raw};
use super::settings::{DrainMode, LogFormat, MinVersion, RegisterMode, Roles, Steer, StoreKind, UnknownName};

/// Reads requests per second; 0 for no limit.
pub(super) fn rate(raw: &Raw) -> Option<u32> {
    Some(parse::number(raw, 0, u64::from(machine::token_bucket::RATE_MAX))? as u32)
}

/// Reads `roles`: one of them at least.
pub(super) fn roles(raw: &Raw) -> Option<Roles> {
    let mut roles = Roles::default();
    for item in raw.items() {
        match item {
            "connect" => roles.connect = true,
            "endpoint" => roles.endpoint = true,
            _ => return None,
        }
    }
    (roles != Roles::default()).then_some(roles)
}

/// Reads `shards.steer`.
pub(super) fn steer(raw: &Raw) -> Option<Steer> {
    match raw.text()? {
        "off" => Some(Steer::Off),
        "cpu" => Some(Steer::Cpu),
        _ => None,
    }
}

/// Reads `drain.mode`.
pub(super) fn drain_mode(raw: &Raw) -> Option<DrainMode> {
    match raw.text()? {
        "close" => Some(DrainMode::Close),
        "hibernate" => Some(DrainMode::Hibernate),
        _ => None,
    }
}

/// Reads `endpoint.tokens`.
pub(super) fn token_form(raw: &Raw) -> Option<TokenForm> {
    match raw.text()? {
        "short" => Some(TokenForm::Short),
        "fernet" => Some(TokenForm::Fernet),
        _ => None,
    }
}

/// Reads `access.register`.
pub(super) fn register_mode(raw: &Raw) -> Option<RegisterMode> {
    match raw.text()? {
        "open" => Some(RegisterMode::Open),
        "token" => Some(RegisterMode::Token),
        "vapid" => Some(RegisterMode::Vapid),
        _ => None,
    }
}

/// Reads `tls.unknown_name`.
pub(super) fn unknown_name(raw: &Raw) -> Option<UnknownName> {
    match raw.text()? {
        "refuse" => Some(UnknownName::Refuse),
        "default" => Some(UnknownName::Default),
        _ => None,
    }
}

/// Reads `tls.min_version`.
pub(super) fn min_version(raw: &Raw) -> Option<MinVersion> {
    match raw.text()? {
        "1.3" => Some(MinVersion::Tls13),
        "1.2" => Some(MinVersion::Tls12),
        _ => None,
    }
}

/// Reads `store.kind`.
pub(super) fn store_kind(raw: &Raw) -> Option<StoreKind> {
    match raw.text()? {
        "embedded" => Some(StoreKind::Embedded),
        "memory" => Some(StoreKind::Memory),
        "scylla" => Some(StoreKind::Scylla),
        _ => None,
    }
}

/// Reads `store.scylla.read_consistency` and its sibling.
pub(super) fn consistency(raw: &Raw) -> Option<Level> {
    Level::named(raw.text()?)
}

/// Reads `log.format`.
pub(super) fn log_format(raw: &Raw) -> Option<LogFormat> {
    match raw.text()? {
        "text" => Some(LogFormat::Text),
        "json" => Some(LogFormat::Json),
        _ => None,
    }
}
