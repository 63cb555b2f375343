//! After a crowd has left, the memory it needed goes back to the kernel: slabs free their empty chunks, and the
//! allocator is told to let go of them.

use std::sync::Arc;
use std::time::Duration;

use machine::stats::Board;

/// Looks at the number of connections now and then; never ends.
pub(super) async fn watch(boards: Vec<Arc<Board>>) {
    let mut policy = TrimPolicy::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if policy.should_trim(connections(&boards)) {
            runtime::ring::give_memory_back();
        }
    }
}

fn connections(boards: &[Arc<Board>]) -> u64 {
    let numbers = boards.iter().flat_map(|board| board.read());
    numbers.filter(|(meaning, _)| meaning.name == "connections").map(|(_, value)| value).sum()
}

/// Greatest number of connections since memory was given back last.
#[derive(Default)]
struct TrimPolicy {
    most: u64,
}

impl TrimPolicy {
    /// Returns true if enough connections have left since then to give memory back.
    fn should_trim(&mut self, connections: u64) -> bool {
        self.most = self.most.max(connections);
        let fallen = self.most - connections;
        let worth_it = fallen >= TRIM_CONNECTIONS_MIN && fallen >= self.most / 4;
        if worth_it {
            self.most = connections;
        }
        worth_it
    }
}

/// Memory is given back this often at most.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Fewer than these leave too little behind: 1.5 MB.
const TRIM_CONNECTIONS_MIN: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_leaves_is_noticed_once_for_each_quarter() {
        let mut policy = TrimPolicy::default();
        assert!(!policy.should_trim(0));
        assert!(!policy.should_trim(100_000));
        assert!(!policy.should_trim(80_000));
        assert!(policy.should_trim(75_000));
        assert!(!policy.should_trim(70_000));
        assert!(policy.should_trim(1_000));
        assert!(!policy.should_trim(0));
        assert!(!policy.should_trim(9_999));
        assert!(!policy.should_trim(0), "a few are not worth it");
    }
}
