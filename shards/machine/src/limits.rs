//! Every bound of the shard, its arithmetic, and what happens at the bound.
//!
//! At a bound one of three things happens: **refuse** (tell the requester), **park** (stop reading from it), **shed**
//! (drop and count). `docs/LIMITS.md` repeats this table for operators.

/// Shards in one process. Refuse: configuration.
pub const SHARDS_MAX: u16 = 256;

/// Unacked notifications of one session, direct and stored, sent or still to be sent (`delivery.window`). At the bound
/// messages are stored instead.
pub const WINDOW_DEFAULT: u16 = 500;
/// The largest `delivery.window` accepted. Refuse: configuration.
pub const WINDOW_MAX: u16 = 1024;

/// Message bytes of one session's unacked directs (each at most 8 KiB). At the bound: stored instead.
pub const SESSION_LEDGER_BYTES_MAX: u32 = 1 << 20;

/// Bytes that a holder of a shared bound has at most to count as small: a notification and its head fit, and so does
/// every message of a well-behaved user agent. Half of the bound is for small holders.
pub const SMALL_HOLDER_BYTES_MAX: usize = 8 * 1024;

/// Message bytes that the windows of one shard keep although storage has them: 8,192 of the largest messages. Half is
/// for sessions that keep little ([`SMALL_HOLDER_BYTES_MAX`]). A page on its way counts as `READ_AHEAD_BYTES`. At the
/// bound: nothing is read from storage for a session until others have let go, and what waits to be sent at the end of
/// a window leaves it, to be read again. A session whose socket takes no bytes is closed 1013 (`blocked_shed`) when it
/// would keep more.
pub const ROW_BYTES_MAX: u64 = 64 << 20;

/// Seconds from the stamp of a message to the end of its write. Refuse: a write that took longer is not answered 201,
/// because low water may pass its clock (`MachineConfig::settle_lag`).
pub const WRITE_SECONDS_MAX: u64 = 30;

/// The greatest `store.max_skew`, in seconds: two nodes are at most twice that apart. Refuse: configuration.
pub const SKEW_SECONDS_MAX: u64 = 15;
/// Seconds from the stamp of a message to the moment at which every node knows that it is written or refused:
/// `WRITE_SECONDS_MAX` and twice `SKEW_SECONDS_MAX`, 60. Low water stays behind the present by it.
pub const SETTLE_SECONDS: u64 = WRITE_SECONDS_MAX + 2 * SKEW_SECONDS_MAX;
/// Seconds for which a database may bring a write that it has not answered: its window of hints is 3 h, and at most
/// `gc_grace_seconds` of the table `message`, a day.
pub const HINT_SECONDS_MAX: u64 = 86_400;
/// Age of the newest row that a range delete of a shared store reaches: nothing that is older can still be under way.
/// `SETTLE_SECONDS` and `HINT_SECONDS_MAX`, 24 h 1 min.
pub const RECLAIM_SECONDS: u64 = SETTLE_SECONDS + HINT_SECONDS_MAX;

/// Hellos of one user at one node in one minute, where nodes share a database: each is three reads and a write of it,
/// 12 ms of its CPU at most, so that one user takes less than 1 % of a core. A user agent that loses its connection
/// comes back at most 12 times a minute. Refuse: close 1013, and the session that is there goes on.
pub const HELLOS_PER_MINUTE_MAX: u16 = 30;
/// Users of one shard whose hellos of this minute are counted: 16,384 x about 90 B = 1.5 MB. Shed: the count of the
/// user that said hello longest ago, after as many hellos of others in one minute.
pub const HELLO_USERS_MAX: usize = 16_384;

/// Unacked bytes of a session in the ledger beyond which it shares half of the log with its like. The other half is for
/// sessions that hold less: 32 sessions with `SESSION_LEDGER_BYTES_MAX` each would fill a log of 32 MiB. At the bound:
/// the session's messages are stored.
pub const LEDGER_SMALL_HOLDER_BYTES: u32 = 64 * 1024;
/// Bytes that one ledger record takes beside the encoded message, at most; the machine reserves it, the log asserts it.
pub const LEDGER_RECORD_OVERHEAD_BYTES: u32 = 64;

