//! After a crowd has left, the memory it needed goes back to the kernel: slabs free their empty chunks, and the
//! allocator is told to let go of them.

use std::sync::Arc;
use std::time::Duration;

use machine::stats::Board;

/// Looks at the number of connections now and then; never ends.
pub(super) async fn watch(boards: Vec<Arc<Board>>) {
    let mut ebb = Ebb::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if ebb.falls_to(connections(&boards)) {
            shards::ring::give_memory_back();
        }
    }
}

fn connections(boards: &[Arc<Board>]) -> u64 {
    let numbers = boards.iter().flat_map(|board| board.read());
    numbers.filter(|(meaning, _)| meaning.name == "connections").map(|(_, value)| value).sum()
}

/// Greatest number of connections since memory was given back last.
#[derive(Default)]
struct Ebb {
    most: u64,
}

impl Ebb {
    /// Returns true if enough connections have left since then to give memory back.
    fn falls_to(&mut self, connections: u64) -> bool {
        self.most = self.most.max(connections);
        let fallen = self.most - connections;
        let worth_it = fallen >= CROWD_MIN && fallen >= self.most / 4;
        if worth_it {
            self.most = connections;
        }
        worth_it
    }
}

/// Memory is given back this often at most.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Fewer than these leave too little behind: 1.5 MB.
const CROWD_MIN: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_leaves_is_noticed_once_for_each_quarter() {
        let mut ebb = Ebb::default();
        assert!(!ebb.falls_to(0));
        assert!(!ebb.falls_to(100_000));
        assert!(!ebb.falls_to(80_000));
        assert!(ebb.falls_to(75_000));
        assert!(!ebb.falls_to(70_000));
        assert!(ebb.falls_to(1_000));
        assert!(!ebb.falls_to(0));
        assert!(!ebb.falls_to(9_999));
        assert!(!ebb.falls_to(0), "a few are not worth it");
    }
}
