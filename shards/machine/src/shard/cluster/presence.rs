//! Presence: "this user is connected here" in storage, so that other nodes find the session (ARCHITECTURE.md 8.9).
//!
//! A session of a known user is *entering* until its row is written, and only then may it read storage. It therefore
//! sees every message that was stored before that read, and every later store finds the row. The row is cleared in
//! exactly its version when the session ends. A session whose user moved to another node is notified. If that call is
//! lost, the session finds out itself from the first message that stays unacked.

use crate::ids::Uaid;

use super::super::command::CloseReason;
use super::super::components::session::Session;
use super::super::components::user_index::Resident;
use super::super::composer::{ShardMachine, StepContext};
use super::super::peer::{PeerOp, PeerReply, Presence};
use super::super::pending_op::{PendingOp, PendingPeerOp};
use super::super::slab::SlabKey;
use super::super::store::{StoreError, StoreOp, UserRow};

impl ShardMachine {
    /// Returns the start of a new session: the version of its presence row, unique on this shard. On a node that is
    /// alone there is no such row, and the value is in milliseconds since the epoch (PROTOCOL.md, identifiers).
    pub(in super::super) fn arrival(&mut self, cx: &mut StepContext<'_>) -> u64 {
        if self.in_cluster() { self.tick(cx).0 } else { cx.now.unix_us / 1_000 }
    }

    /// Returns the row of a session; `None` when this node is alone.
    pub(in super::super) fn presence_of(&self, session: &Session) -> Option<Presence> {
        self.me().map(|node| Presence { node: node.clone(), connected_at: session.connected_at.get() })
    }

    /// Writes the row of a new session of a known user for other nodes, and notifies the nodes that had the user.
    pub(in super::super) fn enter(&mut self, cx: &mut StepContext<'_>, at: SlabKey, others: Vec<Presence>) {
        let session = self.sessions.live_mut(at);
        let uaid = session.uaid;
        session.stored.enter();
        self.want_check(at);
        self.set_presence(cx, at);
        for other in others {
            match self.me() {
                // Written over just now.
                Some(me) if *me == other.node => {}
                // An earlier boot of this node: it has no session to end.
                Some(me) if me.url == other.node.url => self.clear_presence(cx, uaid, other),
                _ => {
                    let op = PeerOp::Leave { to: other.node.clone(), uaid, connected_at: other.connected_at };
                    self.call(cx, PendingPeerOp::Leave { uaid, presence: other }, op);
                }
            }
        }
    }

    fn set_presence(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        self.write_presence(cx, at, PendingOp::WritePresence { session: at });
    }

    fn write_presence(&mut self, cx: &mut StepContext<'_>, at: SlabKey, work: PendingOp) {
        let session = self.sessions.live(at);
        let uaid = session.uaid;
        if let Some(presence) = self.presence_of(session) {
            self.submit(cx, work, StoreOp::SetPresence { uaid, presence });
        }
    }

    /// Writes the row of a live session again with the refresh of its user, a version later. At the same version the
    /// new copy would be lost with the old one: an expired copy becomes a tombstone of its version, and a tombstone
    /// wins a tie. Returns false if there is no session, or no other node that looks for it.
    pub(in super::super) fn renews_presence(&mut self, cx: &mut StepContext<'_>, at: SlabKey) -> bool {
        if !self.in_cluster() {
            return false;
        }
        // The session has ended since.
        let Some(session) = self.sessions.get_mut(at) else { return false };
        session.connected_at.renew();
        self.write_presence(cx, at, PendingOp::RenewPresence { session: at });
        true
    }

