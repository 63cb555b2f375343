//! Endpoint URLs of very many agents: about 116 bytes each instead of 230. The front that all have is kept once, the
//! token behind it as the bytes that its base64url says.
//!
//! An entry, in units of four bytes:
//!
//! ```text
//! next entry of the agent u32 | number u16 | prefix u8 | token bytes u8 | token
//! ```
//! The top bit of the prefix says that the token is text as it is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

const UNIT: usize = 4;
const HEAD: usize = 8;
const CHUNK_UNITS: usize = 1 << 18;
const AS_TEXT: u8 = 0x80;
const TOKEN_MAX: usize = 255;
const PREFIXES_MAX: usize = 100;

/// All endpoints, chained by agent; the agent has the first.
pub(super) struct Endpoints {
    chunks: Vec<Box<[u8]>>,
    /// Units of the last chunk that are taken.
    used: usize,
    /// First of the freed entries of each size in units.
    free: Vec<u32>,
    prefixes: Vec<String>,
}

impl Endpoints {
    pub fn new() -> Endpoints {
        let sizes = units(TOKEN_MAX) + 1;
        Endpoints { chunks: Vec::new(), used: CHUNK_UNITS, free: vec![NONE; sizes], prefixes: vec![String::new()] }
    }

    /// Appends a URL to the chain of `first`; its number is one more than the last one's. False when the URL is too
    /// long to be an endpoint.
    pub fn add(&mut self, first: &mut u32, url: &str) -> bool {
        let number = self.next_number(*first);
        let cut = url.rfind('/').map_or(0, |slash| slash + 1);
        let decoded = URL_SAFE_NO_PAD.decode(&url[cut..]).ok();
        let (prefix, token): (u8, &[u8]) = match (&decoded, self.prefix(&url[..cut])) {
            (Some(token), Some(prefix)) => (prefix, token),
            (None, Some(prefix)) => (prefix | AS_TEXT, &url.as_bytes()[cut..]),
            (_, None) => (AS_TEXT, url.as_bytes()),
        };
        let Ok(len) = u8::try_from(token.len()) else { return false };
        let entry = self.allocate(units(token.len()));
        let bytes = self.at_mut(entry, HEAD + token.len());
        bytes[..4].copy_from_slice(&NONE.to_ne_bytes());
        bytes[4..6].copy_from_slice(&number.to_ne_bytes());
        bytes[6] = prefix;
        bytes[7] = len;
        bytes[HEAD..].copy_from_slice(token);
        match self.last(*first) {
            Some(last) => self.set_next(last, entry),
            None => *first = entry,
        }
        true
    }

    /// The number that the next one gets.
    pub fn next_number(&self, first: u32) -> u16 {
        self.last(first).map_or(0, |last| self.number(last).wrapping_add(1))
    }

    /// The numbers in a chain.
    pub fn numbers(&self, first: u32) -> impl Iterator<Item = u16> {
        self.chain(first).map(|entry| self.number(entry))
    }

    /// The URLs in a chain.
    pub fn urls(&self, first: u32) -> impl Iterator<Item = String> {
        self.chain(first).map(|entry| self.url(entry))
    }

    /// Takes one out of a chain, by its number.
    pub fn remove(&mut self, first: &mut u32, number: u16) {
        let mut before = None;
        let found = self.chain(*first).find(|&entry| {
            let found = self.number(entry) == number;
            if !found {
                before = Some(entry);
            }
            found
        });
        let Some(entry) = found else { return };
        let next = self.next(entry);
        match before {
            Some(before) => self.set_next(before, next),
            None => *first = next,
        }
        self.release(entry);
    }

    fn chain(&self, first: u32) -> impl Iterator<Item = u32> {
        let known = |entry: u32| (entry != NONE).then_some(entry);
        std::iter::successors(known(first), move |&entry| known(self.next(entry)))
    }

    fn last(&self, first: u32) -> Option<u32> {
        self.chain(first).last()
    }

    fn url(&self, entry: u32) -> String {
        let head = self.at(entry, HEAD);
        let (prefix, len) = (head[6], usize::from(head[7]));
        let token = &self.at(entry, HEAD + len)[HEAD..];
        let mut url = self.prefixes[usize::from(prefix & !AS_TEXT)].clone();
        if prefix & AS_TEXT == 0 {
            URL_SAFE_NO_PAD.encode_string(token, &mut url);
        } else {
            url.push_str(&String::from_utf8_lossy(token));
        }
        url
    }

