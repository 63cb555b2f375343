//! The process: start, kill, orderly stop.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use machine::ids::{Clock, Origin, ShardId, Uaid};
use machine::message::Message;
use machine::placement::Placement;
use machine::{BroadcastVersion, EffectQueue, Input, MachineConfig, Mail, ShardMachine, StoreOp};

use crate::bodies::Bodies;
use crate::shard_log::ShardLog;
use crate::shared::{PLACEMENT_KEY, Verdict};
use crate::socket::Place;
use crate::world::{Shard, World};

impl World {
    /// Starts the process: saves live ledger records, then opens the shards.
    pub(crate) fn boot(&mut self, shard_count: u16) -> Verdict {
        let floor = self.shards.iter().map(|shard| shard.floor).max().unwrap_or(Clock(0));
        let floor = floor.max(self.oracle.floor);
        self.oracle.floor = floor;
        self.boots += 1;
        self.count_machines();
        self.placement = Placement::new(PLACEMENT_KEY, shard_count);
        self.shards = (0..shard_count).map(|shard| self.open_shard(shard, floor)).collect();
        self.lanes = (0..shard_count).map(|_| <[VecDeque<Mail>; 3]>::default()).collect();
        self.stopping = None;
        self.log(None, format_args!("boot with {shard_count} shards"));
        self.some_leave();
        if !self.broadcasts.is_empty() {
            self.tell_broadcasts()?;
        }
        Ok(())
    }

    fn open_shard(&mut self, shard: u16, clock_floor: Clock) -> Shard {
        let plan = &self.plan;
        let config = MachineConfig {
            origin: Origin(self.rng.network.bits() as u32),
            clock_floor,
            window: plan.window,
            durable: plan.durable,
            spill_after: plan.spill_after,
            retry_after: plan.retry_after,
            hello_timeout: plan.hello_timeout,
            ping_interval: plan.ping_interval,
            pong_timeout: plan.pong_timeout,
            sessions_max: plan.sessions_max,
            ledger_bytes_max: plan.ledger_bytes_max,
            token_rate: plan.token_rate,
            relay_members: if plan.relays > 0 { plan.relay_members } else { 0 },
            wake_timeout: plan.wake_timeout,
            reconcile: plan.reconcile,
            msg_limit: plan.msg_limit,
            attempts_max: plan.attempts_max,
            release_on_activity: plan.release_on_activity,
            ..MachineConfig::new(ShardId(shard), self.placement)
        };
        Shard {
            machine: ShardMachine::new(config),
            effects: EffectQueue::new(),
            log: ShardLog::new(plan.log_bytes, shard, self.rng.network.bits(), clock_floor),
            slots: Vec::new(),
            free: Vec::new(),
            stalled_until: 0,
            floor: clock_floor,
            drained: false,
        }
    }

    /// At a start every live record of any log is saved to storage before listeners open. A kill in the middle of that
    /// leaves the logs: the next start saves all of it once more.
    fn replay(&mut self, recovered: &[Message]) {
        let mut of_user: BTreeMap<Uaid, Vec<Arc<Message>>> = BTreeMap::new();
        let replayed: Vec<&Message> = recovered.iter().filter(|message| !self.replay_forgotten(message)).collect();
        for message in replayed {
            self.marks.hit("start: ledger record replayed");
            of_user.entry(message.uaid).or_default().push(Arc::new(message.clone()));
        }
        for messages in of_user.values_mut() {
            messages.sort_by_key(|message| message.stamp);
            messages.dedup_by_key(|message| message.stamp);
        }
        if self.rng.faults.permille(self.plan.faults.kill * 20) {
            self.marks.hit("kill: in a start");
            let some = self.rng.faults.index(of_user.len() + 1);
            of_user.values().take(some).for_each(|messages| self.replay_user(messages));
        }
        of_user.values().for_each(|messages| self.replay_user(messages));
    }

    fn replay_user(&mut self, messages: &[Arc<Message>]) {
        self.oracle.stored(messages);
        self.store.replay(StoreOp::Save { messages: messages.to_vec() });
    }

    /// The process is gone in the middle of its work.
    pub(crate) fn kill(&mut self) -> Verdict {
        self.kill_next = false;
        self.log(None, format_args!("kill -9"));
        self.marks.hit("kill");
        if !self.ledgered().is_empty() {
            self.marks.hit("kill: live ledger records");
        }
        let written = self.store.kill(&mut self.rng.store, &mut self.marks);
        self.worked(&written);
        self.oracle.power_cut = self.rng.faults.permille(self.plan.faults.power_cut);
        let recovered = self.recover()?;
        let mut ledgered = BTreeMap::new();
        for message in &recovered.messages {
            let post = self.oracle.identify(message)?;
            self.oracle.stamped(post, message)?;
            self.oracle.ledgered(message);
            ledgered.insert(post, 1);
        }
        self.all_held(&ledgered, "at a kill")?;
        self.oracle.killed(self.store.seen(), &recovered.messages, self.steps);
        self.end_process(self.hibernation.plan.outlives && !self.oracle.power_cut);
        self.oracle.floor = self.oracle.floor.max(recovered.floor);
        if self.oracle.power_cut {
            self.host_boots();
        }
        self.count_machines();
        self.shards.clear();
        self.bodies = Bodies::default();
        self.replay(&recovered.messages);
        let shards = self.next_shard_count();
        self.boot(shards)
    }

