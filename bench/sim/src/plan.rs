//! One seed's world: its sizes, its limits and which faults are on (swarm testing).
//!
//! Every fault is off in about half of all seeds, so that rare ones are not always drowned by loud ones.

use machine::time::TimeSpan;

use crate::rng::Rng;
use crate::shard_log::LOG_BYTES_MIN;

/// Drawn once per seed. Chances are per thousand draws of the thing they speak of.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Monotonic nanoseconds at which the world begins: sometimes shortly before a clock wraps around.
    pub(crate) start: u64,
    /// There is very much of something.
    pub(crate) crowd: Option<Crowd>,
    /// One user is sent messages all the time and storage is slow: nothing else goes on.
    pub(crate) busy: bool,
    /// Steps of the part with faults.
    pub(crate) steps: u64,
    /// Shards of the first boot.
    pub(crate) shards: u16,
    pub(crate) agents: usize,
    /// App servers, each with one request under way at most.
    pub(crate) posters: usize,
    /// Channels that one user agent would like to have.
    pub(crate) channels: usize,
    /// `delivery.window`.
    pub(crate) window: u16,
    /// `delivery.durable`.
    pub(crate) durable: bool,
    /// `delivery.spill_after`.
    pub(crate) spill_after: TimeSpan,
    /// `delivery.retry_after`.
    pub(crate) retry_after: TimeSpan,
    /// `websocket.hello_timeout`.
    pub(crate) hello_timeout: TimeSpan,
    /// `websocket.auto_ping_interval`.
    pub(crate) ping_interval: TimeSpan,
    /// `websocket.auto_ping_timeout`.
    pub(crate) pong_timeout: TimeSpan,
    /// WebSockets per shard.
    pub(crate) sessions_max: u32,
    /// Bytes of live ledger records per shard.
    pub(crate) ledger_bytes_max: u64,
    /// Bytes of a shard's ledger log.
    pub(crate) log_bytes: usize,
    /// Frames that a socket takes before it blocks.
    pub(crate) socket_frames: usize,
    /// POSTs differ in urgency.
    pub(crate) urgencies: bool,
    /// Chance that a user agent which acts names a minimum urgency.
    pub(crate) minimums: u64,
    /// `delivery.release_on_activity`.
    pub(crate) release_on_activity: TimeSpan,
    /// Topics in use; 0 is none.
    pub(crate) topics: u64,
    /// Chance that a POST has TTL 0.
    pub(crate) ttl_zero: u64,
    /// Chance that a POST has a TTL of a few seconds.
    pub(crate) ttl_short: u64,
    /// Chance that a POST asks for a receipt, and that an app server which acts asks for an outcome.
    pub(crate) receipts: u64,
    /// Relays, and the chance that a user agent is a member of one.
    pub(crate) relays: usize,
    pub(crate) members: u64,
    /// `relay.members`.
    pub(crate) relay_members: u16,
    /// Share of user agents that speak SimplePush.
    pub(crate) simple: u64,
    /// `simplepush.wake_timeout`.
    pub(crate) wake_timeout: TimeSpan,
    /// `hello.reconcile`.
    pub(crate) reconcile: bool,
    /// `delivery.msg_limit`.
    pub(crate) msg_limit: u32,
    /// `delivery.attempts_max`.
    pub(crate) attempts_max: u8,
    /// Share of user agents that ack in batches, never, or hardly read.
    pub(crate) slow_clients: u64,
    /// `endpoint.token_rate`.
    pub(crate) token_rate: u32,
    /// Chance that a request is another node's.
    pub(crate) nodes: u64,
    /// The least time that storage takes for anything.
    pub(crate) store_latency: TimeSpan,
    /// Bytes of messages for which storage has room. They matter while there are faults.
    pub(crate) store_bytes: u64,
    /// True if storage is full when the faults are over.
    pub(crate) ends_full: bool,
    /// A shard that does everything late.
    pub(crate) slow_shard: usize,
    /// Pages come shorter than asked for.
    pub(crate) short_pages: bool,
    /// Chance of an outside action although something is deliverable.
    pub(crate) eagerness: u64,
    /// Chance that an agent which could ack does.
    pub(crate) acking: u64,
    pub(crate) faults: Faults,
}

