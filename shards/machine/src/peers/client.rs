//! Calls of other nodes as decisions: which call is made when, what a failure leaves, and what the caller is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::time::Instant;
use crate::{NodeId, PeerReply};

use super::action::{PeerAction, PeerConfig, PeerCounts, PeerNote};
use super::call::{BootRow, CallEnd, PeerCall};
use super::debts::{DEBT_INTERVAL, DebtTime, Lost};
use super::peer::{Peer, PeerState};
use super::retry_queue::PendingNotify;

/// Calls of all other nodes.
pub struct PeerClient<T> {
    config: PeerConfig,
    peers: BTreeMap<Arc<str>, Peer<T>>,
    actions: VecDeque<PeerAction<T>>,
    /// Nodes that notifications were lost for, with no word in the database yet.
    lost: BTreeMap<Arc<str>, Lost>,
    /// Time of the next writes for `lost`.
    lost_at: Instant,
    ending: bool,
    draws: u64,
    pub counts: PeerCounts,
}

impl<T> PeerClient<T> {
    pub fn new(config: PeerConfig) -> PeerClient<T> {
        PeerClient {
            draws: config.id,
            config,
            peers: BTreeMap::new(),
            actions: VecDeque::new(),
            lost: BTreeMap::new(),
            lost_at: Instant(0),
            ending: false,
            counts: PeerCounts::default(),
        }
    }

    /// Returns true if [`PeerClient::next_action`] has one, or [`PeerClient::tick`] makes one.
    pub fn is_due(&self, now: Instant) -> bool {
        !self.actions.is_empty() || self.due(now).is_some_and(|due| due <= now)
    }

    /// Returns what must be done next, until there is nothing.
    pub fn next_action(&mut self) -> Option<PeerAction<T>> {
        self.actions.pop_front()
    }

    /// Returns the number of notifications that are owed, and of nodes that must still be told of lost ones. At the end
    /// of this boot each node that may be owed something counts, until its row says that this boot ends.
    pub fn owed(&self) -> usize {
        let peers = self.peers.values().filter(|peer| !peer.debt.is_left());
        let owed = peers.map(|peer| peer.owed().max(usize::from(peer.may_owe(self.ending))));
        owed.sum::<usize>() + self.lost.len()
    }

    /// Returns true if this node is owed something that is in no database.
    pub fn is_unwritten(&self, url: &str, now: Instant) -> bool {
        let owed = |peer: &Peer<T>| peer.may_owe(self.ending) && !peer.debt.stands(now);
        self.lost.contains_key(url) || self.peers.get(url).is_some_and(owed)
    }

    /// Returns the nodes that are owed something that is in no database: it ends with this boot.
    pub fn unwritten(&self, now: Instant) -> impl Iterator<Item = &Arc<str>> {
        let peers = self.peers.keys().filter(move |url| self.is_unwritten(url, now));
        peers.chain(self.lost.keys().filter(|url| !self.peers.contains_key(*url)))
    }

    /// Returns the nodes that are known, and the state of each.
    pub fn states(&self, now: Instant) -> impl Iterator<Item = (&Arc<str>, PeerState)> {
        self.peers.iter().map(move |(url, peer)| (url, peer.state(now)))
    }

    /// Returns true if this node is known.
    pub fn knows(&self, url: &str) -> bool {
        self.peers.contains_key(url)
    }

    /// Takes a call.
    pub fn submit(&mut self, call: PeerCall<T>, now: Instant) {
        let to = Arc::clone(call.to());
        if !self.peers.contains_key(&*to.url) {
            self.meet(&to, now);
        }
        let Some(peer) = self.peers.get_mut(&*to.url) else {
            if PendingNotify::of(&call.op).is_some() {
                self.counts.dropped += 1;
                self.lose(&to.url);
            }
            return self.reply(&Arc::from(&*to.url), call, PeerReply::Unreachable, false);
        };
        (peer.last_requested, peer.boot) = (now, to.boot);
        let url = Arc::clone(&peer.url);
        if peer.is_over(to.boot) {
            self.reply(&url, call, PeerReply::NotHere, false);
        } else if peer.is_open() || peer.waiting.len() >= WAITING_MAX {
            self.failed(&url, call, PeerReply::Unreachable, false, now);
        } else {
            peer.waiting.push_back(call);
            self.start_queued(&url, now);
        }
    }

