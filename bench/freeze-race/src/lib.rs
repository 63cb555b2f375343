//! Go or no-go of hibernation ([decision 0033](../../docs/decisions/0033-hibernation-go-or-no-go.md)): connections are
//! frozen out of the kernel and thawed under peers that never stop sending, and every byte is counted.

pub mod epoll;
pub mod freeze;
pub mod network;
pub mod path;
pub mod peers;
pub mod progress;
pub mod race;
pub mod server;
pub mod stream;
pub mod stuck;
pub mod sys;
