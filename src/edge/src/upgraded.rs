//! State of an upgraded WebSocket between its frames.

use runtime::quota::{Quota, Share};

/// Decoding state of an upgraded WebSocket, borrowed from its codec.
pub(super) struct Session<'c> {
    pub(super) fragments: &'c mut Option<Box<Fragments>>,
    pub(super) agent_family: u16,
    pub(super) stage: &'c mut Stage,
}

/// State and protocol of a WebSocket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// No hello was read. The edge accepts no other message.
    Upgraded,
    /// A hello was read. A second one is refused. The mode is WebPush, unless the answer names another one.
    WebPush,
    /// Its hello was answered in SimplePush mode.
    SimplePush,
    /// The connection speaks for several user agents.
    Relay,
}

impl Stage {
    /// Returns its name in the log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Stage::Upgraded | Stage::WebPush => "webpush",
            Stage::SimplePush => "simplepush",
            Stage::Relay => "relay",
        }
    }
}

/// Fragments of a text message whose last one has not arrived; at most `ws::MESSAGE_BYTES_MAX` bytes.
pub struct Fragments {
    pub(super) text: Vec<u8>,
    share: Share,
    /// Code of the close frame that the peer sent, kept from that frame to the report of the end, if client events are
    /// logged. A field of the codec would cost each idle session two bytes.
    pub(super) peer_code: Option<u16>,
}

impl Fragments {
    pub(super) fn new(unfinished: &Quota) -> Fragments {
        Fragments { text: Vec::new(), share: unfinished.share(), peer_code: None }
    }

    /// Updates the share and returns true if the fragments exceed the quota.
    pub(super) fn are_refused(&mut self, unfinished: &Quota) -> bool {
        let (before, bytes) = (self.share.bytes(), size_of::<Fragments>() + self.text.capacity());
        self.share.set(bytes);
        unfinished.refuses(before, bytes)
    }
}
