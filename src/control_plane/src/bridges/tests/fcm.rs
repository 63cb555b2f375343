//! Every row of the table of answers, with what FCM says.

use upstream::{CertificateKind, Script, Service};

use super::*;

#[tokio::test]
async fn every_answer_of_fcm_has_the_outcome_of_its_row() {
    let mut kit = Kit::start(&[]).await;
    for (answer, outcome) in [
        ("ok", BridgeOutcome::Sent),
        ("unregistered", BridgeOutcome::Gone),
        ("not_found", BridgeOutcome::Doubted),
        ("not_found_empty", BridgeOutcome::Doubted),
        ("sender_id_mismatch", BridgeOutcome::Doubted),
        ("invalid_argument", BridgeOutcome::Doubted),
        ("bad_token", BridgeOutcome::Doubted),
        ("bad_field", failed(BridgeFailure::BadRequest)),
        ("bad_field_with_code", failed(BridgeFailure::BadRequest)),
        ("third_party_auth_error", failed(BridgeFailure::Authentication)),
        ("permission_denied", failed(BridgeFailure::Authentication)),
        ("quota", failed(BridgeFailure::Quota { retry_after: 60 })),
        ("quota;retry-after=7", failed(BridgeFailure::Quota { retry_after: 10 })),
        ("quota;retry-after=77", failed(BridgeFailure::Quota { retry_after: 77 })),
        ("quota;retry-after=date+9000", failed(BridgeFailure::Quota { retry_after: 3_600 })),
        ("resource_exhausted", failed(BridgeFailure::Quota { retry_after: 60 })),
        ("unavailable", failed(BridgeFailure::Unavailable { retry_after: 120 })),
        ("unavailable;retry-after=33", failed(BridgeFailure::Unavailable { retry_after: 33 })),
        ("internal", failed(BridgeFailure::Unavailable { retry_after: 120 })),
        ("no_json", failed(BridgeFailure::Unreachable)),
        ("empty", failed(BridgeFailure::Unreachable)),
        ("teapot", failed(BridgeFailure::Unreachable)),
        ("redirect", failed(BridgeFailure::Unreachable)),
        ("large", failed(BridgeFailure::Unreachable)),
        ("endless_headers", failed(BridgeFailure::Unreachable)),
        ("reset", failed(BridgeFailure::Unreachable)),
        ("close", failed(BridgeFailure::Unreachable)),
        // Without it the next connection would be the second in a row that ends early, and cost a pause.
        ("ok", BridgeOutcome::Sent),
        ("goaway_mid_stream", failed(BridgeFailure::Unreachable)),
        ("ok", BridgeOutcome::Sent),
    ] {
        kit.upstream.state.answer(Service::Fcm, &[answer]);
        let before = kit.upstream.state.count(Service::Fcm);
        assert_eq!(kit.send("device").await, outcome, "{answer}");
        assert_eq!(kit.upstream.state.count(Service::Fcm), before + 1, "{answer} is not retried");
    }
    assert_eq!(kit.upstream.state.violations(), [""; 0]);
    assert_eq!(kit.upstream.state.count(Service::Token), 1, "one token for all");
    let profile = kit.profile(|profile| profile.stats.sent == 3).await;
    let reasons: Vec<String> = profile.stats.errors.keys().map(ToString::to_string).collect();
    for reason in
        ["recipient_gone", "not_found", "sender_mismatch", "bad_token", "quota", "upstream_418", "upstream_302"]
    {
        assert!(reasons.contains(&reason.to_owned()), "{reasons:?}");
    }
}

#[tokio::test]
async fn a_notification_that_was_not_processed_is_sent_once_more() {
    let mut kit = Kit::start(&[]).await;
    for answer in ["refused", "goaway_before", "unauthenticated"] {
        kit.upstream.state.answer(Service::Fcm, &[answer, "ok"]);
        assert_eq!(kit.send("device").await, BridgeOutcome::Sent, "{answer}");
    }
    assert_eq!(kit.upstream.state.count(Service::Fcm), 6);
    assert_eq!(kit.upstream.state.count(Service::Token), 2, "a token that was refused is not used again");
    kit.upstream.state.answer(Service::Fcm, &["refused", "refused", "ok"]);
    assert_eq!(kit.send("device").await, failed(BridgeFailure::Unavailable { retry_after: 120 }), "and only once");
    let profile = kit.profile(|profile| profile.stats.retries == 4).await;
    assert_eq!(profile.stats.sent, 3);
}

#[tokio::test]
async fn an_assertion_that_google_refuses_is_an_alarm_and_other_failures_of_its_endpoint_are_not() {
    for (answer, outcome) in [
        ("invalid_grant", failed(BridgeFailure::Authentication)),
        ("unauthorized_client", failed(BridgeFailure::Authentication)),
        ("unavailable", failed(BridgeFailure::Unavailable { retry_after: 120 })),
        ("close", failed(BridgeFailure::Unreachable)),
    ] {
        // The driver asks for a token by itself: the answers are set before it runs.
        let mut kit = Kit::start(&[]).await;
        kit.upstream.state.set(Script { always: [(Service::Token, answer.to_owned())].into(), ..Script::default() });
        assert_eq!(kit.send("device").await, outcome, "{answer}");
        assert_eq!(kit.upstream.state.count(Service::Fcm), 0);
    }
}

#[tokio::test]
async fn a_service_without_trust_or_without_an_answer_has_its_row() {
    for certificate in [CertificateKind::Expired, CertificateKind::WrongName, CertificateKind::Untrusted] {
        let mut kit = Kit::start(&[]).await;
        kit.upstream.state.set(Script { certificate, ..Script::default() });
        assert_eq!(kit.send("device").await, failed(BridgeFailure::Unreachable), "{certificate:?}");
    }
    let mut kit = Kit::start(&["bridge.fcm.timeout=0.3"]).await;
    kit.profile(|profile| profile.ages.token.is_some()).await;
    for answer in ["silence", "slow"] {
        kit.upstream.state.answer(Service::Fcm, &[answer]);
        assert_eq!(kit.send("device").await, failed(BridgeFailure::NoAnswer), "{answer}");
    }
}
