//! The one table of refusals: status, errno and text (PROTOCOL.md 2.11), and the JSON body that carries them.

use std::borrow::Cow;

use machine::Refusal;

use super::registration::fault::RegistrationFault;
use crate::wire::http1;
use crate::wire::text::{push_json, push_u64};

/// Reason to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiError {
    /// Bytes that are not an HTTP request that the server reads.
    BadRequest,
    /// A head beyond its bounds.
    HeadTooLarge,
    NotFound,
    /// A known path, another method.
    MethodNotAllowed,
    /// `GET /` without an acceptable upgrade.
    UpgradeRequired,
    /// An upgrade that lacks a part.
    BadUpgrade,
    RequestTimeout,
    /// A token that no key of this server sealed, or of the wrong length; an unknown API version.
    BadToken,
    /// An id that no key of this server sealed.
    BadMessageId,
    /// A receipt that no key of this server sealed.
    BadReceipt,
    /// The fate of the message of a receipt is no longer known.
    ReceiptForgotten,
    /// An unknown scheme in `Authorization`.
    VapidScheme,
    /// No `t=`.
    VapidNoToken,
    /// No `k=`.
    VapidNoKey,
    /// The public key is no point on P-256.
    VapidBadKey,
    /// The JWT cannot be read.
    VapidBadToken,
    /// The JWT's algorithm is not ES256.
    VapidAlgorithm,
    /// The signature does not fit.
    VapidSignature,
    /// `exp` is missing or no integer.
    VapidExpiry,
    /// `exp` is over.
    VapidExpired,
    /// `exp` is more than 24 h ahead.
    VapidTooLong,
    /// `aud` is not the origin of this server.
    VapidAudience,
    /// The endpoint is locked to another key.
    VapidKeyMismatch,
    /// The key of the sender is not in `endpoint.allowed_keys`.
    SenderNotAllowed,
    /// An upgrade carries no token of `access.tokens`.
    AccessToken,
    /// The endpoint is locked to a key and none was shown.
    VapidRequired,
    /// Draft 01 without a usable `Crypto-Key: p256ecdsa=`.
    VapidCryptoKey,
    /// The node API without one of its keys.
    NodeKey,
    /// No such user, or the channel is not registered.
    NoSubscription,
    /// SimplePush: no such user, or the channel is not registered.
    NoUser,
    /// The user is reached by SimplePush and this is WebPush, or the reverse.
    OtherMode,
    /// SimplePush: a version that is no integer.
    BadUpdate,
    /// The body, or body and headers, are too large.
    TooLarge,
    /// `TTL` is absent or no integer.
    TtlMissing,
    /// Encryption headers that do not fit the body.
    Encryption,
    TtlNegative,
    /// `Topic` is no topic.
    Topic,
    /// `Urgency` is none of the four words of RFC 8030 section 5.3, or holds several of them.
    Urgency,
    /// The body of a node's request cannot be read.
    BadNodeBody,
    /// More messages than `endpoint.token_rate` to this endpoint.
    TooManyToEndpoint,
    /// More messages than `endpoint.origin_rate` from this sender.
    TooManyOfSender,
    /// More bytes than `store.user_bytes_per_day` for this user.
    OverBudget,
    /// Nothing was accepted; try again later.
    Unavailable,
    /// The service of a bridged user takes no payload of this size. The excess is in bytes; 0: it is not known.
    BridgeTooLarge {
        excess: u32,
    },
    /// A quota of the service of a bridged user is used up.
    BridgeQuota,
    /// The service of a bridged user does not understand the call of this server.
    BridgeBadRequest,
    /// The profile of a bridged user is not configured, or configured wrongly.
    BridgeConfiguration,
    /// The service of a bridged user does not accept the credentials of this server.
    BridgeAuthentication,
    /// No connection to the service of a bridged user, or an answer that is none.
    BridgeUnreachable,
    /// The service of a bridged user did not answer in time.
    BridgeNoAnswer,
    /// The service of a bridged user is down or overloaded.
    BridgeUnavailable,
    /// Of the registration API.
    Registration(RegistrationFault),
    /// No such session on this node.
    NoSession,
    /// The session is here and takes nothing more now.
    SessionBusy,
    /// The session is here, and the message is below its minimum urgency.
    SessionHolds,
    /// More WebSockets than `websocket.welcome`: another node should have the next one.
    NotWelcome,
    /// The node stops: another node should take new connections.
    Stopping,
    /// A condition of the node turns its health pages.
    Unready,
}

