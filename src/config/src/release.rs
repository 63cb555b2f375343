//! `delivery.release_on_activity`: the release of held messages.

use super::allowed::SECONDS_OR_ZERO;
use super::key::keys;
use super::parse;

keys! {
    /// Release of messages below the minimum urgency of their user agent.
    const RELEASE;
    "delivery.release_on_activity" = "0",
        SECONDS_OR_ZERO,
        "Time after traffic of a user agent in which messages below its minimum urgency go out too: its radio is awake then.",
        |c, raw| { c.delivery.release_on_activity = parse::duration(raw)?; Some(()) };
}
