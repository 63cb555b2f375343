//! CPUs that the host gives this process.

use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::error::NodeError;
use config::{Shards, Steer};

/// Returns the CPUs to pin shards to: those in `wanted`, else all that the calling thread may run on now.
///
/// A wanted CPU can be outside the present affinity (`taskset`, `CPUAffinity=` of systemd), since a process may widen
/// that. It must be in the cpuset of the control group, which the administrator sets and a process cannot leave.
///
/// # Errors
/// [`NodeError::Core`] for a CPU that the process may not run on.
pub fn cores(wanted: &[u32]) -> Result<Vec<u32>, NodeError> {
    if wanted.is_empty() {
        let now =
            sched_getaffinity(None).map_err(|error| NodeError::Host { what: "its affinity", error: error.into() })?;
        return Ok(KNOWN.filter(|core| now.is_set(*core as usize)).collect());
    }
    let wanted = wanted.to_vec();
    // A thread of its own, so that the trial leaves no mark on the caller.
    let trial = thread::Builder::new().spawn(move || match wanted.iter().find(|core| !may_run_on(**core)) {
        None => Ok(wanted),
        Some(core) => Err(NodeError::Core { core: *core, allowed: to_list(KNOWN.filter(|core| may_run_on(*core))) }),
    });
    let trial = trial.map_err(|error| NodeError::Host { what: "a thread", error })?;
    // Invariant: nothing in it panics.
    trial.join().expect("a trial of CPUs ends")
}

/// Tries it, since only the kernel knows for every version of control groups: it refuses a mask without a CPU that is
/// online and in the cpuset. Moves the calling thread to `core`.
fn may_run_on(core: u32) -> bool {
    let mut only = CpuSet::new();
    if !KNOWN.contains(&core) {
        return false;
    }
    only.set(core as usize);
    sched_setaffinity(None, &only).is_ok()
}

/// The CPUs that a mask of the C library has room for; threads cannot be pinned to others.
const KNOWN: std::ops::Range<u32> = 0..CpuSet::MAX_CPU as u32;

/// Refuses steering where a CPU has several shards: the kernel would give one of them more than the others.
///
/// # Errors
/// [`NodeError::Steer`].
pub fn check_steering(shards: &Shards, shard_count: u16, cores: &[u32]) -> Result<(), NodeError> {
    if shards.steer == Steer::Cpu && usize::from(shard_count) > cores.len() {
        return Err(NodeError::Steer { shards: shard_count, cores: cores.len() });
    }
    Ok(())
}

/// Formats CPUs as the kernel does: `0-3,8`.
fn to_list(cores: impl Iterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for core in cores {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let run = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_as_the_kernel_writes_them() {
        assert_eq!(to_list([0, 1, 2, 8, 10, 11].into_iter()), "0-2,8,10-11");
        assert_eq!(to_list([].into_iter()), "");
    }

    #[test]
    fn a_core_this_process_may_not_use_is_refused() {
        let all = cores(&[]).unwrap();
        assert_eq!(cores(&all).unwrap(), all);
        for core in [8_000, 1_023] {
            let said = cores(&[core]).unwrap_err().to_string();
            let start = format!("shards.cores: this process may not run on CPU {core}: it is offline or outside");
            assert!(
                said.starts_with(&start) && said.ends_with(&format!("it may on {}", to_list(KNOWN.filter(may)))),
                "{said}"
            );
        }
        assert_eq!(cores(&[]).unwrap(), all, "the trial left the caller where it was");
    }

    fn may(core: &u32) -> bool {
        let core = *core;
        thread::spawn(move || may_run_on(core)).join().unwrap()
    }

    /// The effect of `taskset` and `CPUAffinity=`. With one CPU there is nothing to widen to.
    #[test]
    fn an_affinity_that_is_narrower_than_the_cpuset_is_widened_when_asked_to() {
        let all = cores(&[]).unwrap();
        let (first, last) = (all[0], all[all.len() - 1]);
        let narrowed = thread::spawn(move || {
            assert!(may_run_on(first), "it may run where it runs");
            (cores(&[]).unwrap(), cores(&[last]).unwrap(), cores(&[]).unwrap())
        });
        assert_eq!(narrowed.join().unwrap(), (vec![first], vec![last], vec![first]));
    }

    #[test]
    fn steering_wants_a_cpu_for_every_shard() {
        let shards = Shards { steer: Steer::Cpu, ..Shards::default() };
        assert!(check_steering(&shards, 2, &[4, 5]).is_ok());
        assert!(check_steering(&shards, 1, &[4, 5]).is_ok());
        let said = check_steering(&shards, 4, &[4, 5]).unwrap_err().to_string();
        assert!(said.contains("4 shards share 2") && said.contains("shards.steer to off"), "{said}");
        assert!(check_steering(&Shards::default(), 4, &[4, 5]).is_ok());
    }
}
