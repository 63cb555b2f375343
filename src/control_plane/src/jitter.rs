//! Jitter of pauses.

use ring::rand::{SecureRandom as _, SystemRandom};

/// Returns a random number from 0 to 1, or the middle if the kernel gives no random bytes: nothing but the spread of
/// pauses depends on it.
pub(super) fn jitter() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_spread() {
        let parts: Vec<f64> = (0..64).map(|_| jitter()).collect();
        assert!(parts.iter().all(|part| (0.0..=1.0).contains(part)));
        assert!(parts.iter().any(|part| *part != parts[0]), "64 equal draws of 32 bits");
    }
}