/// Notifications of one session that are sent and unacked at once, and as many more for each second without an ack. A
/// client in use closes its connection at 64 frames that it has not read. Queue: the others wait in the window.
pub const BURST_MESSAGES: u16 = 50;
/// Frames that one step writes for one session; with more to send the session takes its next turn behind the others.
/// Queue: as above.
pub const SENT_PER_STEP: usize = 16;

/// Bytes of stored messages that are read ahead for one session and not sent yet. One page more may be on its way: rows
/// are asked for by the size of those that came before. Queue: the next page is read when some were sent.
pub const READ_AHEAD_BYTES: u32 = 64 * 1024;
/// Stored messages asked for at once, before their size is known: 8 of the largest are `READ_AHEAD_BYTES`. Two pages
/// are never in flight for one session.
pub const PAGE_ROWS_MIN: u16 = 8;
/// Stored messages asked for at once, at most.
pub const PAGE_ROWS_MAX: u16 = BURST_MESSAGES;

/// Requests that one shard may have outstanding at one other shard: the reply credit. Both lanes of a
/// receiver hold `(shards - 1) * credit` mails, so neither ever overflows. At the bound: wait, below.
pub fn reply_credit(shard_count: u16) -> usize {
    let peers = usize::from(shard_count.max(2)) - 1;
    (LANE_MAILS_TOTAL / peers).clamp(16, 1024)
}
/// Mails of one lane of one shard: 2 lanes x 64 shards x 8,192 x 40 B = 42 MB at most.
pub const LANE_MAILS_TOTAL: usize = 8_192;
/// Requests of one shard that wait for reply credit of one peer. Refuse: 503 or 1013.
pub const CREDIT_WAITERS_MAX: usize = 16_384;

/// Storage operations of one shard without a reply yet. Refuse: 503 for a message, 1013 for a hello; an
/// ack's deletes wait in the bounded window instead.
pub const STORE_TICKETS_MAX: usize = 16_384;

/// Hellos of one shard that are being worked on (own, claims out, claims in). Beyond it they park.
pub const HELLOS_IN_FLIGHT_MAX: usize = 1_024;
/// Grants of one shard whose mail has not come. Exactly one mail in the lane of arrivals answers each grant, and the
/// lane has a place for each. Refuse: close 1013.
pub const GRANTS_MAX: usize = 2 * HELLOS_IN_FLIGHT_MAX;
/// Hellos of one shard that wait for a place among those. Refuse: close 1013.
pub const HELLOS_WAITING_MAX: usize = 65_536;

/// Sessions that one shard can hold with any configuration: indices carry a tag in their top bits.
pub const SESSIONS_MAX: usize = 1 << 28;

/// Channels of one user agent. Refuse: register status 500.
pub const CHANNELS_MAX: usize = 2_048;

/// Broadcast ids a node knows, and distinct sets of them that sessions subscribe to. Refuse: the id is "not found".
pub const BROADCAST_IDS_MAX: usize = 1_024;
/// Ids among these that only user agents have named: the user agents hear of such an id once it has a value. Refuse:
/// the id is "not found" and stays so for that session.
pub const BROADCAST_IDS_AWAITED_MAX: usize = 512;
/// Ids of these that are second ones of their sessions, or later ones: half. The other half is for the first one of
/// each session, so that a session with many leaves room for others. Refuse: as above.
pub const BROADCAST_IDS_AWAITED_MORE_MAX: usize = BROADCAST_IDS_AWAITED_MAX / 2;
/// Ids that the user agents of today name. They have places of their own, also before they have a value.
pub const BROADCAST_IDS_EXPECTED: [&str; 1] = ["remote-settings/monitor_changes"];
/// Ids of these that one session waits for. Refuse: as above.
pub const BROADCAST_IDS_AWAITED_OF_SESSION_MAX: usize = 8;
/// Bytes of an id or a version of a broadcast. Refuse: a longer id is "not found", a longer value is an error for the
/// operator.
pub const BROADCAST_TEXT_BYTES_MAX: usize = 128;
/// Distinct sets of broadcast ids that sessions have at a time, beside those of one id that has a value or is expected.
/// Refuse: the ids that were named are "not found", but for one of these.
pub const BROADCAST_SETS_MAX: usize = 4_096;
/// Ids of one subscription. Refuse: close 1011.
pub const BROADCAST_SUBSCRIPTIONS_MAX: usize = 64;

