//! Accepted values of settings that several keys share, each continuing "it takes".

pub(super) const ADDRESSES: &str = "addresses as 127.0.0.1:8080 or [::1]:8080, separated by commas";
pub(super) const ADDRESSES_OR_NONE: &str = "addresses as 0.0.0.0:8443 or [::1]:8443, separated by commas, or nothing";
pub(super) const ADDRESSES_BY_DOMAIN: &str =
    "addresses as 0.0.0.0:443 or [::1]:443, separated by commas, none, or nothing";
pub(super) const SECONDS: &str = "seconds from 0.001 to a year, as 5, 2.5, \"250ms\", \"5s\", \"10m\" or \"1h\"";
pub(super) const CALL_SECONDS: &str =
    "seconds from 0.001 to 25, as 5, 2.5, \"250ms\" or \"5s\", because senders and proxies wait 30 s for a response";
pub(super) const SECONDS_OR_ZERO: &str =
    "seconds from 0 (off) to a year, as 5, 2.5, \"250ms\", \"5s\", \"10m\" or \"1h\"";
pub(super) const RATE: &str = "a number from 0 (no limit) to 1000000";
pub(super) const BYTES: &str = "a number of bytes, as 33554432, 32MiB or 4GiB";
pub(super) const URL: &str = "a URL that begins with http:// or https://, without query and user";
pub(super) const LEVEL: &str = "one, local_one, quorum, local_quorum or all";
pub(super) const VAPID_KEYS: &str =
    "at most 256 public keys (points on P-256, 65 bytes in base64url), separated by commas, or nothing";
pub(super) const PREFIXES: &str = "at most 256 addresses and prefixes as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32, without bits beyond the length, \
     separated by commas, or nothing";
pub(super) const PEM: &str = "a file, or nothing";
pub(super) const PEMS: &str = "files, separated by commas, or nothing";
pub(super) const CALL_URL: &str = "a URL that begins with http:// or https://, without user and fragment, or nothing";

/// Tokens, and keys of a list, at most. Refuse: the setting is not accepted.
pub(super) const ACCESS_LIST_MAX: usize = 256;
