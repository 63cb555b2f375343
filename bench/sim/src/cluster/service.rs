//! The service that carries the notifications of bridged users: it takes them, ends devices, doubts them, is down, or
//! answers late. The guard of the server (`src/control_plane/src/bridges/guard.rs`) is an input that is on or off.

use machine::Input;
use machine::ids::{Clock, StoreTicket, Uaid};
use machine::upstream::{BridgeFailure, BridgeKind, BridgeOutcome, Bridged, UpstreamOp};

use super::parts::Breakage;
use super::world::Cluster;
use crate::shared::{SECOND, Verdict};

/// A device token: `device N`.
pub(super) struct Device {
    /// Usual answer of the service about it.
    pub(super) mood: Mood,
}

/// Usual answer of the service about a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mood {
    Fine,
    Ended,
    Doubted,
}

/// A call that the service has not answered.
pub(super) struct ServiceCall {
    /// Node and shard.
    pub(super) at: (usize, usize),
    pub(super) ticket: StoreTicket,
    pub(super) post: usize,
    /// Record that it was made for.
    pub(super) record: (Uaid, Clock, usize),
    pub(super) ready_at: u64,
    /// The service has answered it before.
    pub(super) again: bool,
}

/// Number of a device, by its token.
pub(super) fn device_of(record: &Bridged) -> Result<usize, String> {
    let number = record.token.strip_prefix("device ").and_then(|number| number.parse().ok());
    number.ok_or_else(|| "a record has a token that no phone has".to_owned())
}

/// Record of a device as a phone gives it.
pub(super) fn device_named(device: usize) -> machine::Device {
    machine::Device { kind: BridgeKind::Fcm, app: "app".into(), token: format!("device {device}").into(), aps: None }
}

impl Cluster {
    /// A new token, of which the service has an opinion already.
    pub(super) fn new_device(&mut self) -> usize {
        let mood = match self.rng.network.below(10) {
            _ if self.calm => Mood::Fine,
            0..5 => Mood::Fine,
            5..7 => Mood::Ended,
            _ => Mood::Doubted,
        };
        self.bridges.devices.push(Device { mood });
        self.bridges.devices.len() - 1
    }

    /// A machine calls the service.
    pub(super) fn calls_service(&mut self, at: (usize, usize), ticket: StoreTicket, op: UpstreamOp) -> Verdict {
        let UpstreamOp { to, message } = op;
        let post = self.identify(&message)?;
        let device = device_of(&to)?;
        self.called(post, &to, device, &message)?;
        let ready_at = self.now + self.rng.network.below(self.plan.bridges.service_delay + 1);
        let record = (message.uaid, to.registered, device);
        self.bridges.calls.push(ServiceCall { at, ticket, post, record, ready_at, again: false });
        Ok(())
    }

    /// The service answers one of the calls that are due.
    pub(super) fn service_answers(&mut self, at: usize) -> Verdict {
        let ServiceCall { at, ticket, post, record, again, .. } = self.bridges.calls.swap_remove(at);
        let mut outcome = self.draw_outcome(record.2);
        let guarded = self.now < self.bridges.guard_until;
        if outcome == BridgeOutcome::Doubted && guarded {
            self.marks.hit("service: doubted, guarded");
            if self.breakage != Some(Breakage::GuardIgnored) {
                outcome = BridgeOutcome::Failed(BridgeFailure::Configuration);
            }
        }
        if again {
            self.marks.hit("service: answered twice");
        } else {
            self.marks.hit(match outcome {
                BridgeOutcome::Sent => "service: sent",
                BridgeOutcome::Gone => "service: gone",
                BridgeOutcome::Doubted => "service: doubted",
                BridgeOutcome::Failed(_) => "service: failed",
            });
            self.judged(post, record, outcome, guarded)?;
        }
        if !again && self.rng.network.permille(self.plan.bridges.answered_twice) {
            let ready_at = self.now + self.rng.network.below(self.plan.bridges.service_delay + 1);
            self.bridges.calls.push(ServiceCall { at, ticket, post, record, ready_at, again: true });
        }
        match self.outcome_broken(outcome) {
            Some(outcome) => self.step(at.0, at.1, Input::Upstream { ticket, reply: outcome }),
            None => Ok(()),
        }
    }

    fn draw_outcome(&mut self, device: usize) -> BridgeOutcome {
        let rng = &mut self.rng.network;
        let mood = self.bridges.devices[device].mood;
        if !rng.permille(self.plan.bridges.whims) {
            return match mood {
                Mood::Fine => BridgeOutcome::Sent,
                Mood::Ended => BridgeOutcome::Gone,
                Mood::Doubted => BridgeOutcome::Doubted,
            };
        }
        match rng.below(10) {
            0..3 => BridgeOutcome::Sent,
            3 => BridgeOutcome::Gone,
            4..6 => BridgeOutcome::Doubted,
            _ => BridgeOutcome::Failed(rng.pick(&[
                BridgeFailure::TooLarge { excess: 7 },
                BridgeFailure::Quota { retry_after: 60 },
                BridgeFailure::BadRequest,
                BridgeFailure::Configuration,
                BridgeFailure::Authentication,
                BridgeFailure::Unreachable,
                BridgeFailure::NoAnswer,
                BridgeFailure::Unavailable { retry_after: 120 },
            ])),
        }
    }

    /// The guard becomes active for a while, or goes off, perhaps.
    pub(super) fn guard_changes(&mut self) {
        let (rng, chance) = (&mut self.rng.network, self.plan.bridges.guard);
        if rng.permille(chance) {
            self.marks.hit("guard: active");
            self.bridges.guard_until = self.now + rng.below(900 * SECOND);
        } else if rng.permille(chance) {
            self.bridges.guard_until = self.now;
        }
    }

    /// The service changes its mind about a device.
    pub(super) fn mood_changes(&mut self) {
        if !self.bridges.devices.is_empty() {
            let device = self.rng.network.index(self.bridges.devices.len());
            self.bridges.devices[device].mood = self.rng.network.pick(&[Mood::Fine, Mood::Ended, Mood::Doubted]);
        }
    }
}
