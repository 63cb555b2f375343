//! Answers to HTTP-01 challenges (RFC 8555 section 8.3), shared by the client that orders certificates and the listener
//! of `public.http_listen`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Key authorizations by token. Any thread.
#[derive(Default)]
pub struct Challenges(Mutex<HashMap<String, String>>);

/// Challenges at a time, at about 200 bytes each: one for each name of an order. Refuse: the challenge is not taken.
pub const CHALLENGES_MAX: usize = 128;

impl Challenges {
    /// Answers a token with this key authorization from now on. Returns false if there are too many, and then the token
    /// has no answer.
    #[must_use]
    pub fn insert(&self, token: &str, key_authorization: &str) -> bool {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = answers.len() < CHALLENGES_MAX || answers.contains_key(token);
        if has_room {
            answers.insert(token.to_owned(), key_authorization.to_owned());
        }
        has_room
    }

    /// Answers a token no more.
    pub fn remove(&self, token: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(token);
    }

    /// Returns the key authorization of a token.
    pub fn get(&self, token: &str) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_bounded_and_each_has_one_answer() {
        let challenges = Challenges::default();
        for number in 0..CHALLENGES_MAX {
            assert!(challenges.insert(&format!("t{number}"), "a"));
        }
        assert!(!challenges.insert("beyond", "a") && challenges.get("beyond").is_none());
        assert!(challenges.insert("t0", "b"), "a token that is there may change");
        assert_eq!(challenges.get("t0").as_deref(), Some("b"));
        challenges.remove("t1");
        assert!(challenges.insert("beyond", "a") && challenges.get("t1").is_none());
    }
}
