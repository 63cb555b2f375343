//! Random events for one user: the highest accepted version always arrives.

use proptest::prelude::*;

use super::*;

/// Event of one user.
#[derive(Clone, Debug)]
enum Step {
    Put {
        chid: Chid,
        version: u64,
    },
    /// Acks the sent version of a channel, minus a number.
    Ack {
        chid: Chid,
        less: u64,
    },
    Come {
        wake: bool,
    },
    Leave,
    Pass(u64),
    Storage(Mode),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let chid = || prop::sample::select(vec![CHANNEL, OTHER]);
    let modes = vec![Mode::Prompt, Mode::Prompt, Mode::Failing, Mode::Lossy];
    let step = prop_oneof![
        6 => (chid(), 1u64..9).prop_map(|(chid, version)| Step::Put { chid, version }),
        4 => (chid(), 0u64..3).prop_map(|(chid, less)| Step::Ack { chid, less }),
        3 => any::<bool>().prop_map(|wake| Step::Come { wake }),
        1 => Just(Step::Leave),
        2 => prop::sample::select(vec![1u64, 12, 65, 310]).prop_map(Step::Pass),
        2 => prop::sample::select(modes).prop_map(Step::Storage),
    ];
    prop::collection::vec(step, 1..40)
}

/// One user and the updates that it was sent.
struct Life {
    mesh: Mesh,
    uaid: Uaid,
    socket: Option<Socket>,
    /// Every update that was PUT, with the place of its answer.
    puts: Vec<((usize, u32), Chid, u64)>,
}

impl Life {
    fn new(window: u16, durable: bool) -> Life {
        let mut mesh = Mesh::with(1, |config| (config.window, config.durable) = (window, durable));
        let uaid = mesh.simple_user(0, None);
        Life { mesh, uaid, socket: None, puts: Vec::new() }
    }

    fn live(&self) -> Option<Socket> {
        self.socket.filter(|socket| self.mesh.closed(*socket).is_none())
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put { chid, version } => {
                self.puts.push((self.mesh.start_post(0, update_on(self.uaid, chid, version)), chid, version));
                self.mesh.run();
            }
            Step::Ack { chid, less } => self.ack(chid, less),
            Step::Come { wake } if self.live().is_none() => {
                self.socket = Some(self.mesh.simple_with(0, Some(self.uaid), wake.then_some("somewhere")));
            }
            Step::Come { .. } => {}
            Step::Leave => {
                if let Some(socket) = self.live() {
                    self.mesh.close(socket);
                    self.socket = None;
                }
            }
            Step::Pass(seconds) => self.mesh.pass(seconds),
            Step::Storage(mode) => self.mesh.store.mode = mode,
        }
    }

    /// Returns the highest version that was sent on this channel, on any session.
    fn sent(&self, chid: Chid) -> u64 {
        let sent = self.mesh.versions.values().filter(|(of, _)| *of == chid);
        sent.map(|(_, version)| *version).max().unwrap_or(0)
    }

    fn ack(&mut self, chid: Chid, less: u64) {
        let Some(socket) = self.live() else { return };
        let stamps = self.mesh.notifications(socket);
        let versions = stamps.iter().filter_map(|stamp| self.mesh.versions.get(stamp));
        let Some(highest) = versions.filter(|(of, _)| *of == chid).map(|(_, version)| *version).max() else { return };
        let version = highest.saturating_sub(less);
        self.mesh.command(socket, SessionCommand::AckVersions(vec![AckVersion { chid, version }]));
        self.mesh.run();
    }

    /// Repairs storage; the user agent comes back and acks every update.
    fn settle(&mut self) {
        self.step(&Step::Storage(Mode::Prompt));
        self.step(&Step::Leave);
        for _ in 0..20 {
            self.step(&Step::Pass(3));
            self.step(&Step::Come { wake: false });
            self.step(&Step::Ack { chid: CHANNEL, less: 0 });
            self.step(&Step::Ack { chid: OTHER, less: 0 });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Property: the highest accepted version is sent after any events, and acks leave nothing behind.
    #[test]
    fn the_highest_version_arrives_and_nothing_stays(
        steps in steps(), window in 1u16..4, durable in prop::bool::weighted(0.2),
    ) {
        let mut life = Life::new(window, durable);
        steps.iter().for_each(|step| life.step(step));
        life.settle();
        for (put, chid, version) in &life.puts {
            let answer = life.mesh.answer_to(*put);
            prop_assert!(answer.is_some(), "every PUT is answered");
            if let Some(Published::Accepted { .. }) = answer {
                prop_assert!(life.sent(*chid) >= *version, "{version} was accepted, {} sent", life.sent(*chid));
            }
        }
        let rows = life.mesh.store.rows_of(life.uaid);
        prop_assert!(rows.is_empty() && life.mesh.ledger.is_empty(), "left: {rows:?}, {:?}", life.mesh.ledger);
    }
}
