//! Meaning of each answer of APNs: the rows of the error table of docs/BRIDGES.md.

use machine::ids::Clock;
use machine::upstream::BridgeFailure;
use protocol::wire::number::Whole;
use serde::Deserialize;

use crate::bridges::judgement::{Judgement, Reason, Retry};

/// Body of an answer that is no success.
#[derive(Deserialize)]
struct Body {
    reason: String,
    /// Milliseconds since the epoch: the token was not valid then.
    timestamp: Option<Whole>,
}

/// A judgement, and its consequence for the provider token.
pub(super) struct Judged {
    pub judgement: Judgement,
    /// The provider token must not change for 20 minutes.
    pub keeps_token: bool,
}

/// Reads an answer to a user whose token was registered at this time.
pub(super) fn judge(status: u16, body: &[u8], registered: Clock) -> Judged {
    let keeps_token = |judgement, keeps_token| Judged { judgement, keeps_token };
    if status == 200 {
        return keeps_token(Judgement::sent(), false);
    }
    let Ok(Body { reason, timestamp }) = serde_json::from_slice(body) else {
        return keeps_token(Judgement::no_answer_of_ours(status), false);
    };
    let held = status == 429 && reason == "TooManyProviderTokenUpdates";
    keeps_token(row(status, &reason, timestamp.map(Whole::to_u64), registered), held)
}

fn row(status: u16, reason: &str, timestamp: Option<u64>, registered: Clock) -> Judgement {
    match (status, reason) {
        (410, "Unregistered" | "ExpiredToken") => gone(timestamp, registered),
        (400, "BadDeviceToken" | "DeviceTokenNotForTopic") => Judgement::doubted(Reason::BadToken),
        (400, "TopicDisallowed" | "BadTopic" | "MissingTopic") => {
            let failed = Judgement::failed(BridgeFailure::Configuration, Reason::Config).reconnecting();
            failed.alarming(format!("APNs answers {reason}; check topic and the credential of this channel"))
        }
        (400, "IdleTimeout") | (500, _) | (503, _) => {
            let unavailable = Judgement::unavailable(UNAVAILABLE_SECONDS);
            // Apple takes the connection down, and has not processed the request.
            let is_shutdown = reason == "Shutdown";
            if is_shutdown { unavailable.retrying(Retry::Unprocessed).reconnecting() } else { unavailable }
        }
        (400 | 404 | 405, _) => {
            let failed = Judgement::failed(BridgeFailure::BadRequest, Reason::BadRequest);
            failed.alarming(format!("APNs answers {status} {}; report it as a defect of murre", plain(reason)))
        }
        (413, _) => Judgement::failed(BridgeFailure::TooLarge { excess: 0 }, Reason::TooMuchData),
        (429, "TooManyProviderTokenUpdates") => {
            let retry_after = UNAVAILABLE_SECONDS;
            Judgement::failed(BridgeFailure::Unavailable { retry_after }, Reason::Authentication)
        }
        (429, _) => Judgement::quota(QUOTA_SECONDS),
        (403, "ExpiredProviderToken") => {
            let failed = Judgement::failed(BridgeFailure::Authentication, Reason::Authentication);
            let failed = failed.retrying(Retry::NewCredentials);
            failed.alarming("APNs answers ExpiredProviderToken; check the clock of this host")
        }
        (403, _) => {
            let failed = Judgement::failed(BridgeFailure::Authentication, Reason::Authentication).reconnecting();
            let reason = plain(reason);
            failed.alarming(format!("APNs answers {reason}; check cert, key, key_id and team_id of this channel"))
        }
        _ => Judgement::no_answer_of_ours(status),
    }
}

/// A token that was registered after the time that Apple names may have come back to life.
fn gone(timestamp: Option<u64>, registered: Clock) -> Judgement {
    match timestamp {
        Some(millis) if registered.0 <= millis.saturating_mul(1_000) => Judgement::gone(),
        _ => Judgement::doubted(Reason::RecipientGone),
    }
}

/// A reason for a log line: Apple's are short words.
fn plain(reason: &str) -> &str {
    let is_word = reason.len() <= 40 && reason.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_word { reason } else { "with an unknown reason" }
}

/// `Retry-After` where the service is down, and where one device has too many notifications.
const UNAVAILABLE_SECONDS: u32 = 120;
const QUOTA_SECONDS: u32 = 60;

#[cfg(test)]
mod tests {
    use machine::upstream::BridgeOutcome::{self, Doubted, Failed, Gone, Sent};
    use serde_json::json;

    use super::*;
    use crate::bridges::breaker::Sign;

    const REGISTERED: Clock = Clock(1_700_000_000_000_000);
    const BUSY: BridgeOutcome = Failed(BridgeFailure::Unavailable { retry_after: 120 });

    fn of(status: u16, reason: &str) -> Judgement {
        judge(status, json!({"reason": reason}).to_string().as_bytes(), REGISTERED).judgement
    }

    #[test]
    fn success_is_sent() {
        let judged = judge(200, b"", REGISTERED).judgement;
        assert_eq!((judged.outcome, judged.reason, judged.alarm), (Sent, Reason::Sent, None));
    }

