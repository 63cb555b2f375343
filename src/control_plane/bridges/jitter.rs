//! Jitter of pauses.

/// Returns a random number from 0 to 1.
pub(super) fn jitter() -> f64 {
    let mut bytes = [0; 2];
    // Without random numbers there is no jitter; nothing depends on it.
    let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    f64::from(u16::from_be_bytes(bytes)) / f64::from(u16::MAX)
}
