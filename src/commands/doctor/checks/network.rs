//! Sockets, ports and connection tracking.

use super::{Finding, PORTS, Verdict, Wanted, dotted, good, number, unknown};
use crate::commands::doctor::facts::Facts;
use crate::node::KERNEL_STEERS;

pub(super) fn somaxconn(facts: &Facts, wanted: Wanted) -> Finding {
    let backlog = wanted.backlog;
    at_least(
        "net.core.somaxconn",
        "/proc/sys/net/core/somaxconn",
        facts.somaxconn,
        backlog,
        "it caps shards.backlog, the accept queue of every listener: a crowd that reconnects waits a second and more",
        &format!("sysctl -w net.core.somaxconn={backlog}"),
    )
}

pub(super) fn syn_backlog(facts: &Facts, wanted: Wanted) -> Finding {
    let least = wanted.backlog.max(SYN_BACKLOG_MIN);
    at_least(
        "net.ipv4.tcp_max_syn_backlog",
        "/proc/sys/net/ipv4/tcp_max_syn_backlog",
        facts.syn_backlog,
        least,
        "half-open connections beyond it fall back to SYN cookies when a crowd reconnects",
        &format!("sysctl -w net.ipv4.tcp_max_syn_backlog={least}"),
    )
}

/// Half-open connections of a host whose queues are short: those of a crowd of a few thousand.
const SYN_BACKLOG_MIN: u64 = 4_096;

/// Who gets a new connection, when listeners are told to follow its CPU.
pub(super) fn steering(facts: &Facts, wanted: Wanted) -> Option<Finding> {
    let what = "shards.steer";
    let text = format!("kernel >= {}", dotted(KERNEL_STEERS));
    let found = "cpu".to_owned();
    match (wanted.steer, facts.kernel) {
        (false, _) => None,
        (true, Some(version)) if version < KERNEL_STEERS => Some(Finding {
            what,
            found,
            wanted: text,
            verdict: Verdict::Warn,
            why: "this kernel ignores SO_INCOMING_CPU among listeners of one port: connections go to any shard".into(),
            mend: vec!["murre serve --set shards.steer=off   # or a newer kernel".into()],
        }),
        (true, _) => Some(good(what, found, text)),
    }
}

pub(super) fn port_range(facts: &Facts) -> Finding {
    let what = "net.ipv4.ip_local_port_range";
    let wanted = format!("not over {}-{}, or those reserved", PORTS.0, PORTS.1);
    let Some((low, high)) = facts.port_range else {
        return unknown(what, wanted, "/proc/sys/net/ipv4/ip_local_port_range");
    };
    let found = format!("{low}-{high}");
    let over = low <= PORTS.1 && PORTS.0 <= high;
    if !over || (PORTS.0..=PORTS.1).all(|port| is_reserved(&facts.reserved_ports, port)) {
        return good(what, found, wanted);
    }
    let why = "an outgoing connection may hold a port that murre wants to listen on: \"address in use\" at start";
    // What is reserved stays so: somebody else counts on it.
    let others = if facts.reserved_ports.is_empty() { String::new() } else { format!("{},", facts.reserved_ports) };
    let mend = vec![format!("sysctl -w net.ipv4.ip_local_reserved_ports={others}{}-{}", PORTS.0, PORTS.1)];
    Finding { what, found, wanted, verdict: Verdict::Warn, why: why.into(), mend }
}

/// `8080,9000-9010` holds 9005.
fn is_reserved(list: &str, port: u64) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let bounds = (first.trim().parse::<u64>(), last.trim().parse::<u64>());
        matches!(bounds, (Ok(first), Ok(last)) if first <= port && port <= last)
    })
}

pub(super) fn conntrack(facts: &Facts, wanted: Wanted) -> Finding {
    let what = "net.netfilter.nf_conntrack_max";
    let needed = wanted.connections + wanted.connections / 4;
    let Some(limit) = facts.conntrack_max else {
        return good(what, "not loaded".into(), "not loaded, or NOTRACK".into());
    };
    let text = format!(">= {needed}, better NOTRACK");
    if limit >= needed {
        return good(what, number(limit), text);
    }
    let why = "the firewall tracks connections if any rule is stateful: at the limit it drops new ones".to_string();
    let mend = vec![
        "nft 'add table ip raw; add chain ip raw pre { type filter hook prerouting priority raw; }; \
         add rule ip raw pre tcp dport 8080-8083 notrack'"
            .into(),
        format!("sysctl -w net.netfilter.nf_conntrack_max={needed}   # or this, at about 320 B a connection"),
    ];
    Finding { what, found: number(limit), wanted: text, verdict: Verdict::Warn, why, mend }
}

pub(super) fn tcp_memory(facts: &Facts, wanted: Wanted) -> Finding {
    let what = "net.ipv4.tcp_mem (max)";
    // Idle sockets hold no pages; a tenth of them busy with four pages each is a storm.
    let needed = (wanted.connections / 10 * 4).max(65_536);
    let text = format!(">= {needed} pages");
    let Some([low, pressure, pages]) = facts.tcp_mem_pages else {
        return unknown(what, text, "/proc/sys/net/ipv4/tcp_mem");
    };
    if pages >= needed {
        return good(what, format!("{pages} pages"), text);
    }
    let why = "at the limit the kernel drops segments of every socket".to_string();
    // None is lowered.
    let (low, pressure) = (low.max(needed / 3), pressure.max(needed * 2 / 3));
    let mend = vec![format!("sysctl -w net.ipv4.tcp_mem=\"{low} {pressure} {needed}\"")];
    Finding { what, found: format!("{pages} pages"), wanted: text, verdict: Verdict::Warn, why, mend }
}

fn at_least(what: &'static str, file: &str, found: Option<u64>, min: u64, why: &str, mend: &str) -> Finding {
    let wanted = format!(">= {min}");
    match found {
        None => unknown(what, wanted, file),
        Some(value) if value >= min => good(what, value.to_string(), wanted),
        Some(value) => Finding {
            what,
            found: value.to_string(),
            wanted,
            verdict: Verdict::Warn,
            why: why.into(),
            mend: vec![mend.into()],
        },
    }
}
