//! The one thread and the one wait of a scenario.

use std::io;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use crate::alarm::Alarm;
use crate::fleet::{self, AgentEvent, Agents, Plan};
use crate::publishers::{Answer, Publishers};
use crate::target::Target;
use crate::view::View;

/// Token of the rings of the agents; publishers have smaller tokens, the alarm the next one.
const AGENTS: Token = Token(usize::MAX - 1);
/// Sockets of one ring at most. More than that would only make its table larger than the part in use.
const TABLE_MAX: u64 = 32_768;

/// One thread, one wait, all clients.
pub struct Driver {
    poll: Poll,
    events: Events,
    alarm: Alarm,
    /// Progress for a person.
    pub view: View,
    pub agents: Agents,
    /// The app servers; none until `open_publishers`.
    pub publishers: Option<Publishers>,
    /// Events of agents that were not taken yet.
    pub happenings: Vec<AgentEvent>,
    /// Answers to POSTs that were not taken yet.
    pub answers: Vec<Answer>,
}

impl Driver {
    /// Agents for `target`, none connected.
    pub fn new(target: &Target, plan: Plan, in_flight_max: usize) -> io::Result<Driver> {
        let table = crate::host::raise_open_files().min(TABLE_MAX) as u32;
        Driver::with_table(target, plan, in_flight_max, table)
    }

    /// As [`Driver::new`] with rings of `table` agents each.
    pub fn with_table(target: &Target, plan: Plan, in_flight_max: usize, table: u32) -> io::Result<Driver> {
        let (servers, sources, count) = (target.ws_addresses(), target.sources, target.sessions);
        let options = fleet::Options { servers, sources, count, in_flight_max, table, tls: target.tls()? };
        let poll = Poll::new()?;
        let agents = Agents::new(&options, plan)?;
        poll.registry().register(&mut SourceFd(&agents.event()), AGENTS, Interest::READABLE)?;
        Ok(Driver {
            alarm: Alarm::new(poll.registry())?,
            poll,
            view: View::open(target),
            events: Events::with_capacity(1024),
            agents,
            publishers: None,
            happenings: Vec::new(),
            answers: Vec::new(),
        })
    }

    /// Opens `count` app server connections.
    pub fn open_publishers(&mut self, target: &Target, count: usize) -> io::Result<()> {
        self.publishers = Some(Publishers::connect(target.endpoint.address, target.tls()?, count, self.registry())?);
        Ok(())
    }

    fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Starts the connections that are due, waits for events at most this long, and reacts to them.
    pub fn turn(&mut self, patience: Duration) -> io::Result<()> {
        crate::interrupt::check()?;
        let known = self.happenings.len();
        self.agents.step(&mut self.happenings)?;
        let nothing = self.happenings.len() == known && self.agents.quiet();
        let patience = if nothing { patience } else { Duration::ZERO };
        let polled = self.poll.poll(&mut self.events, Some(patience));
        self.agents.awake();
        match polled {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &self.events {
            if let Some(publishers) = self.publishers.as_mut().filter(|_| event.token() < AGENTS) {
                publishers.ready(event, self.poll.registry(), &mut self.answers)?;
            }
        }
        self.agents.step(&mut self.happenings)?;
        self.view.sessions(self.agents.connected());
        Ok(())
    }

    /// Waits for events until this instant at the latest, to the microsecond, and reacts to them.
    pub fn turn_by(&mut self, due: Instant) -> io::Result<()> {
        self.alarm.set(due)?;
        self.turn(Duration::from_secs(1))
    }

    /// Turns for this long, regardless of events.
    pub fn idle(&mut self, span: Duration) -> io::Result<()> {
        let deadline = Instant::now() + span;
        while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.turn(left.min(Duration::from_millis(50)))?;
        }
        Ok(())
    }
}
