//! Meaning of a 201 (ARCHITECTURE.md 5), checked while it happens and once more at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use machine::ids::{Chid, Clock, Stamp, Uaid};
use machine::message::{Message, Rank, Topic, Tries, Urgency};
use machine::model::Model;
use machine::simplepush::Mode;
use machine::{Disposition, RowKey};

use crate::shared::Recipient;
use crate::socket::SocketId;

/// Everything that was promised, and what became of it. Times are steps of the world.
#[derive(Default)]
pub(crate) struct Oracle {
    pub(crate) posts: Vec<Post>,
    pub(crate) by_stamp: BTreeMap<Stamp, usize>,
    pub(crate) channels: BTreeMap<(Uaid, Chid), Channel>,
    /// Every UAID that a hello was answered with.
    pub(crate) users: BTreeSet<Uaid>,
    /// Socket on which each user is served.
    pub(crate) resident: BTreeMap<Uaid, SocketId>,
    /// HTTP connections that are gone: shard, slot, generation.
    pub(crate) hung_up: BTreeSet<(usize, u32, u32)>,
    /// Posts whose ack a machine is being given.
    pub(crate) acked_in_step: Vec<usize>,
    /// The latest wall time that was seen, in seconds.
    pub(crate) wall_max: u64,
    /// Last mode of each user, and the users that have been in both: what is left of the other mode is dropped.
    pub(crate) modes: BTreeMap<Uaid, Mode>,
    pub(crate) mixed: BTreeSet<Uaid>,
    /// The message whose ledger record a kill has torn.
    pub(crate) torn: Option<usize>,
    /// The kill is a loss of power.
    pub(crate) power_cut: bool,
    /// The persisted clock of earlier boots.
    pub(crate) floor: Clock,
    /// `delivery.attempts_max`.
    pub(crate) attempts_max: u8,
    /// Number of answered hellos of each user.
    pub(crate) sessions: BTreeMap<Uaid, u64>,
    /// The highest version of each channel that its user agent has acked on its present session.
    pub(crate) acked_versions: BTreeMap<(Uaid, Chid), u64>,
    /// Minimum urgency of each user, as far as it is known for certain.
    pub(crate) minimums: BTreeMap<Uaid, Urgency>,
    unregisters: BTreeMap<SocketId, (Uaid, Chid, u64)>,
}

/// One POST.
#[derive(Debug, Default)]
pub(crate) struct Post {
    pub(crate) to: Recipient,
    pub(crate) topic: Option<Topic>,
    pub(crate) ttl: u32,
    pub(crate) urgency: Urgency,
    /// Its sender asked for a receipt.
    pub(crate) receipt: bool,
    /// The boot in which it was accepted.
    pub(crate) boot: u64,
    pub(crate) start: u64,
    /// Step at which its 201 was written.
    pub(crate) seen: Option<u64>,
    /// Likewise, monotonic nanoseconds.
    pub(crate) seen_at: u64,
    pub(crate) disposition: Option<Disposition>,
    pub(crate) stamp: Option<Stamp>,
    /// Wall seconds at which it ends.
    pub(crate) expires: u64,
    /// It was in storage or in a ledger at some time.
    pub(crate) held: bool,
    pub(crate) first_sent: Option<u64>,
    pub(crate) sent_count: u32,
    pub(crate) deliveries: Deliveries,
    pub(crate) acked: Option<u64>,
    /// Time of that ack (monotonic nanoseconds).
    pub(crate) acked_at: u64,
    /// It had not been seen to expire by then.
    pub(crate) acked_in_time: bool,
    /// It may have ended for want of an ack by then.
    pub(crate) acked_when_spent: bool,
    /// Acked or replaced, but a kill took the settle before it was durable: it may come again.
    pub(crate) end_lost: bool,
    /// Storage was asked to delete it.
    pub(crate) settle_asked: bool,
    /// Acked by its user agent on a session that had not been sent it: may be settled, need not be.
    pub(crate) ack_odd: bool,
    pub(crate) cancel_asked: bool,
    pub(crate) cancelled: bool,
    /// Another node stamped it: its place among those of this node is not promised.
    pub(crate) foreign: bool,
    /// Time at which a push of it was answered 200 in this boot (monotonic nanoseconds): its answer may get lost, and
    /// it comes again.
    pub(crate) pushed: Option<u64>,
    /// Its ledger record was damaged, or a host without power took it.
    pub(crate) damaged: bool,
    /// Its user started over, by a rule.
    pub(crate) user_dropped: bool,
    /// Another node stored it for a channel that the hello of the session had left out, and the session passed it over.
    pub(crate) left_out: bool,
    /// Of a SimplePush update; 0 of a notification.
    pub(crate) version: u64,
    /// Its clock is further ahead than a clock may be: no node may accept it.
    pub(crate) too_far_ahead: bool,
}