/// One row of the table.
pub struct Row {
    pub status: u16,
    /// `errno` of the body; `null` when there is none.
    pub errno: Option<u16>,
    /// `message` of the body.
    pub message: &'static str,
}

impl ApiError {
    pub fn row(self) -> Row {
        let (status, errno, message) = match self {
            ApiError::BadRequest => (400, None, "Malformed request"),
            ApiError::HeadTooLarge => (431, None, "Request head too large"),
            ApiError::NotFound => (404, None, "Not found"),
            ApiError::MethodNotAllowed => (405, None, "Method not allowed"),
            ApiError::UpgradeRequired => (426, None, "This is a WebSocket endpoint"),
            ApiError::BadUpgrade => (400, None, "Malformed WebSocket upgrade"),
            ApiError::RequestTimeout => (408, None, "Request took too long"),
            ApiError::BadToken => (404, Some(102), "Invalid endpoint"),
            ApiError::BadMessageId => (400, None, "Invalid message id"),
            ApiError::BadReceipt => (404, None, "Invalid receipt"),
            ApiError::ReceiptForgotten => (404, None, "What became of this message is not known any more"),
            ApiError::VapidScheme => (401, Some(109), "Unknown auth scheme"),
            ApiError::VapidNoToken => (401, Some(109), "Missing VAPID token"),
            ApiError::VapidNoKey => (401, Some(109), "Missing VAPID public key"),
            ApiError::VapidBadKey => (401, Some(109), "Invalid VAPID public key"),
            ApiError::VapidBadToken => (401, Some(109), "Invalid VAPID token"),
            ApiError::VapidAlgorithm => (401, Some(109), "VAPID token must be signed with ES256"),
            ApiError::VapidSignature => (401, Some(109), "Invalid VAPID signature"),
            ApiError::VapidExpiry => (401, Some(109), "VAPID claim exp must be an integer number of seconds"),
            ApiError::VapidExpired => (401, Some(109), "VAPID token has expired"),
            ApiError::VapidTooLong => (401, Some(109), "VAPID expiration is too long, at most 24 hours are allowed"),
            ApiError::VapidAudience => (401, Some(109), "VAPID claim aud must be the origin of the endpoint"),
            ApiError::VapidKeyMismatch => (401, Some(109), "VAPID public key mismatch"),
            ApiError::SenderNotAllowed => (401, Some(109), "This server takes no messages of this VAPID key"),
            ApiError::AccessToken => {
                (401, None, "This server needs a token: wss://NAME/t/TOKEN/, or Authorization: Bearer TOKEN")
            }
            ApiError::VapidRequired => (401, Some(109), "This endpoint requires VAPID authorization"),
            ApiError::VapidCryptoKey => (400, Some(110), "Missing or invalid p256ecdsa in Crypto-Key"),
            ApiError::NodeKey => (401, None, "Unknown node key"),
            ApiError::NoSubscription => (410, Some(106), "No such subscription"),
            ApiError::NoUser => (410, Some(103), "No such user"),
            ApiError::OtherMode => (400, Some(108), "Wrong endpoint for this user"),
            ApiError::BadUpdate => (400, None, "Version must be an integer"),
            ApiError::TooLarge => (413, Some(104), "Payload too large"),
            ApiError::TtlMissing => (400, Some(111), "Missing or invalid TTL header"),
            ApiError::Encryption => (400, Some(110), "Invalid encryption headers"),
            ApiError::TtlNegative => (400, Some(114), "TTL must not be negative"),
            ApiError::Topic => (400, Some(113), "Invalid Topic header"),
            ApiError::Urgency => (400, None, "Invalid Urgency header"),
            ApiError::BadNodeBody => (400, None, "Malformed notification"),
            ApiError::TooManyToEndpoint => (429, Some(203), "Too many messages to this subscription"),
            ApiError::TooManyOfSender => (429, Some(203), "Too many messages from this application server"),
            ApiError::OverBudget => (429, Some(204), "Too many bytes are stored for this subscription today"),
            ApiError::Unavailable => (503, Some(201), "Service unavailable, retry later"),
            ApiError::BridgeTooLarge { .. } => {
                (413, Some(104), "Payload too large for the service of this subscription")
            }
            ApiError::BridgeQuota => (429, Some(201), "A quota of the service of this subscription is used up"),
            ApiError::BridgeBadRequest => (500, Some(900), "The service of this subscription refused the request"),
            ApiError::BridgeConfiguration => (502, Some(900), "The service of this subscription cannot be used now"),
            ApiError::BridgeAuthentication => {
                (502, Some(901), "Cannot authenticate to the service of this subscription")
            }
            ApiError::BridgeUnreachable => (502, Some(902), "Cannot reach the service of this subscription"),
            ApiError::BridgeNoAnswer => (502, Some(903), "The service of this subscription did not answer in time"),
            ApiError::BridgeUnavailable => {
                (503, Some(201), "The service of this subscription is unavailable, retry later")
            }
            ApiError::Registration(fault) => fault.row(),
            ApiError::NoSession => (404, None, "Client not available"),
            ApiError::SessionBusy => (503, None, "Client takes nothing now"),
            ApiError::SessionHolds => (503, None, "Client wants no message of this urgency now"),
            ApiError::Stopping => (503, None, "This node is about to stop, connect again"),
            ApiError::Unready => (503, None, "This node is in trouble, ask another"),
            ApiError::NotWelcome => (503, None, "This node has enough connections, connect again"),
        };
        Row { status, errno, message }
    }

