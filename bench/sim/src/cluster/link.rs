//! Path of each node to the store. Operations of one user of one node take effect in their order.
//! Every fault that a request to a database can meet happens to them.

use std::sync::Arc;

use machine::ids::{Chid, StoreTicket, Uaid};
use machine::message::Message;
use machine::model::User;
use machine::{Input, Presence, StoreError, StoreOp, StoreReply};

use super::parts::{Behind, Reply, Work};
use super::sock::Channel;
use super::world::{Cluster, ClusterEvent};
use crate::shared::{Late, Verdict, first_of_each};

/// `store.scylla.request_timeout` with its repetitions.
const PATIENCE: u64 = 20_000_000_000;
/// A message that was stored this much behind its clock is refused: `WRITE_WITHIN_US` of the shared store.
const WRITE_WITHIN_US: u64 = 30_000_000;

impl Cluster {
    pub(super) fn submit(&mut self, node: usize, shard: usize, ticket: StoreTicket, op: StoreOp) -> Verdict {
        let op = self.op_broken(node, op);
        let messages: &[Arc<Message>] = match &op {
            StoreOp::Publish { message, .. } => std::slice::from_ref(message),
            StoreOp::Save { messages } => messages,
            _ => &[],
        };
        for message in messages.iter().filter(|message| message.ttl > 0) {
            self.sighted(message)?;
        }
        let slow = if node == 0 { self.plan.press.slow_store } else { 0 };
        let ready_at = self.now + self.rng.store.below(self.plan.delay.max(slow) + 1);
        let gives_up_at = self.now + PATIENCE;
        if let StoreOp::Settle { low_water: Some(low_water), .. } = op {
            self.vouches(node, low_water)?;
        }
        self.works.push(Work { node, shard, ticket, op, ready_at, gives_up_at, behind: self.behind });
        Ok(())
    }

    pub(super) fn enabled_of_store(&self, found: &mut Vec<ClusterEvent>) {
        for (at, work) in self.works.iter().enumerate() {
            let first = !self.works[..at].iter().any(|w| w.node == work.node && w.op.uaid() == work.op.uaid());
            let can = work.ready_at <= self.now && self.has_store(work.node);
            if first && (can || work.gives_up_at <= self.now) {
                found.push(ClusterEvent::Work(at));
            }
        }
        for (at, reply) in self.replies.iter().enumerate() {
            let first = !self.replies[..at].iter().any(|r| r.node == reply.node && r.uaid == reply.uaid);
            if first && self.awake(reply.node) {
                found.push(ClusterEvent::Reply(at));
            }
        }
        found.extend((0..self.late.len()).filter(|at| self.late[*at].at <= self.now).map(ClusterEvent::Late));
    }

    /// Returns true for a message that has turned up below low water. Notes the nodes that must be told of it when it
    /// is saved again.
    fn is_turned_up(&mut self, node: usize, message: &Message) -> bool {
        let Some(post) = self.identify(message).ok().filter(|post| self.posts[*post].turned_up) else { return false };
        let rows = self.store.user(message.uaid).map(|user| user.row().presence).unwrap_or_default();
        let here = &self.nodes[node].id.url;
        self.posts[post].holders = rows.into_iter().filter(|row| row.node.url != *here).collect();
        self.posts[post].holder_told = false;
        true
    }

    /// An operation takes effect, or fails.
    pub(super) fn work(&mut self, at: usize) -> Verdict {
        let Work { node, shard, ticket, op, behind, .. } = self.works.remove(at);
        let settles = matches!(op, StoreOp::Settle { .. });
        let writes = matches!(op, StoreOp::Publish { .. } | StoreOp::Save { .. });
        let again = match &op {
            StoreOp::Save { messages } if messages.len() == 1 => self.is_turned_up(node, &messages[0]),
            _ => false,
        };
        let broken = self.answer_broken((node, shard), &op, behind);
        let faults = &self.plan.faults;
        let (error, lost, late) = (faults.store_error, faults.store_reply_lost, faults.store_late);
        let uaid = op.uaid();
        let stamped = match &op {
            StoreOp::Publish { message, .. } if message.ttl > 0 => Some(message.stamp.clock.0),
            _ => None,
        };
        let wrote = match &op {
            StoreOp::Publish { message, checked: true } if message.topic.is_none() => Some(message.stamp),
            _ => None,
        };
        let cut = !self.has_store(node);
        let result = if let Some(broken) = broken {
            broken
        } else if cut || self.rng.store.permille(error) {
            self.disorder = true;
            self.marks.hit("store: failed without effect");
            Err(StoreError::Transient)
        } else if is_version(&op) && self.rng.store.permille(late) {
            self.disorder = true;
            let at = self.now + self.rng.store.below(PATIENCE);
            self.late.push(Late { at, op });
            Err(StoreError::Transient)
        } else {
            let reply = self.effect(&op)?;
            if let Ok(StoreReply::Page(page)) = &reply {
                self.given(node, &page.messages)?;
            }
            if self.rng.store.permille(lost) {
                self.disorder = true;
                self.marks.hit("store: failed after success");
                Err(StoreError::Transient)
            } else {
                reply
            }
        };
        self.settle_failed |= settles && result.is_err();
        let below = if let (Behind::Write(Some(stamp)), Ok(StoreReply::User(Some(_)))) = (behind, &result) {
            let covers = |user: &User| stamp.clock <= user.low_water;
            self.store.user(uaid).is_some_and(covers).then_some(stamp)
        } else {
            None
        };
        self.replies.push(Reply { node, shard, uaid, ticket, result, stamped, settles, writes, again, wrote, below });
        Ok(())
    }