/// Bodies and headers of one notification. Refuse: 413.
pub const PAYLOAD_BYTES_MAX: usize = 8 * 1024;

/// Ack updates in one message. Refuse: close 1011. Two full windows.
pub const ACK_UPDATES_MAX: usize = 2 * WINDOW_MAX as usize;

/// Connections that the kernel completes ahead of a shard on each of its listening sockets, unless configured
/// otherwise: those that come while the shard is busy or is not let run. In a storm of a million within a minute one of
/// two shards gets 8,300 connections a second, and this is half a second of them; one of sixteen shards has four
/// seconds. A waiting connection takes 2.5 KB of the kernel (a TCP socket that the server has not taken in): 10 MB for
/// a full queue. Kernels since 5.4 allow this number untuned. Shed: the kernel drops the SYN of a further client, and
/// the client tries again a second later.
pub const BACKLOG_DEFAULT: u16 = 4_096;
/// The least and the most of `shards.backlog`. The most is 165 MB of waiting sockets for each listening socket. Refuse:
/// configuration.
pub const BACKLOG_MIN: u16 = 16;
/// As above.
pub const BACKLOG_MAX: u16 = u16::MAX;

/// Connections that one turn of a shard takes from each of its listening sockets: about 100 us of the kernel. A
/// multishot accept would take the whole backlog at once, 20 ms. Queue: the others wait in the backlog.
pub const ACCEPTS_PER_TURN: usize = 16;

/// Connections of one shard's endpoint port that are admitted however many WebSockets there are, at least: see
/// [`endpoint_reserve`].
pub const ENDPOINT_RESERVE_MIN: u32 = 32;
/// The same of its node port: see [`node_reserve`].
pub const NODE_RESERVE_MIN: u32 = 32;

/// Connections of one shard's endpoint port that are admitted however many WebSockets there are. They come on top of
/// `connections_max`, so that no session is refused for them: a sixteenth costs 8 bytes of table each, and 3 KB of the
/// kernel each while they are used. An app server answers one POST after the other on a connection, so that 6,250
/// connections (of 100,000) carry some 100,000 POSTs a second. Refuse: 503 and close.
pub fn endpoint_reserve(connections_max: u32) -> u32 {
    (connections_max / 16).max(ENDPOINT_RESERVE_MIN)
}

/// Connections of one shard's node port that are admitted however many others there are: other nodes keep a few
/// (`node.connections`) each. Refuse: 503 and close.
pub fn node_reserve(connections_max: u32) -> u32 {
    (connections_max / 64).max(NODE_RESERVE_MIN)
}

/// Connections of one shard for which its tables have room: `connections_max` and the reserves of the other ports.
pub fn table_connections(connections_max: u32) -> u32 {
    connections_max.saturating_add(endpoint_reserve(connections_max)).saturating_add(node_reserve(connections_max))
}

/// Effects that one `step` may append; the queue reserves this many before the call.
pub const EFFECTS_PER_INPUT_MAX: usize = 4_096;

/// Connections of one shard that speak for several user agents. Refuse: close 1013.
pub const RELAYS_MAX: usize = 256;
/// Relays of these that one address has. Refuse: close 1013.
pub const RELAYS_OF_ADDRESS_MAX: usize = RELAYS_MAX / 8;
/// The largest `relay.members`: user agents of one such connection. Refuse: configuration; a hello beyond what is
/// configured: bye 1013. A power of two: names of emissions carry the place of their member.
pub const RELAY_MEMBERS_MAX: usize = 4_096;

