//! Options of `push`, and the stream of POSTs that they describe.

use std::io;
use std::time::Duration;

use protocol::webpush::identity::Identity;

use crate::delivery_log::Expect;
use crate::post::{Encoding, Signing, Vapid};
use crate::scenario::traffic::{MessageSpec, Stream, Traffic, spread};
use crate::target::Target;

/// Options of the scenario.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size.
    #[command(flatten)]
    pub target: Target,
    /// Bytes of bodies; several with commas take turns. 1 to 8 count as 9, which hold a number.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "200")]
    pub body: Vec<usize>,
    /// App server connections, each with one POST under way.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub in_flight: usize,
    /// Seconds without any arrival after which missing messages count as lost.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub patience: u64,
    /// Register with a VAPID key and sign every POST with one token, used again as libraries do; in the spelling of
    /// this draft, 02 (RFC 8292) if none is named.
    #[arg(long, value_name = "DRAFT", num_args = 0..=1, default_missing_value = "02")]
    pub vapid: Option<Vapid>,
    /// Content coding that bodies have by their headers.
    #[arg(long, value_enum, default_value_t)]
    pub encoding: Encoding,
    /// With a VAPID key, sign every POST anew: no token comes twice.
    #[arg(long)]
    pub fresh_tokens: bool,
    /// POSTs a second as an open loop; as many as the server takes when absent.
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Seconds before measuring.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub warmup: f64,
    /// Seconds of measuring.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// TTL of every POST in seconds.
    #[arg(long, value_name = "S", default_value_t = 3600)]
    pub ttl: u32,
    /// Number of measurements, in windows aligned to the wall clock; the median is shown.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rounds: usize,
    /// A window begins whenever the clock is at a multiple of this many seconds ...
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    pub period: f64,
    /// ... plus this many. Two generators with two offsets push in turn.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub offset: f64,
    /// Wait for this file before the first window: the caller of several generators creates it when all are ready.
    #[arg(long, value_name = "FILE")]
    pub gate: Option<std::path::PathBuf>,
}

impl Options {
    pub(super) fn signing(&self) -> Signing {
        match (self.vapid, self.fresh_tokens) {
            (_, true) => Signing::Each(Identity::generate()),
            (Some(_), false) => Signing::Once(Identity::generate()),
            (None, false) => Signing::None,
        }
    }

    pub(super) fn is_signed(&self) -> bool {
        self.vapid.is_some() || self.fresh_tokens
    }

    /// Posts for this long, to all agents in turn.
    pub fn go(&self, traffic: &mut Traffic, seconds: f64) -> io::Result<()> {
        let agents = self.target.sessions;
        let style = |number: u64| MessageSpec {
            ttl: self.ttl,
            topic: None,
            urgency: None,
            body_bytes: self.body[number as usize % self.body.len()],
            // With TTL 0 a session that is just gone costs its message.
            expect: if self.ttl == 0 { Expect::Perhaps } else { Expect::Once },
        };
        let stream = Stream::lasting(self.rate, Duration::from_secs_f64(seconds.max(0.0)));
        traffic.run(stream, |_, number| Some((spread(number, agents), style(number))))
    }
}
