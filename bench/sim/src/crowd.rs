//! Worlds with more of something than others have: the bounds of a shard are in the thousands.
//!
//! These follow a script: everything that can happen does, in rounds, while some shards stand still.

use machine::ids::{Chid, Uaid};
use machine::time::TimeSpan;
use machine::{AgentCommand, Hello, Input};

use crate::parts::{Agent, Habit};
use crate::plan::Crowd;
use crate::plan::{Faults, Plan};
use crate::shared::Verdict;
use crate::socket::{Place, Socket};
use crate::world::{World, WorldEvent};

impl Plan {
    /// Room for very many, and no faults.
    pub(crate) fn make_room(&mut self, crowd: Crowd) {
        (self.shards, self.agents, self.posters) = (if crowd == Crowd::Claims { 6 } else { 2 }, 0, 1);
        (self.sessions_max, self.socket_frames, self.relays, self.relay_members) = (10_000, usize::MAX, 1, 2_000);
        (self.window, self.topics, self.receipts, self.token_rate) = (16, 0, 0, 0);
        (self.durable, self.reconcile, self.urgencies, self.minimums) = (false, false, false, 0);
        (self.hello_timeout, self.ping_interval) = (TimeSpan::from_secs(5), TimeSpan(0));
        (self.spill_after, self.store_latency) = (TimeSpan::from_secs(10), TimeSpan(0));
        (self.ledger_bytes_max, self.store_bytes) = (4 << 20, u64::MAX);
        self.faults = Faults::default();
    }
}

impl World {
    /// Runs the script.
    pub(crate) fn crowd(&mut self, crowd: Crowd) -> Verdict {
        match crowd {
            Crowd::Claims => self.crowd_of_claims(),
            Crowd::Members => self.crowd_of_members(),
        }
    }

    /// The owner grants while the others stand still, and the others move while the owner stands still.
    fn crowd_of_claims(&mut self) -> Verdict {
        self.marks.hit("crowd: claims");
        for user in self.users_of_first_shard(CLAIMS) {
            let shard = 1 + self.sockets.len() % (self.shards.len() - 1);
            let mut socket = Socket::new(Some(self.agents.len()), Place::Waiting { shard });
            socket.peer.asked = Some(user);
            socket.inbox.push_back(AgentCommand::Hello(Box::new(Hello::new(Some(user), user))).into());
            self.sockets.push(socket);
            self.agents.push(Agent { uaid: Some(user), ..Agent::default() });
        }
        for owner_stands in [true, false, true, false] {
            for shard in 0..self.shards.len() {
                let stands = (shard == 0) == owner_stands;
                self.shards[shard].stalled_until = if stands { u64::MAX } else { 0 };
            }
            self.exhaust()?;
        }
        self.shards.iter_mut().for_each(|shard| shard.stalled_until = 0);
        self.exhaust()
    }

    /// Storage stands still, the process must stop, and every member has messages that expire meanwhile.
    fn crowd_of_members(&mut self) -> Verdict {
        self.marks.hit("crowd: members");
        let users = self.users_of_first_shard(MEMBERS);
        for user in &users {
            let index = self.agents.len();
            self.agents.push(Agent { uaid: Some(*user), habit: Habit::NeverAcks, ..Agent::default() });
            let id = self.connect_member(index, 0);
            self.sockets[id].peer.asked = Some(*user);
            self.sockets[id].inbox.push_back(AgentCommand::Hello(Box::new(Hello::new(Some(*user), *user))).into());
            self.flush_member(id);
        }
        self.exhaust()?;
        for user in users.iter().cycle().take(4 * MEMBERS) {
            self.posts(0, *user, CHANNEL, 3)?;
            while self.posters[0].pending.is_some() {
                self.exhaust()?;
            }
        }
        self.store.stalled_until = u64::MAX;
        self.stopping = Some(u64::MAX);
        for shard in 0..self.shards.len() {
            self.step(shard, Input::Drain { rate: 1_000_000 })?;
        }
        self.exhaust()?;
        self.now += 5_000_000_000;
        self.exhaust()?;
        self.store.stalled_until = 0;
        for _ in 0..20 {
            self.exhaust()?;
            self.now += 400_000_000;
        }
        Ok(())
    }

    /// Users that storage knows, with one channel each.
    fn users_of_first_shard(&mut self, count: usize) -> Vec<Uaid> {
        let mut users = Vec::new();
        while users.len() < count {
            let uaid = Uaid(self.rng.clients.bytes16());
            if self.owner(uaid) == 0 {
                self.store.know(uaid, CHANNEL, self.time().unix());
                self.oracle.users.insert(uaid);
                self.oracle.channels.entry((uaid, CHANNEL)).or_default().registered = Some(true);
                users.push(uaid);
            }
        }
        users
    }

    /// Rounds of everything that can happen, until nothing can. No user agent reads.
    fn exhaust(&mut self) -> Verdict {
        loop {
            let enabled = self.enabled();
            let mut over = true;
            for next in enabled.into_iter().filter(|next| !matches!(next, WorldEvent::Receive(_))) {
                self.now += 1_000;
                over = false;
                match next {
                    // Its index may be another's by now.
                    WorldEvent::Descriptor(_) => {}
                    WorldEvent::Mail(to, lane) => {
                        for _ in 0..self.lanes[to][lane as usize].len() {
                            self.happen(next)?;
                        }
                    }
                    _ => self.happen(next)?,
                }
            }
            while let Some(index) = (0..self.moves.len()).rfind(|index| self.awake(self.moves[*index].to)) {
                over = false;
                self.happen(WorldEvent::Descriptor(index))?;
            }
            if over {
                return Ok(());
            }
        }
    }
}

const CHANNEL: Chid = Chid([1; 16]);
/// More than `limits::GRANTS_MAX`.
const CLAIMS: usize = 2_200;
/// More than a drain ends in one turn (`limits::SWEEP_SESSIONS_PER_TURN`).
const MEMBERS: usize = 1_100;
