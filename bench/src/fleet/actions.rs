//! Interface of scenarios to agents: what they see and what they command.

use super::agent::Phase;
use super::agents::Agents;
use super::codec;
use super::event::{Leave, Plan};
use super::user_data::ConnKey;
use crate::frame;

/// Going away (RFC 6455 section 7.4.1): the code that a browser sends when it is closed.
const GOING_AWAY: u16 = 1001;

impl Agents {
    pub fn count(&self) -> usize {
        self.agents.len()
    }

    /// The UAID an agent says hello with next, or was given: 32 hexadecimal digits.
    pub fn uaid(&self, agent: usize) -> Option<String> {
        self.agents[agent].uaid().map(|uaid| codec::uaid_text(&uaid))
    }

    /// Sets the UAID that an agent says hello with next. False when it is not 32 hexadecimal digits.
    pub fn set_uaid(&mut self, agent: usize, uaid: &str) -> bool {
        let uaid = codec::uaid_of(uaid);
        if uaid.is_some() {
            self.agents[agent].set_uaid(uaid);
        }
        uaid.is_some()
    }

    /// Returns true if the last hello was answered with another UAID than it offered.
    pub fn renamed(&self, agent: usize) -> bool {
        self.agents[agent].renamed()
    }

    pub fn renamed_count(&self) -> usize {
        self.agents.iter().filter(|agent| agent.renamed()).count()
    }

    /// The URL of an agent's `n`th channel, of those it has.
    pub fn endpoint(&self, agent: usize, n: usize) -> Option<String> {
        self.endpoints.urls(self.agents[agent].endpoints).nth(n)
    }

    /// The URLs of an agent's channels, oldest first.
    pub fn endpoints(&self, agent: usize) -> Vec<String> {
        self.endpoints.urls(self.agents[agent].endpoints).collect()
    }

    /// Returns true if the agent is connected and idle.
    pub fn is_connected(&self, agent: usize) -> bool {
        self.agents[agent].phase == Phase::Idle
    }

    /// Agents that are connected and idle.
    pub fn connected(&self) -> usize {
        self.connected
    }

    /// Agents that connect at this moment.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns true if every launched agent is idle or has failed.
    pub fn settled(&self) -> bool {
        self.queue.is_empty() && self.in_flight == 0
    }

    /// Client pings that were answered, ever.
    pub fn pongs(&self) -> u64 {
        self.pongs
    }

    /// Server pings that were answered, ever.
    pub fn pings(&self) -> u64 {
        self.pings
    }

    /// Changes what later connections do, and from now on acks.
    pub fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Changes how many handshakes may be under way at once.
    pub fn set_in_flight_max(&mut self, in_flight_max: usize) {
        self.in_flight_max = in_flight_max;
    }

    /// Queues these agents to connect. Those that are connected when their turn comes stay as they are.
    pub fn launch(&mut self, agents: impl IntoIterator<Item = usize>) {
        self.queue.extend(agents.into_iter().map(|agent| agent as u32));
    }

    /// Sends a client ping, `{}`.
    pub fn ping(&mut self, agent: usize) -> bool {
        self.say(agent, |_, _, out| codec::text(out, "{}"))
    }

    /// Sends an empty WebSocket ping.
    pub fn ping_frame(&mut self, agent: usize) -> bool {
        self.say(agent, |_, _, out| frame::push(out, frame::PING, &[]))
    }

    /// Names the minimum urgency of an agent.
    pub fn set_minimum(&mut self, agent: usize, min: &str) -> bool {
        self.say(agent, |_, _, out| codec::urgency(out, min))
    }

    /// Registers one more channel; one at a time.
    pub fn register(&mut self, agent: usize) -> bool {
        if self.agents[agent].registering() {
            return false;
        }
        let said = self.say(agent, |agents, name, out| {
            codec::register(out, agents.new_channel(name), agents.plan.key.as_deref());
        });
        if said {
            self.agents[agent].set_registering(true);
        }
        said
    }

    /// Unregisters the `n`th channel of those the agent has, and forgets it.
    pub fn unregister(&mut self, agent: usize, n: usize) -> bool {
        let first = self.agents[agent].endpoints;
        let Some(number) = self.endpoints.numbers(first).nth(n) else { return false };
        let said = self.say(agent, |agents, name, out| {
            codec::unregister(out, codec::channel_of(agents.seed, name.agent, number));
        });
        if said {
            self.endpoints.remove(&mut self.agents[agent].endpoints, number);
        }
        said
    }

    /// Sends any text.
    pub fn send_text(&mut self, agent: usize, text: &str) -> bool {
        self.say(agent, |_, _, out| codec::text(out, text))
    }

    /// Sends what `what` writes, when the agent is idle.
    fn say(&mut self, agent: usize, what: impl FnOnce(&Agents, ConnKey, &mut Vec<u8>)) -> bool {
        if !self.is_connected(agent) {
            return false;
        }
        let name = self.agents[agent].name(agent as u32);
        let mut out = std::mem::take(&mut self.out);
        what(self, name, &mut out);
        let sent = self.send(name, &out);
        out.clear();
        self.out = out;
        self.note(sent);
        true
    }

    /// These agents leave, if they are there. Nothing more happens to them.
    pub fn disconnect(&mut self, agents: impl IntoIterator<Item = usize>, how: Leave) {
        for agent in agents {
            if self.agents[agent].phase == Phase::Absent {
                continue;
            }
            if how == Leave::Close {
                self.say(agent, |_, _, out| frame::push(out, frame::CLOSE, &GOING_AWAY.to_be_bytes()));
            }
            let name = self.agents[agent].name(agent as u32);
            let outcome = self.hang_up(name, how == Leave::Reset);
            self.note(outcome);
        }
        let outcome = self.rings.enter().map(|_| ());
        self.note(outcome);
    }

    /// All leave with a FIN, or an RST when there is unread input, and no agent waits to connect any more.
    pub fn disconnect_all(&mut self) {
        self.queue.clear();
        self.disconnect(0..self.agents.len(), Leave::Fin);
    }
}
