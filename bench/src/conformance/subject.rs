//! The server under test, as one check sees it: connections, subscriptions and requests, all with one deadline.

use std::io;
use std::time::{Duration, Instant};

use client::agent::{Agent, Note, Received, channel_id};
use client::http::{Client, Request, Response};
use client::stream::{Stream, Trust};
use protocol::wire::url::HttpUrl;
use serde_json::Value;

use super::answer::{Answer, Miss, ensure};
use super::options::Options;

/// Messages of other types that may come before an awaited reply.
const STRAYS_MAX: usize = 64;

/// The server, with the time that one check may take.
pub struct Subject {
    ws: String,
    pub ws_url: HttpUrl,
    endpoint: Option<HttpUrl>,
    trust: Trust,
    /// Time in which no message may come.
    pub silence: Duration,
}

/// One channel of one user agent.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub uaid: String,
    pub channel: String,
    pub url: String,
}

impl Subject {
    pub fn new(options: &Options, patience: Duration) -> io::Result<Subject> {
        let http = options.ws.strip_prefix("ws").filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
        let http = http.ok_or_else(|| io::Error::other(format!("{} is no ws:// or wss:// URL", options.ws)))?;
        Ok(Subject {
            ws: options.ws.clone(),
            ws_url: parsed(&format!("http{http}"))?,
            endpoint: options.endpoint.as_deref().map(parsed).transpose()?,
            trust: Trust::read(options.ca.as_deref(), Instant::now() + patience)?,
            silence: Duration::from_millis(options.silence),
        })
    }

    /// Checks that a user agent gets an endpoint here, and that the endpoint's server answers.
    ///
    /// # Errors
    /// It does not.
    pub fn is_reached(&self) -> io::Result<()> {
        let (mut agent, _) = self.greeted(None)?;
        let url = agent.register(&channel_id(), None)?;
        self.send(&url, &Request::post(&url, 0)?).map(drop)
    }

    /// A connection to the WebSocket port on which nothing was sent.
    pub fn stream(&self) -> io::Result<Stream> {
        self.trust.connect(self.ws_url.origin(), self.ws_url.origin())
    }

    /// A connection to the server of this endpoint URL.
    pub fn endpoint_stream(&self, url: &HttpUrl) -> io::Result<Stream> {
        self.trust.connect(self.endpoint.as_ref().unwrap_or(url).origin(), url.origin())
    }

    /// A user agent before its hello.
    pub fn connected(&self) -> io::Result<Agent> {
        let mut agent = Agent::upgrade(&self.ws, self.stream()?)?;
        agent.pass_over(STRAYS_MAX);
        Ok(agent)
    }

    /// A user agent after its hello, and its UAID.
    pub fn greeted(&self, uaid: Option<&str>) -> io::Result<(Agent, String)> {
        let mut agent = self.connected()?;
        let uaid = agent.hello(uaid)?;
        Ok((agent, uaid))
    }

    /// A user agent with one channel, locked to this key if there is one.
    pub fn subscribed(&self, key: Option<&str>) -> io::Result<(Agent, Subscription)> {
        let (mut agent, uaid) = self.greeted(None)?;
        let channel = channel_id();
        let url = agent.register(&channel, key)?;
        Ok((agent, Subscription { uaid, channel, url }))
    }

    /// A subscription whose user agent has left.
    pub fn absent(&self) -> io::Result<Subscription> {
        let (agent, subscription) = self.subscribed(None)?;
        agent.close()?;
        Ok(subscription)
    }

    /// The user agent of this subscription comes back.
    pub fn back(&self, subscription: &Subscription) -> Result<Agent, Miss> {
        let (agent, uaid) = self.greeted(Some(&subscription.uaid))?;
        ensure(uaid == subscription.uaid, || "the server changed a known UAID".into())?;
        Ok(agent)
    }

    /// Sends one request to the server of this endpoint URL.
    pub fn send(&self, url: &str, request: &Request) -> io::Result<Response> {
        Client::over(self.endpoint_stream(&parsed(url)?)?).exchange(request)
    }

    /// Sends a POST, which must be accepted.
    pub fn accepted(&self, to: &Subscription, request: &Request) -> Result<Response, Miss> {
        let response = self.send(&to.url, request)?;
        ensure(response.status == 201, || format!("a POST was answered {}", response.status))?;
        Ok(response)
    }

    /// Posts an encrypted-looking body with this TTL; it must be accepted.
    pub fn post(&self, to: &Subscription, ttl: u32, body: &str) -> Result<Response, Miss> {
        self.accepted(to, &Request::post(&to.url, ttl)?.encrypted(body))
    }

    /// Sends a POST, which must be refused with one of these statuses.
    pub fn refused(&self, to: &Subscription, request: &Request, statuses: &[u16]) -> Answer {
        let status = self.send(&to.url, request)?.status;
        ensure(statuses.contains(&status), || format!("answered {status}, not {statuses:?}"))
    }

    /// Checks that no notification comes in the time of silence.
    pub fn silent(&self, agent: &mut Agent) -> Answer {
        match self.next_note(agent)? {
            None => Ok(()),
            Some(note) => Err(Miss::Fail(format!("a notification came: {}", shown(&note.message)))),
        }
    }

    /// The next notification, if one comes in the time of silence.
    pub fn next_note(&self, agent: &mut Agent) -> Result<Option<Note>, Miss> {
        let until = Instant::now() + self.silence;
        loop {
            match agent.receive(until.saturating_duration_since(Instant::now()))? {
                Received::Nothing => return Ok(None),
                Received::Message(message) if message["messageType"] != "notification" => {}
                Received::Message(message) => {
                    let why = || Miss::Fail(format!("not a notification that can be read: {}", shown(&message)));
                    return Note::read(message.clone()).map(Some).ok_or_else(why);
                }
                other => return Err(Miss::Fail(format!("waited for silence, got {other:?}"))),
            }
        }
    }
}

/// The next notification, which must have this text as its body.
pub fn note_of(agent: &mut Agent, body: &str) -> Result<Note, Miss> {
    let note = agent.note()?;
    ensure(note.text() == body, || format!("another message came: {}", shown(&note.message)))?;
    Ok(note)
}

/// Reads a URL.
pub fn parsed(url: &str) -> io::Result<HttpUrl> {
    HttpUrl::parse(url).ok_or_else(|| io::Error::other(format!("{url} is not like http://HOST:PORT/PATH")))
}

/// The beginning of a message, for a reason.
pub fn shown(message: &Value) -> String {
    message.to_string().chars().take(160).collect()
}
