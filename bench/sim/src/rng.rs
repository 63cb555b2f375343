//! Random numbers that are the same on every machine: xoshiro256** seeded through splitmix64.
//!
//! A world draws from several salted streams, so that one more draw in one of them leaves the others alone.

/// One stream. Not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Rng([u64; 4]);

impl Rng {
    /// The stream of this seed under this salt.
    pub(crate) fn new(seed: u64, salt: u64) -> Rng {
        let mut state = seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Rng(std::array::from_fn(|_| split_mix(&mut state)))
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a draw has at least one outcome");
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// An index of something that has `len` places.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number between both, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True this many times in a thousand.
    pub(crate) fn permille(&mut self, chance: u64) -> bool {
        self.below(1000) < chance
    }

    /// One of them.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// 16 random bytes.
    pub(crate) fn bytes16(&mut self) -> [u8; 16] {
        let (a, b) = (self.bits().to_be_bytes(), self.bits().to_be_bytes());
        std::array::from_fn(|i| if i < 8 { a[i] } else { b[i - 8] })
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let draw = |salt| {
            let mut rng = Rng::new(7, salt);
            [rng.bits(), rng.bits(), rng.below(10)]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn below_reaches_every_outcome_and_no_other() {
        let mut rng = Rng::new(1, 1);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[rng.index(5)] += 1;
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    }
}