/// Memory in which the connections of one shard keep bytes that were received and not decoded, together: half a
/// request, or what came behind one. One connection alone may have 64 KiB, and a million of them 64 GiB. This is 32,768
/// torn requests of one small receive (2 KiB), or 8,192 of the largest payload; torn input is a few milliseconds old
/// unless a peer means it, and is ended after `http.request_timeout`. Each port has its own part (`quota::PortQuotas`),
/// so that user agents cannot use up the memory of app servers. Half of each part is for those who hold little
/// ([`SMALL_HOLDER_BYTES_MAX`]). Shed at three quarters of a part: what was begun longest ago. Refuse at the bound: the
/// connection that takes more is closed 1013, or answered 503.
pub const UNFINISHED_BYTES_MAX: usize = 64 << 20;

/// TLS handshakes of one shard between the first byte of a client and its Finished, x about 5 KB = 5 MB, and
/// 16 KiB more for each that holds back the rest of its ClientHello. Backpressure:
/// the next ones wait unread in their sockets; one that has taken a second makes room for them, and
/// `tls.handshake_timeout` ends those that wait for longer.
pub const TLS_HANDSHAKES_MAX: usize = 1_024;
/// Cost of one request, frame or upgrade, decoded and answered, in microseconds of CPU: about what it takes. Costs are
/// fixed numbers but for the steps of TLS handshakes, whose time is measured (ECDSA about 120, RSA a thousand).
pub const REQUEST_COST: u32 = 6;
/// Cost of one verification of a signature (ES256), in microseconds: 60 to 100.
pub const SIGNATURE_COST: u32 = 100;
/// Cost after which a turn of a shard begins no other work of one line: 16 requests, one signature, or one step of a
/// handshake. Queue: the others of that line wait for the next turns, bytes that were not received in their sockets.
pub const LINE_COST_PER_TURN: u32 = 100;
/// The same of the line of new app servers, which every turn serves beside the proven ones.
pub const NEW_SENDERS_COST_PER_TURN: u32 = 50;
/// Cost after which a connection that has sent several requests at once goes to the end of its line with the rest of
/// them. Queue: the rest is kept aside, and nothing more is read from its socket.
pub const CONNECTION_COST_PER_TURN: u32 = 48;
/// Connections that one turn of a shard reads from one line, and one slice from all lines that wait for it.
/// Backpressure: the others wait unread for the next turns.
pub const READS_PER_TURN: usize = 16;
/// Connections whose time is over that one turn of a shard ends, of each kind: about 300 us. Queue: the others end in
/// the next turns.
pub const ENDED_PER_TURN: usize = 64;
/// Verifications in vain within a minute beyond which an address counts as failing: 1 ms of CPU in a second. Queue: its
/// app servers that are new, and those whose last request was refused, have a line of their own among those that come
/// last. Its others keep their places.
pub const FAILED_SIGNATURES_PER_MINUTE: u32 = 600;
/// Sessions of a shard that are set apart at once, to be frozen together after one grace period of the kernel: 10 ms or
/// more. Each has an ordinary file descriptor meanwhile. Queue: the others are found by the next search.
pub const SET_APART_MAX: usize = 256;
/// As [`SET_APART_MAX`], when a process ends whose sessions go on in the next one.
pub const SET_APART_AT_END_MAX: usize = 4_096;
/// Sessions of an earlier process whose hello one turn of a shard says again: about 200 us. The rest follow in the next
/// turns.
pub const RESUMES_PER_TURN: usize = 32;
/// Sessions of an earlier process whose user a shard reads from storage at once. Queue: the others wait.
pub const RESUMED_AT_ONCE_MAX: usize = 256;
/// Sessions that one turn of a shard freezes: about 600 us. The rest follow in the next turns.
pub const FREEZES_PER_TURN: usize = 32;
/// Sessions that one turn of a shard thaws, because their peers spoke or frames are due: about 1.4 ms. Backpressure:
/// the segments of the others wait in the packet queue, and their frames in memory.
pub const THAWS_PER_TURN: usize = 64;
/// Slots that one turn of a shard searches for silent sessions: about 280 us. The rest follow in the next turns.
pub const SLOTS_SEARCHED_PER_TURN: u32 = 4_096;
/// Bytes of one flight of a client in a TLS handshake that are kept unread. Refuse: closed.
pub const TLS_FLIGHT_BYTES_MAX: usize = 16 * 1024 + 261;

