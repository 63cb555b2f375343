//! Memory of the kernel by object cache, from `/proc/slabinfo` (root only). Bytes are those of the objects in use, each
//! with its part of the pages of a full slab, so that the waste at the end of a slab is included. The pages that a
//! cache holds are not counted: crowds that have left leave slabs half empty, the next ten thousand sessions fill them
//! up, and would seem to cost nothing. Of a million sessions both come to the same.
//!
//! The kernel counts objects that lie ready for a processor as in use: some hundred objects of each cache, at any
//! number of sessions.
//!
//! Server and clients of a measurement on loopback share a kernel. A cache that both ends fill alike is halved; ports
//! are the client's alone; of `io_kiocb` the client has one for each idle session (an armed poll), the rest is the
//! server's; `eventpoll` caches are the server's, because these clients use none, but for 128 bytes of each session:
//! the kernel keeps `tcp_bind2_bucket`, of which every client port has one, in `eventpoll_epi`, which has its size.
//! Caches that have nothing to do with sockets belong to other processes and are left out, and so is `tw_sock_TCP`: no
//! session leaves while memory is read, so those are connections of an earlier run. The split is by name and said in
//! the report.

use std::collections::BTreeMap;
use std::fs;

/// Bytes by cache.
pub type Slabs = BTreeMap<String, u64>;

/// Owner of a cache when both ends of every connection are on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// Each end fills it alike.
    Half,
    /// Only clients fill it.
    Client,
    /// One object of a client for each session, the rest is the server's.
    Polls,
    /// Only the server fills it.
    Server,
    /// As `Server`, except for the client's port of each session.
    Ports,
    /// Not of sockets, or not of these.
    Other,
}

/// Bytes of one `io_kiocb`.
const POLL_BYTES: f64 = 256.0;
/// Bytes of one `tcp_bind2_bucket`.
const PORT_BYTES: f64 = 128.0;

/// Shares of caches by the beginning of the name; the first match counts.
const SHARES: [(&str, Share); 16] = [
    ("tcp_bind", Share::Client),
    ("inet_bind", Share::Client),
    ("io_kiocb", Share::Polls),
    ("eventpoll_epi", Share::Ports),
    ("eventpoll", Share::Server),
    ("ep_head", Share::Server),
    ("TCP", Share::Half),
    ("request_sock_TCP", Share::Half),
    ("sock_", Share::Half),
    ("filp", Share::Half),
    ("dentry", Share::Half),
    ("lsm_", Share::Half),
    ("kmalloc", Share::Half),
    ("skbuff", Share::Half),
    ("io_", Share::Half),
    ("nf_conntrack", Share::Half),
];

/// Bytes in use of each cache; `None` when the file cannot be read.
pub fn read() -> Option<Slabs> {
    fs::read_to_string("/proc/slabinfo").ok().map(|text| parse(&text, procfs::page_size()))
}

/// Returns the owner of this cache.
pub fn share(cache: &str) -> Share {
    SHARES.iter().find(|(start, _)| cache.starts_with(start)).map_or(Share::Other, |(_, share)| *share)
}

/// The server's part of the growth of a cache while `sessions` sessions connected.
pub fn server_part(cache: &str, bytes: f64, sessions: f64) -> f64 {
    match share(cache) {
        Share::Half => bytes / 2.0,
        Share::Polls => bytes - POLL_BYTES * sessions,
        Share::Ports => (bytes - PORT_BYTES * sessions).max(0.0),
        Share::Server => bytes,
        Share::Client | Share::Other => 0.0,
    }
}

/// `name active num size per_slab pages_per_slab : tunables a b c : slabdata active_slabs num_slabs shared`.
fn parse(text: &str, page_bytes: u64) -> Slabs {
    let cache = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let (active, per_slab, pages) = (number(1)?, number(4)?, number(5)?);
        Some((words.first()?.to_string(), (active * pages * page_bytes).checked_div(per_slab)?))
    };
    text.lines().skip(2).filter_map(cache).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_counted_with_its_part_of_a_full_slab() {
        let text = "slabinfo - version: 2.1\n# name <active_objs> ...\n\
            TCP    20 26 2368 13 8 : tunables 0 0 0 : slabdata 2 2 0\nbroken line\n\
            none 1 1 8 0 1 : tunables 0 0 0 : slabdata 1 1 0\n\
            tcp_bind2_bucket 1 32 128 32 1 : tunables 0 0 0 : slabdata 1 1 0\n";
        let slabs = parse(text, 4096);
        assert_eq!(slabs.get("TCP"), Some(&(20 * 8 * 4096 / 13)));
        assert_eq!((slabs.len(), slabs["tcp_bind2_bucket"]), (2, 128));
        let part = |cache| server_part(cache, 1_024.0, 2.0);
        assert_eq!((part("TCP"), part("tcp_bind2_bucket"), part("io_kiocb")), (512.0, 0.0, 512.0));
        assert_eq!((part("eventpoll_epi"), part("eventpoll_pwq"), part("task_struct")), (768.0, 1_024.0, 0.0));
        assert_eq!((part("tw_sock_TCP"), share("tw_sock_TCP")), (0.0, Share::Other));
    }

    #[test]
    fn slabs_that_others_left_half_empty_cost_the_next_nothing_more() {
        let cache = |active, slabs| format!("a\nb\ndentry {active} 21000 192 21 1 : t : slabdata {slabs} {slabs} 0\n");
        let (before, after) = (parse(&cache(1_000, 1_000), 4096), parse(&cache(11_000, 1_000), 4096));
        let grown = (after["dentry"] - before["dentry"]) as f64;
        assert!((grown / 10_000.0 - 4096.0 / 21.0).abs() < 0.01, "{grown}");
    }

    #[test]
    fn the_file_of_this_host_is_read_where_it_may_be() {
        if let Some(slabs) = read() {
            assert!(slabs.get("dentry").is_some_and(|bytes| *bytes > 0), "{slabs:?}");
        }
    }
}
