//! The end of every world: faults off, every user agent connects, reads and acks. Then nothing may be missing.

use crate::parts::Agent;
use crate::plan::Faults;
use crate::shared::Verdict;
use crate::socket::Place;
use crate::world::World;

impl World {
    /// Runs the calm part and the last checks.
    pub(crate) fn quiesce(&mut self) -> Verdict {
        self.weather_clears()?;
        self.everybody_leaves();
        self.agents.clear();
        self.settle(30)?;
        let known = |uaid: &_| self.store.seen().user(*uaid).is_some();
        let users: Vec<_> = self.oracle.users.iter().copied().filter(known).collect();
        self.agents.extend(users.into_iter().map(|uaid| Agent { uaid: Some(uaid), ..Agent::default() }));
        self.settle(200)?;
        if self.store.full_until > self.now {
            // Operations that must happen succeed, and no user agent is locked out.
            self.at_rest().map_err(|what| format!("with a full storage: {what}"))?;
            self.store.full_until = 0;
        }
        self.conserved("everybody was connected")?;
        self.post_everywhere()?;
        self.settle(150)?;
        self.conserved("everybody got one more")?;
        self.at_rest()?;
        if self.hibernation.plan.outlives {
            self.restart_frozen()?;
            self.settle(150)?;
            self.conserved("frozen sessions went on")?;
            self.at_rest()?;
        }
        self.everybody_leaves();
        self.settle(200)?;
        self.conserved("everybody came back")?;
        self.at_rest()?;
        self.count_fates();
        self.count_machines();
        Ok(())
    }

    fn weather_clears(&mut self) -> Verdict {
        self.log(None, format_args!("calm"));
        self.plan.faults = Faults::default();
        self.calm = true;
        self.kill_next = false;
        self.store.stalled_until = 0;
        self.store.down_until = 0;
        self.store.bytes_max = u64::MAX;
        self.store.full_until = if self.plan.ends_full { u64::MAX } else { 0 };
        self.shards.iter_mut().for_each(|shard| shard.stalled_until = 0);
        for moving in &mut self.moves {
            moving.fails = false;
        }
        // From now on nothing is in the way of a stop.
        self.stopping = self.stopping.map(|_| self.now);
        while self.stopping.is_some() {
            self.turn()?;
            self.end_stop()?;
        }
        if self.plan.sessions_max < 1_000 {
            // Not every user agent could connect: the next boot has room.
            self.plan.sessions_max = 1_000;
            self.kill()?;
        }
        Ok(())
    }

    /// Every user agent goes away; the loops will notice.
    fn everybody_leaves(&mut self) {
        for index in 0..self.agents.len() {
            for id in std::mem::take(&mut self.agents[index].sockets) {
                self.hang_up(index, id);
            }
            self.agents[index].retry_at = self.now + 5_000_000_000;
        }
        for relay in 0..self.relays.len() {
            if let Some(id) = self.relays[relay].socket {
                self.hang_up_relay(id, relay);
            }
        }
    }

    /// Lets at least `seconds` pass, and then everything happen that is still due.
    fn settle(&mut self, seconds: u64) -> Verdict {
        let until = self.now + seconds * 1_000_000_000;
        for _ in 0..TURNS_MAX {
            self.everybody_connects();
            if self.now >= until && self.store.idle() && self.hibernation_idle() && self.enabled().is_empty() {
                return Ok(());
            }
            self.turn()?;
        }
        Err(format!("still busy after {TURNS_MAX} turns without faults"))
    }

    fn everybody_connects(&mut self) {
        for index in 0..self.agents.len() {
            if self.agents[index].sockets.is_empty() && self.now >= self.agents[index].retry_at {
                self.connect(index);
            }
        }
    }

