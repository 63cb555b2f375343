//! What the host gives this process: its CPUs.

use super::fault::Fault;

/// The CPUs to pin shards to: those that are wanted, else all that this process may run on.
///
/// # Errors
/// [`Fault::Core`] for one it may not run on.
pub fn cores(wanted: &[u32]) -> Result<Vec<u32>, Fault> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let line = line.map_or("0", str::trim);
    let allowed = parse_list(line);
    if wanted.is_empty() {
        return Ok(allowed);
    }
    match wanted.iter().find(|core| !allowed.contains(core)) {
        Some(core) => Err(Fault::Core { core: *core, allowed: line.to_owned() }),
        None => Ok(wanted.to_vec()),
    }
}

/// `0-3,8` as the kernel writes it.
fn parse_list(text: &str) -> Vec<u32> {
    let mut cores = Vec::new();
    for item in text.split(',') {
        let (from, to) = item.split_once('-').unwrap_or((item, item));
        if let (Ok(from), Ok(to)) = (from.parse::<u32>(), to.parse::<u32>()) {
            cores.extend(from..=to);
        }
    }
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-2,8,10-11"), [0, 1, 2, 8, 10, 11]);
    }

    #[test]
    fn a_core_this_process_may_not_use_is_refused() {
        let all = cores(&[]).unwrap();
        assert_eq!(cores(&all).unwrap(), all);
        let said = cores(&[8_000]).unwrap_err().to_string();
        assert!(said.starts_with("shards.cores: this process may not run on CPU 8000; it may on "), "{said}");
    }
}