    /// Handles the end of the write of a row. After a failure the session ends, since other nodes cannot find it.
    pub(in super::super) fn presence_written(&mut self, cx: &mut StepContext<'_>, at: SlabKey, done: bool) {
        let Some(session) = self.sessions.get_mut(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        session.stored.entered();
        if done {
            self.continue_drain(cx, at);
        } else {
            self.end_session(cx, at, Some(CloseReason::StorageDown));
        }
    }

    /// Clears the row of an ended session. A superseded session leaves its row to the next one, which writes over it. A
    /// node that leaves announces it once instead of a million times.
    pub(in super::super) fn leave(&mut self, cx: &mut StepContext<'_>, session: &Session, why: Option<CloseReason>) {
        if self.draining() || !session.stored.has_user() || why == Some(CloseReason::Superseded) {
            return;
        }
        if let Some(presence) = self.presence_of(session) {
            self.clear_presence(cx, session.uaid, presence);
        }
    }

    /// Deletes a row that leads to no session. No state waits for the delete: a row that stays costs the next POST a
    /// call, so it stays when a crowd leaves at once.
    pub(super) fn clear_presence(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, presence: Presence) {
        if !self.tickets.room() {
            self.stats.presences_left += 1;
            return;
        }
        self.stats.presences_cleared += 1;
        self.submit(cx, PendingOp::Touch, StoreOp::ClearPresence { uaid, presence });
    }

    /// Handles the reply of the node that had the user.
    pub(super) fn left(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, presence: Presence, reply: PeerReply) {
        match reply {
            PeerReply::Done | PeerReply::NotHere => self.clear_presence(cx, uaid, presence),
            // Its session finds out from the first message that stays unacked there; the row is the older one
            // meanwhile.
            PeerReply::Busy | PeerReply::Held | PeerReply::NoAnswer | PeerReply::Unreachable => {
                self.stats.leaves_lost += 1;
            }
        }
    }

    /// Reads the user from storage to find out if it is still connected here.
    pub(in super::super) fn check_presence(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let session = self.sessions.live(at);
        let uaid = session.uaid;
        if self.in_cluster() && session.stored.has_user() && self.tickets.room() {
            self.stats.presence_checks += 1;
            self.submit(cx, PendingOp::CheckPresence { session: at }, StoreOp::LoadUser { uaid });
        }
    }

    /// Takes the answer of storage: the nodes that have a row of this user.
    ///
    /// - A newer row elsewhere: that node must read storage, and this session, whose end was not noticed, closes.
    /// - A registered channel that this session lacks: the register of an earlier connection took effect after the
    ///   hello had read the channels. The session closes, since the next hello reads them.
    /// - Older rows elsewhere: their nodes must read storage, since the session here may be the one whose end was not
    ///   noticed. Its unacked messages, and messages for a channel that it does not have, wait for the other.
    /// - No row of this session: another node took it for dead. It is written again, in a later version: a shared store
    ///   settles by timestamps, and the delete of the old version wins against it for ever. The version grows by one
    ///   only, since it is also the time at which the session read its channels.
    pub(in super::super) fn presence_checked(
        &mut self,
        cx: &mut StepContext<'_>,
        at: SlabKey,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let Some(session) = self.sessions.get(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        let (uaid, mine) = (session.uaid, self.presence_of(session));
        // If storage fails, the next doubt asks again.
        let (Ok(Some(user)), Some(mine)) = (result, mine) else { return };
        // Of two sessions of one instant the node decides: if both stayed, they would notify each other for ever.
        let outranks = |row: &Presence| (row.connected_at, &row.node) > (mine.connected_at, &mine.node);
        let moved = user.presence.iter().any(|row| row.node != mine.node && outranks(row));
        // An unsure session knows why storage lists more: an unregister failed.
        let is_sure = !session.stored.is_unsure();
        let lacks = is_sure && user.channels.iter().any(|chid| !self.registered_channel(at, *chid));
        if moved || lacks {
            self.stats.sessions_elsewhere += u64::from(moved);
            self.stats.sessions_outdated += u64::from(!moved);
            self.end_session(cx, at, Some(CloseReason::Elsewhere));
            self.notify_holders(cx, uaid, user.presence);
        } else if user.presence.contains(&mine) {
            // Clocks of nodes are apart, and hellos overtake each other: an older row may be that of the live session.
            self.notify_holders(cx, uaid, user.presence);
        } else {
            self.sessions.live_mut(at).connected_at.renew();
            self.set_presence(cx, at);
        }
    }

    /// Returns the rows of other nodes that may lead to a live session, newest last. Rows of earlier boots of this
    /// node, and of ended sessions of this one, are cleared.
    pub(super) fn others(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, rows: Vec<Presence>) -> Vec<Presence> {
        // Invariant: a node that is alone has neither looks nor doubts.
        let me = self.me().cloned().expect("other nodes are asked for within a cluster");
        let (own, mut others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.node.url == me.url);
        let here = match self.resident(uaid) {
            Some(Resident::Session(index)) => self.sessions.at(index).and_then(|(_, s)| self.presence_of(s)),
            Some(Resident::Hello(_)) | None => None,
        };
        // A node that leaves announces it once, for all its rows.
        if !self.draining() {
            for row in own.into_iter().filter(|row| Some(row) != here.as_ref()) {
                self.clear_presence(cx, uaid, row);
            }
        }
        others.reverse();
        others
    }
}
