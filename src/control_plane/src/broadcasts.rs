//! The broadcast values that this node knows, from the operator and from the source. Lives on the control plane.
//!
//! Two write here: the operator with `PUT /broadcasts` and the broadcast source. The last to write an id wins; as the
//! source writes every id that it names with every poll, such an id has the source's value again within an interval.
//! Ids are never removed while the node runs (PROTOCOL.md 1.9).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use machine::BroadcastVersion;
use machine::limits::{BROADCAST_IDS_MAX, BROADCAST_TEXT_BYTES_MAX};

use super::host::Host;

/// Id to version.
pub(super) type Values = BTreeMap<String, String>;

#[derive(Default)]
pub(super) struct Broadcasts(Mutex<Table>);

#[derive(Default)]
struct Table {
    known: Values,
    host: Option<Arc<dyn Host>>,
}

impl Broadcasts {
    /// From now on `host` is told of every change; what is known already it is told now.
    pub fn attach(&self, host: Arc<dyn Host>) {
        let mut table = self.table();
        tell(&*host, &table.known);
        table.host = Some(host);
    }

    /// Sets these and keeps the others: all of them or, on an error, none. Returns the number of changed ones.
    ///
    /// # Errors
    /// One sentence.
    pub fn set(&self, wanted: Values) -> Result<usize, &'static str> {
        let fits = |text: &String| (1..=BROADCAST_TEXT_BYTES_MAX).contains(&text.len());
        if !wanted.iter().all(|(id, version)| fits(id) && fits(version)) {
            return Err("an id or version is empty or longer than 128 bytes");
        }
        let mut table = self.table();
        let new = wanted.keys().filter(|id| !table.known.contains_key(*id)).count();
        if table.known.len() + new > BROADCAST_IDS_MAX {
            return Err("a node knows at most 1024 broadcast ids");
        }
        let news: Values = wanted.into_iter().filter(|(id, version)| table.known.get(id) != Some(version)).collect();
        // Still under the lock, so that the shards hear of changes in the order of this table.
        if let Some(host) = &table.host {
            tell(&**host, &news);
        }
        let count = news.len();
        table.known.extend(news);
        Ok(count)
    }

    pub fn list(&self) -> Values {
        self.table().known.clone()
    }

    pub fn count(&self) -> usize {
        self.table().known.len()
    }

    /// Locks, also after a panic: each change is one call, so that the table is whole.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(host: &dyn Host, values: &Values) {
    if values.is_empty() {
        return;
    }
    let value = |(id, version): (&String, &String)| {
        let (id, version) = (id.as_str().into(), version.as_str().into());
        BroadcastVersion { id, version }
    };
    host.set_broadcasts(values.iter().map(value).collect());
}

/// Bytes of a text that sets broadcasts: 1,024 ids of 128 bytes with versions of 128 bytes fit. Refuse: 413 for the
/// operator, the poll counts as failed for the source.
pub(super) const BROADCASTS_BODY_BYTES_MAX: usize = 320 * 1024;
