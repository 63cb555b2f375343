//! App servers that ask what became of a message: what a receipt says must be true.

use machine::time::{TimeSpan, UnixSeconds};
use machine::{Outcome, ReceiptAnswer, ReceiptQuery, SenderCommand};

use crate::oracle::Channel;
use crate::parts::Pending;
use crate::shared::Verdict;
use crate::world::World;

impl World {
    /// Asks about one of the latest messages whose receipt was asked for, and waits a while or not at all.
    pub(crate) fn asks_receipt(&mut self, index: usize) -> Verdict {
        let recent = self.oracle.posts.len().saturating_sub(12);
        let wanted = |post: &usize| self.oracle.posts[*post].receipt && self.oracle.posts[*post].seen.is_some();
        let wanted: Vec<usize> = (recent..self.oracle.posts.len()).filter(wanted).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let post = wanted[self.rng.clients.index(wanted.len())];
        let wait = TimeSpan::from_ms(self.rng.clients.pick(&[0, 500, 5_000, 60_000]));
        let Some((id, shard)) = self.poster_socket(index) else { return Ok(()) };
        let target = &self.oracle.posts[post];
        let Some(stamp) = target.stamp else { return Ok(()) };
        let expires = UnixSeconds(stamp.clock.0 / 1_000_000 + u64::from(target.ttl));
        let query =
            ReceiptQuery { uaid: target.to.uaid, chid: target.to.chid, stamp, topic: target.topic, expires, wait };
        self.posters[index].pending = Some(Pending::Receipt { post });
        self.log(None, format_args!("poster {index} asks what became of message {post}, waits {wait:?}"));
        self.request(id, shard, SenderCommand::Receipt(Box::new(query)))
    }

    /// Checks the outcome that the machine gives for a message.
    pub(crate) fn receipt_said(&mut self, post: usize, answer: ReceiptAnswer) -> Verdict {
        let target = &self.oracle.posts[post];
        let (mark, truth) = match answer {
            ReceiptAnswer::Pending => ("receipt: pending", true),
            ReceiptAnswer::Unavailable => ("receipt: 503", true),
            // Only a restart forgets, at the numbers of these worlds. Or storage has removed it, and did not say why.
            ReceiptAnswer::Unknown => ("receipt: unknown", target.boot != self.boots || self.removed_unseen(post)),
            ReceiptAnswer::Ended(outcome) => match outcome {
                Outcome::Delivered | Outcome::Undecryptable | Outcome::Undelivered => {
                    ("receipt: delivered", target.acked.is_some() || target.ack_odd)
                }
                // A late ack, or one of what an earlier process had acked and lost, is no delivery any more.
                Outcome::Expired => {
                    let late = target.acked.is_none() || !target.acked_in_time || target.end_lost;
                    let over = target.ttl == 0 || self.oracle.wall_max >= target.expires;
                    ("receipt: expired", late && over)
                }
                Outcome::Unacked => {
                    let late = target.acked.is_none() || !target.acked_in_time || target.acked_when_spent;
                    ("receipt: unacked", late && target.deliveries.are_spent(self.plan.attempts_max))
                }
                Outcome::Replaced => ("receipt: replaced", target.topic.is_some()),
                Outcome::Cancelled => ("receipt: cancelled", target.cancel_asked),
                Outcome::Unregistered => {
                    let channel = self.oracle.channels.get(&(target.to.uaid, target.to.chid));
                    let other = self.oracle.mixed.contains(&target.to.uaid) || target.user_dropped;
                    let gone = channel.is_some_and(|channel| channel.unregistered_until.is_some());
                    ("receipt: unregistered", gone || other)
                }
            },
        };
        self.marks.hit(mark);
        if truth { Ok(()) } else { Err(format!("the receipt of message {post} says {answer:?}: {target:?}")) }
    }

    /// Storage may have removed it for an unregister or a newer message of its topic, or by a clock that went back.
    fn removed_unseen(&self, post: usize) -> bool {
        let post = &self.oracle.posts[post];
        let unregistered = |channel: &Channel| channel.unregistered_until.is_some_and(|until| until >= post.start);
        let held = post.row().is_some_and(|row| self.store.seen().row(&row).is_some());
        let channel = self.oracle.channels.get(&(post.to.uaid, post.to.chid));
        let over = self.oracle.wall_max >= post.expires;
        over || !held && (post.topic.is_some() || channel.is_some_and(unregistered))
    }
}
