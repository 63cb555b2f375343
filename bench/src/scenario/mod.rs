//! The scenarios, one module each with `Options` and `run`. Each prints a table and says whether its checks held.

pub mod hold;

pub mod push;

pub mod storm;

pub mod backlog;

pub mod crash;

pub mod sim;

use std::io;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mio::{Events, Poll, Registry};

use crate::alarm::{self, Alarm};
use crate::publishers::{Answer, Publishers, TOKEN_BASE};
use crate::swarm::{Happening, Plan, Swarm};
use crate::target::Target;

/// One thread, one epoll, all clients.
pub struct Driver {
    poll: Poll,
    events: Events,
    alarm: Alarm,
    /// The user agents.
    pub swarm: Swarm,
    /// The app servers; none until `open_publishers`.
    pub publishers: Option<Publishers>,
    /// What happened to agents and was not taken yet.
    pub happenings: Vec<Happening>,
    /// What was answered to POSTs and was not taken yet.
    pub answers: Vec<Answer>,
}

impl Driver {
    /// Agents for `target`, none connected.
    pub fn new(target: &Target, plan: Plan, in_flight_max: usize) -> io::Result<Driver> {
        crate::host::raise_open_files();
        let poll = Poll::new()?;
        Ok(Driver {
            alarm: Alarm::new(poll.registry())?,
            poll,
            events: Events::with_capacity(1024),
            swarm: Swarm::new(target.ws, plan, target.sessions, in_flight_max),
            publishers: None,
            happenings: Vec::new(),
            answers: Vec::new(),
        })
    }

    /// Opens `count` app server connections.
    pub fn open_publishers(&mut self, target: &Target, count: usize) -> io::Result<()> {
        self.publishers = Some(Publishers::connect(target.endpoint, count, self.registry())?);
        Ok(())
    }

    fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Starts what is queued, waits for events at most this long, and reacts to them.
    pub fn turn(&mut self, patience: Duration) -> io::Result<()> {
        self.swarm.connect_more(self.poll.registry())?;
        match self.poll.poll(&mut self.events, Some(patience)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &self.events {
            if event.token() == alarm::TOKEN {
                // It has done its work: the wait is over.
            } else if event.token().0 < TOKEN_BASE {
                self.swarm.ready(event, &mut self.happenings);
            } else if let Some(publishers) = &mut self.publishers {
                publishers.ready(event, self.poll.registry(), &mut self.answers)?;
            }
        }
        Ok(())
    }

    /// Waits for events until this instant at the latest, to the microsecond, and reacts to them.
    pub fn turn_by(&mut self, due: Instant) -> io::Result<()> {
        self.alarm.set(due)?;
        self.turn(Duration::from_secs(1))
    }

    /// Turns until every launched agent is idle or has failed.
    pub fn settle(&mut self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        while !self.swarm.settled() {
            if Instant::now() > deadline {
                let connected = self.swarm.connected();
                return Err(io::Error::other(format!("{connected} sessions after {patience:?}, then no progress")));
            }
            self.turn(Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// Turns for this long, whatever happens.
    pub fn idle(&mut self, span: Duration) -> io::Result<()> {
        let deadline = Instant::now() + span;
        while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.turn(left.min(Duration::from_millis(50)))?;
        }
        Ok(())
    }

    /// Forgets what happened so far; returns how many connections ended in it.
    pub fn forget(&mut self) -> usize {
        let ended = self.happenings.iter().filter(|one| matches!(one, Happening::Ended { .. })).count();
        self.happenings.clear();
        self.answers.clear();
        ended
    }
}

/// The sequence number at the front of a body, from the base64url of a notification's `data`.
fn sequence(data: &str) -> Option<u64> {
    let mut bytes = [0; 9];
    URL_SAFE_NO_PAD.decode_slice(data.get(..12)?, &mut bytes).ok()?;
    Some(u64::from_be_bytes(*bytes.first_chunk()?))
}