/// Retries of a notification on a live connection (ARCHITECTURE.md 3). After the last one it waits in storage.
pub const RETRIES_MAX: u8 = 3;
/// Deliveries, over three sessions at least, after which a message ends without an ack (`delivery.attempts_max`). Shed:
/// it is deleted, counted (`unacked_ended`) and told to the app server that asked for a receipt.
pub const ATTEMPTS_DEFAULT: u8 = 10;
/// Ids of one session that left the window without an ack. At the bound: close 1013.
pub const DEFERRED_IDS_MAX: usize = 1_024;

/// Sessions looked at in one sweep turn (pings, broadcasts). The rest follow in the next turns.
pub const SWEEP_SESSIONS_PER_TURN: usize = 1_024;

/// Seconds between two refreshes of a user who is alive: a storage that keeps users for 60 days is told eight times
/// before. A million sessions make 1.7 refreshes a second.
pub const REFRESH_INTERVAL_SECONDS: u64 = 7 * 86_400;
/// Refreshes of users that one shard has in flight. Queue: the session is found again by the next round of the sweep
/// (`refreshes_postponed`).
pub const REFRESHES_MAX: usize = 16;

/// Sessions of one shard that read storage in a second, in a round that covers lost notifications of another node: a
/// million sessions on eight shards take nine minutes, and cost 2,000 reads a second of a database that a lost node
/// costs 25,000 for a minute. Queue: the others wait for their turns, and read before their next direct.
pub const STORAGE_READS_PER_SECOND: u64 = 250;
/// Sessions that one turn of such a round reads. The rest follow in the next turns.
pub const STORAGE_READS_PER_TURN: u64 = 50;

/// Registers and messages `urgency` of one user in one minute, over all of its connections (issue: at least 300).
/// Refuse: close 1013.
pub const REGISTERS_PER_MINUTE_MAX: u16 = 600;
/// Users of one shard whose registers of this minute are counted: 16,384 x about 90 B = 1.5 MB. Shed: the count of the
/// user that registered longest ago, after as many registers of others in one minute.
pub const REGISTER_USERS_MAX: usize = 16_384;

/// Messages of one shard whose receipt was asked for and whose outcome is kept: 32,768 x about 220 B = 7 MB. Shed: the
/// one that was accepted or ended longest ago is forgotten.
pub const RECEIPTS_MAX: usize = 32_768;
/// App servers of one shard that wait for an outcome. Refuse: 503. Between two shards at most half the reply credit.
pub const RECEIPT_WAITERS_MAX: usize = 4_096;
/// App servers of these that wait for messages of one user: a sixteenth. Refuse: as above.
pub const RECEIPT_WAITERS_OF_USER_MAX: usize = RECEIPT_WAITERS_MAX / 16;
/// The longest wait for an outcome, in seconds. A longer one is lowered to it.
pub const RECEIPT_WAIT_SECONDS_MAX: u32 = 30;

/// Endpoints of one shard that storage has said are dead: 65,536 x about 100 B = 7 MB. Shed: the one asked for longest
/// ago is forgotten and storage is asked again.
pub const DEAD_ENDPOINTS_MAX: usize = 65_536;
/// Users of one shard that were dropped because they had no channel, and whose UAIDs are kept for their return: 16,384
/// x about 90 B = 1.5 MB. Shed: the one dropped or greeted longest ago gets a fresh UAID, as a new user.
pub const DROPPED_USERS_MAX: usize = 16_384;
/// Token buckets of one shard and rate: 65,536 x about 90 B = 6 MB, only when the rate is set. Shed: the bucket used
/// longest ago, so its sender begins again with a full one.
pub const RATE_BUCKETS_MAX: usize = 65_536;
/// Users of one shard whose stored bytes of today are counted: 16,384 x about 90 B = 1.5 MB. Shed: the count of the
/// user that was sent something longest ago. One over its budget is sent more than one message per second.
pub const BUDGET_USERS_MAX: usize = 16_384;

