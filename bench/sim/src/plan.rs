//! What one seed's world looks like: its sizes, its limits and which faults are on (swarm testing).
//!
//! Every fault is off in about half of all seeds, so that rare ones are not always drowned by loud ones.

use shards::time::Span;

use crate::rng::Rng;

/// Drawn once per seed. Chances are per thousand draws of the thing they speak of.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Steps of the part with faults.
    pub(crate) steps: u64,
    /// Shards of the first boot.
    pub(crate) shards: u16,
    /// User agents.
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
    pub(crate) spill_after: Span,
    /// `delivery.retry_after`.
    pub(crate) retry_after: Span,
    /// `websocket.hello_timeout`.
    pub(crate) hello_timeout: Span,
    /// `websocket.auto_ping_interval`.
    pub(crate) ping_interval: Span,
    /// `websocket.auto_ping_timeout`.
    pub(crate) pong_timeout: Span,
    /// WebSockets per shard.
    pub(crate) sessions_max: u32,
    /// Bytes of live ledger records per shard.
    pub(crate) ledger_bytes_max: u64,
    /// Frames that a socket takes before it blocks.
    pub(crate) socket_frames: usize,
    /// Whether POSTs differ in urgency.
    pub(crate) urgencies: bool,
    /// Topics in use; 0 is none.
    pub(crate) topics: u64,
    /// How often a POST has TTL 0.
    pub(crate) ttl_zero: u64,
    /// How often a POST has a TTL of a few seconds.
    pub(crate) ttl_short: u64,
    /// How often a POST asks for a receipt, and somebody for what became of it.
    pub(crate) receipts: u64,
    /// `endpoint.token_rate`.
    pub(crate) token_rate: u32,
    /// How often a request is another node's.
    pub(crate) nodes: u64,
    /// Whether pages come shorter than asked for.
    pub(crate) short_pages: bool,
    /// How often an outside action is chosen although something is deliverable.
    pub(crate) eagerness: u64,
    /// How often an agent that could ack does.
    pub(crate) acking: u64,
    /// The faults.
    pub(crate) faults: Faults,
}

/// How often each fault strikes, per thousand; 0 is off.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// A storage operation fails without effect.
    pub(crate) store_error: u64,
    /// A storage operation takes effect and its reply is an error.
    pub(crate) store_reply_lost: u64,
    /// A storage write is refused for lack of room.
    pub(crate) store_full: u64,
    /// Storage stands still for a while.
    pub(crate) store_stall: u64,
    /// One shard stands still for a while.
    pub(crate) shard_stall: u64,
    /// The process dies; storage and ledgers survive.
    pub(crate) kill: u64,
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
        Plan {
            steps: if long { rng.between(3_000, 6_000) } else { rng.between(200, 1_800) },
            shards: rng.between(2, 8) as u16,
            agents: rng.between(1, 10) as usize,
            posters: rng.between(1, 6) as usize,
            channels: rng.between(1, 4) as usize,
            window: rng.pick(&[1, 1, 2, 3, 4, 8, 16, 128]),
            durable: rng.permille(250),
            spill_after: Span::from_ms(rng.pick(&[500, 3_000, 10_000])),
            retry_after: Span::from_secs(rng.pick(&[20, 60])),
            hello_timeout: Span::from_ms(rng.pick(&[1_000, 5_000])),
            ping_interval: Span::from_secs(rng.pick(&[0, 20, 300])),
            pong_timeout: Span::from_secs(4),
            sessions_max: rng.pick(&[2, 6, 1_000, 1_000]) as u32,
            ledger_bytes_max: rng.pick(&[600, 2_000, 1 << 20, 1 << 20]),
            socket_frames: rng.pick(&[1, 2, 5, 100, 100]),
            urgencies: rng.permille(200),
            topics: rng.pick(&[0, 1, 1, 3]),
            ttl_zero: rng.pick(&[0, 100, 300]),
            ttl_short: rng.pick(&[0, 0, 100, 300]),
            receipts: rng.pick(&[0, 100, 500]),
            token_rate: rng.pick(&[0, 0, 1]) as u32,
            nodes: rng.pick(&[0, 0, 100, 300]),
            short_pages: rng.permille(300),
            eagerness: rng.pick(&[100, 300, 600]),
            acking: rng.pick(&[100, 400, 800]),
            faults: Faults::draw(rng),
        }
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
