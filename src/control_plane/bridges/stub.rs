//! Stub: a service inside the server, for tests of clients and senders. The app `success` takes everything; the app
//! `error` answers as the device token says.

use machine::upstream::{BridgeFailure, Bridged};

use super::judgement::{Judgement, Reason};

/// Returns the outcome of a notification.
pub(super) fn judge(to: &Bridged) -> Judgement {
    if &*to.app == SUCCESS {
        return Judgement::sent().without_call();
    }
    let judgement = match &*to.token {
        "gone" => Judgement::gone(),
        "busy" => Judgement::unavailable(120),
        "quota" => Judgement::quota(60),
        "auth" => Judgement::failed(BridgeFailure::Authentication, Reason::Authentication),
        "timeout" => Judgement::timeout(),
        "too_large" => Judgement::failed(BridgeFailure::TooLarge { excess: 0 }, Reason::TooMuchData),
        _ => Judgement::failed(BridgeFailure::BadRequest, Reason::BadRequest),
    };
    judgement.without_call()
}

/// Apps of the stub.
pub(super) const SUCCESS: &str = "success";
pub(super) const ERROR: &str = "error";

#[cfg(test)]
mod tests {
    use machine::ids::Clock;
    use machine::upstream::{BridgeKind, BridgeOutcome};

    use super::*;

    #[test]
    fn the_app_error_answers_the_row_that_the_token_names() {
        let outcome = |app: &str, token: &str| {
            let (kind, app, token) = (BridgeKind::Stub, app.into(), token.into());
            let judged = judge(&Bridged { kind, app, token, aps: None, registered: Clock(0), refused: None });
            assert!(!judged.answered, "nothing was called");
            judged.outcome
        };
        assert_eq!(outcome("success", "gone"), BridgeOutcome::Sent);
        assert_eq!(outcome("error", "gone"), BridgeOutcome::Gone);
        for (token, failure) in [
            ("busy", BridgeFailure::Unavailable { retry_after: 120 }),
            ("quota", BridgeFailure::Quota { retry_after: 60 }),
            ("auth", BridgeFailure::Authentication),
            ("timeout", BridgeFailure::NoAnswer),
            ("too_large", BridgeFailure::TooLarge { excess: 0 }),
            ("other", BridgeFailure::BadRequest),
        ] {
            assert_eq!(outcome("error", token), BridgeOutcome::Failed(failure), "{token}");
        }
    }
}
