//! Numbers that look random and are the same in every run: SplitMix64 (Steele, Lea, Flood 2014).

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One stream. Not for secrets.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let drawn = mixed(self.0);
        self.0 = self.0.wrapping_add(STEP);
        drawn
    }

    /// A number below `bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }

    /// An index of something that has `len` places.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

/// The finisher: every bit of the input changes half of the output.
pub fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(STEP);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