    /// Returns the form that the machine carries while the owner decides about 410 (ARCHITECTURE.md 8.5).
    pub fn refusal(self) -> Refusal {
        let place = CARRIED.iter().position(|fault| *fault == self);
        Refusal(place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX))
    }

    /// Reads the form that the machine carried; an unknown number reads as a bad request.
    pub fn of(refusal: Refusal) -> ApiError {
        CARRIED.get(usize::from(refusal.0)).copied().unwrap_or(ApiError::BadRequest)
    }

    /// Returns the text for people: that of the row, with the number of bytes that are too many if it is known.
    fn message(self) -> Cow<'static, str> {
        let message = self.row().message;
        match self {
            ApiError::BridgeTooLarge { excess: excess @ 1.. } => {
                format!("{message}; it has {excess} bytes too many").into()
            }
            _ => message.into(),
        }
    }

    /// Appends the JSON body, keys in the documented order.
    pub fn push_body(self, out: &mut Vec<u8>) {
        let row = self.row();
        out.extend_from_slice(br#"{"code":"#);
        push_u64(u64::from(row.status), out);
        out.extend_from_slice(br#","errno":"#);
        match row.errno {
            Some(errno) => push_u64(u64::from(errno), out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(br#","error":"#);
        push_json(http1::reason(row.status), out);
        out.extend_from_slice(br#","message":"#);
        push_json(&self.message(), out);
        out.extend_from_slice(br#","more_info":"#);
        push_json(MORE_INFO, out);
        out.push(b'}');
    }
}

/// The rules a POST may break that travel to the owner (PROTOCOL.md 2.3 steps 8 to 11).
pub const CARRIED: [ApiError; 13] = [
    ApiError::TooLarge,
    ApiError::TtlMissing,
    ApiError::Encryption,
    ApiError::TtlNegative,
    ApiError::Topic,
    ApiError::Urgency,
    ApiError::BadUpdate,
    ApiError::Registration(RegistrationFault::Body),
    ApiError::Registration(RegistrationFault::Token),
    ApiError::Registration(RegistrationFault::Channel),
    ApiError::Registration(RegistrationFault::Key),
    ApiError::Registration(RegistrationFault::Aps),
    ApiError::Registration(RegistrationFault::App),
];

const MORE_INFO: &str = "http://autopush.readthedocs.io/en/latest/http.html#error-codes";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_travels_is_recognised() {
        for fault in CARRIED {
            assert_eq!(ApiError::of(fault.refusal()), fault);
        }
        assert_eq!(ApiError::of(Refusal(255)), ApiError::BadRequest);
        assert_eq!(ApiError::of(ApiError::NoSubscription.refusal()), ApiError::BadRequest);
    }

    /// PROTOCOL.md 2.11, with 2.3, 2.5 and 7.1; statuses that it does not have are of RFC 9110 and 6585.
    #[test]
    fn every_refusal_has_its_status_and_errno() {
        use ApiError::*;
        let vapid = [
            VapidScheme,
            VapidNoToken,
            VapidNoKey,
            VapidBadKey,
            VapidBadToken,
            VapidAlgorithm,
            VapidSignature,
            VapidExpiry,
            VapidExpired,
            VapidTooLong,
            VapidAudience,
            VapidKeyMismatch,
            SenderNotAllowed,
            VapidRequired,
        ];
        let rows: [(u16, Option<u16>, &[ApiError]); 23] = [
            (400, None, &[BadRequest, BadUpgrade, BadMessageId, Urgency, BadUpdate, BadNodeBody]),
            (400, Some(108), &[OtherMode]),
            (400, Some(110), &[VapidCryptoKey, Encryption]),
            (400, Some(111), &[TtlMissing]),
            (400, Some(113), &[Topic]),
            (400, Some(114), &[TtlNegative]),
            (401, None, &[NodeKey, AccessToken]),
            (401, Some(109), &vapid),
            (404, None, &[NotFound, NoSession]),
            (404, Some(102), &[BadToken]),
            (405, None, &[MethodNotAllowed]),
            (408, None, &[RequestTimeout]),
            (410, Some(103), &[NoUser]),
            (410, Some(106), &[NoSubscription]),
            (413, Some(104), &[TooLarge, BridgeTooLarge { excess: 3 }]),
            (426, None, &[UpgradeRequired]),
            (431, None, &[HeadTooLarge]),
            (429, Some(201), &[BridgeQuota]),
            (502, Some(900), &[BridgeConfiguration]),
            (502, Some(901), &[BridgeAuthentication]),
            (502, Some(902), &[BridgeUnreachable]),
            (502, Some(903), &[BridgeNoAnswer]),
            (503, None, &[SessionBusy, SessionHolds, NotWelcome, Stopping, Unready]),
        ];
        for (status, errno, faults) in rows {
            for fault in faults {
                let row = fault.row();
                assert_eq!((row.status, row.errno), (status, errno), "{fault:?}");
                assert_ne!(http1::reason(status), "Internal Server Error", "{fault:?}");
            }
        }
        assert_eq!((BridgeBadRequest.row().status, BridgeBadRequest.row().errno), (500, Some(900)));
        for fault in [Unavailable, BridgeUnavailable] {
            assert_eq!((fault.row().status, fault.row().errno), (503, Some(201)));
        }
    }

    #[test]
    fn bodies_are_json_in_the_documented_order() {
        let mut out = Vec::new();
        ApiError::NoSubscription.push_body(&mut out);
        let expected = concat!(
            r#"{"code":410,"errno":106,"error":"Gone","message":"No such subscription","#,
            r#""more_info":"http://autopush.readthedocs.io/en/latest/http.html#error-codes"}"#
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        ApiError::BadMessageId.push_body(&mut out);
        let body: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert!(body["errno"].is_null());
    }
}
