//! Prefixes of IP addresses: networks that an operator names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address and the number of its leading bits that count. A single address has all of its bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Bits beyond the length are zero; never an IPv4 address in IPv6 form.
    address: IpAddr,
    length: u8,
}

/// A text that is no [`Prefix`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefixError {
    /// The text before the slash is no address.
    Address,
    /// The text behind the slash is no number of bits of such an address.
    Length { length_max: u8 },
    /// The address has bits beyond the length; the network is this one.
    Bits(Prefix),
}

impl Prefix {
    /// Returns the network of this address with this length. IPv4 addresses in IPv6 form count as IPv4, and longer
    /// lengths as all bits.
    pub fn of(address: IpAddr, length: u8) -> Prefix {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let length = length.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Prefix { address: Ipv4Addr::from_bits(address.to_bits() & mask).into(), length }
            }
            IpAddr::V6(address) => {
                let length = length.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                Prefix { address: Ipv6Addr::from_bits(address.to_bits() & mask).into(), length }
            }
        }
    }

    /// Returns true if the address is in this network. IPv4 addresses in IPv6 form count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        Prefix::of(address, self.length).address == self.address
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Address)?;
        let length_max = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => length_max,
            Some(digits) => {
                let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                let length = digits.parse().ok().filter(|length| is_number && *length <= length_max);
                length.ok_or(PrefixError::Length { length_max })?
            }
        };
        let (address, length) = match address.to_canonical() {
            // A shorter prefix has other IPv6 addresses, too.
            mapped @ IpAddr::V4(_) if address.is_ipv6() && length >= MAPPED_BITS => (mapped, length - MAPPED_BITS),
            IpAddr::V4(_) if address.is_ipv6() => return Err(PrefixError::Length { length_max }),
            canonical => (canonical, length),
        };
        let prefix = Prefix::of(address, length);
        if prefix.address == address { Ok(prefix) } else { Err(PrefixError::Bits(prefix)) }
    }
}

/// Bits before the IPv4 address in one in IPv6 form (RFC 4291 section 2.5.5.2).
const MAPPED_BITS: u8 = 96;

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prefix { address, length } = self;
        write!(f, "{address}/{length}")
    }
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefixError::Address => f.write_str("it is no IP address"),
            PrefixError::Length { length_max } => write!(f, "its length is no number from 0 to {length_max}"),
            PrefixError::Bits(prefix) => write!(f, "it has bits beyond its length; write {prefix}"),
        }
    }
}

impl std::error::Error for PrefixError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn prefixes_of_both_families_contain_their_addresses_only() {
        for (network, inside, outside) in [
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::ffff:11.1.2.3"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
            ("::/0", "2001:db8::1", "203.0.113.9"),
            ("::/0", "::1", "::ffff:203.0.113.9"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
            ("::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"),
        ] {
            assert!(prefix(network).contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!prefix(network).contains(outside.parse().unwrap()), "{network} {outside}");
        }
        assert_eq!(prefix("2001:db8::/32").to_string(), "2001:db8::/32");
        assert_eq!(prefix("::ffff:10.0.0.0/104").to_string(), "10.0.0.0/8");
        assert_eq!(Prefix::of("192.0.2.77".parse().unwrap(), 24).to_string(), "192.0.2.0/24");
    }

    #[test]
    fn a_text_that_is_no_prefix_is_refused_with_its_cause() {
        for text in ["", "/8", "example.org", "10.0.0/8", "10.0.0.1:80", "[::1]", "fe80::1%eth0"] {
            assert_eq!(text.parse::<Prefix>(), Err(PrefixError::Address), "{text}");
        }
        for (text, length_max) in [
            ("10.0.0.0/33", 32),
            ("10.0.0.0/", 32),
            ("10.0.0.0/+8", 32),
            ("10.0.0.0/8/8", 32),
            ("10.0.0.0/256", 32),
            ("2001:db8::/129", 128),
            ("::ffff:0.0.0.0/95", 128),
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(PrefixError::Length { length_max }), "{text}");
        }
        for (text, meant) in [("10.0.0.1/8", "10.0.0.0/8"), ("2001:db8::1/64", "2001:db8::/64"), ("::1/0", "::/0")] {
            let error = text.parse::<Prefix>().unwrap_err();
            assert_eq!(error.to_string(), format!("it has bits beyond its length; write {meant}"));
        }
    }
}