/// A store with less than this part of its room left gives shares of it (`crate::share`): four fifths may be anybody's.
/// Refuse: 503 for the messages of users beyond their share.
pub const SCARCE_ROOM_PART: u64 = 5;
/// Part of the room that is left, up to which the messages of one address are taken: 3.2 MiB of the last 205 MiB of
/// 1 GiB. As many addresses that all go on leave half of the room.
pub const ADDRESS_SHARE_PART: u64 = 64;
/// Part of the room that is left, up to which a user of an address beyond its share is given a message: 51 KiB of the
/// last 205 MiB of 1 GiB.
pub const USER_SHARE_PART: u64 = 4_096;
/// The same in bytes: 16 messages of 4 KiB, also of a store with more than 1.25 GiB.
pub const USER_SHARE_BYTES_MAX: u64 = 64 << 10;
/// Further such shares of a user with all of its credit: 64 KiB x (1 + 15) = 1 MiB.
pub const CREDIT_SHARES: u64 = 15;
/// Bytes of a user's credit: 512 messages of 4 KiB that were stored and acked.
pub const CREDIT_BYTES_MAX: u32 = 1 << 20;
/// Unacked notifications of a session from which on its messages go to the store first while room there is scarce, so
/// that its share counts for what would have to be saved.
pub const UNACKED_IF_SCARCE: usize = 4;

/// Bytes of wake data of one user (SimplePush, PROTOCOL.md 1.12): its length is one byte in storage. The edge takes
/// fewer bytes.
pub const WAKE_BYTES_MAX: usize = 255;
/// Seconds between two wake-up calls for one user: an app server must not make us call more often. Shed: the update
/// waits for the next hello.
pub const WAKE_PAUSE_SECONDS: u64 = 10;
/// Users of one shard that were woken within that pause: 16,384 x about 64 B = 1 MB. Shed: as above.
pub const WOKEN_MAX: usize = 16_384;

/// Bytes of a device token of a bridged user. Refuse: 400.
pub const DEVICE_TOKEN_BYTES_MAX: usize = 1_024;
/// Bytes of the `aps` text of a bridged user. Refuse: 400.
pub const APS_BYTES_MAX: usize = 1_024;
/// Characters of the name of a profile of a bridge. Refuse: 400 in a request, the start in the configuration.
pub const BRIDGE_APP_BYTES_MAX: usize = 64;
/// Calls of one shard of the services of bridged users without a reply yet: about 4,096 x 6 KiB = 24 MB with their
/// bodies at most. The queues to each service have smaller bounds. Shed: 503.
pub const UPSTREAM_CALLS_MAX: usize = 4_096;
/// Calls of these for one user: a sixteenth. Shed: 503 for its senders alone.
pub const UPSTREAM_CALLS_OF_USER_MAX: usize = UPSTREAM_CALLS_MAX / 16;
/// Bytes of the budget of a user (`store.user_bytes_per_day`) that one notification for its bridge takes at least: 16
/// MiB are 32,768 calls a day. Refuse: 429.
pub const BRIDGED_BYTES_MIN: u32 = 512;
/// Seconds between the first refusal of a device token that could be our fault, and a second one that is believed.
pub const REFUSED_TOKEN_SECONDS: u64 = 60;

const _: () = assert!(BACKLOG_MIN < BACKLOG_DEFAULT && BACKLOG_DEFAULT < BACKLOG_MAX);
const _: () = assert!(BURST_MESSAGES < 64 && BURST_MESSAGES < WINDOW_DEFAULT);
const _: () = assert!(PAGE_ROWS_MIN as usize * PAYLOAD_BYTES_MAX <= READ_AHEAD_BYTES as usize);
const _: () = {
    let ids = BROADCAST_IDS_MAX + BROADCAST_IDS_EXPECTED.len() + BROADCAST_IDS_AWAITED_MAX;
    assert!(BROADCAST_SETS_MAX + ids < u16::MAX as usize);
};
const _: () = assert!(WINDOW_DEFAULT <= WINDOW_MAX);
const _: () = assert!(PAYLOAD_BYTES_MAX < SESSION_LEDGER_BYTES_MAX as usize);
const _: () = assert!(EFFECTS_PER_INPUT_MAX > 2 * WINDOW_MAX as usize);
