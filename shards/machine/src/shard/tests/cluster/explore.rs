//! Random events for three nodes and one user: every accepted message is received in the end. While no answer is lost
//! and no node dies, no acked message comes again.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const NODES: usize = 3;
/// A channel that exists only after the user has registered it.
const LATE: Chid = Chid([0xc3; 16]);

#[derive(Clone, Debug)]
enum Act {
    /// The user agent connects to this node; its previous connection has ended, noticed or not.
    Connect {
        node: usize,
        seen: bool,
    },
    Disconnect,
    /// The user agent registers one more channel.
    Register,
    Post {
        node: usize,
    },
    /// A message to the channel that is registered on the way.
    PostLate {
        node: usize,
    },
    /// A message of a topic.
    PostTopic {
        node: usize,
    },
    /// Acks the oldest, or everything that has come.
    Ack {
        all: bool,
    },
    Line {
        node: usize,
        line: Line,
    },
    Storage(Mode),
    CallAgain,
    Pass {
        seconds: u64,
    },
    Restart {
        node: usize,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let node = 0..NODES;
    let line = prop_oneof![4 => Just(Line::Up), 1 => Just(Line::Mute), 1 => Just(Line::Down), 1 => Just(Line::Held)];
    let storage = prop_oneof![
        4 => Just(Mode::Prompt), 2 => Just(Mode::Held), 1 => Just(Mode::Failing), 1 => Just(Mode::Lossy)
    ];
    prop_oneof![
        4 => (node.clone(), any::<bool>()).prop_map(|(node, seen)| Act::Connect { node, seen }),
        1 => Just(Act::Disconnect),
        1 => Just(Act::Register),
        8 => node.clone().prop_map(|node| Act::Post { node }),
        3 => node.clone().prop_map(|node| Act::PostLate { node }),
        2 => node.clone().prop_map(|node| Act::PostTopic { node }),
        5 => any::<bool>().prop_map(|all| Act::Ack { all }),
        3 => (node.clone(), line).prop_map(|(node, line)| Act::Line { node, line }),
        3 => storage.prop_map(Act::Storage),
        2 => Just(Act::CallAgain),
        3 => (1u64..15).prop_map(|seconds| Act::Pass { seconds }),
        1 => node.prop_map(|node| Act::Restart { node }),
    ]
}

struct Post {
    answer: (usize, u32),
    topical: bool,
    /// True if its channel was registered when it was sent, and the user agent had the answer.
    registered: bool,
    /// True if an older one of the topic was not answered yet: either may replace the other.
    concurrent: bool,
}

struct World {
    mesh: Mesh,
    uaid: Uaid,
    boots: u64,
    /// Connection that the user agent reads.
    current: Option<Socket>,
    /// Number of its notifications that were read.
    looked: usize,
    /// True if [`LATE`] is registered, and the user agent had the answer.
    late: bool,
    posts: Vec<Post>,
    unacked: Vec<Stamp>,
    acked: BTreeSet<Stamp>,
    /// True if no loss excuses a message that comes again after its ack.
    orderly: bool,
}

impl World {
    fn new() -> World {
        // A message that is delivered often and never acked ends by a rule of its own.
        let mut mesh = Mesh::nodes(NODES, |config| config.attempts_max = 0);
        let uaid = mesh.known_user(0);
        World {
            mesh,
            uaid,
            boots: 1,
            current: None,
            looked: 0,
            late: false,
            posts: Vec::new(),
            unacked: Vec::new(),
            acked: BTreeSet::new(),
            orderly: true,
        }
    }

    fn act(&mut self, act: Act) {
        // Nodes whose clocks agree: what is posted after the other's 201 is stamped later.
        self.mesh.now.unix_us += 1_000;
        self.mesh.now.mono = self.mesh.now.mono.after(TimeSpan::from_ms(1));
        match act {
            Act::Connect { node, seen } => self.connect(node, seen),
            Act::Disconnect => self.disconnect(),
            Act::Register => self.register(),
            Act::Post { node } => self.post(node, message(self.uaid)),
            Act::PostLate { node } => self.post(node, Message { chid: LATE, ..message(self.uaid) }),
            Act::PostTopic { node } => self.post(node, topical(self.uaid, "t")),
            Act::Ack { all } => self.ack(all),
            Act::Line { node, line } => {
                self.orderly &= matches!(line, Line::Up | Line::Held);
                self.mesh.lines[node] = line;
            }
            Act::Storage(mode) => {
                self.orderly &= matches!(mode, Mode::Prompt | Mode::Held);
                if self.mesh.store.mode == Mode::Held {
                    self.mesh.store.release();
                }
                self.mesh.store.mode = mode;
            }
            Act::CallAgain => self.mesh.call_again(),
            Act::Pass { seconds } => {
                // A call takes three seconds at most; then it has perhaps been carried out.
                let held = self.mesh.lines.clone();
                for line in self.mesh.lines.iter_mut().filter(|line| **line == Line::Held) {
                    *line = Line::Mute;
                }
                self.orderly &= self.mesh.calls.is_empty();
                self.mesh.run();
                self.mesh.lines = held;
                self.mesh.pass(seconds);
            }
            Act::Restart { node } => {
                self.orderly = false;
                self.boots += 1;
                if self.current.is_some_and(|socket| self.mesh.shard_of(socket) == node) {
                    self.forget();
                }
                self.mesh.restart_node(node, self.boots);
            }
        }
        self.mesh.run();
        self.look();
    }

