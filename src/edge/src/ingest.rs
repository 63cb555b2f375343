//! Decoding of one request, and the account of its work.

use machine::limits::{REQUEST_COST, SIGNATURE_COST};
use machine::time::Now;
use runtime::ports::{Ingest, Ingested};

use super::events::{self, EventKind};
use super::upgraded::{Session, Stage};
use super::{Codec, PushEdge};

/// Signatures that one request had the edge verify.
#[derive(Clone, Copy, Default)]
pub(super) struct Signatures {
    /// Those that were not remembered.
    pub verified: u32,
    /// Of these, the ones whose authorization is refused.
    pub failed: u32,
}

/// Bytes whose text costs a microsecond more.
const BYTES_PER_COST: usize = 512;

impl PushEdge {
    /// Decodes at most one request, and says what that cost.
    pub(super) fn ingest_counted(
        &mut self,
        now: Now,
        codec: &mut Codec,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Ingested {
        self.signatures = Signatures::default();
        let len = bytes.len();
        let ingest = self.ingest_one(now, codec, bytes, out);
        let Signatures { verified, failed } = self.signatures;
        let read = match &ingest {
            Ingest::More { consumed }
            | Ingest::Next { consumed }
            | Ingest::Upgraded { consumed }
            | Ingest::Command { consumed, .. } => *consumed,
            Ingest::Close { .. } => len,
        };
        let cost = REQUEST_COST + verified * SIGNATURE_COST + (read / BYTES_PER_COST) as u32;
        Ingested { ingest, cost, failed_signatures: failed }
    }

    fn ingest_one(&mut self, now: Now, codec: &mut Codec, bytes: &mut [u8], out: &mut Vec<u8>) -> Ingest {
        match codec {
            Codec::Http { .. } => self.ingest_http(now, codec, bytes, out),
            Codec::WebSocket { fragments, agent_family, stage, since, counts } => {
                let before = *stage;
                let session = Session { fragments, agent_family: *agent_family, stage: &mut *stage };
                let ingest = self.ingest_websocket(session, bytes, out);
                if *stage == Stage::Relay && before != Stage::Relay {
                    *since = events::minute(now);
                    self.tell(EventKind::Greeted { mode: stage.name() });
                }
                if self.reporter.is_on()
                    && let Ingest::Command { command, .. } = &ingest
                {
                    counts.take(command);
                }
                ingest
            }
        }
    }
}
