//! Blocking calls of a store's port, for laws.

use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::ids::{Stamp, StoreTicket, Uaid};
use machine::message::Message;
use machine::{Page, StoreError, StoreOp, StoreReply, UserRow};
use runtime::ports::Store;

use crate::testing::sample::{NOW, register};

/// A port with a limit of one minute for each reply.
pub(crate) struct BlockingStore {
    port: Box<dyn Store>,
    next: u32,
}

/// Reply of a port to an operation.
pub(crate) type Answer = Result<StoreReply, StoreError>;

impl BlockingStore {
    pub(crate) fn new(port: Box<dyn Store>) -> BlockingStore {
        BlockingStore { port, next: 0 }
    }

    /// Submits without waiting.
    pub(crate) fn submit(&mut self, op: StoreOp) -> StoreTicket {
        let ticket = StoreTicket { index: self.next, generation: 1 };
        self.next += 1;
        self.port.submit(ticket, op);
        ticket
    }

    pub(crate) fn collect(&mut self) -> (StoreTicket, Answer) {
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(reply) = self.port.collect() {
                return reply;
            }
            assert!(Instant::now() < patience, "no reply");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Submits and waits.
    pub(crate) fn ask(&mut self, op: StoreOp) -> Answer {
        let ticket = self.submit(op);
        let (got, answer) = self.collect();
        assert_eq!(got, ticket);
        answer
    }

    /// Submits all, then answers in the order of submission.
    pub(crate) fn ask_all(&mut self, ops: Vec<StoreOp>) -> Vec<Answer> {
        let tickets: Vec<_> = ops.into_iter().map(|op| self.submit(op)).collect();
        let mut answers: Vec<_> = tickets.iter().map(|_| self.collect()).collect();
        answers.sort_by_key(|(ticket, _)| ticket.index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    pub(crate) fn done(&mut self, op: StoreOp) {
        let answer = self.ask(op);
        assert!(matches!(answer, Ok(StoreReply::Done | StoreReply::Scarce)), "{answer:?}");
    }

    pub(crate) fn user(&mut self, uaid: Uaid) -> Option<UserRow> {
        match self.ask(StoreOp::LoadUser { uaid }) {
            Ok(StoreReply::User(row)) => row.map(|row| *row),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn page(&mut self, op: StoreOp) -> Page {
        match self.ask(op) {
            Ok(StoreReply::Page(page)) => *page,
            other => panic!("{other:?}"),
        }
    }

    /// Clocks of every live message row.
    pub(crate) fn clocks(&mut self, uaid: Uaid) -> Vec<u64> {
        let op = StoreOp::Messages { uaid, after: Stamp::default(), limit: u16::MAX, now: NOW };
        self.page(op).messages.iter().map(|m| m.stamp.clock.0).collect()
    }

    /// Clocks of every live topic row.
    pub(crate) fn topic_clocks(&mut self, uaid: Uaid) -> Vec<u64> {
        let op = StoreOp::Topics { uaid, after: None, limit: u16::MAX, now: NOW };
        self.page(op).messages.iter().map(|m| m.stamp.clock.0).collect()
    }

    pub(crate) fn register(&mut self, user: u8, channel: u8) {
        self.done(register(user, channel, 1));
    }

    pub(crate) fn publish(&mut self, message: Message) {
        self.done(StoreOp::Publish { message: Arc::new(message), checked: false });
    }
}
