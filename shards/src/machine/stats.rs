//! What the machine counts. Every drop, refusal and end of a message has its number here.

use crate::counters;
use crate::stats::{Board, Histogram, HistogramMeaning};

/// Time from the acceptance of a message to its ack. Own shard only.
#[derive(Clone, Default, Debug)]
pub struct DeliveryTimes {
    /// Of messages that were directs until their ack.
    pub direct: Histogram,
    /// Of messages that were in storage when their ack came.
    pub stored: Histogram,
}

impl DeliveryTimes {
    /// Their meanings, in the order of [`DeliveryTimes::write_to`].
    pub const MEANINGS: &'static [HistogramMeaning] = &[
        HistogramMeaning { name: "delivery_duration_seconds", label: Some(("kind", "direct")), help: DELIVERY_HELP },
        HistogramMeaning { name: "delivery_duration_seconds", label: Some(("kind", "stored")), help: DELIVERY_HELP },
    ];

    /// Copies both to the board, to its first places.
    pub fn write_to(&self, board: &Board) {
        board.set_histogram(0, &self.direct);
        board.set_histogram(1, &self.stored);
    }
}

const DELIVERY_HELP: &str =
    "Time from the acceptance of a message to its ack, by whether it was in storage when the ack came.";

counters! {
    /// Counters of one shard's machine. Own shard only; one writer.
    pub struct MachineStats {
        gauge sessions: "Identified sessions.",
        gauge conns: "WebSockets, identified or not.",
        gauge relays: "Connections that speak for several user agents.",
        gauge relay_members: "User agents that relays of this shard speak for.",
        gauge relay_seats: "Members of relays, of whichever shard, that this shard owns.",
        gauge actives: "Sessions with something under way.",
        gauge ledger_bytes: "Bytes reserved by live ledger records.",
        gauge row_bytes: "Bytes of messages that windows keep in memory although storage has them.",
        gauge ledger_records: "Live ledger records.",
        gauge store_outstanding: "Storage operations without a reply.",
        gauge receipts: "Messages whose receipt was asked for and whose outcome is kept.",
        gauge receipt_waiters: "App servers that wait for an outcome.",
        counter hellos: "Hellos answered.",
        counter hellos_new: "Hellos without a UAID.",
        counter hellos_known: "Hellos of known UAIDs.",
        counter hellos_reassigned: "Hellos with an unknown UAID, answered with a fresh one.",
        counter hellos_shed: "Hellos closed because too many were under way or the shard was full.",
        counter sessions_ended: "Sessions ended, whoever ended them.",
        counter claims: "Claims of other shards worked on.",
        counter claims_granted: "Claims granted.",
        counter grants_refused: "Claims refused because too many granted sockets had not arrived yet.",
        counter grants_unused: "Granted claims whose socket was gone or could not be moved.",
        counter claims_refused: "Claims refused: unknown UAID.",
        counter claims_abandoned: "Own claims whose socket was gone when the decision came.",
        counter greetings_superseded: "Hellos replaced by a newer hello of the same UAID before they were answered.",
        counter moves_out: "Sockets sent to their owner.",
        counter moves_in: "Sockets received by their owner.",
        counter moves_failed: "Sockets that could not be moved.",
        counter half_pairs: "Granted claims whose descriptor or mail never came.",
        counter arrivals_stale: "Descriptors or mails of claims that no longer stand.",
        counter registers: "Channels registered.",
        counter registers_failed: "Registers answered with 500.",
        counter unregisters: "Unregisters, manual or without a known reason.",
        counter unregisters_quota: "Unregisters because of the quota (201).",
        counter unregisters_permission: "Unregisters because permission was revoked (202).",
        counter publishes: "POSTs this shard decided as the owner.",
        counter publishes_unregistered: "POSTs to unknown users or channels.",
        counter publishes_other_mode: "POSTs and updates to users that are reached in the other mode.",
        counter updates_screened: "Version updates that were accepted and not sent: one of that version or a higher one was.",
        counter publishes_unavailable: "POSTs refused with 503.",
        counter directs: "Messages accepted as direct.",
        counter node_directs: "Directs that came from other nodes.",
        counter stored: "Messages accepted as stored.",
        counter ttl_zero_sent: "TTL 0 messages sent.",
        counter ttl_zero_dropped: "TTL 0 messages dropped.",
        counter notifications_sent: "Notification frames handed to sockets, retries included.",
        counter stored_sent: "Stored notifications sent by drains.",
        counter acks: "Acks with code 100 or none.",
        counter acks_decryption_error: "Acks with code 101.",
        counter acks_not_delivered: "Acks with code 102.",
        counter acks_unknown: "Acks of ids that are neither in the window nor in storage.",
        counter nacks: "Nacks.",
        counter resets_too_many: "Users reset because one drain came to more than delivery.msg_limit.",
        counter reset_discarded: "Messages that those resets are known to have discarded.",
        counter resets_old_record: "Users reset because their record was of an older version.",
        counter resets_reconciled: "Users who said a channel in hello that nobody registered, and started over.",
        counter channels_reconciled: "Channels unregistered because a hello left them out.",
        counter spills: "Directs saved because they stayed unacked.",
        counter departures: "Sessions that ended with unacked directs.",
        counter retries: "Notifications sent again on a live connection.",
        counter paced: "Times that notifications of a session had to wait for its pace.",
        counter parked: "Notifications left to the next session after the last retry.",
        counter expired: "Messages dropped because their TTL was over.",
        counter replaced: "Messages ended by a newer one of their topic.",
        counter cancels: "Cancels.",
        counter cancels_departing: "Cancelled messages that were on their way to storage.",
        counter dropped_with_channel: "Messages ended because their channel was unregistered.",
        counter rows_unregistered: "Stored rows of channels that are not registered, deleted.",
        counter rows_passed_by: "Stored rows that a session had no channel for and left for the next session to decide on.",
        counter rows_other_mode: "Stored rows that the mode of the user does not allow, deleted.",
        counter low_water_raised: "Times storage was told that all rows of a user up to some clock are settled.",
        counter settles_shed: "Deletes of unknown acks that were not attempted.",
        counter pages: "Pages of stored messages read.",
        counter pages_postponed: "Pages not read yet because windows kept too many bytes of what storage has.",
        counter blocked_shed: "Sessions closed because their socket took no bytes and windows kept too many.",
        counter unsent: "Notification frames a socket took no byte of.",
        counter pings: "WebSocket Pings sent.",
        counter pong_timeouts: "Sessions ended for want of a Pong.",
        counter pings_too_soon: "Sessions ended because they pinged too often.",
        counter idled_out: "SimplePush sessions ended because they were idle and can be woken.",
        counter contacts_failed: "Sessions ended because storage did not take how they are reached.",
        counter wakes: "Wake-up calls asked for.",
        counter wakes_spared: "Wake-up calls not made: the user was woken a moment ago.",
        counter wakes_shed: "Wake-up calls not made: too many at once, or storage was busy.",
        counter broadcast_changes: "Changes of broadcast values.",
        counter broadcasts_sent: "Broadcast messages pushed.",
        counter broadcasts_refused: "Broadcast ids answered \"Broadcast not found\" because of a bound.",
        counter requests_sent: "Requests sent to other shards.",
        counter requests_refused: "Requests refused because too many waited for credit.",
        counter replies_stale: "Replies of other shards to requests that no longer stand.",
        counter store_operations: "Storage operations submitted.",
        counter store_errors: "Storage operations that failed.",
        counter store_retries: "Must-do storage operations tried again.",
        counter store_replies_stale: "Storage replies whose asker was gone.",
        counter dead_endpoint_hits: "POSTs to endpoints that storage had said to be dead within the last minute.",
        counter receipt_queries: "Receipts looked at.",
        counter receipts_delivered: "Messages with a receipt that were delivered.",
        counter receipts_not_delivered: "Messages with a receipt that ended otherwise.",
        counter receipts_forgotten: "Receipts forgotten because there were too many.",
        counter receipts_refused: "Receipts answered 503 because too many waited.",
        counter token_rate_refused: "POSTs answered 429: their endpoint gets too many.",
        counter buckets_forgotten: "Endpoints whose rate was forgotten because there were too many.",
        counter budget_refused: "POSTs answered 429: too many bytes were stored for their user today.",
        counter budgets_forgotten: "Users whose stored bytes of today were forgotten because there were too many.",
        counter register_counts_forgotten: "Users whose registers of this minute were forgotten because there were too many.",
        counter clocks_refused: "Clocks seen that lay too far ahead.",
        counter looks: "Users looked up for POSTs that landed on a node where they were not.",
        counter peer_calls: "Calls of other nodes.",
        counter pushed: "Messages that other nodes took for their sessions.",
        counter pushes_not_here: "Pushes answered that no such session was there; its row was cleared.",
        counter pushes_busy: "Pushes refused by a session that was busy; stored instead.",
        counter pushes_unsure: "Pushes without an answer; stored under their id.",
        counter pushes_refused: "Pushes that could not be sent; stored instead.",
        counter presences_cleared: "Presence rows cleared: their session was over.",
        counter presences_left: "Presence rows of ended sessions left in place: too much was at storage already.",
        counter leaves_lost: "Calls to end a session on another node that got no answer.",
        counter doubts: "Users looked up because something stayed unacked.",
        counter sessions_elsewhere: "Sessions closed because their user turned out to be on another node.",
        counter relays_opened: "Connections that became relays.",
        counter relays_refused: "Connections that could not, since this shard had too many.",
        counter members_attached: "Hellos of members brought to their owner.",
        counter members_refused: "Hellos of members refused: the relay was full, or too many waited for credit.",
        counter members_unknown: "Messages of relays for user agents they do not speak for.",
        counter members_choked: "Members ended because too many words waited for credit.",
        counter member_byes: "Byes said to relays.",
        counter member_words_refused: "Notifications that came while the relay's socket took no bytes.",
        counter wrong_state: "Sockets closed for a message their state does not allow.",
    }
}
