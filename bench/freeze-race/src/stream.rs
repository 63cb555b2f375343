//! The counted byte stream of a peer: each byte follows from the port of the peer and its position in the stream.

/// Scrambles a number (SplitMix64).
pub fn scramble(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// A generator of reproducible random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        scramble(self.0)
    }

    /// Returns a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }
}

/// Returns the byte at a position of the stream of the peer with this port.
pub fn byte_at(port: u16, position: u64) -> u8 {
    (scramble((u64::from(port) << 48) ^ (position / 8)) >> (position % 8 * 8)) as u8
}

#[test]
fn streams_of_two_ports_differ_and_each_is_reproducible() {
    let stream = |port| (0..64).map(|at| byte_at(port, at)).collect::<Vec<_>>();
    assert_ne!(stream(1), stream(2));
    assert_eq!(stream(1), stream(1));
}
