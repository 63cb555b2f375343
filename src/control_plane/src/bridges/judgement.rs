//! Meaning of an answer of a service: the rows of the error table of docs/BRIDGES.md.

use std::fmt;
use std::time::Duration;

use machine::upstream::{BridgeFailure, BridgeOutcome};

use super::breaker::Sign;

/// Reason label of an outcome in metrics and logs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Reason {
    Sent,
    RecipientGone,
    NotFound,
    SenderMismatch,
    BadToken,
    BadRequest,
    Authentication,
    Quota,
    Unavailable,
    TooMuchData,
    Timeout,
    ConnectionUnavailable,
    /// A status that has no row, or an answer with this status that cannot be read.
    Upstream(u16),
    Shed,
    Config,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Sent => "sent",
            Reason::RecipientGone => "recipient_gone",
            Reason::NotFound => "not_found",
            Reason::SenderMismatch => "sender_mismatch",
            Reason::BadToken => "bad_token",
            Reason::BadRequest => "bad_request",
            Reason::Authentication => "authentication",
            Reason::Quota => "quota",
            Reason::Unavailable => "unavailable",
            Reason::TooMuchData => "too_much_data",
            Reason::Timeout => "timeout",
            Reason::ConnectionUnavailable => "connection_unavailable",
            Reason::Upstream(status) => return write!(f, "upstream_{status}"),
            Reason::Shed => "shed",
            Reason::Config => "config",
        })
    }
}

/// Permission for a second attempt: only where the service cannot have taken the notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Retry {
    No,
    /// Over another connection, or the same.
    Unprocessed,
    /// After `Bridge::renew` of the credentials that were refused.
    NewCredentials,
}

/// Result of one attempt, and everything that follows from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Judgement {
    pub outcome: BridgeOutcome,
    pub reason: Reason,
    pub retry: Retry,
    pub sign: Sign,
    /// The service answered, or a token was refused in its place: the guard counts it.
    pub answered: bool,
    /// The connections of the profile are closed: the service holds their credentials against them.
    pub reconnect: bool,
    /// An operator must act: an error line with this text, which says what to check. Never a token or a key.
    pub alarm: Option<String>,
}

impl Judgement {
    fn new(outcome: BridgeOutcome, reason: Reason) -> Judgement {
        let (retry, sign) = (Retry::No, Sign::Well);
        Judgement { outcome, reason, retry, sign, answered: true, reconnect: false, alarm: None }
    }

    pub fn sent() -> Judgement {
        Judgement::new(BridgeOutcome::Sent, Reason::Sent)
    }

    pub fn gone() -> Judgement {
        Judgement::new(BridgeOutcome::Gone, Reason::RecipientGone)
    }

    /// A "twice" row.
    pub fn doubted(reason: Reason) -> Judgement {
        Judgement::new(BridgeOutcome::Doubted, reason)
    }

    /// A "twice" row for a token that no service would take, without a call. It is under the guard as an answer is: a
    /// wrong import has such tokens for all users.
    pub fn doubted_here(reason: Reason) -> Judgement {
        Judgement { sign: Sign::None, ..Judgement::doubted(reason) }
    }

    pub fn failed(failure: BridgeFailure, reason: Reason) -> Judgement {
        Judgement::new(BridgeOutcome::Failed(failure), reason)
    }

    /// 429 for this number of seconds.
    pub fn quota(retry_after: u32) -> Judgement {
        let sign = Sign::Quota(Duration::from_secs(u64::from(retry_after)));
        Judgement { sign, ..Judgement::failed(BridgeFailure::Quota { retry_after }, Reason::Quota) }
    }

    /// 503 for this number of seconds, because the service is down or overloaded.
    pub fn unavailable(retry_after: u32) -> Judgement {
        let failure = BridgeFailure::Unavailable { retry_after };
        Judgement { sign: Sign::Failure, ..Judgement::failed(failure, Reason::Unavailable) }
    }

    /// An answer that has no row, or cannot be read.
    pub fn no_answer_of_ours(status: u16) -> Judgement {
        let sign = if (500..600).contains(&status) { Sign::Failure } else { Sign::Well };
        Judgement { sign, ..Judgement::failed(BridgeFailure::Unreachable, Reason::Upstream(status)) }
    }

    /// No connection, no trust, or it broke.
    pub fn unreachable() -> Judgement {
        let failed = Judgement::failed(BridgeFailure::Unreachable, Reason::ConnectionUnavailable);
        Judgement { sign: Sign::Failure, answered: false, ..failed }
    }

    pub fn timeout() -> Judgement {
        let failed = Judgement::failed(BridgeFailure::NoAnswer, Reason::Timeout);
        Judgement { sign: Sign::Failure, answered: false, ..failed }
    }

    /// Refused here, without a call.
    pub fn shed(retry_after: u32) -> Judgement {
        Judgement::failed(BridgeFailure::Unavailable { retry_after }, Reason::Shed).without_call()
    }

    /// This outcome, without a call of the service.
    pub fn without_call(self) -> Judgement {
        Judgement { sign: Sign::None, answered: false, ..self }
    }

    pub fn retrying(self, retry: Retry) -> Judgement {
        Judgement { retry, ..self }
    }

    pub fn alarming(self, text: impl Into<String>) -> Judgement {
        Judgement { alarm: Some(text.into()), ..self }
    }

    #[allow(dead_code, reason = "FCM holds nothing against a connection; APNs does")]
    pub fn reconnecting(self) -> Judgement {
        Judgement { reconnect: true, ..self }
    }
}