    /// Gets to know a node, if there is room. Nodes that are not needed make room; else the one that does not answer
    /// and was wanted longest ago, which is told in the database what it was owed: a node that is gone for good and did
    /// not say so would keep its place for ever.
    fn meet(&mut self, to: &NodeId, now: Instant) {
        if self.peers.len() >= NODES_MAX {
            self.peers.retain(|_, peer| peer.is_needed());
        }
        if self.peers.len() >= NODES_MAX {
            let silent = self.peers.iter().filter(|(_, p)| p.is_open() && p.in_flight == 0 && !p.debt.busy);
            let Some(url) = silent.min_by_key(|(_, peer)| peer.last_requested).map(|(url, _)| Arc::clone(url)) else {
                return;
            };
            let owed = self.peers.remove(&url).map_or(0, |peer| peer.owed());
            self.counts.dropped += owed as u64;
            if owed > 0 {
                self.lose(&url);
            }
            self.actions.push_back(PeerAction::Note { url, note: PeerNote::Forgotten { owed } });
        }
        let url: Arc<str> = Arc::from(&*to.url);
        let mut peer = Peer::new(Arc::clone(&url), to.boot, now, self.config.retry_queue_max);
        if self.ending {
            peer.debt.ends(now);
        }
        self.peers.insert(url, peer);
    }

    /// Notes that notifications of a node are lost: it must read storage for all of its sessions. Beyond
    /// [`LOST_NODES_MAX`] nodes its sessions read at their refreshes.
    pub fn lose(&mut self, url: &str) {
        if let Some(lost) = self.lost.get_mut(url) {
            if *lost == Lost::Writing {
                *lost = Lost::WritingOld;
            }
        } else if self.lost.len() < LOST_NODES_MAX {
            self.lost.insert(Arc::from(url), Lost::Due);
        }
    }

    /// Makes as many of the calls that wait as there are connections for.
    fn start_queued(&mut self, url: &Arc<str>, now: Instant) {
        let connections_max = self.config.connections_max;
        let Some(peer) = self.peers.get_mut(url) else { return };
        while !peer.is_open() && peer.in_flight < connections_max {
            let call = if peer.retry_queue.is_due(now) && peer.has_retry_room(connections_max) {
                let Some(pending) = peer.retry_queue.take() else { return };
                PeerCall { op: pending.to_op(), back: None, since: now, is_retry: true }
            } else {
                let Some(call) = peer.waiting.pop_front() else { return };
                call
            };
            peer.in_flight += 1;
            peer.retries_in_flight += usize::from(call.is_retry);
            self.actions.push_back(PeerAction::Call { url: Arc::clone(url), call });
        }
    }

    /// Takes the end of a call.
    pub fn called(&mut self, url: &Arc<str>, call: PeerCall<T>, end: CallEnd, now: Instant) {
        // Invariant: a node with a call under way is not forgotten.
        let peer = self.peers.get_mut(url).expect("the node of a call under way is known");
        peer.in_flight -= 1;
        peer.retries_in_flight -= usize::from(call.is_retry);
        match end {
            CallEnd::Answered(reply) => {
                peer.answered(now);
                match reply {
                    Some(reply) if reply != PeerReply::Unreachable => self.settled(url, call, reply, now),
                    _ => self.failed(url, call, PeerReply::Unreachable, true, now),
                }
            }
            CallEnd::NotConnected => self.went_wrong(url, call, PeerReply::Unreachable, now),
            CallEnd::NoAnswer => self.went_wrong(url, call, PeerReply::NoAnswer, now),
            // The machine then stores the message, as any that cannot be handed over; a notification stays owed.
            CallEnd::Unsayable => self.failed(url, call, PeerReply::Unreachable, false, now),
        }
        self.start_queued(url, now);
    }

    /// Passes the reply of the node on, and removes the call from those that are owed.
    fn settled(&mut self, url: &Arc<str>, call: PeerCall<T>, reply: PeerReply, now: Instant) {
        if let (Some(pending), Some(peer)) = (PendingNotify::of(&call.op), self.peers.get_mut(url)) {
            peer.retry_queue.remove(&pending);
            peer.retry_queue.answered(now);
            self.clear_debt(url, now);
        }
        let done = matches!(reply, PeerReply::Done | PeerReply::NotHere);
        self.counts.answered += u64::from(call.is_retry && done);
        self.reply(url, call, reply, true);
    }

    /// Fails a call that was made, and counts that. One too many opens the circuit and fails the calls that wait.
    fn went_wrong(&mut self, url: &Arc<str>, call: PeerCall<T>, reply: PeerReply, now: Instant) {
        self.failed(url, call, reply, true, now);
        let Some(peer) = self.peers.get_mut(url) else { return };
        if !peer.failed(now) {
            return;
        }
        let waiting = std::mem::take(&mut peer.waiting);
        self.counts.opened += 1;
        self.actions.push_back(PeerAction::Note { url: Arc::clone(url), note: PeerNote::Opened });
        for call in waiting {
            self.failed(url, call, PeerReply::Unreachable, false, now);
        }
    }