    /// The number of this prefix; new ones are learned while there are few.
    fn prefix(&mut self, text: &str) -> Option<u8> {
        if let Some(known) = self.prefixes.iter().position(|known| known == text) {
            return Some(known as u8);
        }
        if self.prefixes.len() == PREFIXES_MAX {
            return None;
        }
        self.prefixes.push(text.to_owned());
        Some(self.prefixes.len() as u8 - 1)
    }

    fn allocate(&mut self, units: usize) -> u32 {
        let freed = self.free[units];
        if freed != NONE {
            self.free[units] = self.next(freed);
            return freed;
        }
        if self.used + units > CHUNK_UNITS {
            self.chunks.push(vec![0; CHUNK_UNITS * UNIT].into_boxed_slice());
            self.used = 0;
        }
        let entry = (self.chunks.len() - 1) * CHUNK_UNITS + self.used;
        self.used += units;
        entry as u32
    }

    fn release(&mut self, entry: u32) {
        let size = units(usize::from(self.at(entry, HEAD)[7]));
        self.set_next(entry, self.free[size]);
        self.free[size] = entry;
    }

    fn next(&self, entry: u32) -> u32 {
        self.at(entry, HEAD).first_chunk().map_or(NONE, |next| u32::from_ne_bytes(*next))
    }

    fn set_next(&mut self, entry: u32, next: u32) {
        self.at_mut(entry, 4).copy_from_slice(&next.to_ne_bytes());
    }

    fn number(&self, entry: u32) -> u16 {
        let head = self.at(entry, HEAD);
        u16::from_ne_bytes([head[4], head[5]])
    }

    fn at(&self, entry: u32, len: usize) -> &[u8] {
        let start = entry as usize % CHUNK_UNITS * UNIT;
        &self.chunks[entry as usize / CHUNK_UNITS][start..start + len]
    }

    fn at_mut(&mut self, entry: u32, len: usize) -> &mut [u8] {
        let start = entry as usize % CHUNK_UNITS * UNIT;
        &mut self.chunks[entry as usize / CHUNK_UNITS][start..start + len]
    }
}

fn units(token: usize) -> usize {
    (HEAD + token).div_ceil(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(n: usize, bytes: usize) -> String {
        let token: Vec<u8> = (0..bytes).map(|at| (at * 31 + n) as u8).collect();
        format!("http://push.test/wpush/v{}/{}", 1 + n % 2, URL_SAFE_NO_PAD.encode(token))
    }

    #[test]
    fn urls_come_back_as_they_were_and_cost_half() {
        let mut endpoints = Endpoints::new();
        let mut chains = vec![NONE; 30_000];
        for (n, first) in chains.iter_mut().enumerate() {
            assert!(endpoints.add(first, &url(n, 105)) && endpoints.add(first, &url(n + 1, 137)));
        }
        for (n, first) in chains.iter().enumerate() {
            assert_eq!(endpoints.urls(*first).collect::<Vec<_>>(), [url(n, 105), url(n + 1, 137)]);
            assert_eq!(endpoints.numbers(*first).collect::<Vec<_>>(), [0, 1]);
        }
        assert!(endpoints.chunks.len() * CHUNK_UNITS * UNIT <= 30_000 * (116 + 148) + 2 * CHUNK_UNITS * UNIT);
    }

    #[test]
    fn freed_entries_are_used_again() {
        let mut endpoints = Endpoints::new();
        let (mut first, mut other) = (NONE, NONE);
        for n in 0..4 {
            endpoints.add(&mut first, &url(n, 105));
        }
        for round in 0..100_000 {
            endpoints.add(&mut other, &url(round, 105));
            endpoints.remove(&mut other, 0);
        }
        assert_eq!((other, endpoints.chunks.len()), (NONE, 1));
        for number in [2, 9, 0] {
            endpoints.remove(&mut first, number);
        }
        assert_eq!(endpoints.urls(first).collect::<Vec<_>>(), [url(1, 105), url(3, 105)]);
        assert_eq!(endpoints.next_number(first), 4);
    }

    #[test]
    fn strange_urls_are_kept_too_unless_they_are_too_long() {
        let mut endpoints = Endpoints::new();
        let long = format!("http://h/{}", "a".repeat(500));
        let not_base64 = format!("{}=", url(1, 105));
        let mut urls: Vec<String> = ["", "x", "http://h/", "http://h/a.b", &not_base64].map(str::to_owned).to_vec();
        urls.extend((0..200).map(|n| format!("http://h{n}/wpush/v1/AAAA")));
        let mut first = NONE;
        for url in &urls {
            assert!(endpoints.add(&mut first, url));
        }
        assert!(!endpoints.add(&mut first, &long));
        assert_eq!(endpoints.urls(first).collect::<Vec<_>>(), urls);
    }
}
