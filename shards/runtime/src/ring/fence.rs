//! Fence of a ring: the operations and the register calls that the kernel still allows after the ring is enabled.
//!
//! Each ring of a shard is made disabled, prepared, restricted, and then enabled on the thread of its shard, which the
//! kernel takes for its single issuer. Nothing lifts the restrictions of a ring. The kernel refuses any other operation
//! or register call with EACCES. All rings of a process have the same fence.

use std::io;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue};

/// Features of a server that need more of its rings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RingUses {
    /// A setting needs the addresses of callers.
    pub asks_addresses: bool,
    /// Sessions are frozen.
    pub freezes: bool,
}

/// An operation or a register call, and the servers whose rings allow it.
pub(super) struct Allowed {
    pub code: u8,
    pub name: &'static str,
    is_needed: fn(RingUses) -> bool,
}

const fn always(code: u8, name: &'static str) -> Allowed {
    Allowed { code, name, is_needed: |_| true }
}

const fn with_freezes(code: u8, name: &'static str) -> Allowed {
    Allowed { code, name, is_needed: |uses| uses.freezes }
}

/// Every operation that a shard stages.
const OPERATIONS: &[Allowed] = &[
    always(opcode::Accept::CODE, "accept"),
    always(opcode::PollAdd::CODE, "poll"),
    always(opcode::PollRemove::CODE, "poll removal"),
    always(opcode::Recv::CODE, "receive"),
    always(opcode::Send::CODE, "send"),
    always(opcode::Shutdown::CODE, "shutdown"),
    always(opcode::Close::CODE, "close"),
    always(opcode::AsyncCancel::CODE, "cancel"),
    always(opcode::Timeout::CODE, "timeouts"),
    always(opcode::TimeoutRemove::CODE, "timeout removal"),
    // Bells, and the move of a socket.
    always(opcode::MsgRingData::CODE, "messages between rings"),
    // URING_CMD: SO_PEERNAME, and the live mark. The kernel cannot tell these from other commands of a file.
    Allowed {
        code: opcode::SetSockOpt::CODE,
        name: "socket options",
        is_needed: |uses| uses.asks_addresses || uses.freezes,
    },
    with_freezes(opcode::FixedFdInstall::CODE, "ordinary descriptors"),
];

/// Every register call of an enabled ring. All others come before: the table of descriptors and the eventfd.
const REGISTER_CALLS: &[Allowed] = &[with_freezes(REGISTER_FILES_UPDATE, "exchange of a descriptor")];

/// Flags of a submission that a shard sets. It requires none: the hub polls an eventfd, which is no direct descriptor.
const FLAGS: squeue::Flags = squeue::Flags::FIXED_FILE.union(squeue::Flags::IO_LINK).union(squeue::Flags::SKIP_SUCCESS);

/// `IORING_REGISTER_FILES_UPDATE` of linux/io_uring.h.
const REGISTER_FILES_UPDATE: u8 = 6;
/// `IORING_REGISTER_ENABLE_RINGS`: of an enabled ring the kernel refuses it.
const REGISTER_ENABLE_RINGS: u8 = 12;

/// Returns the operations that rings with these uses allow.
pub(super) fn operations(uses: RingUses) -> impl Iterator<Item = &'static Allowed> {
    OPERATIONS.iter().filter(move |operation| (operation.is_needed)(uses))
}

/// Returns the register calls that rings with these uses allow.
fn register_calls(uses: RingUses) -> impl Iterator<Item = &'static Allowed> {
    REGISTER_CALLS.iter().filter(move |call| (call.is_needed)(uses))
}

/// Makes a ring that does nothing until [`close`]. Its table and its eventfd are registered meanwhile.
pub(super) fn open(sq: u32, cq: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_r_disabled()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_cqsize(cq)
        .build(sq)
}

/// Restricts the ring for good and enables it. On the thread that will submit.
pub(super) fn close(ring: &IoUring, uses: RingUses) -> io::Result<()> {
    // Kernels after 6.18 restrict register calls only if the list has one.
    let mut allowed = vec![Restriction::register_op(REGISTER_ENABLE_RINGS)];
    allowed.extend(register_calls(uses).map(|call| Restriction::register_op(call.code)));
    allowed.extend(operations(uses).map(|operation| Restriction::sqe_op(operation.code)));
    allowed.push(Restriction::sqe_flags_allowed(FLAGS.bits()));
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()
}

/// Size of the fence around the rings of a process. On the poll plane there are none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Fence {
    /// Rings of all shards.
    pub rings: u32,
    /// Operations that each of them allows.
    pub operations: usize,
    /// Register calls that each of them allows after the start.
    pub register_calls: usize,
}

impl Fence {
    /// Returns the fence around this number of rings.
    pub(crate) fn of(rings: u32, uses: RingUses) -> Fence {
        Fence { rings, operations: operations(uses).count(), register_calls: register_calls(uses).count() }
    }
}