/// The thing of which there are many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crowd {
    /// Sockets of one shard's users, all of them elsewhere: more than may be on their way to it.
    Claims,
    /// Members of one relay, whose messages expire while the process stops.
    Members,
}

/// Chance of each fault, per thousand; 0 is off.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// A storage operation fails without effect.
    pub(crate) store_error: u64,
    /// A storage operation takes effect and its reply is an error.
    pub(crate) store_reply_lost: u64,
    /// A storage write is refused for lack of room.
    pub(crate) store_full: u64,
    /// Storage takes no messages for a while.
    pub(crate) store_fills: u64,
    /// Storage stands still for a while.
    pub(crate) store_stall: u64,
    /// One shard stands still for a while.
    pub(crate) shard_stall: u64,
    /// The process dies; storage and ledgers survive.
    pub(crate) kill: u64,
    /// A kill also changes a bit of a ledger log.
    pub(crate) damage: u64,
    /// A kill is a loss of power.
    pub(crate) power_cut: u64,
    /// The process is asked to stop, and starts again.
    pub(crate) drain: u64,
    /// The wall clock jumps.
    pub(crate) wall_jump: u64,
    /// A socket cannot be moved.
    pub(crate) move_fail: u64,
    /// A user agent goes away, by close or reset.
    pub(crate) disconnect: u64,
    /// A user agent stops reading.
    pub(crate) stop_reading: u64,
    /// A user agent never answers anything any more, with its socket open.
    pub(crate) half_open: u64,
    /// A user agent connects again although its old socket is open.
    pub(crate) double: u64,
    /// A user agent acks what it never got, twice, or what belongs to another.
    pub(crate) odd_ack: u64,
    /// An app server hangs up before its answer.
    pub(crate) hang_up: u64,
}

impl Plan {
    /// The plan of a seed.
    pub(crate) fn draw(rng: &mut Rng) -> Plan {
        let long = rng.permille(100);
        let mut plan = Plan {
            start: start(rng),
            busy: rng.permille(25),
            crowd: match rng.below(600) {
                0 => Some(Crowd::Claims),
                1 => Some(Crowd::Members),
                _ => None,
            },
            steps: if long { rng.between(3_000, 6_000) } else { rng.between(200, 1_800) },
            shards: rng.between(2, 8) as u16,
            agents: rng.between(1, 10) as usize,
            posters: rng.between(1, 6) as usize,
            channels: rng.between(1, 4) as usize,
            window: rng.pick(&[1, 1, 2, 3, 4, 8, 16, 128]),
            durable: rng.permille(250),
            spill_after: TimeSpan::from_ms(rng.pick(&[500, 3_000, 10_000])),
            retry_after: TimeSpan::from_secs(rng.pick(&[20, 60])),
            hello_timeout: TimeSpan::from_ms(rng.pick(&[1_000, 5_000])),
            ping_interval: TimeSpan::from_secs(rng.pick(&[0, 20, 300])),
            pong_timeout: TimeSpan::from_secs(4),
            sessions_max: rng.pick(&[2, 6, 1_000, 1_000]) as u32,
            ledger_bytes_max: rng.pick(&[600, 2_000, 10 << 10, 40 << 10]),
            log_bytes: 0,
            socket_frames: rng.pick(&[1, 2, 5, 100, 100]),
            urgencies: rng.permille(200),
            topics: rng.pick(&[0, 1, 1, 3]),
            ttl_zero: rng.pick(&[0, 100, 300]),
            ttl_short: rng.pick(&[0, 0, 100, 300]),
            receipts: rng.pick(&[0, 100, 500]),
            relays: rng.pick(&[0, 0, 1, 2]) as usize,
            members: rng.pick(&[300, 700]),
            relay_members: rng.pick(&[2, 8, 8]) as u16,
            simple: rng.pick(&[0, 0, 200, 600]),
            wake_timeout: TimeSpan::from_secs(rng.pick(&[0, 30])),
            reconcile: rng.permille(200),
            msg_limit: rng.pick(&[0, 0, 0, 0, 4, 20]) as u32,
            slow_clients: rng.pick(&[0, 0, 300, 800]),
            token_rate: rng.pick(&[0, 0, 1]) as u32,
            nodes: rng.pick(&[0, 0, 100, 300]),
            store_latency: TimeSpan::from_ms(rng.pick(&[0, 0, 0, 300, 2_000])),
            store_bytes: u64::MAX,
            ends_full: rng.permille(300),
            slow_shard: rng.index(24),
            short_pages: rng.permille(300),
            eagerness: rng.pick(&[100, 300, 600]),
            acking: rng.pick(&[100, 400, 800]),
            faults: Faults::draw(rng),
            attempts_max: rng.pick(&[0, 3, 3, 5, 10]) as u8,
            minimums: rng.pick(&[0, 0, 0, 60, 150]),
            release_on_activity: TimeSpan::from_secs(rng.pick(&[0, 0, 2, 20])),
        };
        plan.urgencies |= plan.minimums > 0;
        plan.store_bytes = rng.pick(&[u64::MAX, u64::MAX, u64::MAX, 1_500, 6_000]);
        if let Some(crowd) = plan.crowd {
            plan.busy = false;
            plan.make_room(crowd);
        }
        if plan.busy {
            plan.only_busy();
        }
        // Half of the ring is for live records; a small one wraps and is compacted often.
        plan.log_bytes = LOG_BYTES_MIN.max(HEADER_AND_SLACK + 2 * plan.ledger_bytes_max as usize);
        plan
    }
}

