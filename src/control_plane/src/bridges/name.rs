//! Name of a profile.

use machine::upstream::BridgeKind;

/// Bridge and name of a profile.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BridgeName {
    pub kind: BridgeKind,
    pub app: Box<str>,
}

impl BridgeName {
    /// Value of the label `bridge` in metrics and logs.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            BridgeKind::Fcm => "fcm",
            BridgeKind::Apns => "apns",
        }
    }
}
