//! Limits on one address, and the identity of an address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;

use machine::ids::CallerAddress;
use machine::time::{Instant, TimeSpan};

use super::prefix::Prefix;

/// `strangers.*`. 0 is off.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StrangerLimits {
    pub connections: u32,
    pub handshakes_per_second: u32,
    pub new_users_per_hour: u32,
    pub registers_per_hour: u32,
    /// Networks whose addresses are not counted.
    pub exempt: Vec<Prefix>,
}

/// One of the limits on an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Connections at a time.
    Connections,
    /// TLS handshakes in a second.
    Handshakes,
    /// Hellos that mint a UAID in an hour.
    NewUsers,
    /// Registers in an hour.
    Registers,
}

/// A rule of the operator about callers, whatever their address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Upgrades without one of `access.tokens`.
    Token,
    /// Registers without one of `access.vapid_keys`.
    Vapid,
    /// POSTs without one of `endpoint.allowed_keys`.
    AllowedKeys,
}

/// Cause of a refusal that is counted and logged by the address of its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    Limit(Limit),
    Access(Access),
}

/// An address that is counted: an IPv4 /32 or an IPv6 /64.
///
/// It is kept with a connection and never shown: its network is, of an IPv4 /24 or an IPv6 /48.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stranger(NonZeroU64);

impl Limit {
    pub const ALL: [Limit; 4] = [Limit::Connections, Limit::Handshakes, Limit::NewUsers, Limit::Registers];

    /// Returns the last part of the name of its setting.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Connections => "connections",
            Limit::Handshakes => "handshakes",
            Limit::NewUsers => "new_users",
            Limit::Registers => "registers",
        }
    }

    /// Returns the period of its number; `None` for a limit that is no rate.
    pub(super) const fn period(self) -> Option<TimeSpan> {
        match self {
            Limit::Connections => None,
            Limit::Handshakes => Some(TimeSpan::from_secs(1)),
            Limit::NewUsers | Limit::Registers => Some(TimeSpan::from_secs(3_600)),
        }
    }
}

impl Access {
    pub const ALL: [Access; 3] = [Access::Token, Access::Vapid, Access::AllowedKeys];

    /// Returns its label in the metrics and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Access::Token => "token",
            Access::Vapid => "vapid",
            Access::AllowedKeys => "allowed_keys",
        }
    }
}

impl Cause {
    /// All causes: the limits, then the rules.
    pub fn all() -> impl Iterator<Item = Cause> {
        Limit::ALL.into_iter().map(Cause::Limit).chain(Access::ALL.into_iter().map(Cause::Access))
    }
}

impl StrangerLimits {
    /// Returns the number of this limit; 0 is off.
    pub fn of(&self, limit: Limit) -> u32 {
        match limit {
            Limit::Connections => self.connections,
            Limit::Handshakes => self.handshakes_per_second,
            Limit::NewUsers => self.new_users_per_hour,
            Limit::Registers => self.registers_per_hour,
        }
    }

    pub(super) fn set(&mut self, limit: Limit, number: u32) {
        *match limit {
            Limit::Connections => &mut self.connections,
            Limit::Handshakes => &mut self.handshakes_per_second,
            Limit::NewUsers => &mut self.new_users_per_hour,
            Limit::Registers => &mut self.registers_per_hour,
        } = number;
    }

    /// Returns true if a limit is on, so that the addresses of callers must be known.
    pub fn any(&self) -> bool {
        Limit::ALL.into_iter().any(|limit| self.of(limit) > 0)
    }
}

impl Stranger {
    /// Returns the identity of this address. IPv4 addresses in IPv6 form count as IPv4.
    pub(crate) fn of(address: IpAddr) -> Stranger {
        let bits = match address.to_canonical() {
            IpAddr::V4(address) => IPV4_BEGIN | u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        // The first /64 of IPv6 has the loopback address, and the second one has none. The last two are of multicast
        // addresses, which no caller has; a PROXY header can name one.
        Stranger(NonZeroU64::new(bits.min(u64::MAX - 1)).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the number under which a connection keeps it: neither 0 nor `u64::MAX`.
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// Returns the address to which users are charged that it makes; `None` for the loopback interface, whose callers
    /// are programs of this host.
    pub(crate) fn address(self) -> Option<CallerAddress> {
        let first_byte = u32::try_from(self.0.get() ^ IPV4_BEGIN).map(|bits| bits >> 24);
        let is_loopback = first_byte == Ok(127) || self.0 == NonZeroU64::MIN;
        (!is_loopback).then_some(CallerAddress(self.0))
    }

    /// Reads [`Stranger::number`]; `None` for 0.
    pub fn of_number(number: u64) -> Option<Stranger> {
        NonZeroU64::new(number).map(Stranger)
    }

    /// Returns the IPv4 /24 or IPv6 /48 of this address, for the log.
    pub(super) fn network(self) -> Prefix {
        let bits = self.0.get();
        match u32::try_from(bits ^ IPV4_BEGIN) {
            Ok(bits) => Prefix::of(Ipv4Addr::from_bits(bits).into(), 24),
            Err(_) => Prefix::of(Ipv6Addr::from_bits(u128::from(bits) << 64).into(), 48),
        }
    }
}

/// Place of IPv4 addresses among the /64 of IPv6: within 0000::/8, which has no addresses of hosts but the loopback
/// address (RFC 4291 section 2.4).
const IPV4_BEGIN: u64 = 1 << 32;

impl fmt::Debug for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stranger({}, ..)", self.network())
    }
}

/// Takes one of `number` in a period (the generic cell rate algorithm): `full_at` is the time at which all of them are
/// there again. If there is none, takes nothing, and the error is the time until there is one.
///
/// All of them can be taken at once, and they come back evenly over a period. So a caller gets at most twice the number
/// in any window of a period, its bounds included: all of them at its begin, and those that came back by its end. A
/// caller that asks for at most half of the number in any such window is never refused.
pub(super) fn take_one(full_at: &mut Instant, number: u32, period: TimeSpan, now: Instant) -> Result<(), TimeSpan> {
    let interval = TimeSpan(period.0.div_ceil(u64::from(number.max(1))));
    let later = (*full_at).max(now).after(interval);
    match later.since(now).0.saturating_sub(interval.0.saturating_mul(u64::from(number))) {
        0 => {
            *full_at = later;
            Ok(())
        }
        beyond => Err(TimeSpan(beyond)),
    }
}
