//! Addresses of the public internet, by the registries of special-purpose addresses (RFC 6890 and its successors).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns true if the address is one of the public internet. An address that carries an IPv4 address is judged by
/// that: IPv4-mapped (RFC 4291 section 2.5.5.2), NAT64 (RFC 6052 section 2.1) and 6to4 (RFC 3056).
pub fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_global_v4(address),
        IpAddr::V6(address) => match carried(address) {
            Some(carried) => is_global_v4(carried),
            None => is_global_v6(address),
        },
    }
}

/// The IPv4 address that a gateway or this host makes of an IPv6 address.
fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = address.octets();
    let last = || Ipv4Addr::from(<[u8; 4]>::try_from(&octets[12..]).unwrap_or_default());
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(last()),
        [0x2002, high, low, ..] => Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))),
        _ => None,
    }
}

fn is_global_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    !SPECIAL_V4.iter().any(|(network, length)| (bits ^ Ipv4Addr::from(*network).to_bits()) >> (32 - length) == 0)
}

fn is_global_v6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    let within = |(network, length): &([u16; 3], u32)| {
        let [a, b, c] = *network;
        (bits ^ Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).to_bits()) >> (128 - length) == 0
    };
    within(&UNICAST) && !SPECIAL_V6.iter().any(within)
}

/// Networks without public hosts, with their prefix lengths. Two of them hold anycast addresses of protocols
/// (192.0.0.0/24, and 192.88.99.0/24 of the withdrawn 6to4 relays), which no push service has.
const SPECIAL_V4: [([u8; 4], u32); 16] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
    ([255, 255, 255, 255], 32),
];

/// The only network of global unicast addresses (RFC 4291 section 2.4). Loopback, unique local, link-local, multicast,
/// discard, NAT64 of a site (64:ff9b:1::/48) and segment routing are outside.
const UNICAST: ([u16; 3], u32) = ([0x2000, 0, 0], 3);

/// Networks within it that have no public hosts: protocol assignments with Teredo, benchmarking and ORCHID (2001::/23),
/// and documentation.
const SPECIAL_V6: [([u16; 3], u32); 3] = [([0x2001, 0, 0], 23), ([0x2001, 0xdb8, 0], 32), ([0x3fff, 0, 0], 20)];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn global(text: &str) -> bool {
        is_global(text.parse().unwrap_or_else(|_| panic!("{text} is an address")))
    }

    #[test]
    fn special_networks_are_refused_from_their_first_address_to_their_last() {
        for (network, length) in [
            ("0.0.0.0", 8),
            ("10.0.0.0", 8),
            ("100.64.0.0", 10),
            ("127.0.0.0", 8),
            ("169.254.0.0", 16),
            ("172.16.0.0", 12),
            ("192.0.0.0", 24),
            ("192.0.2.0", 24),
            ("192.88.99.0", 24),
            ("192.168.0.0", 16),
            ("198.18.0.0", 15),
            ("198.51.100.0", 24),
            ("203.0.113.0", 24),
            ("224.0.0.0", 4),
            ("240.0.0.0", 4),
        ] {
            let first = network.parse::<Ipv4Addr>().unwrap().to_bits();
            let last = first | (u32::MAX >> length);
            for bits in [first, first + 1, last - 1, last] {
                let address = Ipv4Addr::from(bits);
                assert!(!is_global(address.into()), "{address}");
            }
            let neighbours = [first.checked_sub(1), last.checked_add(1)].into_iter().flatten().map(Ipv4Addr::from);
            // Networks that touch each other have a special neighbour.
            for address in
                neighbours.filter(|address| !matches!(address.octets(), [192, 0, _, _] | [240, ..] | [239, ..]))
            {
                assert!(is_global(address.into()), "{address} beside {network}");
            }
        }
        assert!(!global("255.255.255.255"));
    }

    #[test]
    fn addresses_are_judged_by_the_table() {
        for good in [
            "1.1.1.1",
            "8.8.8.8",
            "11.0.0.1",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "192.31.196.1",
            "223.255.255.255",
            "2001:4860:4860::8888",
            "2001:200::1",
            "2606:4700::1111",
            "2a00::1",
            "3ffe::1",
            "2620:4f:8000::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ] {
            assert!(global(good), "{good}");
        }
        for bad in [
            "::",
            "::1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:8.8.8.8",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::808:808",
            "64:ff9b:1:ffff::1",
            "64:ff9b:0:0:0:1:808:808",
            "100::1",
            "2001::1",
            "2001:0:808:808::1",
            "2001:2::1",
            "2001:10::1",
            "2001:1ff:ffff::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:a00:1::1",
            "2002:c0a8:101::1",
            "3fff::1",
            "3fff:fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!global(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_judged_the_same_in_every_wrapping(bits in any::<u32>()) {
            let [a, b, c, d] = bits.to_be_bytes();
            let plain = is_global(IpAddr::from([a, b, c, d]));
            let (high, low) = ((bits >> 16) as u16, bits as u16);
            for wrapped in [
                Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(is_global(wrapped.into()), plain, "{}", wrapped);
            }
        }

        #[test]
        fn nothing_that_the_standard_library_calls_special_is_global(bits in any::<u128>(), v4 in any::<u32>()) {
            let address = Ipv6Addr::from(bits);
            if is_global(address.into()) && address.segments()[0] & 0xe000 == 0x2000 {
                prop_assert!(!address.is_loopback() && !address.is_multicast() && !address.is_unspecified());
                prop_assert!(!address.is_unique_local() && !address.is_unicast_link_local());
            }
            let address = Ipv4Addr::from(v4);
            if is_global(address.into()) {
                prop_assert!(!address.is_private() && !address.is_loopback() && !address.is_link_local());
                prop_assert!(!address.is_multicast() && !address.is_broadcast() && !address.is_documentation());
                prop_assert!(!address.is_unspecified());
            }
        }
    }
}
