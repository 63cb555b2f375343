//! Sockets, ports and connection tracking.

use super::facts::Facts;
use super::finding::{Finding, PORTS, Sysctl, Verdict, good};
use super::needs::Needs;

pub(super) fn somaxconn(facts: &Facts, needs: Needs) -> Sysctl {
    Sysctl::least(
        "net.core.somaxconn",
        facts.somaxconn,
        needs.backlog,
        "it caps shards.backlog, the accept queue of every listener: a crowd that reconnects waits a second and more",
    )
}

pub(super) fn syn_backlog(facts: &Facts, needs: Needs) -> Sysctl {
    Sysctl::least(
        "net.ipv4.tcp_max_syn_backlog",
        facts.syn_backlog,
        needs.backlog.max(SYN_BACKLOG_MIN),
        "half-open connections beyond it fall back to SYN cookies when a crowd reconnects",
    )
}

/// Half-open connections of a host whose queues are short: those of a crowd of a few thousand.
const SYN_BACKLOG_MIN: u64 = 4_096;

pub(super) fn device_backlog(facts: &Facts) -> Sysctl {
    Sysctl::least(
        "net.core.netdev_max_backlog",
        facts.device_backlog,
        16_384,
        "packets handed to another CPU queue here, and are dropped beyond it",
    )
    .of_the_host(facts)
}

/// The range of ports where it is out of reach of those of murre, otherwise the ports that are reserved in it.
pub(super) fn ports(facts: &Facts) -> Sysctl {
    let (first, last) = PORTS;
    let range = facts.port_range;
    let reserved = &facts.reserved_ports;
    let mut setting = Sysctl {
        name: "net.ipv4.ip_local_port_range",
        found: range.map(|(low, high)| format!("{low}-{high}")),
        wanted: format!("not over {first}-{last}, or those reserved"),
        good: range.is_some(),
        value: "any".into(),
        why: "an outgoing connection may hold a port that murre wants to listen on: \"address in use\" at start",
    };
    if range.is_some_and(|(low, high)| low <= last && first <= high) {
        setting.name = "net.ipv4.ip_local_reserved_ports";
        setting.good = (first..=last).all(|port| is_reserved(reserved, port));
        // Ports that are reserved already stay reserved: other programs count on it.
        let others = if reserved.is_empty() { String::new() } else { format!("{reserved},") };
        setting.value = format!("{others}{first}-{last}");
    }
    setting
}

pub(super) fn port_range(facts: &Facts) -> Finding {
    Finding { what: "net.ipv4.ip_local_port_range", ..ports(facts).finding() }
}

/// `8080,9000-9010` holds 9005.
fn is_reserved(list: &str, port: u64) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let bounds = (first.trim().parse::<u64>(), last.trim().parse::<u64>());
        matches!(bounds, (Ok(first), Ok(last)) if first <= port && port <= last)
    })
}

pub(super) fn conntrack_max(facts: &Facts, needs: Needs) -> Sysctl {
    let least = needs.connections + needs.connections / 4;
    let why = "the firewall tracks connections if any rule is stateful: at the limit it drops new ones";
    let limit = Sysctl::least("net.netfilter.nf_conntrack_max", facts.conntrack_max, least, why);
    Sysctl { wanted: format!("{}, better NOTRACK", limit.wanted), ..limit }
}

pub(super) fn conntrack(facts: &Facts, needs: Needs) -> Finding {
    let limit = conntrack_max(facts, needs);
    if limit.found.is_none() {
        return good(limit.name, "not loaded".into(), "not loaded, or NOTRACK".into());
    }
    let mut finding = limit.finding();
    if let Some(command) = finding.mend.pop() {
        let untracked = "nft 'add table ip raw; add chain ip raw pre { type filter hook prerouting priority raw; }; \
                         add rule ip raw pre tcp dport 8080-8083 notrack'";
        finding.mend = vec![untracked.into(), format!("{command}   # or this, at about 320 B a connection")];
    }
    finding
}

/// Only the last of the three numbers is a wall, so only it is judged, and none is ever lowered.
pub(super) fn tcp_memory(facts: &Facts, needs: Needs) -> Sysctl {
    // Idle sockets hold no pages; a tenth of them busy with four pages each is a storm.
    let least = (needs.connections / 10 * 4).max(65_536);
    let [low, pressure, high] = facts.tcp_mem_pages.unwrap_or_default();
    let (low, pressure) = (low.max(least / 3), pressure.max(least * 2 / 3));
    Sysctl {
        name: "net.ipv4.tcp_mem (max)",
        found: facts.tcp_mem_pages.map(|[.., pages]| format!("{pages} pages")),
        wanted: format!(">= {least} pages"),
        good: facts.tcp_mem_pages.is_some() && high >= least,
        value: format!("{low} {pressure} {}", high.max(least)),
        why: "at the limit the kernel drops segments of every socket",
    }
    .of_the_host(facts)
}

/// Judges the addresses of the listeners. `None`: it is not known.
pub(super) fn ipv6(facts: &Facts, needs: Needs) -> Option<Finding> {
    let what = "IPv6";
    let is_there = facts.ipv6?;
    let wanted = match needs.ipv6 {
        Some((key, address)) => format!("{key} = {address}"),
        None => "not needed: defaults listen on what is there".to_owned(),
    };
    if is_there || needs.ipv6.is_none() {
        return Some(good(what, if is_there { "there" } else { "not there" }.to_owned(), wanted));
    }
    Some(Finding {
        verdict: Verdict::Fail,
        why: "the kernel, or a filter of this process, has no IPv6, and a listener needs it".into(),
        mend: vec![
            "murre serve   # with addresses of IPv4 only".into(),
            "systemctl edit murre   # RestrictAddressFamilies= with AF_INET6; on the host, without ipv6.disable=1"
                .into(),
        ],
        ..good(what, "not there".into(), wanted)
    })
}
