//! The packet rules: segments to our ports pass if their socket is live, and wait in the queue otherwise.
//!
//! ```text
//! table inet murre_27973 (owned by this process) {
//!     chain input { type filter hook input priority 0
//!         tcp dport 443  socket mark 0x6d  accept
//!         tcp dport 443  queue to 27973
//!     }
//! }
//! ```
//! While the process lives nobody else can change or flush the table (NFT_TABLE_F_OWNER, Linux 5.12). So there is no
//! moment in which connections are frozen and the rules are gone.
//!
//! The kernel removes the table when the process ends, however it ends; or it keeps the table for the next process
//! (NFT_TABLE_F_PERSIST, Linux 6.9), if that takes the frozen connections over. Until then the kernel drops what comes
//! to these ports, and peers send again.

use std::io;
use std::os::fd::OwnedFd;

use crate::netlink::{ACK, APPEND, Attributes, CREATE, Writer, attributes, dump, exchange, open};
use crate::repair::LIVE_MARK;
use crate::sys;

const CHAIN: &str = "input";
/// Family of a table for IPv4 and IPv6 (NFPROTO_INET).
const INET: u8 = 1;
/// Number of nf_tables among the subsystems of netfilter.
const NFTABLES: u16 = 10;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = NFTABLES << 8;
const GET_TABLE: u16 = NFTABLES << 8 | 1;
const DELETE_TABLE: u16 = NFTABLES << 8 | 2;
const NEW_CHAIN: u16 = NFTABLES << 8 | 3;
const NEW_RULE: u16 = NFTABLES << 8 | 6;
const GET_RULE: u16 = NFTABLES << 8 | 7;

/// Begin of the name of a table.
const TABLE_PREFIX: &str = "murre_";

/// TCP ports by which the segments of a connection are known.
#[derive(Clone, Copy, Debug)]
pub enum Ports<'a> {
    /// Ports of this host: of a server that freezes connections to it.
    To(&'a [u16]),
    /// Ports of the peer: of a client that freezes connections of its own.
    From(&'a [u16]),
}

/// The installed rules.
#[derive(Debug)]
pub struct Rules {
    owner: OwnedFd,
    table: String,
    /// They outlive the process, unless they are removed.
    persist: bool,
}

/// Flags of a table (NFT_TABLE_F_*).
const TABLE_OWNER: u32 = 2;
const TABLE_PERSIST: u32 = 4;

impl Rules {
    /// Installs the rules for these TCP ports in the network namespace of the calling thread, in place of those that an
    /// earlier process has left. With `persist` they outlive this process, too, unless they are removed. Before this a
    /// reader has opened the queue, since without one the kernel drops.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN, or when another process owns a table of that name; ENOENT where the kernel lacks a
    /// part of nf_tables; EOPNOTSUPP where it keeps no table; the others of the kernel.
    pub fn install(ports: Ports<'_>, queue: u16, persist: bool) -> io::Result<Rules> {
        const HOOK_INPUT: u32 = 1;
        let rules = Rules { owner: open()?, table: table_of(queue), persist };
        // A table that was left has that flag, so it is taken over first, and replaced with its rules at once.
        let left =
            rules.exists() && rules.one(|batch| new_table(batch, &rules.table, TABLE_OWNER | TABLE_PERSIST)).is_ok();
        let table = rules.table.as_str();
        let mut batch = Writer::default();
        batch.message(BATCH_BEGIN, 0, 0, NFTABLES, |_| ());
        if left {
            delete_table(&mut batch, table);
        }
        new_table(&mut batch, table, if persist { TABLE_OWNER | TABLE_PERSIST } else { TABLE_OWNER });
        batch.message(NEW_CHAIN, ACK | CREATE, INET, 0, |m| {
            m.text(1, table).text(3, CHAIN).nested(4, |hook| {
                hook.number(1, HOOK_INPUT).number(2, 0);
            });
            m.text(7, "filter");
        });
        let (ports, offset) = match ports {
            Ports::From(ports) => (ports, SOURCE_PORT),
            Ports::To(ports) => (ports, DESTINATION_PORT),
        };
        for port in ports {
            rule(&mut batch, table, |expressions| {
                has_port(expressions, offset, *port);
                socket_is_live(expressions);
                accept(expressions);
            });
            rule(&mut batch, table, |expressions| {
                has_port(expressions, offset, *port);
                to_queue(expressions, queue);
            });
        }
        batch.message(BATCH_END, 0, 0, NFTABLES, |_| ());
        exchange(&rules.owner, batch.bytes(), 2 + usize::from(left) + 2 * ports.len())?;
        Ok(rules)
    }

    /// Removes the rules, also if they would persist.
    pub fn remove(self) {
        if self.persist {
            // It fails if the table is gone. A table without that flag goes with its owner.
            let _ = self.one(|batch| delete_table(batch, &self.table));
        }
    }

    /// Returns true if there is a table of that name.
    fn exists(&self) -> bool {
        let mut question = Writer::default();
        question.message(GET_TABLE, ACK, INET, 0, |m| {
            m.text(1, &self.table);
        });
        exchange(&self.owner, question.bytes(), 1).is_ok()
    }

    /// Sends a batch of one message.
    fn one(&self, fill: impl FnOnce(&mut Writer)) -> io::Result<()> {
        one(&self.owner, fill)
    }
}

/// Sends a batch of one message.
fn one(socket: &OwnedFd, fill: impl FnOnce(&mut Writer)) -> io::Result<()> {
    let mut batch = Writer::default();
    batch.message(BATCH_BEGIN, 0, 0, NFTABLES, |_| ());
    fill(&mut batch);
    batch.message(BATCH_END, 0, 0, NFTABLES, |_| ());
    exchange(socket, batch.bytes(), 1)
}

/// Returns the name of the table of a queue.
pub fn table_of(queue: u16) -> String {
    format!("{TABLE_PREFIX}{queue}")
}

/// A table of packet rules that a process has left: it has no owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftTable {
    pub name: String,
    /// TCP ports of this host in its rules. Their segments are dropped, unless their socket is live.
    pub ports: Vec<u16>,
}

