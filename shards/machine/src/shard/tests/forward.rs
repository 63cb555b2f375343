//! Requests of forward endpoints: the shard where they landed calls the target and answers.

use std::sync::Arc;

use super::mesh::Mesh;
use crate::limits;
use crate::shard::*;
use crate::upstream::{ForwardCall, ForwardOutcome, UpstreamOp, UpstreamReply};

fn call() -> Command {
    SenderCommand::Forward(Arc::new(ForwardCall { url: "https://a.example/secret".into(), message: None })).into()
}

#[test]
fn a_request_is_answered_with_the_outcome_at_its_target_by_the_shard_where_it_landed() {
    let mut mesh = Mesh::new(2);
    for shard in [0, 1] {
        let conn = mesh.conn();
        mesh.step(shard, Input::Command { conn, command: call() });
        mesh.run();
        let (at, ticket, op) = mesh.upstream_calls.pop_front().expect("the target is called");
        assert_eq!(at, shard);
        assert!(matches!(op, UpstreamOp::Forward(_)) && !format!("{op:?}").contains("example"));
        assert_eq!(mesh.answers.get(&(shard, conn.slot)), None, "the answer waits for the target");
        let outcome = ForwardOutcome::Answered { status: 201, retry_after: None };
        mesh.step(shard, Input::Upstream { ticket, reply: UpstreamReply::Forward(outcome) });
        assert_eq!(mesh.answers[&(shard, conn.slot)], format!("{outcome:?}"));
        let late = mesh.machines[shard].stats().upstream_replies_stale;
        mesh.step(shard, Input::Upstream { ticket, reply: UpstreamReply::Forward(outcome) });
        assert_eq!(mesh.machines[shard].stats().upstream_replies_stale, late + 1, "one answer for one request");
    }
}

#[test]
fn too_many_requests_and_those_during_a_drain_are_answered_at_once() {
    let mut mesh = Mesh::new(1);
    for _ in 0..limits::UPSTREAM_CALLS_MAX {
        let conn = mesh.conn();
        mesh.step(0, Input::Command { conn, command: call() });
    }
    assert_eq!(mesh.upstream_calls.len(), limits::UPSTREAM_CALLS_MAX);
    assert_eq!(mesh.request(0, call()), "Unavailable");
    let (_, ticket, _) = mesh.upstream_calls.pop_front().unwrap();
    mesh.step(0, Input::Upstream { ticket, reply: UpstreamReply::Forward(ForwardOutcome::NoAnswer) });
    mesh.step(0, Input::Drain { rate: 0 });
    assert_eq!(mesh.request(0, call()), "Unavailable");
    assert_eq!(mesh.upstream_calls.len(), limits::UPSTREAM_CALLS_MAX - 1);
}
