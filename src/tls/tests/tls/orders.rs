//! Established connections under any order of data, key updates, records taken back, and moves.

use std::collections::VecDeque;
use std::io::Write as _;

use proptest::prelude::*;
use runtime::ports::Port;
use runtime::tls::{Next, Tls as _};
use tls::ShardTls;

use crate::peer::{Pair, Papers, SLOT, every_suite, is_tls12};

#[derive(Clone, Debug)]
enum Op {
    /// The client sends data, and its bytes come in two parts.
    ClientSays(Vec<u8>, prop::sample::Index),
    ClientUpdates,
    /// The server seals data; it stays in the line to the socket.
    ServerSeals(Vec<u8>),
    /// The socket takes the first records of the line.
    SocketTakes(usize),
    /// The last records are taken back, as far as no control record is behind them.
    TakeBack(usize),
    Move,
}

fn op() -> impl Strategy<Value = Op> {
    let plain = || prop::collection::vec(any::<u8>(), 1..60);
    prop_oneof![
        3 => (plain(), any::<prop::sample::Index>()).prop_map(|(plain, at)| Op::ClientSays(plain, at)),
        1 => Just(Op::ClientUpdates),
        4 => plain().prop_map(Op::ServerSeals),
        2 => (1..5_usize).prop_map(Op::SocketTakes),
        2 => (1..4_usize).prop_map(Op::TakeBack),
        1 => Just(Op::Move),
    ]
}

/// A record in the line to the socket: its bytes, and the data in it unless it is a control record.
type Sealed = (Vec<u8>, Option<Vec<u8>>);

struct World {
    pair: Pair,
    line: VecDeque<Sealed>,
    heard: Vec<u8>,
    told: Vec<u8>,
}

/// Records that one key may seal: keys change often, and no order of 60 operations uses one up.
const LIMIT: u64 = 70;

impl World {
    fn takes(&mut self, records: usize) {
        for (bytes, plain) in self.line.drain(..records.min(self.line.len())) {
            self.pair.answer(&bytes);
            self.told.extend(plain.unwrap_or_default());
        }
    }

    fn seals(&mut self, plain: Vec<u8>) {
        let (mut control, mut record) = (Vec::new(), Vec::new());
        self.pair.server.control(SLOT, &mut control);
        if !control.is_empty() {
            self.line.push_back((control, None));
        }
        self.pair.server.seal(SLOT, &plain, &mut record);
        self.line.push_back((record, Some(plain)));
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::ClientSays(plain, at) => {
                self.pair.client.writer().write_all(&plain).unwrap();
                let sent = self.pair.sent_by_client();
                let (first, second) = sent.split_at(at.index(sent.len() + 1));
                for part in [first, second] {
                    let (next, control) = self.pair.give(part);
                    assert_eq!(next, Next::More);
                    if !control.is_empty() {
                        self.line.push_back((control, None));
                    }
                }
                self.heard.extend(plain);
            }
            // TLS 1.2 has no KeyUpdate.
            Op::ClientUpdates => {
                let is_tls12 = is_tls12(self.pair.client.negotiated_cipher_suite().unwrap());
                assert_eq!(self.pair.client.refresh_traffic_keys().is_err(), is_tls12);
            }
            Op::ServerSeals(plain) => self.seals(plain),
            Op::SocketTakes(records) => self.takes(records),
            Op::TakeBack(records) => {
                let newest = self.line.iter().rev().take_while(|(_, plain)| plain.is_some()).count();
                let records = records.min(newest);
                self.line.truncate(self.line.len() - records);
                self.pair.server.rewind(SLOT, records as u32);
            }
            Op::Move => {
                self.takes(usize::MAX);
                let mut state = self.pair.server.export(SLOT);
                self.pair.server = ShardTls::with_limit(None, None, LIMIT);
                let len = state.len();
                assert_eq!(self.pair.server.import(SLOT, Port::WebSocket, &mut state), Some(len));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_streams_arrive_in_any_order_of_operations(
        suite in prop::sample::select(every_suite().collect::<Vec<_>>()),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let papers = Papers::of(suite);
        let server = ShardTls::with_limit(Some(papers.server(&[1])), None, LIMIT);
        let pair = Pair::established_with(server, &papers, suite);
        let mut world = World { pair, line: VecDeque::new(), heard: Vec::new(), told: Vec::new() };
        for op in ops {
            world.run(op);
        }
        world.takes(usize::MAX);
        prop_assert_eq!(&world.pair.heard, &world.heard);
        prop_assert_eq!(&world.pair.told, &world.told);
    }
}
