//! The fence of a ring refuses every operation, flag and register call that is not in its table.

use std::collections::VecDeque;

use io_uring::{IoUring, Probe, opcode, squeue};

use crate::ring::fence::{Fence, RingUses, operations};
use crate::ring::op::{Kind, encode_plain};
use crate::ring::uring::Ring;
use crate::ring::{Plane, PlaneConfig, RingPlane, TableAddress, eventfd};

use super::ALL_USES;

const CONFIG: PlaneConfig = PlaneConfig { rings: 2, table: 8, sq: 8, cq: 16 };
const EVERY_USE: [RingUses; 3] =
    [RingUses { asks_addresses: false, freezes: false }, RingUses { asks_addresses: true, freezes: false }, ALL_USES];

/// `IORING_REGISTER_FILES_UPDATE`, `IORING_REGISTER_RESTRICTIONS` and `IORING_REGISTER_ENABLE_RINGS` of
/// linux/io_uring.h.
const FILES_UPDATE: u32 = 6;
const RESTRICTIONS: u32 = 11;
const ENABLE_RINGS: u32 = 12;
/// Every kernel that runs murre knows the register calls below this one.
const KNOWN_CALLS: u32 = 24;

/// Returns an operation on no file, with no address and no length.
fn operation(code: u8, flags: squeue::Flags) -> squeue::Entry {
    let mut entry = opcode::Nop::new().build().flags(flags).user_data(encode_plain(Kind::Ignored, 0, 0));
    // SAFETY: an entry is a submission of the kernel's layout, whose first byte is the operation.
    unsafe { (&raw mut entry).cast::<u8>().write(code) };
    entry
}

/// Returns what the kernel answers.
fn answer(ring: &mut Ring, entry: &squeue::Entry) -> i32 {
    let mut ready = VecDeque::new();
    ring.push(entry);
    while ready.is_empty() {
        ring.enter(&mut ready);
    }
    ready.pop_front().unwrap().result
}

fn is_known() -> Probe {
    let mut known = Probe::new();
    IoUring::new(8).unwrap().submitter().register_probe(&mut known).unwrap();
    known
}

#[test]
fn an_operation_that_is_not_in_the_table_is_refused() {
    let known = is_known();
    for uses in EVERY_USE {
        let mut ring = Ring::new(0, CONFIG, uses, None).unwrap();
        let codes = (0..=u8::MAX).filter(|code| known.is_supported(*code));
        let open = codes.filter(|code| answer(&mut ring, &operation(*code, squeue::Flags::empty())) != -libc::EACCES);
        let mut allowed: Vec<u8> = operations(uses).map(|operation| operation.code).collect();
        allowed.sort_unstable();
        assert_eq!(open.collect::<Vec<_>>(), allowed, "{uses:?}");
        for code in [opcode::OpenAt::CODE, opcode::Read::CODE, opcode::Connect::CODE, opcode::Nop::CODE] {
            assert!(!allowed.contains(&code));
        }
    }
}

#[test]
fn operations_of_the_table_are_refused_with_other_flags() {
    for (flags, is_allowed) in [
        (squeue::Flags::FIXED_FILE, true),
        (squeue::Flags::SKIP_SUCCESS, true),
        (squeue::Flags::ASYNC, false),
        (squeue::Flags::IO_DRAIN, false),
        (squeue::Flags::IO_HARDLINK, false),
        (squeue::Flags::BUFFER_SELECT, false),
    ] {
        // A ring that has seen SKIP_SUCCESS refuses IO_DRAIN by itself.
        let mut ring = Ring::new(0, CONFIG, ALL_USES, None).unwrap();
        let result = answer(&mut ring, &operation(opcode::Recv::CODE, flags));
        assert_eq!(result != -libc::EACCES, is_allowed, "{flags:?}: {result}");
    }
}

/// Returns the errno of a register call without arguments.
fn register(fd: i32, call: u32) -> i32 {
    // SAFETY: no pointer is passed.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, call, std::ptr::null::<u8>(), 0) };
    if result < 0 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

#[test]
fn a_register_call_that_is_not_in_the_table_is_refused_on_every_ring_of_a_shard() {
    let event = eventfd().unwrap();
    for uses in EVERY_USE {
        let plane = RingPlane::new(CONFIG, uses, std::os::fd::AsFd::as_fd(&event)).unwrap();
        for number in 0..plane.rings() {
            let TableAddress::Ring(fd) = plane.address(number) else { panic!("no ring") };
            for call in 0..KNOWN_CALLS {
                let errno = register(fd, call);
                match call {
                    // Enabled for good.
                    ENABLE_RINGS => assert_eq!(errno, libc::EBADFD),
                    FILES_UPDATE if uses.freezes => assert_ne!(errno, libc::EACCES),
                    _ => assert_eq!(errno, libc::EACCES, "call {call} of {uses:?}"),
                }
            }
            assert_eq!(register(fd, RESTRICTIONS), libc::EACCES, "no second list");
        }
    }
}

#[test]
fn a_fence_counts_what_it_allows() {
    let counted = EVERY_USE.map(|uses| Fence::of(2, uses)).map(|fence| (fence.operations, fence.register_calls));
    assert_eq!(counted, [(11, 0), (12, 0), (13, 1)]);
}