/// Deliveries of one message, counted by the world.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    pub(crate) count: u32,
    pub(crate) sessions: u32,
    /// The number of the last session among those of its user.
    pub(crate) last: u64,
    /// The machine may know of fewer: a kill, a storage error or a refused frame took some of them.
    pub(crate) forgotten: bool,
}

impl Deliveries {
    pub(crate) fn delivered(&mut self, session: u64) {
        self.count += 1;
        self.sessions += u32::from(self.last != session);
        self.last = session;
    }

    /// Some of them may not count.
    pub(crate) fn forget(&mut self) {
        self.forgotten |= self.count > 0;
    }

    /// Returns true if the message may end without an ack.
    pub(crate) fn are_spent(&self, attempts_max: u8) -> bool {
        attempts_max > 0 && self.count >= u32::from(attempts_max) && self.sessions >= u32::from(Tries::SESSIONS_MIN)
    }
}

/// One subscription.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    /// True if it is registered; `None` while that is not known.
    pub(crate) registered: Option<bool>,
    /// Counts register and unregister commands, and their answers.
    pub(crate) version: u64,
    /// The latest step at which an unregister may have taken effect.
    pub(crate) unregistered_until: Option<u64>,
    /// An unregister that began at this step was answered 200.
    pub(crate) dropped_before: u64,
    /// The hello of the present session left it out (PROTOCOL.md, WS-RECON-1); after an error storage has it still.
    pub(crate) left_out: bool,
}

impl Post {
    /// A POST to a channel that begins at this step; nothing has become of it.
    pub(crate) fn new(to: (Uaid, Chid), topic: Option<Topic>, ttl: u32, urgency: Urgency, start: u64) -> Post {
        let to = Recipient { uaid: to.0, chid: to.1 };
        Post { to, topic, ttl, urgency, start, ..Post::default() }
    }

    /// Its row in storage, once it is stamped.
    pub(crate) fn row(&self) -> Option<RowKey> {
        let Post { to: Recipient { uaid, chid }, topic, .. } = *self;
        self.stamp.map(|stamp| RowKey { uaid, chid, stamp, topic })
    }

    /// Its place among those that want its topic slot.
    pub(crate) fn rank(&self) -> Option<Rank> {
        self.stamp.map(|stamp| Rank::new(self.version, stamp))
    }

    /// It was kept in its topic slot at some time.
    pub(crate) fn took_slot(&self) -> bool {
        self.topic.is_some() && self.ttl > 0 && (self.held || (self.seen.is_some() && self.version == 0))
    }
}

impl Oracle {
    /// The oracle of an empty world.
    pub(crate) fn new(attempts_max: u8) -> Oracle {
        Oracle { attempts_max, ..Oracle::default() }
    }

    /// Index of the POST that a message is from, by its payload; everything it says must be as it was POSTed.
    pub(crate) fn identify(&self, message: &Message) -> Result<usize, String> {
        let number = match message.update() {
            Some(update) => update.data.parse().ok(),
            None => message.payload.get(..8).and_then(|head| head.try_into().ok()).map(u64::from_be_bytes),
        };
        let index = number.map_or(usize::MAX, |n| n as usize);
        let Some(post) = self.posts.get(index) else { return Err(format!("nobody POSTed {message:?}")) };
        let same = (post.to.uaid, post.to.chid, post.topic, post.ttl, post.urgency, post.receipt)
            == (message.uaid, message.chid, message.topic, message.ttl, message.urgency, message.receipt);
        if same { Ok(index) } else { Err(format!("{message:?} is not as it was POSTed")) }
    }

