//! Health of a node, as its worst condition has it: the control plane finds it, and every port reports it.

/// Health of a condition, and of a node as its worst condition has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum Health {
    #[default]
    Good,
    /// In trouble that turns no route.
    Degraded,
    /// Other nodes do better.
    Unready,
    /// A restart heals it.
    Broken,
}

impl Health {
    /// Every health, by its number.
    pub const ALL: [Health; 4] = [Health::Good, Health::Degraded, Health::Unready, Health::Broken];

    /// The `status` of health pages.
    pub fn word(self) -> &'static str {
        match self {
            Health::Good => "OK",
            Health::Degraded => "DEGRADED",
            Health::Unready | Health::Broken => "ERROR",
        }
    }
}
