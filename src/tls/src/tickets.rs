//! Session tickets that every server with the same keys opens (RFC 8446 section 4.6.1, RFC 5077): nothing is stored.
//!
//! Each period of six hours has its own key, made by HKDF of a ticket key and the number of the period. The first
//! ticket key seals. Tickets of the current and of the previous period open, so a ticket serves 12 hours at most. A
//! ticket is:
//!
//! | bytes | meaning |
//! |---|---|
//! | 4 | number of the period, big endian |
//! | 1 | position of the ticket key in the list: a hint, since another server may have another order |
//! | 12 | random nonce |
//! | rest | the session by AES-256-GCM, with the first five bytes as additional data |

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use crate::keys::Len;

const PERIOD_SECONDS: u64 = 6 * 60 * 60;
const HEADER_LEN: usize = 5;
const NONCE_LEN: usize = 12;

/// Secret of 32 bytes by which tickets are sealed (`tls.ticket_keys`). Overwritten when dropped.
#[derive(Clone)]
pub struct TicketKey(Zeroizing<[u8; 32]>);

impl From<[u8; 32]> for TicketKey {
    fn from(bytes: [u8; 32]) -> TicketKey {
        TicketKey(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey")
    }
}

impl TicketKey {
    /// Key of one period.
    fn of_period(&self, period: u32) -> LessSafeKey {
        let prk = Salt::new(HKDF_SHA256, b"murre session tickets").extract(&*self.0);
        let mut key = Zeroizing::new([0; 32]);
        // Invariant: HKDF makes 255 times the length of its hash.
        prk.expand(&[&period.to_be_bytes()], Len(32)).and_then(|okm| okm.fill(&mut *key)).expect("short");
        // Invariant: keys of AES-256 have 32 bytes.
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).expect("32 bytes"))
    }
}

/// Sealer and opener of tickets.
pub(crate) struct Tickets {
    keys: Vec<TicketKey>,
    random: SystemRandom,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tickets({} keys)", self.keys.len())
    }
}

impl Tickets {
    pub(crate) fn new(keys: Vec<TicketKey>) -> Tickets {
        Tickets { keys, random: SystemRandom::new() }
    }

    fn seal(&self, now: u64, plain: &[u8]) -> Option<Vec<u8>> {
        let period = period_of(now);
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        let mut ticket = Vec::with_capacity(HEADER_LEN + NONCE_LEN + plain.len() + AES_256_GCM.tag_len());
        ticket.extend_from_slice(&period.to_be_bytes());
        ticket.push(0);
        let header: [u8; HEADER_LEN] = *ticket.first_chunk()?;
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(plain);
        let key = self.keys.first()?.of_period(period);
        let sealed = &mut ticket[HEADER_LEN + NONCE_LEN..];
        let tag =
            key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(header), sealed).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, now: u64, ticket: &[u8]) -> Option<Vec<u8>> {
        let (header, rest) = ticket.split_first_chunk::<HEADER_LEN>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let period = u32::from_be_bytes(*header.first_chunk()?);
        let current = period_of(now);
        if period != current && period.checked_add(1) != Some(current) {
            return None;
        }
        let hint = usize::from(header[HEADER_LEN - 1]);
        let others = (0..self.keys.len()).filter(|at| *at != hint);
        self.keys.get(hint).into_iter().chain(others.map(|at| &self.keys[at])).find_map(|key| {
            let mut plain = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let len = key.of_period(period).open_in_place(nonce, Aad::from(header), &mut plain).ok()?.len();
            plain.truncate(len);
            Some(plain)
        })
    }
}

/// Returns true for the state of a connection of TLS 1.2, as rustls 0.23 writes it: a flag, the name of the server with
/// its length if the flag is 1, then the version.
fn is_tls12(state: &[u8]) -> bool {
    let version = match state {
        [1, len, rest @ ..] => rest.get(usize::from(*len)..),
        [_, rest @ ..] => Some(rest),
        [] => None,
    };
    version.is_none_or(|version| !version.starts_with(&[3, 4]))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn period_of(now: u64) -> u32 {
    (now / PERIOD_SECONDS) as u32
}

/// Seconds for which a ticket of now opens: to the end of the next period.
fn lifetime(now: u64) -> u32 {
    (2 * PERIOD_SECONDS - now % PERIOD_SECONDS) as u32
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        !self.keys.is_empty()
    }

    fn lifetime(&self) -> u32 {
        lifetime(now())
    }

    /// A ticket of TLS 1.2 would hold the secret of its connection: a stolen key would open recorded connections. The
    /// client gets an empty ticket in its place (RFC 5077 section 3.3), and makes a full handshake the next time.
    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        (!is_tls12(plain)).then(|| self.seal(now(), plain))?
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(now(), cipher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(keys: &[u8]) -> Tickets {
        Tickets::new(keys.iter().map(|byte| TicketKey::from([*byte; 32])).collect())
    }

    #[test]
    fn tickets_open_in_their_period_and_the_next_one_only() {
        let tickets = tickets(&[1]);
        let sealed_at = 1_000 * PERIOD_SECONDS + 5;
        let ticket = tickets.seal(sealed_at, b"session").unwrap();
        let opens = |at: u64| tickets.open(at, &ticket).as_deref() == Some(b"session");
        assert!(opens(sealed_at) && opens(sealed_at + u64::from(lifetime(sealed_at)) - 1));
        assert!(!opens(sealed_at + u64::from(lifetime(sealed_at))) && !opens(sealed_at - 6));
        assert_eq!((lifetime(0), lifetime(PERIOD_SECONDS - 1)), (12 * 3_600, 6 * 3_600 + 1));
    }

    #[test]
    fn every_key_of_the_list_opens_and_the_first_seals() {
        let ticket = tickets(&[1, 2]).seal(7, b"session").unwrap();
        let opens = |keys: &[u8]| tickets(keys).open(7, &ticket).is_some();
        assert!(opens(&[1]) && opens(&[3, 1]) && opens(&[3, 2, 1]));
        assert!(!opens(&[2]) && !opens(&[]));
    }

    #[test]
    fn a_changed_or_cut_ticket_does_not_open() {
        let tickets = tickets(&[1, 2]);
        let ticket = tickets.seal(7, b"session").unwrap();
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(tickets.open(7, &changed), None, "byte {at}");
            assert_eq!(tickets.open(7, &ticket[..at]), None, "{at} bytes");
        }
        assert!(tickets.open(7, &ticket).is_some());
        assert_ne!(ticket, tickets.seal(7, b"session").unwrap(), "nonces are random");
    }

    #[test]
    fn no_key_is_printed() {
        let shown = format!("{:?} {:?}", TicketKey::from([77; 32]), tickets(&[77]));
        assert_eq!(shown, "TicketKey Tickets(1 keys)");
    }
}