    pub(super) fn lands_late(&mut self, at: usize) -> Verdict {
        let Late { op, .. } = self.late.swap_remove(at);
        self.marks.hit("store: landed late");
        self.log(None, format_args!("lands late: {op:?}"));
        self.effect(&op).map(drop)
    }

    /// An operation is carried out. Nothing may be missing behind it.
    pub(super) fn effect(&mut self, op: &StoreOp) -> Result<Result<StoreReply, StoreError>, String> {
        let uaid = op.uaid();
        self.log(None, format_args!("takes effect: {op:?}"));
        match op {
            StoreOp::Publish { message, .. } => self.written(message, false)?,
            StoreOp::Save { messages } => messages.iter().try_for_each(|message| self.written(message, true))?,
            _ => {}
        }
        let mut reply = match self.breakage {
            Some(breakage) => self.effect_broken(breakage, op),
            None => self.store.apply(op),
        };
        if let Ok(StoreReply::Done) = reply {
            let messages: &[Arc<Message>] = match op {
                StoreOp::Publish { message, .. } => std::slice::from_ref(message),
                StoreOp::Save { messages } => messages,
                _ => &[],
            };
            for message in messages {
                let post = self.identify(message)?;
                self.posts[post].held |= message.ttl > 0;
            }
            if let StoreOp::Unregister { chid, .. } = op {
                // Perhaps of a socket that was left since: behind a register of a later one.
                let channel = self.channels.entry((uaid, *chid)).or_default();
                (channel.registered, channel.unregistered) = (None, Some(self.steps));
                channel.version += 1;
            }
            if let StoreOp::DropIdle { .. } = op {
                self.dropped_idle(uaid)?;
            }
            self.all_held(uaid, "in storage")?;
        }
        self.bridged_changed(op)?;
        if let Ok(StoreReply::Page(page)) = &mut reply {
            page.messages.iter_mut().for_each(|message| *message = Arc::new(Message::clone(message)));
        }
        Ok(reply)
    }

    /// A user was dropped because it had no channel: none of them was registered for certain.
    fn dropped_idle(&mut self, uaid: Uaid) -> Verdict {
        self.marks.hit("store: user without a channel dropped");
        let has = |(of, channel): (&(Uaid, Chid), &Channel)| of.0 == uaid && channel.registered == Some(true);
        match self.channels.iter().any(has) {
            true => Err(format!("{uaid:?} was dropped as without a channel and has one")),
            false => Ok(()),
        }
    }

    pub(super) fn reply(&mut self, at: usize) -> Verdict {
        let Reply { node, shard, ticket, mut result, stamped, writes, again, wrote, below, .. } =
            self.replies.remove(at);
        if let Some(post) = below.and_then(|stamp| self.by_stamp.get(&stamp)) {
            self.marks.hit("low water: a message turned up below it");
            (self.posts[*post].below, self.posts[*post].turned_up) = (true, true);
        }
        let late = stamped.is_some_and(|clock| self.judged_us(node) > clock + WRITE_WITHIN_US);
        if late && result.is_ok() {
            self.disorder = true;
            self.marks.hit("store: written too late");
            result = Err(StoreError::Transient);
        }
        self.behind = match &result {
            _ if again => Behind::SaveAgain,
            _ if writes => Behind::Write(wrote),
            Ok(StoreReply::Page(_)) => Behind::Page,
            _ => Behind::Other,
        };
        let here = &self.nodes[node].id;
        let is_here = |row: &Presence| row.node.url == here.url;
        self.alone = matches!(&result, Ok(StoreReply::User(Some(user))) if user.presence.iter().all(is_here));
        let done = self.step(node, shard, Input::Stored { ticket, result });
        (self.behind, self.alone) = (Behind::Other, false);
        done
    }

    /// A node is gone: of the operations of each user some first ones take effect.
    pub(super) fn works_cut(&mut self, n: usize) -> Verdict {
        self.replies.retain(|reply| reply.node != n);
        let (cut, rest): (Vec<Work>, Vec<Work>) =
            std::mem::take(&mut self.works).into_iter().partition(|work| work.node == n);
        self.works = rest;
        let has_store = self.has_store(n);
        let (done, lost) = first_of_each(cut, |work| work.op.uaid(), || has_store && !self.rng.store.permille(500));
        self.settle_failed |= lost.iter().any(|work| matches!(work.op, StoreOp::Settle { .. }));
        for work in done {
            let _ = self.effect(&work.op)?;
        }
        Ok(())
    }
}

/// A write that is settled by its version, whenever it comes.
fn is_version(op: &StoreOp) -> bool {
    matches!(
        op,
        StoreOp::Publish { .. }
            | StoreOp::Save { .. }
            | StoreOp::SetPresence { .. }
            | StoreOp::ClearPresence { .. }
            | StoreOp::Settle { .. }
            | StoreOp::SetBridge { .. }
            | StoreOp::MarkRefused { .. }
            | StoreOp::ClearRefused { .. }
            | StoreOp::DropBridged { .. }
    )
}