    /// A host that comes back has the time from the network, and that took longer than clocks were ahead.
    fn host_boots(&mut self) {
        self.now += 30_000_000_000 + self.rng.faults.below(300_000_000_000);
        // Lost floors matter only to a clock that is set back by more than the host was off: not in these worlds.
        let floor = self.shards.iter().map(|shard| shard.floor).max().unwrap_or_default();
        self.oracle.floor = self.oracle.floor.max(floor);
        let behind = self.oracle.wall_max.max(floor.0 / 1_000_000).saturating_sub(self.time().unix().0);
        self.wall_offset_us += (behind + 30) * 1_000_000;
        self.oracle.wall_max = self.oracle.wall_max.max(self.time().unix().0);
    }

    fn next_shard_count(&mut self) -> u16 {
        let before = self.placement.shard_count();
        let shards = if self.rng.faults.permille(500) { self.rng.faults.between(2, 8) as u16 } else { before };
        if shards != before {
            self.marks.hit("start: another number of shards");
        }
        shards
    }

    /// Everything that a process takes with it. `recorded`: its frozen sessions are left to the next one.
    fn end_process(&mut self, recorded: bool) {
        self.end_hibernation(recorded);
        self.lanes.clear();
        self.moves.clear();
        for id in 0..self.sockets.len() {
            if self.sockets[id].is_stale || self.is_left(id) {
                continue;
            }
            if self.sockets[id].place != Place::Ended {
                self.sockets[id].place = Place::Ended;
                self.sockets[id].peer_open = false;
            }
            self.sockets[id].outbox.clear();
            self.sockets[id].peer_open = false;
        }
        for relay in 0..self.relays.len() {
            self.relay_gone(relay);
        }
        self.oracle.end_sessions();
        self.posters_cut();
    }

    /// SIGTERM.
    pub(crate) fn stop(&mut self) -> Verdict {
        if self.stopping.is_some() {
            return Ok(());
        }
        self.marks.hit("stop: asked");
        let rate = self.rng.faults.pick(&[20, 100, 1000]) as u32;
        self.stopping = Some(self.now + 60_000_000_000);
        if self.leaves_sessions() {
            self.freeze_silent(900);
        }
        for shard in 0..self.shards.len() {
            if self.stopping.is_some() {
                self.step(shard, Input::Drain { rate })?;
            }
        }
        Ok(())
    }

    /// `Effect::Drained`.
    pub(crate) fn drained(&mut self, shard: usize) -> Verdict {
        if self.stopping.is_none() {
            return Err("Drained without a Drain".to_owned());
        }
        if self.store.outstanding_count(shard) > 0 {
            return Err(format!("shard {shard} says Drained with storage work out"));
        }
        if self.shards[shard].log.posts().next().is_some() {
            return Err(format!("shard {shard} says Drained with live ledger records"));
        }
        let held = self
            .sockets
            .iter()
            .any(|socket| socket.is_websocket() && matches!(socket.place, Place::At { shard: at, .. } if at == shard));
        if held {
            return Err(format!("shard {shard} says Drained with sessions"));
        }
        self.shards[shard].drained = true;
        Ok(())
    }

    /// Ends a process that was asked to stop, once it is drained or its time is up.
    pub(crate) fn end_stop(&mut self) -> Verdict {
        let Some(deadline) = self.stopping else { return Ok(()) };
        if self.shards.iter().all(|shard| shard.drained) {
            self.marks.hit("stop: drained");
            let leaves = self.leaves_sessions();
            self.log(None, format_args!("exit 0"));
            if self.store.idle() {
                self.store.close();
                self.oracle.closed(self.steps);
            } else {
                // POSTs that came in behind Drained: the process does not wait for them.
                return self.kill();
            }
            self.end_process(leaves);
            let shards = self.next_shard_count();
            return self.boot(shards);
        }
        if self.now < deadline {
            return Ok(());
        }
        if self.plan.faults.store_error + self.plan.faults.store_reply_lost + self.plan.faults.store_full == 0
            && self.plan.faults.store_stall + self.plan.faults.shard_stall == 0
            && self.now > deadline + 120_000_000_000
            && self.enabled().is_empty()
            && self.store.idle()
        {
            return Err("a stop without faults was never complete".to_owned());
        }
        if self.now < deadline + 240_000_000_000 {
            return Ok(());
        }
        self.marks.hit("stop: cut short");
        self.kill()
    }

    /// Every shard learns the broadcast values.
    pub(crate) fn tell_broadcasts(&mut self) -> Verdict {
        let values: Arc<[BroadcastVersion]> = self.broadcasts.clone().into();
        for shard in 0..self.shards.len() {
            // A kill on the way may have left fewer of them, and its boot has told them already.
            if shard < self.shards.len() {
                self.step(shard, Input::Broadcasts(values.clone()))?;
            }
        }
        Ok(())
    }

    /// Adds what this boot's machines counted to the marks.
    pub(crate) fn count_machines(&mut self) {
        self.marks.count_machines(self.shards.iter_mut().map(|shard| &mut shard.machine));
    }
}