    /// A message has a stamp: the same one for its whole life.
    pub(crate) fn stamped(&mut self, index: usize, message: &Message) -> Result<(), String> {
        let post = &mut self.posts[index];
        match post.stamp {
            Some(stamp) if stamp != message.stamp => Err(format!("{message:?} had the stamp {stamp:?}")),
            Some(_) => Ok(()),
            None => {
                post.stamp = Some(message.stamp);
                post.expires = message.expires().0;
                match self.by_stamp.insert(message.stamp, index) {
                    Some(other) => Err(format!("{:?} names two messages, {other} and {index}", message.stamp)),
                    None => Ok(()),
                }
            }
        }
    }

    /// Storage took these.
    pub(crate) fn stored(&mut self, messages: &[Arc<Message>]) {
        for message in messages {
            self.ledgered(message);
        }
    }

    /// A ledger (or storage) took this.
    pub(crate) fn ledgered(&mut self, message: &Message) {
        if let Ok(index) = self.identify(message) {
            self.posts[index].held = true;
        }
    }

    /// A 201: stamps of one channel rise with the order of the POSTs.
    pub(crate) fn accepted(
        &mut self,
        index: usize,
        stamp: Stamp,
        disposition: Disposition,
        step: u64,
    ) -> Result<(), String> {
        let post = &mut self.posts[index];
        match post.stamp {
            Some(known) if known != stamp => return Err(format!("201 names {stamp:?}, the message is {known:?}")),
            Some(_) => {}
            // An update that a higher version has overtaken is kept nowhere.
            None if post.ttl == 0 || post.version > 0 => {
                post.stamp = Some(stamp);
                self.by_stamp.insert(stamp, index);
            }
            None => return Err(format!("201 for {stamp:?}, which nobody has seen stored or kept")),
        }
        let post = &mut self.posts[index];
        post.seen = Some(step);
        post.disposition = Some(disposition);
        if disposition == Disposition::Dropped && post.ttl > 0 {
            return Err(format!("{stamp:?} was dropped although its TTL is {}", post.ttl));
        }
        let post = &self.posts[index];
        let behind = |p: &Post| {
            !p.foreign
                && p.to.uaid == post.to.uaid
                && p.seen.is_some_and(|seen| seen < post.start)
                && p.stamp > post.stamp
        };
        if self.posts.iter().any(behind) {
            return Err(format!("{stamp:?} is older than an earlier 201 of its user"));
        }
        Ok(())
    }

    /// A session is over, or never was.
    pub(crate) fn session_ended(&mut self, id: SocketId) {
        self.resident.retain(|_, socket| *socket != id);
    }

    /// All sessions are over.
    pub(crate) fn end_sessions(&mut self) {
        self.resident.clear();
        self.hung_up.clear();
        self.acked_versions.clear();
    }

    /// An unregister was decoded.
    pub(crate) fn unregister_asked(&mut self, id: SocketId, uaid: Uaid, chid: Chid, step: u64) {
        let channel = self.channels.entry((uaid, chid)).or_default();
        channel.registered = None;
        channel.version += 1;
        channel.unregistered_until = Some(u64::MAX);
        self.unregisters.insert(id, (uaid, chid, step));
    }

    /// It was answered.
    pub(crate) fn unregister_answered(&mut self, id: SocketId, status: u16, step: u64) {
        let Some((uaid, chid, asked)) = self.unregisters.remove(&id) else { return };
        let channel = self.channels.entry((uaid, chid)).or_default();
        channel.version += 1;
        channel.unregistered_until = Some(step);
        if status == 200 {
            self.acked_versions.remove(&(uaid, chid));
            channel.registered = Some(false);
            channel.dropped_before = channel.dropped_before.max(asked);
        }
    }

    /// Storage is asked to delete this version.
    pub(crate) fn settle_asked(&mut self, stamp: Stamp) {
        if let Some(index) = self.by_stamp.get(&stamp) {
            let post = &mut self.posts[*index];
            let channel = self.channels.get(&(post.to.uaid, post.to.chid));
            post.settle_asked = true;
            // Messages that this node accepts itself are refused meanwhile, so they have no such excuse.
            post.left_out |= post.foreign && channel.is_some_and(|channel| channel.left_out);
        }
    }

