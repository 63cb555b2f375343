//! Random bytes by the 16: the kernel is asked for many at a time. One pool per user, on its shard's thread.

use ring::rand::{SecureRandom, SystemRandom};

/// Unused random bytes.
pub struct Pool {
    random: SystemRandom,
    bytes: Box<[u8; POOL_BYTES]>,
    /// Bytes that were not given out; they are the last ones. `0 <= left <= POOL_BYTES`.
    left: usize,
}

const POOL_BYTES: usize = 1024;

impl Default for Pool {
    fn default() -> Self {
        Pool { random: SystemRandom::new(), bytes: Box::new([0; POOL_BYTES]), left: 0 }
    }
}

impl Pool {
    /// 16 fresh bytes; `None` when the kernel gives none.
    pub fn draw(&mut self) -> Option<[u8; 16]> {
        if self.left < 16 {
            self.random.fill(&mut self.bytes[..]).ok()?;
            self.left = POOL_BYTES;
        }
        let start = POOL_BYTES - self.left;
        self.left -= 16;
        let place = self.bytes.get_mut(start..start + 16)?;
        let drawn: [u8; 16] = (&*place).try_into().ok()?;
        // They become bearer secrets: no copy stays behind.
        place.fill(0);
        Some(drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_draws_are_alike_and_nothing_given_out_is_kept() {
        let mut pool = Pool::default();
        let drawn: HashSet<[u8; 16]> = (0..1000).map(|_| pool.draw().unwrap()).collect();
        assert_eq!(drawn.len(), 1000);
        let given = POOL_BYTES - pool.left;
        assert!(pool.bytes[..given].iter().all(|byte| *byte == 0));
    }
}