/// Lists the tables of packet rules that earlier processes have left in the network namespace of the calling thread. A
/// table that a living process owns is not one of them.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN; the others of the kernel.
pub fn left_tables() -> io::Result<Vec<LeftTable>> {
    let socket = open()?;
    let mut left = Vec::new();
    dump(&socket, GET_TABLE, INET, |message| {
        let (mut name, mut flags) = (None, 0);
        for (kind, data) in attributes(message, NEW_TABLE).into_iter().flatten() {
            match kind {
                1 => name = text(data),
                2 => flags = number(data),
                _ => {}
            }
        }
        if let Some(name) = name.filter(|name| name.starts_with(TABLE_PREFIX) && flags & TABLE_OWNER == 0) {
            left.push(LeftTable { name, ports: Vec::new() });
        }
    })?;
    if left.is_empty() {
        return Ok(left);
    }
    dump(&socket, GET_RULE, INET, |message| {
        let (mut table, mut expressions) = (None, &[][..]);
        for (kind, data) in attributes(message, NEW_RULE).into_iter().flatten() {
            match kind {
                1 => table = text(data),
                4 => expressions = data,
                _ => {}
            }
        }
        let Some(table) = left.iter_mut().find(|left| Some(&left.name) == table.as_ref()) else { return };
        table.ports.extend(destination_ports(expressions));
    })?;
    for table in &mut left {
        table.ports.sort_unstable();
        table.ports.dedup();
    }
    Ok(left)
}

/// Returns the cookie of the network namespace of the calling thread: no other one of this boot has it (Linux 5.14).
///
/// # Errors
/// Those of the kernel.
pub fn namespace_cookie() -> io::Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let [first, second] = sys::get(open()?, libc::SOL_SOCKET, SO_NETNS_COOKIE)?;
    Ok(u64::from(first) | u64::from(second) << 32)
}

/// Removes a table that a process has left.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN, and for a table that a living process owns; ENOENT if there is none.
pub fn remove_table(name: &str) -> io::Result<()> {
    one(&open()?, |batch| delete_table(batch, name))
}

/// Ports to which the destination port is compared in the expressions of a rule, as [`has_port`] writes them.
fn destination_ports(expressions: &[u8]) -> Vec<u16> {
    let mut ports = Vec::new();
    let mut is_loaded = false;
    for (_, expression) in Attributes::of(expressions) {
        let part = |of: &[u8], wanted: u16| {
            Attributes::of(of).find(|(kind, _)| *kind == wanted).map(|(_, data)| data.to_vec())
        };
        let (name, data) = (part(expression, 1), part(expression, 2).unwrap_or_default());
        match name.as_deref().and_then(text).as_deref() {
            Some("payload") => {
                let offset = part(&data, 3).map(|offset| number(&offset));
                is_loaded = offset == Some(DESTINATION_PORT);
            }
            Some("cmp") if is_loaded => {
                let value = part(&data, 3).and_then(|data| part(&data, 1));
                ports.extend(value.and_then(|value| value.try_into().ok()).map(u16::from_be_bytes));
                is_loaded = false;
            }
            _ => {}
        }
    }
    ports
}

/// Text of an attribute, which ends with a zero byte.
fn text(data: &[u8]) -> Option<String> {
    std::str::from_utf8(data.strip_suffix(&[0]).unwrap_or(data)).ok().map(str::to_owned)
}

/// Number of an attribute; 0 for one that has no four bytes.
fn number(data: &[u8]) -> u32 {
    data.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Makes a table, or takes one over that has no owner.
fn new_table(batch: &mut Writer, table: &str, flags: u32) {
    batch.message(NEW_TABLE, ACK | CREATE, INET, 0, |m| {
        m.text(1, table).number(2, flags);
    });
}

fn delete_table(batch: &mut Writer, table: &str) {
    batch.message(DELETE_TABLE, ACK, INET, 0, |m| {
        m.text(1, table);
    });
}

fn rule(batch: &mut Writer, table: &str, fill: impl FnOnce(&mut Writer)) {
    batch.message(NEW_RULE, ACK | CREATE | APPEND, INET, 0, |m| {
        m.text(1, table).text(2, CHAIN).nested(4, fill);
    });
}

/// Number of the register that expressions load into and compare.
const REGISTER: u32 = 1;

fn expression<'a>(rule: &'a mut Writer, name: &str, fill: impl FnOnce(&mut Writer)) -> &'a mut Writer {
    rule.nested(1, |element| {
        element.text(1, name).nested(2, fill);
    })
}