    /// One message to every channel that is certainly registered: all are accepted.
    pub(crate) fn post_everywhere(&mut self) -> Verdict {
        let channels: Vec<_> =
            self.oracle.channels.iter().filter(|(_, c)| c.registered == Some(true)).map(|(k, _)| *k).collect();
        for (uaid, chid) in channels {
            let before = self.oracle.posts.len();
            for _ in 0..TURNS_MAX {
                if self.posters[0].pending.is_some() {
                    self.turn()?;
                } else if self.oracle.posts.len() == before {
                    self.posts(0, uaid, chid, 2_000_000)?;
                } else {
                    break;
                }
            }
            // A drain may have found too many messages meanwhile, and have dropped the user.
            let registered = self.oracle.channels.get(&(uaid, chid)).is_some_and(|c| c.registered == Some(true));
            if registered && self.oracle.posts.get(before).is_none_or(|post| post.seen.is_none()) {
                return Err(format!("message {before} was not accepted although nothing fails"));
            }
        }
        Ok(())
    }

    /// Every 201 has been kept.
    fn conserved(&mut self, when: &str) -> Verdict {
        for (index, post) in self.oracle.posts.iter().enumerate() {
            if post.seen.is_some() && self.fate(index).is_none() {
                return Err(format!("message {index} is lost ({when}): {post:?}"));
            }
        }
        Ok(())
    }

    /// Nothing is under way, nothing is owed.
    fn at_rest(&mut self) -> Verdict {
        for shard in 0..self.shards.len() {
            if !self.shards[shard].machine.is_quiet() {
                return Err(format!("shard {shard} has work under way at rest"));
            }
            let out = self.store.outstanding_count(shard);
            if out > 0 {
                return Err(format!("shard {shard} waits for {out} storage replies at rest"));
            }
        }
        if let Some((post, _)) = self.ledgered().iter().next() {
            return Err(format!("message {post} is in a ledger at rest"));
        }
        for (id, socket) in self.sockets.iter().enumerate() {
            if matches!(socket.place, Place::At { .. }) && !socket.ready {
                return Err(format!("socket {id} waits for an answer at rest"));
            }
            if socket.place == Place::Left {
                return Err(format!("socket {id} waits for its hello at rest"));
            }
            if socket.place == Place::Moving {
                return Err(format!("socket {id} is between two shards at rest"));
            }
        }
        if let Some(index) = self.posters.iter().position(|poster| poster.pending.is_some()) {
            return Err(format!("poster {index} waits for an answer at rest"));
        }
        for (index, agent) in self.agents.iter().enumerate() {
            let served = agent.sockets.last().and_then(|id| self.sockets[*id].session.served);
            if served.is_none() || served != agent.uaid {
                return Err(format!("agent {index} is not served at rest"));
            }
            let Some(uaid) = served else { continue };
            let machine = &self.shards[self.owner(uaid)].machine;
            if !machine.is_resident(uaid) || machine.window_len(uaid) > 0 {
                return Err(format!("agent {index} has a window of {} at rest", machine.window_len(uaid)));
            }
        }
        self.up_to_date()
    }

    /// Every subscriber has the latest version of what it knows of.
    fn up_to_date(&self) -> Verdict {
        for agent in &self.agents {
            let Some(socket) = agent.sockets.last().map(|id| &self.sockets[*id]) else { continue };
            for (id, version) in &socket.peer.broadcasts {
                if self.broadcasts.iter().any(|known| known.id == *id && known.version != *version) {
                    return Err(format!("a session has version {version} of broadcast {id}, which is old"));
                }
            }
        }
        Ok(())
    }

    fn count_fates(&mut self) {
        for index in 0..self.oracle.posts.len() {
            let fate = self.oracle.posts[index].seen.and_then(|_| self.fate(index));
            self.marks.add(fate.unwrap_or("fate: none"), u64::from(fate.is_some()));
        }
        let left = self.store.seen().users_after(None).flat_map(|(_, user)| user.messages()).count();
        self.marks.add("rows left at the end", left as u64);
    }
}

/// Turns in which a world without faults comes to rest.
const TURNS_MAX: u32 = 200_000;