    fn forget(&mut self) {
        self.current = None;
        self.unacked.clear();
    }

    fn connect(&mut self, node: usize, seen: bool) {
        if seen {
            self.disconnect();
        }
        self.forget();
        let socket = self.mesh.open(node);
        self.mesh.say_hello(socket, Some(self.uaid));
        self.current = Some(socket);
        self.looked = 0;
    }

    fn disconnect(&mut self) {
        if let Some(socket) = self.current.filter(|socket| self.mesh.closed(*socket).is_none()) {
            self.mesh.close(socket);
        }
        self.forget();
    }

    fn post(&mut self, node: usize, message: Message) {
        let topical = message.topic.is_some();
        let unanswered = |post: &Post| post.topical && self.mesh.answer_to(post.answer).is_none();
        let concurrent = topical && self.posts.iter().any(unanswered);
        let registered = message.chid != LATE || self.late;
        let answer = self.mesh.start_post(node, message);
        self.posts.push(Post { answer, topical, registered, concurrent });
    }

    fn register(&mut self) {
        let Some(socket) = self.current.filter(|socket| self.mesh.is_ready(*socket)) else { return };
        if self.mesh.said(socket).iter().any(|said| matches!(said, Said::Hello(_))) {
            self.mesh.register(socket, LATE);
        }
    }

    /// Reads the new notifications.
    fn look(&mut self) {
        let Some(socket) = self.current else { return };
        self.late |= self.mesh.said(socket).contains(&Said::Registered(200));
        let come = self.mesh.notifications(socket);
        for stamp in &come[self.looked..] {
            assert!(!self.orderly || !self.acked.contains(stamp), "{stamp:?} was acked and came again");
            if !self.unacked.contains(stamp) {
                self.unacked.push(*stamp);
            }
        }
        self.looked = come.len();
        if self.mesh.closed(socket).is_some() {
            self.forget();
        }
    }

    fn ack(&mut self, all: bool) {
        self.look();
        if self.current.is_some_and(|socket| !self.mesh.is_ready(socket)) {
            return;
        }
        let count = if all { self.unacked.len() } else { self.unacked.len().min(1) };
        for stamp in self.unacked.drain(..count).collect::<Vec<_>>() {
            let Some(socket) = self.current else { return };
            self.mesh.ack(socket, stamp);
            self.acked.insert(stamp);
        }
    }

    /// Repairs everything; the user agent reads and acks.
    fn calm(&mut self) {
        self.mesh.store.release();
        self.mesh.lines.fill(Line::Up);
        self.mesh.run();
        // Long enough for a Ping to find the connections that do not answer: the frames of the user agent postpone it.
        for _ in 0..400 {
            self.mesh.call_again();
            self.look();
            if self.current.is_none() {
                self.connect(0, true);
                self.mesh.run();
            }
            self.ack(true);
            self.mesh.pass(2);
        }
        self.look();
    }

    fn check(&self) {
        // A newer message of the topic may have ended an older one, also one whose POST was refused in the end.
        let newest = self.posts.iter().rposition(|post| post.topical);
        for (at, post) in self.posts.iter().enumerate() {
            let answer = self.mesh.answer_to(post.answer);
            assert!(
                !post.registered || answer != Some(Published::NoSubscription),
                "a channel that is there is not gone"
            );
            let Some(Published::Accepted { stamp, .. }) = answer else { continue };
            let replaced = post.topical && (post.concurrent || Some(at) != newest);
            assert!(replaced || self.acked.contains(&stamp), "{stamp:?} was accepted and never received");
        }
        assert!(self.mesh.ledger.is_empty(), "{} records are still live", self.mesh.ledger.len());
        assert!(self.mesh.owed.is_empty() && self.mesh.calls.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_accepted_is_lost_among_nodes(acts in prop::collection::vec(act(), 1..60)) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
        }
        world.calm();
        world.check();
    }
}
