//! Whole users in and out of the shared store, while nodes serve from it.
//!
//! Rows are written with the clocks they had, so later changes here stand above them.
//! Lives on: the thread of a command, which waits; the work is done on the store's runtime.

use std::sync::Arc;
use std::time::Duration;

use machine::ids::{Clock, Uaid};
use machine::message::{Message, Topic};
use machine::simplepush::Contact;
use machine::{StoreOp, StoreReply};
use scylla::response::PagingState;
use scylla::routing::partitioner::{Murmur3Partitioner, Partitioner as _};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::backend::Scylla;
use super::blocking::block_on;
use super::client::{Client, Failed, StatementContext};
use super::ops::changes;
use super::ops::read::read_rows;
use super::ops::{bridges, low_water, updates, users};
use super::rows::{self, RowLocation, UserPart};
use super::statements::Change;
use super::stats::Statement;
use crate::fault::FaultKind;
use crate::shared::schema::family;
use crate::transfer::{BlockingPort, Channel, Listed, Transfer, TransferFault, WholeUser, refused};

/// Time limit of one user or one message, with all retries.
const WITHIN: Duration = Duration::from_secs(60);
/// Users or messages that are worked on at the same time.
const BESIDE: usize = 128;

impl Scylla {
    pub fn transfer(&self) -> Box<dyn Transfer + '_> {
        let work = Work { client: Arc::clone(&self.client), permits: Semaphore::new(BESIDE) };
        Box::new(ScyllaTransfer {
            store: self,
            work: Arc::new(work),
            asker: BlockingPort::new(|waker| self.port(waker)),
        })
    }
}

struct ScyllaTransfer<'a> {
    store: &'a Scylla,
    work: Arc<Work>,
    asker: BlockingPort,
}

/// State that every task needs.
struct Work {
    client: Arc<Client>,
    permits: Semaphore,
}

impl Work {
    fn context(&self) -> StatementContext<'_> {
        StatementContext { client: &self.client, permits: &self.permits, until: Instant::now() + WITHIN }
    }

    /// The users behind this one in the order of their tokens.
    async fn users(&self, after: Option<Uaid>, limit: usize) -> Result<Listed, Failed> {
        let (mut listed, mut state): (Listed, Option<PagingState>) = (Listed::default(), None);
        let mut reading: Option<(Uaid, UserPart)> = None;
        loop {
            let context = self.context();
            let (found, next) = match &after {
                None => context.read(Statement::UsersFirst, &(), state, true).await?,
                Some(after) => context.read(Statement::UsersBehind, &(rows::uaid(after),), state, true).await?,
            };
            for row in found.rows::<(&[u8], i8, &[u8], &[u8])>().map_err(|_| Failed)? {
                let (uaid, family, key, value) = row.map_err(|_| Failed)?;
                let Some(uaid) = uaid.try_into().ok().map(Uaid) else { continue };
                if reading.as_ref().is_none_or(|(other, _)| *other != uaid) {
                    if let Some((uaid, part)) = reading.take() {
                        list(&mut listed, uaid, part);
                    }
                    if listed.users.len() + listed.unreadable.len() >= limit {
                        return Ok(listed);
                    }
                    reading = Some((uaid, UserPart::default()));
                }
                if let Some((_, part)) = &mut reading {
                    part.take(family, key, value);
                }
            }
            match next {
                Some(_) => state = next,
                None => break,
            }
        }
        if let Some((uaid, part)) = reading {
            list(&mut listed, uaid, part);
        }
        Ok(listed)
    }

    async fn find(&self, uaid: Uaid) -> Result<Option<WholeUser>, TransferFault> {
        Ok(whole(uaid, self.read(uaid).await?))
    }

    async fn read(&self, uaid: Uaid) -> Result<UserPart, TransferFault> {
        let read = read_rows(&self.context(), Statement::UserRead, &(rows::uaid(&uaid),)).await;
        let part = read.map_err(failed)?;
        if part.record_unreadable {
            let said = format!(
                "in the store that is written, the record of the user at {} cannot be read, so nothing can be added to \
                 it: delete that row of the table user, then go on",
                place(uaid)
            );
            return Err(TransferFault::new(said, FaultKind::Lasting));
        }
        Ok(part)
    }

    async fn put_row(&self, message: &Message) -> Result<(), TransferFault> {
        let context = self.context();
        let changes = match &message.topic {
            Some(Topic::UPDATE) => updates::publish(&context, message).await.map_err(failed)?,
            Some(_) => vec![changes::write(&context, message, RowLocation::of(message))],
            None => {
                let place = RowLocation::plain(family::SAVED, message.stamp, message.chid);
                vec![changes::late(&context), changes::write(&context, message, place)]
            }
        };
        context.change(&message.uaid, &changes).await.map_err(failed)
    }

    async fn put_user(&self, user: &WholeUser) -> Result<(), TransferFault> {
        let context = self.context();
        let there = self.read(user.uaid).await?;
        let mut changes: Vec<Change> = Vec::new();
        if user.low_water > there.low_water {
            changes.push(low_water::settled_at(user.low_water));
        }
        if user.user_clock > there.highest() {
            changes.push(users::user_clock(user.user_clock));
        }
        for channel in user.channels.iter().filter(|channel| !there.has_channel(channel.chid)) {
            let value = rows::channel(channel.registered_at, channel.key.as_ref());
            changes.push(users::put(family::CHANNEL, channel.chid.0.to_vec(), value, channel.registered_at));
        }
        // Last: a user with very many channels takes two batches, and without the record no reader sees the first.
        if there.record.is_none() {
            changes.push(users::put(family::CONTACT, Vec::new(), rows::contact(&user.contact), user.user_clock));
            if let Some(bridge) = &user.contact.bridge {
                changes.push(users::put(family::BRIDGE, Vec::new(), rows::bridge(bridge), user.user_clock));
            }
            let record = rows::record(user.record_version, user.seen);
            changes.push(users::put(family::RECORD, Vec::new(), record, user.user_clock));
        }
        context.change(&user.uaid, &changes).await.map_err(failed)?;
        if there.record.is_some_and(|(_, seen)| user.seen > seen) {
            users::touch(&context, user.uaid, user.seen).await.map_err(refused)?;
        }
        if let Some(bridge) = user.contact.bridge.as_ref().filter(|_| there.bridge.is_some()) {
            bridges::replace(&context, user.uaid, Clock(0), bridge).await.map_err(refused)?;
        }
        Ok(())
    }
}

