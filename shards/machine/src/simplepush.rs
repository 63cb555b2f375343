//! Contact of a user agent, and SimplePush vocabulary (PROTOCOL.md 1.12): a version update as a message.
//!
//! An update is a [`Message`] in the one topic slot that no app server can name, so that ledgers and stores carry it
//! like any other and keep one per channel. Its payload is the version (8 bytes, big-endian), then the data.
//!
//! Lives on: every thread that has messages; plain values.

use std::fmt;

use crate::ids::{Chid, Stamp, Uaid};
use crate::limits;
use crate::message::{Message, Topic, Urgency};
use crate::time::UnixSeconds;
use crate::upstream::Bridged;

/// Messages that a user agent understands, by its latest hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Notifications with a body (RFC 8030).
    #[default]
    WebPush,
    /// Version updates, the newest of each channel.
    Simple,
}

/// Data for the wake-up service about a user agent that is not connected, form-encoded; 1 to `limits::WAKE_BYTES_MAX`
/// bytes. They can locate a person, so they are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct WakeData(Box<str>);

impl WakeData {
    /// These data; `None` when there are none or too many.
    pub fn new(data: &str) -> Option<WakeData> {
        (1..=limits::WAKE_BYTES_MAX).contains(&data.len()).then(|| WakeData(data.into()))
    }

    /// The body of a wake-up call.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for WakeData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeData(..)")
    }
}

/// Way to reach a user agent. Stored with the user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contact {
    pub mode: Mode,
    /// Data of its wake-up calls; only in mode `Simple`.
    pub wake: Option<WakeData>,
    /// Minimum urgency that the user agent has named; only in mode `WebPush`.
    pub minimum: Option<Urgency>,
    /// Service that carries its notifications instead of a WebSocket; only in mode `WebPush`.
    pub bridge: Option<Box<Bridged>>,
}

impl Contact {
    /// Returns the contact of a user that had `before` and gets this one. A bridge stays unless this one is newer.
    pub fn replacing(&self, before: &Contact) -> Contact {
        let stays =
            before.bridge.as_ref().filter(|had| !self.bridge.as_ref().is_some_and(|new| new.is_newer_than(had)));
        Contact { bridge: stays.or(self.bridge.as_ref()).cloned(), ..self.clone() }
    }

    /// Returns true if the next hello of the user agent says all of it again, so that the user can be dropped while it
    /// has no channel.
    pub fn is_droppable(&self) -> bool {
        self.minimum.is_none() && self.bridge.is_none()
    }

    /// The minimum as one number for a store: 0 without one.
    pub fn minimum_number(&self) -> u8 {
        self.minimum.map_or(0, |minimum| minimum as u8 + 1)
    }

    /// The minimum with this number; `None` also for a number that no version wrote.
    pub fn minimum_of(number: u8) -> Option<Urgency> {
        Urgency::of(number.checked_sub(1)?)
    }
}

/// A version update, as an app server sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update<'a> {
    /// At least 1.
    pub version: u64,
    /// May be empty.
    pub data: &'a str,
}

impl Update<'_> {
    /// As a message that is not stamped yet. It is kept for `ttl` seconds.
    pub fn to_message(self, uaid: Uaid, chid: Chid, accepted: UnixSeconds, ttl: u32) -> Message {
        Message {
            uaid,
            chid,
            stamp: Stamp::default(),
            ttl,
            accepted,
            urgency: Urgency::Normal,
            topic: Some(Topic::UPDATE),
            receipt: false,
            tries: Default::default(),
            payload: [&self.version.to_be_bytes()[..], self.data.as_bytes()].concat().into(),
        }
    }
}

impl Message {
    /// The mode in which it is delivered.
    pub fn mode(&self) -> Mode {
        if self.topic == Some(Topic::UPDATE) { Mode::Simple } else { Mode::WebPush }
    }

    /// Its version when it is a version update.
    pub fn simple_version(&self) -> Option<u64> {
        self.update().map(|update| update.version)
    }

