//! Shares of a store that is nearly full: the messages that are refused first (decision 0039).
//!
//! Two bounds follow the room that is left: one for all messages of an address, and a smaller one for a user of an
//! address beyond it. Every message that is taken lowers both, so that the store comes near its bound ever more slowly,
//! and a mailbox with little in it still finds room. A message that was accepted is never removed for another.
//!
//! Pure numbers: the stores count, and ask here.

use crate::limits;

/// Room of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes until no message is taken any more.
    pub left: u64,
    /// Bytes of the whole store.
    pub whole: u64,
}

impl Room {
    /// Returns true if the store is so full that shares count.
    pub fn is_scarce(self) -> bool {
        self.left < self.whole / limits::SCARCE_ROOM_PART
    }

    /// Returns true if the store takes a message of any user of an address that has this many bytes.
    pub fn admits_address(self, bytes: u64) -> bool {
        !self.is_scarce() || bytes < self.address_share()
    }

    /// Bytes that an address may have.
    pub fn address_share(self) -> u64 {
        self.left / limits::ADDRESS_SHARE_PART
    }

    /// Bytes that a user of an address beyond its share may have. A user without a message may always have one.
    pub fn user_share(self, credit: Credit) -> u64 {
        let least = (self.left / limits::USER_SHARE_PART).clamp(1, limits::USER_SHARE_BYTES_MAX);
        least + least * limits::CREDIT_SHARES * u64::from(credit.0) / u64::from(limits::CREDIT_BYTES_MAX)
    }
}

/// Bytes by which a user has shown that it acks: it grows with bytes that were stored and acked, and shrinks with bytes
/// that are stored and wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Credit(pub u32);

impl Credit {
    /// Bytes were stored: half of them are taken, so that a user who acks everything gains the other half.
    pub fn stored(self, bytes: u64) -> Credit {
        Credit(self.0.saturating_sub(u32::try_from(bytes / 2).unwrap_or(u32::MAX)))
    }

    /// Stored bytes were acked.
    pub fn acked(self, bytes: u64) -> Credit {
        Credit(self.0.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX)).min(limits::CREDIT_BYTES_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn room(left: u64) -> Room {
        Room { left, whole: GIB }
    }

    #[test]
    fn below_the_mark_no_address_is_refused() {
        assert!(room(GIB / 5).admits_address(u64::MAX) && !room(GIB / 5 - 1).admits_address(u64::MAX));
        assert!(room(GIB / 5 - 1).admits_address(3 << 20), "an address with little is never the first");
    }

    #[test]
    fn a_share_starts_small_grows_with_acks_and_shrinks_with_what_waits() {
        let mut credit = Credit::default();
        let begun = room(GIB / 6).user_share(credit);
        assert_eq!(begun, GIB / 6 / 4_096);
        for _ in 0..512 {
            credit = credit.stored(4_096).acked(4_096);
        }
        assert_eq!(credit, Credit(limits::CREDIT_BYTES_MAX));
        assert_eq!(room(GIB / 6).user_share(credit), 16 * begun);
        for _ in 0..512 {
            credit = credit.stored(4_096);
        }
        assert_eq!(credit, Credit(0), "a mailbox that is left unacked loses what it had");
        assert_eq!(room(0).user_share(credit), 1, "and one without a message may have one");
    }

    /// Takes messages of 4 KiB for these users in a circle, as long as any of them is let in.
    fn fill(users: u64, addresses: u64, credit: Credit) -> Room {
        let (mut held, mut of_address) = (vec![0; users as usize], vec![0; addresses as usize]);
        let mut room = room(GIB);
        let mut refused = 0;
        for nth in (0..users).cycle() {
            let (user, address) = (nth as usize, (nth % addresses) as usize);
            if room.left > 0 && (room.admits_address(of_address[address]) || held[user] < room.user_share(credit)) {
                held[user] += 4_096;
                of_address[address] += 4_096;
                room.left = room.left.saturating_sub(4_096);
                refused = 0;
            } else {
                refused += 1;
            }
            if refused > users {
                return room;
            }
        }
        room
    }

    #[test]
    fn attackers_leave_room_for_others() {
        let acked = Credit(limits::CREDIT_BYTES_MAX);
        for (users, addresses, credit, left) in [
            (72, 1, Credit(0), GIB / 6),
            (3_600, 50, Credit(0), GIB / 6),
            (3_600, 50, acked, GIB / 20),
            (15_000, 50, acked, GIB / 80),
        ] {
            let room = fill(users, addresses, credit);
            assert!(room.left >= left, "{users} users of {addresses} addresses with {credit:?} leave {}", room.left);
            assert!(room.admits_address(100_000), "an address with little finds room");
            assert!(0 < room.user_share(Credit(0)), "a user without a message does, also on their own addresses");
        }
    }

    proptest! {
        #[test]
        fn shares_never_grow_while_room_shrinks(left in 0..GIB, more in 0..GIB, acked in 0..=limits::CREDIT_BYTES_MAX) {
            let (full, less) = (room(left), room(left.saturating_sub(more)));
            prop_assert!(less.user_share(Credit(acked)) <= full.user_share(Credit(acked)));
            prop_assert!(full.admits_address(more) || !less.admits_address(more));
            prop_assert!(Credit(acked).stored(more) <= Credit(acked) && Credit(acked) <= Credit(acked).acked(more));
        }
    }
}