    /// Tells the caller that the call failed. A notification stays owed; the caller is told when the debt is written
    /// down, so that no POST is answered before.
    fn failed(&mut self, url: &Arc<str>, call: PeerCall<T>, reply: PeerReply, sent: bool, now: Instant) {
        let chance = self.chance();
        let Some(peer) = self.peers.get_mut(url) else { return };
        let owed = PendingNotify::of(&call.op);
        if let Some(pending) = owed.clone() {
            let forgotten = peer.retry_queue.insert(pending);
            if peer.retry_queue.is_due(now) {
                peer.retry_queue.failed(now, chance);
            }
            if peer.debt.is_left() {
                // The node is told already that it must read storage.
                self.counts.handed_over += peer.retry_queue.forget(|_| true) as u64;
            }
            if forgotten.is_some() {
                self.counts.dropped += 1;
                self.lose(url);
            }
        }
        self.write_debt(url, now);
        let Some(peer) = self.peers.get_mut(url) else { return };
        if owed.is_some() && !call.is_retry && peer.debt.busy && !peer.debt.stands(now) {
            peer.debt.held.push((call, reply, sent));
        } else {
            self.reply(url, call, reply, sent);
        }
    }

    fn reply(&mut self, url: &Arc<str>, call: PeerCall<T>, reply: PeerReply, sent: bool) {
        if !call.is_retry {
            self.actions.push_back(PeerAction::Reply { url: Arc::clone(url), call, reply, sent });
        }
    }

    /// Writes what a node is owed down, if that is due.
    fn write_debt(&mut self, url: &Arc<str>, now: Instant) {
        let Some(peer) = self.peers.get_mut(url) else { return };
        if peer.may_owe(self.ending)
            && let Some(time) = peer.debt.begin_write(now)
        {
            self.actions.push_back(PeerAction::WriteDebt { url: Arc::clone(url), id: self.config.id, time });
        }
    }

    /// Deletes the debt of a node that is owed nothing more. If words for it are lost, their row must be there first.
    fn clear_debt(&mut self, url: &Arc<str>, now: Instant) {
        let Some(peer) = self.peers.get_mut(url) else { return };
        if self.lost.contains_key(url) {
            peer.debt.put_off(now);
        } else if !peer.may_owe(self.ending) && peer.debt.begin_clear(now) {
            self.actions.push_back(PeerAction::ClearDebt { url: Arc::clone(url), id: self.config.id });
        }
    }

    /// Takes the end of [`PeerAction::WriteDebt`].
    pub fn debt_written(&mut self, url: &Arc<str>, id: u64, time: DebtTime, done: bool, now: Instant) {
        self.counts.written += u64::from(done);
        self.counts.write_failures += u64::from(!done);
        if id != self.config.id {
            if done && self.lost.get(url) == Some(&Lost::Writing) {
                self.lost.remove(url);
            } else if let Some(lost) = self.lost.get_mut(url) {
                *lost = Lost::Due;
            }
            return;
        }
        // Invariant: a node is not forgotten while its debt is being written.
        let peer = self.peers.get_mut(url).expect("the node of a debt is known");
        peer.debt.wrote(now, time, done);
        if done && time == DebtTime::Ended {
            self.counts.handed_over += peer.retry_queue.forget(|_| true) as u64;
        }
        self.release(url);
        self.write_debt(url, now);
        self.clear_debt(url, now);
    }

    /// Answers the calls that have waited for the write of a debt.
    fn release(&mut self, url: &Arc<str>) {
        let Some(peer) = self.peers.get_mut(url) else { return };
        for (call, reply, sent) in std::mem::take(&mut peer.debt.held) {
            self.reply(url, call, reply, sent);
        }
    }

    /// Takes the end of [`PeerAction::ClearDebt`].
    pub fn debt_cleared(&mut self, url: &Arc<str>, now: Instant) {
        if let Some(peer) = self.peers.get_mut(url) {
            peer.debt.cleared();
            self.write_debt(url, now);
        }
        if self.peers.get(url).is_some_and(|peer| !peer.debt.busy) {
            self.release(url);
        }
    }

    /// Takes the end of a probe.
    pub fn probed(&mut self, url: &Arc<str>, answered: bool, now: Instant) {
        let Some(peer) = self.peers.get_mut(url) else { return };
        if !answered {
            peer.circuit.probe_failed(now);
        } else if peer.answered(now) {
            let note = PeerNote::Closed { owed: peer.owed() };
            self.actions.push_back(PeerAction::Note { url: Arc::clone(url), note });
        }
        self.start_queued(url, now);
    }

    /// Takes the row of a node; `None` if it could not be read.
    pub fn looked(&mut self, url: &Arc<str>, boots: Vec<u64>, row: Option<BootRow>, now: Instant) {
        let gone_time = self.config.gone_time;
        let Some(peer) = self.peers.get_mut(url) else { return };
        peer.lookup_running = false;
        let gone = peer.seems_gone(row, gone_time, now);
        let Some(row) = row else { return };
        if gone {
            peer.lookup_running = true;
            self.actions.push_back(PeerAction::Bury { url: Arc::clone(url), boots, row });
        } else {
            self.ends(url, &boots, row, now);
        }
    }

