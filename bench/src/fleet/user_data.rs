//! Layout of an operation's user_data, and the completion that is read back from it.
//!
//! ```text
//! 63 kind 60 | 59 aux 48 | 47 generation 32 | 31 agent 0
//! ```

/// Kind of operation that a completion belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    Ignored = 0,
    /// A step of making a socket; only failures complete.
    Setup = 1,
    /// Connect; only failures complete.
    Connect = 2,
    /// One-shot poll for input.
    Poll = 3,
    /// One-shot poll for room.
    Room = 4,
    /// Receive; aux = span.
    Recv = 5,
    /// Send; aux = number within its submission; only failures and short ones complete.
    Send = 6,
}

/// Number of values of `aux`.
pub(super) const AUX_MAX: usize = 1 << 12;

/// One connection of one agent: what came for an earlier connection is known by its generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConnKey {
    pub agent: u32,
    /// Counts its connections, and wraps.
    pub generation: u16,
}

/// A completion as reaped; `result` is as the kernel says it, negative for an errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Done {
    pub kind: Kind,
    pub aux: usize,
    pub name: ConnKey,
    pub result: i32,
}

/// The user_data of an operation.
pub(super) fn encode(kind: Kind, aux: usize, name: ConnKey) -> u64 {
    debug_assert!(aux < AUX_MAX);
    (kind as u64) << 60 | (aux as u64) << 48 | u64::from(name.generation) << 32 | u64::from(name.agent)
}

/// The completion of an operation with this user_data.
pub(super) fn decode(word: u64, result: i32) -> Done {
    let kind = match word >> 60 {
        1 => Kind::Setup,
        2 => Kind::Connect,
        3 => Kind::Poll,
        4 => Kind::Room,
        5 => Kind::Recv,
        6 => Kind::Send,
        _ => Kind::Ignored,
    };
    let name = ConnKey { agent: word as u32, generation: (word >> 32) as u16 };
    Done { kind, aux: (word >> 48) as usize & (AUX_MAX - 1), name, result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_read_back_as_it_was_made() {
        use Kind::*;
        for kind in [Ignored, Setup, Connect, Poll, Room, Recv, Send] {
            for (agent, generation, aux) in [(0, 0, 0), (u32::MAX, u16::MAX, AUX_MAX - 1), (1_999_999, 7, 1_023)] {
                let name = ConnKey { agent, generation };
                assert_eq!(decode(encode(kind, aux, name), -5), Done { kind, aux, name, result: -5 });
            }
        }
    }
}
