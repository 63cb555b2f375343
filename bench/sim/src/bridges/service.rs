//! The service that carries the notifications: it takes them, ends devices, doubts them, is down, or answers late.

use machine::Input;
use machine::ids::StoreTicket;
use machine::upstream::{BridgeFailure, BridgeOutcome, Bridged, UpstreamOp};

use super::parts::{Call, Device, Mood};
use super::world::Bridges;
use crate::shared::Verdict;

/// Number of a device, by its token.
pub(super) fn device_of(record: &Bridged) -> Result<usize, String> {
    let number = record.token.strip_prefix("device ").and_then(|number| number.parse().ok());
    number.ok_or_else(|| "a record has a token that no phone has".to_owned())
}

impl Bridges {
    /// A new token, of which the service has an opinion already.
    pub(super) fn new_device(&mut self) -> usize {
        let mood = match self.rng.network.below(10) {
            _ if self.calm => Mood::Fine,
            0..5 => Mood::Fine,
            5..7 => Mood::Ended,
            _ => Mood::Doubted,
        };
        self.devices.push(Device { mood });
        self.devices.len() - 1
    }

    /// A machine calls the service.
    pub(super) fn call(&mut self, at: (usize, usize), ticket: StoreTicket, op: UpstreamOp) -> Verdict {
        let UpstreamOp { to, message } = op;
        let post = message.payload.first_chunk().map(|index| u64::from_be_bytes(*index) as usize);
        let post = post.filter(|post| *post < self.posts.len()).ok_or("a notification without a POST")?;
        let device = device_of(&to)?;
        self.called(post, &to, device, &message)?;
        let ready_at = self.now + self.rng.network.below(self.plan.service_delay + 1);
        let record = (message.uaid, to.registered, device);
        self.calls.push(Call { at, ticket, post, record, ready_at, again: false });
        Ok(())
    }

    /// The service answers one of the calls that are due.
    pub(super) fn service_answers(&mut self, at: usize) -> Verdict {
        let Call { at, ticket, post, record, again, .. } = self.calls.swap_remove(at);
        let mut outcome = self.draw_outcome(record.2);
        let guarded = self.now < self.guard_until;
        if outcome == BridgeOutcome::Doubted && guarded {
            self.marks.hit("service: doubted, guarded");
            if !self.ignores_guard() {
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
            self.judged(post, record, outcome, guarded);
        }
        if !again && self.rng.network.permille(self.plan.faults.answered_twice) {
            let ready_at = self.now + self.rng.network.below(self.plan.service_delay + 1);
            self.calls.push(Call { at, ticket, post, record, ready_at, again: true });
        }
        match self.told_broken(outcome) {
            Some(outcome) => self.step(at.0, at.1, Input::Upstream { ticket, reply: outcome }),
            None => Ok(()),
        }
    }

    fn draw_outcome(&mut self, device: usize) -> BridgeOutcome {
        let rng = &mut self.rng.network;
        let mood = self.devices[device].mood;
        if !rng.permille(self.plan.whims) {
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

    /// The service changes its mind about a device.
    pub(super) fn mood_changes(&mut self) {
        if !self.devices.is_empty() {
            let device = self.rng.network.index(self.devices.len());
            self.devices[device].mood = self.rng.network.pick(&[Mood::Fine, Mood::Ended, Mood::Doubted]);
        }
    }

    /// Record of a device as a phone gives it.
    pub(super) fn device_named(device: usize) -> machine::Device {
        let kind = machine::upstream::BridgeKind::Fcm;
        machine::Device { kind, app: "app".into(), token: format!("device {device}").into(), aps: None }
    }
}
