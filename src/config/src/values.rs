//! Values of settings that are rates, roles or levels: `None` for anything else.

use store::shared::options::Level;

use super::parse::{self, Raw};
use super::settings::Roles;

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

/// Reads `store.scylla.read_consistency` and its sibling.
pub(super) fn consistency(raw: &Raw) -> Option<Level> {
    Level::named(raw.text()?)
}