/// Ends the rule unless the register has this value.
fn equals(rule: &mut Writer, value: &[u8]) {
    const EQUAL: u32 = 0;
    expression(rule, "cmp", |e| {
        e.number(1, REGISTER).number(2, EQUAL).nested(3, |data| {
            data.attribute(1, value);
        });
    });
}

/// Offsets of the ports, two bytes each, in the header of TCP.
const SOURCE_PORT: u32 = 0;
const DESTINATION_PORT: u32 = 2;

/// Ends the rule for anything but a TCP segment with this port at this offset.
fn has_port(rule: &mut Writer, offset: u32, port: u16) {
    const META_L4PROTO: u32 = 16;
    const TRANSPORT_HEADER: u32 = 2;
    expression(rule, "meta", |e| {
        e.number(1, REGISTER).number(2, META_L4PROTO);
    });
    equals(rule, &[libc::IPPROTO_TCP as u8]);
    expression(rule, "payload", |e| {
        e.number(1, REGISTER).number(2, TRANSPORT_HEADER).number(3, offset).number(4, 2);
    });
    equals(rule, &port.to_be_bytes());
}

/// Ends the rule for a segment without a socket, or with one that has no mark: a listener, or one set apart.
fn socket_is_live(rule: &mut Writer) {
    const SOCKET_MARK: u32 = 1;
    expression(rule, "socket", |e| {
        e.number(1, SOCKET_MARK).number(2, REGISTER);
    });
    equals(rule, &LIVE_MARK.to_ne_bytes());
}

fn accept(rule: &mut Writer) {
    const VERDICT_REGISTER: u32 = 0;
    const ACCEPT: u32 = 1;
    expression(rule, "immediate", |e| {
        e.number(1, VERDICT_REGISTER).nested(2, |data| {
            data.nested(2, |verdict| {
                verdict.number(1, ACCEPT);
            });
        });
    });
}

/// Uses the target of x_tables: more kernels have it than nf_tables' own `queue`.
fn to_queue(rule: &mut Writer, queue: u16) {
    const REVISION: u32 = 0;
    let mut info = [0u8; 8];
    info[..2].copy_from_slice(&queue.to_ne_bytes());
    expression(rule, "target", |e| {
        e.text(1, "NFQUEUE").number(2, REVISION).attribute(3, &info);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(queue: u16, persist: bool) -> Rules {
        Rules::install(Ports::To(&[9, 443]), queue, persist).unwrap()
    }

    fn left(queue: u16) -> Option<LeftTable> {
        left_tables().unwrap().into_iter().find(|left| left.name == table_of(queue))
    }

    fn removal(queue: u16) -> Option<io::ErrorKind> {
        remove_table(&table_of(queue)).err().map(|error| error.kind())
    }

    /// A flush of the rules by another program would leave frozen connections without their queue.
    #[test]
    #[ignore = "needs CAP_NET_ADMIN: bench/check test"]
    fn nobody_else_removes_the_table_and_it_goes_with_its_owner() {
        let rules = install(41_003, false);
        assert_eq!((removal(41_003), left(41_003)), (Some(io::ErrorKind::PermissionDenied), None));
        drop(rules);
        assert_eq!(removal(41_003), Some(io::ErrorKind::NotFound));
    }

    #[test]
    #[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
    fn a_table_that_was_left_is_found_with_its_ports_and_taken_over() {
        let rules = install(41_004, true);
        assert!(Rules::install(Ports::To(&[9]), 41_004, true).is_err(), "it has an owner");
        assert_eq!((removal(41_004), left(41_004)), (Some(io::ErrorKind::PermissionDenied), None), "its process lives");
        drop(rules);
        let expected = LeftTable { name: "murre_41004".to_owned(), ports: vec![9, 443] };
        assert_eq!(left(41_004), Some(expected));
        let second = install(41_004, true);
        assert_eq!((removal(41_004), left(41_004)), (Some(io::ErrorKind::PermissionDenied), None));
        drop(second);
        assert_eq!((removal(41_004), removal(41_004)), (None, Some(io::ErrorKind::NotFound)));
        install(41_004, true).remove();
        assert_eq!(removal(41_004), Some(io::ErrorKind::NotFound), "an orderly end removes it");
    }

    /// Rules of a client name ports of others, which no server listens on.
    #[test]
    #[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
    fn source_ports_are_no_ports_of_this_host() {
        drop(Rules::install(Ports::From(&[9]), 41_005, true).unwrap());
        let found = left(41_005).unwrap();
        remove_table(&found.name).unwrap();
        assert!(found.ports.is_empty());
    }
}
