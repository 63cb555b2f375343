//! `hibernate.*`: idle connections of user agents that are frozen (docs/OPERATIONS.md, decision 0034).

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::allowed::SECONDS_OR_ZERO;
use super::drain::DrainMode;
use super::error::ConfigError;
use super::key::settings;
use super::parse;
use super::parse::Raw;
use super::settings::Config;
use super::shards::PlaneChoice;

settings! {
    /// `hibernate.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Hibernate as HIBERNATE at [hibernate] {
        /// Silence in both directions after which the connection of a user agent is frozen, from 30 s; `None`: none is.
        pub after: Option<Duration> = "hibernate.after", "0",
            "seconds from 30 to 86400, or 0 (off), as 60, \"90s\" or \"10m\"",
            "Time of silence in both directions after which the connection of a user agent is frozen: the kernel forgets the socket, and the session stays. Must be shorter than websocket.auto_ping_interval. Needs CAP_NET_ADMIN and Linux 6.8.",
            after;
        pub queue: u16 = "hibernate.queue", "27973",
            "a number from 0 to 65535",
            "Number of the packet queue (NFQUEUE) that receives the segments of frozen connections. Each program in the network namespace needs a number of its own.",
            parse::number(0, u64::from(u16::MAX));
        /// Directory of a tmpfs for records of frozen connections, which then outlive the process.
        pub dir: Option<PathBuf> = "hibernate.dir", "",
            "a path",
            "Directory of a tmpfs, with mode 0700, for the records of frozen connections: the next process takes them over, also after SIGKILL. Without it frozen connections end with the process. Needs Linux 6.9.",
            parse::path;
        /// Silence after which a Ping thaws a frozen connection; before it, each Ping is a probe. Zero: no probes.
        pub ping_interval: Duration = "hibernate.ping_interval", "0",
            SECONDS_OR_ZERO,
            "Time of silence after which a Ping of the server thaws a frozen connection. Before, each Ping is a probe, which the kernel of the peer answers and which thaws nothing. 0: every Ping thaws. Must be longer than websocket.auto_ping_interval. Needs CAP_NET_RAW.",
            parse::duration;
    }
}

/// Values of `hibernate.after`. A connection that speaks more often costs more frozen than live.
pub const HIBERNATE_AFTER: RangeInclusive<Duration> = Duration::from_secs(30)..=Duration::from_secs(86_400);

/// Reads `hibernate.after`; 0 is `None`.
fn after(raw: &Raw) -> Option<Option<Duration>> {
    let span = parse::duration(raw)?;
    if span.is_zero() {
        return Some(None);
    }
    HIBERNATE_AFTER.contains(&span).then_some(Some(span))
}

/// Refuses a time of silence that the pings of the server never let pass.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    if config.drain.mode == DrainMode::Hibernate && (config.hibernate.dir.is_none() || config.hibernate.after.is_none())
    {
        return Err(ConfigError::Conflict(
            "drain.mode = hibernate needs records that outlive the process; set hibernate.after and hibernate.dir",
        ));
    }
    if config.hibernate.after.is_some() && config.shards.plane == PlaneChoice::Poll {
        return Err(ConfigError::Conflict(
            "hibernate.after needs io_uring rings, and shards.plane is poll; set shards.plane to \
             auto or io_uring, or hibernate.after to 0",
        ));
    }
    let (probed, interval) = (config.hibernate.ping_interval, config.websocket.auto_ping_interval);
    if !probed.is_zero() && (interval.is_zero() || probed <= interval) {
        return Err(ConfigError::Conflict(
            "hibernate.ping_interval must be longer than websocket.auto_ping_interval, because probes come in place of \
             its Pings; raise hibernate.ping_interval, or set it to 0",
        ));
    }
    if !interval.is_zero() && config.hibernate.after.is_some_and(|after| after >= interval) {
        return Err(ConfigError::Conflict(
            "hibernate.after must be shorter than websocket.auto_ping_interval, because each ping ends the silence of \
             a session; lower hibernate.after, or raise websocket.auto_ping_interval",
        ));
    }
    Ok(())
}