    #[test]
    fn a_token_that_ended_is_gone_unless_it_was_registered_later() {
        for reason in ["Unregistered", "ExpiredToken"] {
            let outcome = |millis: u64| {
                let body = json!({"reason": reason, "timestamp": millis}).to_string();
                let judged = judge(410, body.as_bytes(), REGISTERED).judgement;
                (judged.outcome, judged.reason)
            };
            assert_eq!(outcome(1_700_000_000_000), (Gone, Reason::RecipientGone), "{reason}");
            assert_eq!(outcome(1_699_999_999_999), (Doubted, Reason::RecipientGone), "{reason}");
            assert_eq!(outcome(u64::MAX), (Gone, Reason::RecipientGone), "{reason}");
            assert_eq!(of(410, reason).outcome, Doubted, "without a timestamp");
        }
    }

    #[test]
    fn a_bad_token_is_doubted() {
        for reason in ["BadDeviceToken", "DeviceTokenNotForTopic"] {
            let judged = of(400, reason);
            assert_eq!((judged.outcome, judged.reason, judged.alarm), (Doubted, Reason::BadToken, None));
        }
    }

    #[test]
    fn a_topic_that_is_refused_is_our_configuration() {
        for reason in ["TopicDisallowed", "BadTopic", "MissingTopic"] {
            let judged = of(400, reason);
            let wanted = (Failed(BridgeFailure::Configuration), Reason::Config, true);
            assert_eq!((judged.outcome, judged.reason, judged.reconnect), wanted);
            assert!(judged.alarm.unwrap().contains(reason));
        }
    }

    #[test]
    fn a_credential_that_is_refused_is_an_alarm_and_ends_the_connections() {
        for reason in [
            "InvalidProviderToken",
            "MissingProviderToken",
            "BadCertificate",
            "BadCertificateEnvironment",
            "Forbidden",
            "UnrelatedKeyIdInToken",
            "BadEnvironmentKeyIdInToken",
            "SomethingNew",
        ] {
            let judged = of(403, reason);
            let wanted = (Failed(BridgeFailure::Authentication), Reason::Authentication, true, Retry::No);
            assert_eq!((judged.outcome, judged.reason, judged.reconnect, judged.retry), wanted);
            assert!(judged.alarm.unwrap().contains(reason));
        }
    }

    #[test]
    fn an_expired_provider_token_asks_for_another() {
        let judged = of(403, "ExpiredProviderToken");
        let wanted = (Failed(BridgeFailure::Authentication), Retry::NewCredentials, false);
        assert_eq!((judged.outcome, judged.retry, judged.reconnect), wanted);
    }

    #[test]
    fn too_many_provider_tokens_hold_the_last() {
        let body = json!({"reason": "TooManyProviderTokenUpdates"}).to_string();
        let judged = judge(429, body.as_bytes(), REGISTERED);
        let wanted = (BUSY, Reason::Authentication, Retry::No);
        assert_eq!((judged.judgement.outcome, judged.judgement.reason, judged.judgement.retry), wanted);
        assert!(judged.keeps_token);
        assert!(!judge(429, br#"{"reason":"TooManyRequests"}"#, REGISTERED).keeps_token);
    }

    #[test]
    fn too_many_requests_of_one_device_are_a_quota() {
        let judged = of(429, "TooManyRequests");
        let quota = Failed(BridgeFailure::Quota { retry_after: 60 });
        assert_eq!((judged.outcome, judged.reason), (quota, Reason::Quota));
    }

    #[test]
    fn a_payload_that_is_too_large_is_said_to_be() {
        let judged = of(413, "PayloadTooLarge");
        let large = Failed(BridgeFailure::TooLarge { excess: 0 });
        assert_eq!((judged.outcome, judged.reason), (large, Reason::TooMuchData));
    }

    #[test]
    fn other_requests_that_are_refused_are_a_defect_here() {
        let all = [
            (400, "BadCollapseId"),
            (400, "BadExpirationDate"),
            (400, "BadMessageId"),
            (400, "BadPriority"),
            (400, "DuplicateHeaders"),
            (400, "InvalidPushType"),
            (400, "MissingDeviceToken"),
            (400, "PayloadEmpty"),
            (400, "SomethingNew"),
            (404, "BadPath"),
            (405, "MethodNotAllowed"),
        ];
        for (status, reason) in all {
            let judged = of(status, reason);
            assert_eq!((judged.outcome, judged.reason), (Failed(BridgeFailure::BadRequest), Reason::BadRequest));
            assert!(judged.alarm.unwrap().contains(reason));
        }
        let odd = of(400, "a token: 00ff").alarm.unwrap();
        assert!(!odd.contains("00ff"), "{odd}");
    }

    #[test]
    fn a_service_that_is_down_is_unavailable() {
        for (status, reason) in
            [(500, "InternalServerError"), (503, "ServiceUnavailable"), (503, "Shutdown"), (400, "IdleTimeout")]
        {
            let judged = of(status, reason);
            let is_shutdown = reason == "Shutdown";
            let retry = if is_shutdown { Retry::Unprocessed } else { Retry::No };
            let found = (judged.outcome, judged.sign, judged.retry, judged.reconnect);
            assert_eq!(found, (BUSY, Sign::Failure, retry, is_shutdown), "{reason}");
        }
    }

    #[test]
    fn what_has_no_row_is_no_answer() {
        for (status, body) in [(500, "<html>"), (418, r#"{"reason":"Teapot"}"#), (302, ""), (410, ""), (400, "[]")] {
            let judged = judge(status, body.as_bytes(), REGISTERED).judgement;
            assert_eq!(judged.outcome, Failed(BridgeFailure::Unreachable), "{status} {body}");
            assert_eq!(judged.reason, Reason::Upstream(status));
        }
    }
}