    /// Storage has dropped this user, by a rule.
    pub(crate) fn user_dropped(&mut self, uaid: Uaid, step: u64) {
        self.minimums.remove(&uaid);
        self.posts.iter_mut().filter(|post| post.to.uaid == uaid).for_each(|post| post.user_dropped = true);
        for (_, channel) in self.channels.iter_mut().filter(|((of, _), _)| *of == uaid) {
            channel.registered = None;
            channel.version += 1;
            channel.unregistered_until = channel.unregistered_until.max(Some(step));
        }
    }

    /// Storage has unregistered a channel that a hello left out.
    pub(crate) fn channel_forgotten(&mut self, uaid: Uaid, chid: Chid, step: u64) {
        let channel = self.channels.entry((uaid, chid)).or_default();
        channel.unregistered_until = channel.unregistered_until.max(Some(step));
    }

    /// A hello that is answered has left out every channel that it does not say (PROTOCOL.md, WS-RECON-1). After an
    /// error storage has them still, but the machine may not show that.
    pub(crate) fn channels_said(&mut self, uaid: Uaid, said: &[Chid]) {
        let left_out = |key: &(Uaid, Chid)| key.0 == uaid && !said.contains(&key.1);
        for (_, channel) in self.channels.iter_mut().filter(|(key, _)| left_out(key)) {
            channel.registered = channel.registered.filter(|registered| !registered);
            channel.version += 1;
        }
    }

    /// A user has this mode from now on: what is left of the other mode is dropped.
    pub(crate) fn mode_said(&mut self, uaid: Uaid, mode: Mode) {
        if self.modes.insert(uaid, mode).is_some_and(|before| before != mode) {
            self.mixed.insert(uaid);
        }
    }

    /// A hello reads its user, or takes the channel up again: what an earlier hello left out says nothing more.
    pub(crate) fn taken_up(&mut self, uaid: Uaid, chid: Option<Chid>) {
        let of_user = |key: &(Uaid, Chid)| key.0 == uaid && chid.is_none_or(|chid| key.1 == chid);
        self.channels.iter_mut().filter(|(key, _)| of_user(key)).for_each(|(_, channel)| channel.left_out = false);
    }

    /// After a kill: acks whose settle did not survive are undone, and nothing is under way any more.
    pub(crate) fn killed(&mut self, store: &Model, ledgers: &[Message], step: u64) {
        let rows = store.users_after(None).flat_map(|(_, user)| user.messages()).map(|message| message.stamp);
        let left: BTreeSet<Stamp> = rows.chain(ledgers.iter().map(|message| message.stamp)).collect();
        for post in &mut self.posts {
            post.deliveries.forget();
            let ended = post.acked.is_some() || post.settle_asked;
            if ended && post.stamp.is_some_and(|stamp| left.contains(&stamp)) {
                post.end_lost = true;
            }
        }
        self.acked_in_step.clear();
        self.closed(step);
    }

    /// The process ended: everything that was under way has happened or never will.
    pub(crate) fn closed(&mut self, step: u64) {
        self.unregisters.clear();
        // Messages that were settled lately are remembered in memory only.
        self.posts.iter_mut().for_each(|post| post.pushed = None);
        for channel in self.channels.values_mut() {
            channel.left_out = false;
            if channel.unregistered_until == Some(u64::MAX) {
                channel.unregistered_until = Some(step);
            }
        }
    }

    /// The rule by which a message has ended, other than by replacement.
    pub(crate) fn ended(&self, post: &Post) -> Option<&'static str> {
        let unregistered =
            self.channels.get(&(post.to.uaid, post.to.chid)).and_then(|channel| channel.unregistered_until);
        if post.acked.is_some() {
            Some("fate: acked")
        } else if post.ttl == 0 {
            Some("fate: TTL 0")
        } else if post.cancel_asked {
            Some("fate: cancelled")
        } else if unregistered.is_some_and(|until| until >= post.start) {
            Some("fate: channel unregistered")
        } else if self.wall_max >= post.expires {
            Some("fate: expired")
        } else if post.ack_odd {
            Some("fate: acked unseen")
        } else if post.damaged {
            Some("fate: its ledger record was damaged")
        } else if self.mixed.contains(&post.to.uaid) {
            Some("fate: of another mode")
        } else if post.user_dropped {
            Some("fate: user dropped")
        } else if post.left_out {
            Some("fate: channel left out by a hello")
        } else if post.deliveries.are_spent(self.attempts_max) {
            Some("fate: unacked")
        } else {
            None
        }
    }
}
