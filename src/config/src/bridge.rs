//! `bridge.auth_keys`: registration of devices (PROTOCOL.md 3).

use super::key::keys;
use super::parse;

keys! {
    /// Registration of devices.
    const BRIDGE;
    #[secret] #[live] "bridge.auth_keys" = "",
        "keys of 16 to 256 visible characters, [k1,k2] or k1,k2",
        "Keys of the secrets that registered devices show: the first key makes them, every key verifies. Without keys there is no registration API. Several nodes need the same keys.",
        |c, raw| { c.bridge.auth_keys = parse::bearer_keys(raw)?; Some(()) };
}
