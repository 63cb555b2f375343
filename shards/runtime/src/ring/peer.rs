//! Addresses of peers. Accepts do not ask for them. SO_PEERNAME by io_uring's getsockopt does, also for
//! direct descriptors (Linux 6.7).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use io_uring::{opcode, squeue, types};

/// Family of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns the length of an address of this family: the kernel refuses to tell it with any other.
    pub(crate) fn address_bytes(self) -> usize {
        match self {
            Family::V4 => size_of::<libc::sockaddr_in>(),
            Family::V6 => size_of::<libc::sockaddr_in6>(),
        }
    }
}

/// `SOCKET_URING_OP_SETSOCKOPT` and `SOCKET_URING_OP_GETSOCKOPT` of linux/io_uring.h.
const SET: u32 = 3;
const GET: u32 = 2;
/// Place of `cmd_op` in a submission, counted in words of 32 bits.
const COMMAND: usize = 2;

/// Returns the submission that writes the address of the peer of `fd` to `target`, which has room for
/// [`Family::address_bytes`].
pub(super) fn entry(fd: types::Fixed, family: Family, target: *mut u8) -> squeue::Entry {
    let (level, name) = (libc::SOL_SOCKET as u32, libc::SO_PEERNAME as u32);
    let len = family.address_bytes() as u32;
    let mut entry = opcode::SetSockOpt::new(fd, level, name, target.cast(), len).build();
    // The crate has no getsockopt. Both commands have the same fields.
    let command = (&raw mut entry).cast::<u32>().wrapping_add(COMMAND);
    // SAFETY: an entry is a submission of the kernel's layout, 64 bytes, in which this word is the command.
    unsafe {
        assert_eq!(command.read(), SET, "io-uring built a setsockopt");
        command.write(GET);
    }
    entry
}

const _: () = assert!(size_of::<squeue::Entry>() == 64);

/// Reads what the kernel wrote. IPv4 addresses that are mapped into IPv6 come as IPv4. `None` for another family.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let (family, rest) = bytes.split_first_chunk()?;
    let address: IpAddr = match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => Ipv4Addr::from(*rest.get(2..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(*rest.get(6..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(address.to_canonical())
}
