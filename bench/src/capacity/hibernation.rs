//! Sessions that hibernate: the share of them that is live, and the thaws.
//!
//! A session that hears or says a frame is live from then on for `hibernate.after` and a little longer, and frozen
//! until its next frame.

use config::HIBERNATE_AFTER;

use super::Mix;

/// Settings of the server that freezes its silent sessions.
#[derive(clap::Args, Clone, Debug)]
pub struct Hibernation {
    /// Seconds of silence after which the server freezes a session (hibernate.after); 0: it freezes none.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub hibernate_after: f64,
    /// Seconds between the pings that thaw a session (hibernate.ping_interval), where the others are probes; 0: each
    /// ping thaws.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub hibernate_ping_interval: f64,
}

impl Hibernation {
    /// True if the server freezes anything.
    pub fn is_on(&self) -> bool {
        self.hibernate_after > 0.0
    }

    /// Reason why the options make no sense, in a sentence.
    pub fn complaint(&self, ping_interval: f64) -> Option<String> {
        let (after, pings) = (self.hibernate_after, self.hibernate_ping_interval);
        let [least, most] = [HIBERNATE_AFTER.start(), HIBERNATE_AFTER.end()].map(|span| span.as_secs_f64());
        if after != 0.0 && !(least..=most).contains(&after) {
            return Some(format!("--hibernate-after {after}: the server takes {least} to {most}, or 0"));
        }
        if after >= ping_interval {
            return Some(format!("--hibernate-after {after} must be less than --ping-interval {ping_interval}"));
        }
        (pings != 0.0 && (!pings.is_finite() || pings <= ping_interval)).then(|| {
            format!("--hibernate-ping-interval {pings} must be more than --ping-interval {ping_interval}, or 0")
        })
    }
}

impl Mix {
    /// Frames a second that thaw one session: pings and notifications.
    fn frames(&self) -> f64 {
        let Hibernation { hibernate_ping_interval: probed, .. } = self.hibernation;
        let interval = if probed > 0.0 { probed } else { self.ping_interval };
        1.0 / interval + self.push_rate * (1.0 - self.store_share) / self.sessions as f64
    }

    /// Share of the sessions that have sockets at a time: 1 without hibernation. Frames that come together keep fewer
    /// sessions live than this.
    pub(super) fn live_share(&self) -> f64 {
        /// A shard looks for silent sessions each quarter of `hibernate.after`.
        const LATENESS: f64 = 1.25;
        let live = self.hibernation.hibernate_after * LATENESS;
        if self.hibernation.is_on() { (self.frames() * live).min(1.0) } else { 1.0 }
    }

    /// Thaws a second, each with a freeze afterwards: frames to and from sessions that are frozen then.
    pub(super) fn thaws(&self) -> f64 {
        self.sessions as f64 * self.frames() * (1.0 - self.live_share())
    }
}