    /// The update it is; `None` for a notification. Bytes that are no update read as version 0 without data.
    pub fn update(&self) -> Option<Update<'_>> {
        if self.mode() != Mode::Simple {
            return None;
        }
        let Some((version, data)) = self.payload.split_first_chunk() else {
            return Some(Update { version: 0, data: "" });
        };
        Some(Update { version: u64::from_be_bytes(*version), data: std::str::from_utf8(data).unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Clock, Origin};
    use crate::shard::{StoreOp, StoreReply};
    use crate::upstream::BridgeKind;
    use proptest::prelude::*;

    fn update(version: u64, clock: u64, accepted: u64) -> Message {
        let stamp = Stamp { clock: Clock(clock), origin: Origin(1) };
        let made = Update { version, data: "" }.to_message(Uaid([1; 16]), Chid([2; 16]), UnixSeconds(accepted), 10);
        Message { stamp, ..made }
    }

    #[test]
    fn a_slot_goes_to_the_higher_version_and_then_to_the_first() {
        let held = update(5, 100, 0).held();
        assert!(update(6, 90, 0).replaces(&held), "the higher version, also with an older stamp");
        assert!(!update(5, 101, 0).replaces(&held) && !update(4, 101, 0).replaces(&held));
        assert!(update(5, 100, 0).replaces(&held), "the same message may be written again");
        assert!(!update(4, 101, 9).replaces(&held));
        assert!(update(4, 101, 10).replaces(&held), "an expired version keeps nobody away");
    }

    #[test]
    fn what_holds_a_topic_yields_to_the_newer_only() {
        let topic = |clock| Message { topic: Topic::new(b"t"), ..update(9, clock, 50) };
        assert!(topic(11).replaces(&topic(10).held()) && topic(10).replaces(&topic(10).held()));
        assert!(!topic(9).replaces(&topic(10).held()));
    }

    #[test]
    fn wake_data_is_never_shown() {
        let contact = Contact { mode: Mode::Simple, wake: WakeData::new("ip=203.0.113.7"), ..Contact::default() };
        assert_eq!(contact.wake.as_ref().map(WakeData::as_str), Some("ip=203.0.113.7"));
        assert!(!format!("{contact:?}").contains("203"));
    }

    #[test]
    fn a_device_token_is_never_shown() {
        let aps = Some(r#"{"sound":"secret"}"#.into());
        let contact = Contact { bridge: Some(Box::new(Bridged { aps, ..bridged(1) })), ..Contact::default() };
        let (op, reply) = (
            StoreOp::SetBridge { uaid: Uaid([1; 16]), bridge: Box::new(bridged(1)) },
            StoreReply::Bridged(Box::new(bridged(1))),
        );
        for shown in [format!("{contact:?}"), format!("{contact:#?}"), format!("{op:?}"), format!("{reply:?}")] {
            assert!(shown.contains("app") && !shown.contains("token") && !shown.contains("secret"), "{shown}");
        }
    }

    #[test]
    fn a_bridge_yields_to_a_newer_one_only() {
        let of = |bridge: Option<u64>| Contact { bridge: bridge.map(|at| Box::new(bridged(at))), ..Contact::default() };
        for (before, new, kept) in [
            (None, None, None),
            (None, Some(2), Some(2)),
            (Some(2), None, Some(2)),
            (Some(2), Some(1), Some(2)),
            (Some(2), Some(3), Some(3)),
        ] {
            assert_eq!(of(new).replacing(&of(before)), of(kept));
        }
    }

    fn bridged(registered: u64) -> Bridged {
        let (kind, registered) = (BridgeKind::Apns, Clock(registered));
        Bridged { kind, app: "app".into(), token: "token".into(), aps: None, registered, refused: None }
    }

    #[test]
    fn wake_data_is_bounded() {
        let of = |bytes: usize| WakeData::new(&"x".repeat(bytes)).is_some();
        assert_eq!(
            (of(0), of(1), of(limits::WAKE_BYTES_MAX), of(limits::WAKE_BYTES_MAX + 1)),
            (false, true, true, false)
        );
    }

    proptest! {
        #[test]
        fn an_update_is_read_as_it_was_made(version in 1u64.., data in any::<String>()) {
            let update = Update { version, data: &data };
            let message = update.to_message(Uaid([1; 16]), Chid([2; 16]), UnixSeconds(1), 1);
            prop_assert_eq!(message.update(), Some(update));
            prop_assert_eq!(message.mode(), Mode::Simple);
            let plain = Message { topic: None, ..message };
            prop_assert_eq!((plain.update(), plain.mode()), (None, Mode::WebPush));
        }

        #[test]
        fn of_two_ranks_exactly_one_is_greater(a in (0u64..4, 0u64..4), b in (0u64..4, 0u64..4)) {
            let (first, second) = (update(a.0, a.1, 0), update(b.0, b.1, 0));
            prop_assert_eq!(first.rank() == second.rank(), a == b);
            prop_assert_eq!(first.rank() > second.rank(), second.rank() < first.rank());
        }

        #[test]
        fn odd_payloads_never_panic(payload in prop::collection::vec(any::<u8>(), 0..20)) {
            let message = Message { payload: payload.into(), ..update(1, 1, 1) };
            prop_assert!(message.update().is_some());
        }
    }
}
