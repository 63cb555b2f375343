//! Plane of a server: io_uring rings, or epoll where the host has no usable io_uring.

use runtime::ring::PlaneKind;

use super::facts::Facts;
use super::finding::{Finding, Verdict, good};
use super::kernel;
use super::needs::Needs;
use super::resources;
use config::PlaneChoice;

/// Plane of a server, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plane {
    pub kind: PlaneKind,
    /// Reason as one sentence without its full stop.
    pub why: String,
}

/// Chooses the plane of a server with these needs on this host.
pub fn plane(facts: &Facts, needs: Needs) -> Plane {
    let (kind, why) = match (needs.plane, needs.rings, refusal(facts, needs)) {
        (PlaneChoice::Poll, ..) => (PlaneKind::Poll, "shards.plane = poll".to_owned()),
        (PlaneChoice::IoUring, ..) => (PlaneKind::Rings, "shards.plane = io_uring".to_owned()),
        (PlaneChoice::Auto, Some(needing), _) => (PlaneKind::Rings, format!("{needing} needs io_uring")),
        (PlaneChoice::Auto, None, None) => (PlaneKind::Rings, "io_uring works here".to_owned()),
        (PlaneChoice::Auto, None, Some(Finding { found, why, .. })) => {
            (PlaneKind::Poll, format!("cannot use io_uring ({found}): {why}"))
        }
    };
    Plane { kind, why }
}

/// Returns the finding that rules rings out on this host; `None`: they work, or no fact rules them out.
fn refusal(facts: &Facts, needs: Needs) -> Option<Finding> {
    let is_tried = facts.ring == Some(Ok(()));
    // A trial outweighs the version and the sysctl. It makes one small ring, and does not prove that there is memory
    // for all.
    let of_kernel = [kernel::io_uring(facts), kernel::version(facts)].into_iter().filter(|_| !is_tried);
    let mut findings = of_kernel.chain([resources::locked_memory(facts, needs, false)]);
    findings.find(|finding| finding.verdict == Verdict::Fail)
}

const GIVE_UP: &str = "murre serve --set shards.plane=poll --set hibernate.after=0   # gives up frozen sessions";

/// Reports the plane. Other findings judge whether it works.
pub(super) fn finding(plane: &Plane) -> Finding {
    good("plane", format!("{}: {}", plane.kind.word(), plane.why), "io_uring or poll (shards.plane)".into())
}

/// Judges the kernel and io_uring by the needs of the plane.
pub(super) fn kernel_and_rings(facts: &Facts, needs: Needs, plane: &Plane) -> [Finding; 2] {
    let (mut version, mut rings) = (kernel::version(facts), kernel::io_uring(facts));
    match plane.kind {
        PlaneKind::Rings => {
            if let Some(needing) = needs.rings.filter(|_| rings.verdict == Verdict::Fail) {
                rings.why += &format!("; {needing} needs it");
                rings.mend.push(GIVE_UP.into());
            }
        }
        PlaneKind::Poll => {
            version = kernel::version_for_epoll(facts);
            if needs.plane == PlaneChoice::Poll {
                rings = good(rings.what, "not used".into(), "not needed with shards.plane = poll".into());
            } else if rings.verdict == Verdict::Fail {
                rings.verdict = Verdict::Warn;
                rings.why += "; the server polls its sockets, which takes more CPU time and excludes hibernation";
            }
        }
    }
    [version, rings]
}
