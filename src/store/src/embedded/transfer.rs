//! Whole users in and out of the embedded store.
//!
//! Lives on: the thread of a command, which holds the directory's lock: no server uses the directory meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam::channel::bounded;
use machine::ids::Uaid;
use machine::message::Message;
use machine::{StoreOp, StoreReply};

use super::database::Database;
use super::error::{Cause, StoreOpenError};
use super::group::load::Load;
use super::mail::CommitterMail;
use super::query;
use super::record::Record;
use super::rows;
use super::store::Embedded;
use crate::transfer::{BlockingPort, Listed, Transfer, TransferFault, WholeUser, refused};

impl Embedded {
    pub fn transfer(&self) -> Box<dyn Transfer + '_> {
        Box::new(EmbeddedTransfer { store: self, asker: BlockingPort::new(|waker| self.port(waker)) })
    }

    fn load(&self, load: Load) -> Result<(), TransferFault> {
        let (done, loaded) = bounded(1);
        self.store_status.queued.fetch_add(1, Ordering::Relaxed);
        let sent = self.committer.send(CommitterMail::Load(load, done)).is_ok();
        match loaded.recv() {
            Ok(Ok(())) if sent => Ok(()),
            Ok(Err(error)) => Err(refused(error)),
            Ok(Ok(())) | Err(_) => Err(self.fault(StoreOpenError::new(&self.dir, Cause::Closed))),
        }
    }

    fn fault(&self, fault: StoreOpenError) -> TransferFault {
        TransferFault::new(fault.to_string(), fault.kind())
    }
}

struct EmbeddedTransfer<'a> {
    store: &'a Embedded,
    asker: BlockingPort,
}

impl EmbeddedTransfer<'_> {
    fn db(&self) -> Result<&Database, TransferFault> {
        self.store.db.as_ref().ok_or_else(|| self.store.fault(StoreOpenError::new(&self.store.dir, Cause::Closed)))
    }

    /// The user in this row. Its block was whole, so a row that does not parse is of an unknown version.
    fn whole(&self, key: &[u8], value: &[u8]) -> Result<WholeUser, TransferFault> {
        let uaid = rows::uaid_of(key).filter(|_| key.len() == 16);
        let known = uaid.and_then(|uaid| Some((uaid, Record::parse(value)?)));
        let (uaid, record) = known.ok_or_else(|| {
            self.store.fault(StoreOpenError::new(
                &self.store.dir,
                Cause::Version("a user it does not know how to read".into()),
            ))
        })?;
        let channels = query::channels(self.db()?, uaid).map_err(|error| self.unreadable(error))?;
        Ok(record.whole(uaid, channels.into_iter().map(|(chid, channel)| channel.channel(chid)).collect()))
    }

    fn unreadable(&self, error: fjall::Error) -> TransferFault {
        self.store.fault(StoreOpenError::database(&self.store.dir, error))
    }
}

impl Transfer for EmbeddedTransfer<'_> {
    fn users(&mut self, after: Option<Uaid>, limit: usize) -> Result<Listed, TransferFault> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, |uaid| Excluded(uaid.0));
        let behind = self.db()?.users.range::<[u8; 16], _>((from, Unbounded)).take(limit);
        let mut users = Vec::new();
        for row in behind {
            let (key, value) = row.into_inner().map_err(|error| self.unreadable(error))?;
            users.push(self.whole(&key, &value)?);
        }
        Ok(Listed::readable(users))
    }

    fn find(&mut self, uaids: &[Uaid]) -> Result<Vec<Option<WholeUser>>, TransferFault> {
        let db = self.db()?;
        let one = |uaid: &Uaid| {
            let value = db.users.get(uaid.0).map_err(|error| self.unreadable(error))?;
            value.map(|value| self.whole(&uaid.0, &value)).transpose()
        };
        uaids.iter().map(one).collect()
    }

    fn put_rows(&mut self, rows: &[Arc<Message>]) -> Result<(), TransferFault> {
        self.store.load(Load { rows: rows.to_vec(), users: Vec::new() })
    }

    fn put_users(&mut self, users: &[WholeUser]) -> Result<(), TransferFault> {
        self.store.load(Load { rows: Vec::new(), users: users.to_vec() })
    }

    fn ask(&mut self, ops: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault> {
        self.asker.ask(ops)
    }
}