/// Adds a user whose rows were all read; nothing when it has no record.
fn list(listed: &mut Listed, uaid: Uaid, part: UserPart) {
    if part.record_unreadable {
        listed.unreadable.push(place(uaid));
        listed.last = Some(uaid);
    } else if let Some(user) = whole(uaid, part) {
        listed.users.push(user);
        listed.last = Some(uaid);
    }
}

/// Position of this user for an operator, who is not shown its UAID.
fn place(uaid: Uaid) -> String {
    format!("token(uaid) = {}", Murmur3Partitioner.hash_one(&uaid.0).value())
}

fn whole(uaid: Uaid, part: UserPart) -> Option<WholeUser> {
    let (record_version, seen) = part.record?;
    let channel = |row: &rows::ChannelRow| Channel { chid: row.chid, key: row.key, registered_at: row.registered_at };
    Some(WholeUser {
        uaid,
        record_version,
        seen,
        low_water: part.low_water,
        user_clock: part.highest_but_presence(),
        may_have_messages: true,
        channels: part.channels.iter().map(channel).collect(),
        contact: Contact { bridge: part.bridge, ..part.contact },
    })
}

impl ScyllaTransfer<'_> {
    /// Does all of the work, some at the same time; the answers are in the order of `items`.
    fn each<I, T, F>(&self, items: Vec<I>, work: impl Fn(Arc<Work>, I) -> F) -> Result<Vec<T>, TransferFault>
    where
        F: Future<Output = Result<T, TransferFault>> + Send + 'static,
        T: Send + 'static,
        I: Send,
    {
        let tasks: Vec<F> = items.into_iter().map(|item| work(Arc::clone(&self.work), item)).collect();
        let mut answers: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
        let done: Result<Vec<Option<T>>, TransferFault> = block_on(self.store.runtime.handle(), async {
            let (mut running, mut rest) = (JoinSet::new(), tasks.into_iter().enumerate());
            loop {
                while running.len() < BESIDE
                    && let Some((at, task)) = rest.next()
                {
                    running.spawn(async move { (at, task.await) });
                }
                // Invariant: a task that panics ends the process (panic = abort).
                let Some(done) = running.join_next().await else { return Ok(answers) };
                let (at, answer) = done.expect("a transfer does not panic");
                answers[at] = Some(answer?);
            }
        });
        done.map(|answers| answers.into_iter().flatten().collect())
    }
}

fn failed(_: Failed) -> TransferFault {
    refused(machine::StoreError::Transient)
}

impl Transfer for ScyllaTransfer<'_> {
    fn users(&mut self, after: Option<Uaid>, limit: usize) -> Result<Listed, TransferFault> {
        block_on(self.store.runtime.handle(), self.work.users(after, limit)).map_err(failed)
    }

    fn find(&mut self, uaids: &[Uaid]) -> Result<Vec<Option<WholeUser>>, TransferFault> {
        self.each(uaids.to_vec(), |work, uaid| async move { work.find(uaid).await })
    }

    fn put_rows(&mut self, rows: &[Arc<Message>]) -> Result<(), TransferFault> {
        // Updates of one channel are decided one after another.
        let (updates, others): (Vec<_>, Vec<_>) =
            rows.iter().cloned().partition(|message| message.topic == Some(Topic::UPDATE));
        self.each(others, |work, message| async move { work.put_row(&message).await })?;
        for message in updates {
            self.each(vec![message], |work, message| async move { work.put_row(&message).await })?;
        }
        Ok(())
    }

    fn put_users(&mut self, users: &[WholeUser]) -> Result<(), TransferFault> {
        self.each(users.to_vec(), |work, user| async move { work.put_user(&user).await }).map(drop)
    }

    fn ask(&mut self, ops: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault> {
        self.asker.ask(ops)
    }
}
