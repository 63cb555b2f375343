//! Limits on callers by their address.

mod prefix;

pub use prefix::{Prefix, PrefixError};
