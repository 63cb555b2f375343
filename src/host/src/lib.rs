//! The judge of the host: what murre finds there, against the needs of the features that are switched on.
//!
//! [`Facts`] are read and tried, [`Needs`] come from the configuration, and [`judge`] compares them: a pure function.
//! `murre doctor` prints every finding; `murre serve` refuses to start on a fatal one and logs the warnings
//! ([decision 0023](../../docs/decisions/0023-one-judge-of-the-host.md)). Nothing is changed.
//! [`files`] writes what only its owner may read.

#![forbid(unsafe_code)]

mod facts;
pub mod files;
mod finding;
mod kernel;
mod needs;
mod network;
mod plane;
mod resources;
#[cfg(test)]
mod tests;

use runtime::ring::PlaneKind;

pub use facts::{Facts, has_ipv6};
pub use finding::{Finding, Sysctl, Verdict, good};
pub use needs::{Demand, Needs};
pub use plane::{Plane, plane};
pub use resources::{fitting_in_files, share};

/// Judges everything, in the order of importance.
pub fn judge(facts: &Facts, needs: Needs) -> Vec<Finding> {
    let plane = plane(facts, needs);
    let polls = plane.kind == PlaneKind::Poll;
    let [version, rings] = plane::kernel_and_rings(facts, needs, &plane);
    let mut findings = vec![
        version,
        rings,
        plane::finding(&plane),
        resources::locked_memory(facts, needs, polls),
        resources::open_files(facts, needs, polls),
        resources::files_of_the_host(facts, needs).finding(),
        network::somaxconn(facts, needs).finding(),
        network::syn_backlog(facts, needs).finding(),
        network::port_range(facts),
        network::conntrack(facts, needs),
        network::tcp_memory(facts, needs).finding(),
        resources::memory(facts, needs),
        resources::cores(facts),
    ];
    findings.extend(kernel::features(facts, needs, polls));
    findings.extend(network::ipv6(facts, needs));
    findings.extend(resources::data_directory(facts, needs));
    findings
}

/// Judges every kernel setting that the scripts of `tuning/` change. [`judge`] uses the same judgements; three of these
/// matter to a server only through what [`judge`] tries out, or not at all below a load.
pub fn sysctls(facts: &Facts, needs: Needs) -> Vec<Sysctl> {
    vec![
        kernel::io_uring_disabled(facts),
        resources::files_of_a_process(facts, needs),
        resources::files_of_the_host(facts, needs),
        network::somaxconn(facts, needs),
        network::syn_backlog(facts, needs),
        network::device_backlog(facts),
        network::tcp_memory(facts, needs),
        network::ports(facts),
        network::conntrack_max(facts, needs),
    ]
}

/// Returns true if no finding keeps murre from starting.
pub fn runs_here(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.verdict != Verdict::Fail)
}