impl Plan {
    /// Six senders to one user that is connected, over a storage that takes its time; nothing fails.
    fn only_busy(&mut self) {
        (self.agents, self.posters, self.channels, self.window) = (1, 6, 1, 128);
        (self.topics, self.ttl_zero, self.ttl_short, self.receipts, self.nodes) = (0, 0, 0, 0, 0);
        (self.token_rate, self.msg_limit, self.simple, self.slow_clients) = (0, 0, 0, 0);
        (self.urgencies, self.short_pages, self.reconcile, self.ends_full) = (false, false, false, false);
        (self.relays, self.minimums) = (0, 0);
        (self.sessions_max, self.socket_frames, self.acking, self.slow_shard) = (1_000, 100, 1_000, usize::MAX);
        (self.ledger_bytes_max, self.store_bytes) = (600, u64::MAX);
        (self.ping_interval, self.retry_after) = (TimeSpan(0), TimeSpan::from_secs(60));
        self.store_latency = TimeSpan::from_secs(2);
        self.faults = Faults::default();
    }
}

/// Clocks of a tenth of a second are kept in 29 and in 32 bits.
fn start(rng: &mut Rng) -> u64 {
    let before = rng.below(900) * 1_000_000_000;
    match rng.below(8) {
        0 => (1 << 29) * 100_000_000 - before,
        1 => (1 << 32) * 100_000_000 - before,
        _ => 1_000_000_000,
    }
}

impl Faults {
    fn draw(rng: &mut Rng) -> Faults {
        // One seed in twelve is a fair day: what goes wrong there is wrong without any excuse.
        if rng.below(12) == 0 {
            return Faults::default();
        }
        let mut maybe = |values: &[u64]| {
            let value = rng.pick(values);
            if rng.permille(500) { value } else { 0 }
        };
        Faults {
            store_error: maybe(&[10, 50, 200]),
            store_reply_lost: maybe(&[10, 50, 200]),
            store_full: maybe(&[20, 200]),
            store_stall: maybe(&[3, 10]),
            shard_stall: maybe(&[3, 20]),
            kill: maybe(&[1, 3, 8]),
            damage: maybe(&[300]),
            power_cut: maybe(&[100]),
            store_fills: maybe(&[2, 5]),
            drain: maybe(&[1, 3]),
            wall_jump: maybe(&[2, 10]),
            move_fail: maybe(&[50, 300]),
            disconnect: maybe(&[20, 80, 200]),
            stop_reading: maybe(&[20, 80]),
            half_open: maybe(&[5, 20]),
            double: maybe(&[20, 100]),
            odd_ack: maybe(&[50, 200]),
            hang_up: maybe(&[20, 100]),
        }
    }
}

/// Bytes of a log beside its ring, rounded up.
const HEADER_AND_SLACK: usize = 8 << 10;