    /// Takes the end of [`PeerAction::Bury`]. Only when it is written the boot counts as over: the boot itself must be
    /// able to see it.
    pub fn buried(&mut self, url: &Arc<str>, boots: &[u64], row: BootRow, done: bool, now: Instant) {
        let Some(peer) = self.peers.get_mut(url) else { return };
        peer.lookup_running = false;
        if done {
            self.counts.buried += 1;
            self.actions.push_back(PeerAction::Note { url: Arc::clone(url), note: PeerNote::Buried });
            self.ends(url, boots, BootRow { left: true, ..row }, now);
        }
    }

    /// Notes the boots that are over by this row, and forgets what they were owed.
    fn ends(&mut self, url: &Arc<str>, boots: &[u64], row: BootRow, now: Instant) {
        let Some(peer) = self.peers.get_mut(url) else { return };
        boots.iter().filter(|boot| row.is_over(**boot)).for_each(|boot| peer.note_ended(*boot));
        let owed = peer.retry_queue.forget(|boot| boots.contains(&boot) && row.is_over(boot));
        self.counts.over += owed as u64;
        if owed > 0 {
            self.actions.push_back(PeerAction::Note { url: Arc::clone(url), note: PeerNote::Over { owed } });
            self.clear_debt(url, now);
        }
        self.start_queued(url, now);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        let urls: Vec<Arc<str>> = self.peers.keys().cloned().collect();
        for url in &urls {
            self.tick_peer(url, now);
        }
        self.peers.retain(|_, peer| !peer.is_forgotten(now));
        if self.lost_at > now {
            return;
        }
        self.lost_at = if self.lost.is_empty() { now } else { now.after(DEBT_INTERVAL) };
        // One row for all losses of this boot. The node that has read it deletes no later write of it.
        let id = self.config.id.wrapping_add(1);
        for (url, lost) in self.lost.iter_mut().filter(|(_, lost)| **lost == Lost::Due) {
            *lost = Lost::Writing;
            self.actions.push_back(PeerAction::WriteDebt { url: Arc::clone(url), id, time: DebtTime::Ended });
        }
    }

    fn tick_peer(&mut self, url: &Arc<str>, now: Instant) {
        while let Some(peer) = self.peers.get_mut(url)
            && peer.waiting.front().is_some_and(|call| now.since(call.since) >= self.config.request_timeout)
            && let Some(call) = peer.waiting.pop_front()
        {
            self.failed(url, call, PeerReply::Unreachable, false, now);
        }
        let Some(peer) = self.peers.get_mut(url) else { return };
        if peer.begin_probe(now) {
            self.actions.push_back(PeerAction::Probe { url: Arc::clone(url) });
        }
        if peer.begin_look(now) {
            let boots: BTreeSet<u64> = peer.retry_queue.boots().chain([peer.boot]).collect();
            self.actions.push_back(PeerAction::Look { url: Arc::clone(url), boots: boots.into_iter().collect() });
        }
        self.write_debt(url, now);
        self.clear_debt(url, now);
        self.start_queued(url, now);
    }

    /// Returns the earliest time at which [`PeerClient::tick`] has something to do.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let calls = (self.config.connections_max, self.config.request_timeout);
        let lost = self.lost.values().any(|lost| *lost == Lost::Due).then_some(self.lost_at);
        self.peers.values().filter_map(|peer| peer.due(now, calls, self.ending)).chain(lost).min()
    }

    /// Leaves everything that is still owed to the nodes that it is owed to: each finds in the database that it must
    /// read storage. [`PeerClient::owed`] is 0 when that is done, whether or not calls are still under way.
    pub fn end(&mut self, now: Instant) {
        self.ending = true;
        self.lost_at = now;
        self.peers.values_mut().for_each(|peer| peer.debt.ends(now));
        self.tick(now);
    }

    /// A number below 1,000. Not for secrets.
    fn chance(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.draws ^ (self.draws >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)) >> 32) % 1_000
    }
}

/// Nodes that are known. Beyond it those that are not needed are forgotten, then of those that do not answer the one
/// wanted longest ago, with what it is owed. Refuse, when all answer: `Unreachable`.
pub const NODES_MAX: usize = 256;
/// Calls of one node that wait for a connection. Refuse: `Unreachable`.
pub const WAITING_MAX: usize = 4_096;
/// Nodes that must be told of lost notifications and are not yet: 1,024 x 100 B. Shed: sessions of the next node find
/// what waits for them at their refreshes.
const LOST_NODES_MAX: usize = 1_024;
