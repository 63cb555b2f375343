//! Counters of an edge. One writer: its shard.

use machine::counters;

use super::registering::Draft;
use protocol::webpush::errno::ApiError;

counters! {
    /// Counters of one edge. Own shard only.
    pub struct EdgeStats {
        counter upgrades: "WebSocket upgrades accepted.",
        counter upgrades_refused: "WebSocket upgrades refused (400 or 426).",
        counter frames_refused: "WebSocket frames that RFC 6455 or the size limit forbids.",
        counter messages_refused: "WebSocket messages that are not JSON of the protocol.",
        counter messages_misplaced: "WebSocket messages that the state of the session does not allow.",
        counter registers_refused: "Registers with a key that is no point on P-256.",
        counter ack_ids_unknown: "Acked ids that no key of ours sealed.",
        counter websocket_closes: "Close frames written on our own account.",
        counter posts: "POSTs to an endpoint, whatever came of them.",
        counter posts_accepted_direct: "POSTs answered 201 and handed to a live session.",
        counter posts_accepted_stored: "POSTs answered 201 and stored.",
        counter posts_accepted_dropped: "POSTs with TTL 0 answered 201 without a session to take them.",
        counter posts_accepted_bridged: "POSTs answered 201 after the service of a bridged user took them.",
        counter posts_not_bridged: "POSTs that the service of a bridged user did not take.",
        counter posts_no_endpoint: "POSTs answered 404: no token of ours.",
        counter posts_no_subscription: "POSTs answered 410.",
        counter posts_too_large: "POSTs answered 413.",
        counter posts_bad_headers: "POSTs answered 400 for TTL, Topic, Urgency or encryption headers.",
        counter posts_unavailable: "POSTs answered 503.",
        counter posts_with_receipt: "POSTs answered 202: their sender asked for a receipt.",
        counter posts_too_many: "POSTs answered 429: a rate or a budget is used up.",
        counter senders_forgotten: "Senders whose rate was forgotten because there were too many.",
        counter posts_other_mode: "POSTs and PUTs answered 400: the user is reached in the other mode.",
        counter update_requests: "PUTs of a version update, whatever came of them.",
        counter updates_delivered: "PUTs answered 200 and handed to a live session.",
        counter updates_stored: "PUTs answered 202.",
        counter vapid_missing: "401: the endpoint is locked to a key and no authorization came.",
        counter vapid_malformed: "401 or 400: authorization that cannot be read.",
        counter vapid_bad_signature: "401: the signature does not fit the key.",
        counter vapid_bad_claims: "401: exp or aud.",
        counter vapid_key_mismatch: "401: the endpoint is locked to another key.",
        counter vapid_cache_hits: "VAPID tokens that were verified before.",
        counter vapid_cache_misses: "VAPID tokens whose signature was checked.",
        counter vapid_audience_without_port: "Authorizations accepted whose aud leaves out the port of endpoint.url.",
        counter vapid_odd_sub: "VAPID tokens verified whose sub is neither mailto: nor https:.",
        counter registrations: "Users that were registered by HTTPS.",
        counter registration_calls: "Requests of the registration API, whatever came of them.",
        counter registration_checks: "Requests for the channels of a registered user that were answered 200.",
        counter registrations_refused: "Requests of the registration API that were refused.",
        counter bridge_registrations_register_200: "Answers of the registration API.",
        counter bridge_registrations_register_400: "Answers of the registration API.",
        counter bridge_registrations_register_401: "Answers of the registration API.",
        counter bridge_registrations_register_413: "Answers of the registration API.",
        counter bridge_registrations_register_429: "Answers of the registration API.",
        counter bridge_registrations_register_503: "Answers of the registration API.",
        counter bridge_registrations_update_200: "Answers of the registration API.",
        counter bridge_registrations_update_400: "Answers of the registration API.",
        counter bridge_registrations_update_401: "Answers of the registration API.",
        counter bridge_registrations_update_409: "Answers of the registration API.",
        counter bridge_registrations_update_410: "Answers of the registration API.",
        counter bridge_registrations_update_413: "Answers of the registration API.",
        counter bridge_registrations_update_503: "Answers of the registration API.",
        counter bridge_registrations_subscribe_200: "Answers of the registration API.",
        counter bridge_registrations_subscribe_400: "Answers of the registration API.",
        counter bridge_registrations_subscribe_401: "Answers of the registration API.",
        counter bridge_registrations_subscribe_409: "Answers of the registration API.",
        counter bridge_registrations_subscribe_410: "Answers of the registration API.",
        counter bridge_registrations_subscribe_413: "Answers of the registration API.",
        counter bridge_registrations_subscribe_429: "Answers of the registration API.",
        counter bridge_registrations_subscribe_503: "Answers of the registration API.",
        counter bridge_registrations_list_200: "Answers of the registration API.",
        counter bridge_registrations_list_400: "Answers of the registration API.",
        counter bridge_registrations_list_401: "Answers of the registration API.",
        counter bridge_registrations_list_410: "Answers of the registration API.",
        counter bridge_registrations_list_503: "Answers of the registration API.",
        counter bridge_registrations_remove_200: "Answers of the registration API.",
        counter bridge_registrations_remove_400: "Answers of the registration API.",
        counter bridge_registrations_remove_401: "Answers of the registration API.",
        counter bridge_registrations_remove_410: "Answers of the registration API.",
        counter bridge_registrations_remove_503: "Answers of the registration API.",
        counter bridge_registrations_unsubscribe_200: "Answers of the registration API.",
        counter bridge_registrations_unsubscribe_400: "Answers of the registration API.",
        counter bridge_registrations_unsubscribe_401: "Answers of the registration API.",
        counter bridge_registrations_unsubscribe_410: "Answers of the registration API.",
        counter bridge_registrations_unsubscribe_503: "Answers of the registration API.",
        counter bridge_registrations_other_404: "Answers of the registration API.",
        counter bridge_registrations_other_405: "Answers of the registration API.",
        counter cancel_requests: "DELETEs of a message.",
        counter cancel_requests_refused: "DELETEs of a message whose id no key of ours sealed.",
        counter receipt_requests: "Looks at a receipt.",
        counter receipt_requests_refused: "Looks at a receipt that nobody here sealed, or whose outcome is forgotten.",
        counter unfinished_refused: "Connections ended because half messages and bodies of the shard held too much memory.",
        gauge unfinished_fragment_bytes: "Bytes of memory for WebSocket messages whose last fragment has not come.",
        gauge unfinished_body_bytes: "Bytes of memory for requests of app servers and nodes whose body is not whole.",
        counter node_requests: "Requests of other nodes that showed a key.",
        counter node_refused: "Requests to the node port without a key of ours.",
        counter node_bodies_refused: "Notifications of other nodes that cannot be read.",
        counter upgrades_elsewhere: "Upgrades and load balancers answered 503: more than websocket.welcome, no place is left, or the node stops.",
        counter node_busy: "Notifications of other nodes answered 503: the session takes nothing now, or holds the message below its minimum urgency.",
        counter log_events_dropped: "Events of clients left out of the log: too many at once.",
        counter http_malformed: "Connections ended for bytes that are no HTTP request.",
        counter http_not_found: "Requests for a path that does not exist.",
        counter http_wrong_method: "Requests with a method that the path does not know.",
        counter http_bodies_cut: "Connections ended since the body was too long to be discarded.",
    }
}

impl EdgeStats {
    /// Counts a refusal of the edge or of the owner.
    pub(super) fn refused(&mut self, fault: ApiError) {
        let counter = match fault {
            ApiError::BadRequest | ApiError::HeadTooLarge | ApiError::RequestTimeout => &mut self.http_malformed,
            ApiError::NotFound | ApiError::NoSession => &mut self.http_not_found,
            ApiError::MethodNotAllowed => &mut self.http_wrong_method,
            ApiError::UpgradeRequired | ApiError::BadUpgrade => &mut self.upgrades_refused,
            ApiError::BadToken => &mut self.posts_no_endpoint,
            ApiError::VapidRequired => &mut self.vapid_missing,
            ApiError::VapidScheme
            | ApiError::VapidNoToken
            | ApiError::VapidNoKey
            | ApiError::VapidBadKey
            | ApiError::VapidBadToken
            | ApiError::VapidAlgorithm
            | ApiError::VapidCryptoKey => &mut self.vapid_malformed,
            ApiError::VapidSignature => &mut self.vapid_bad_signature,
            ApiError::VapidExpiry | ApiError::VapidExpired | ApiError::VapidTooLong | ApiError::VapidAudience => {
                &mut self.vapid_bad_claims
            }
            ApiError::VapidKeyMismatch => &mut self.vapid_key_mismatch,
            // Counted at its head with the address of the caller, by `PushEdge::refuse_caller`.
            ApiError::SenderNotAllowed | ApiError::AccessToken => return,
            ApiError::NodeKey => &mut self.node_refused,
            ApiError::OtherMode => &mut self.posts_other_mode,
            ApiError::NoSubscription | ApiError::NoUser => &mut self.posts_no_subscription,
            ApiError::TooLarge => &mut self.posts_too_large,
            ApiError::TtlMissing
            | ApiError::Encryption
            | ApiError::TtlNegative
            | ApiError::Topic
            | ApiError::Urgency
            | ApiError::BadUpdate => &mut self.posts_bad_headers,
            ApiError::BadMessageId => &mut self.cancel_requests_refused,
            ApiError::BadReceipt | ApiError::ReceiptForgotten => &mut self.receipt_requests_refused,
            ApiError::TooManyToEndpoint | ApiError::TooManyOfSender | ApiError::OverBudget => &mut self.posts_too_many,
            ApiError::BadNodeBody => &mut self.node_bodies_refused,
            ApiError::SessionBusy | ApiError::SessionHolds => &mut self.node_busy,
            ApiError::NotWelcome | ApiError::Stopping | ApiError::Unready => &mut self.upgrades_elsewhere,
            ApiError::Unavailable => &mut self.posts_unavailable,
            ApiError::Registration(_) => &mut self.registrations_refused,
            ApiError::BridgeTooLarge { .. }
            | ApiError::BridgeQuota
            | ApiError::BridgeBadRequest
            | ApiError::BridgeConfiguration
            | ApiError::BridgeAuthentication
            | ApiError::BridgeUnreachable
            | ApiError::BridgeNoAnswer
            | ApiError::BridgeUnavailable => &mut self.posts_not_bridged,
        };
        *counter += 1;
    }

    /// Counts an answer of the registration API; without a call, that to a path or method that it does not have.
    pub(super) fn registration_answered(&mut self, call: Option<Draft>, status: u16) {
        let counter = match (call, status) {
            (Some(Draft::Create), 200) => &mut self.bridge_registrations_register_200,
            (Some(Draft::Create), 400) => &mut self.bridge_registrations_register_400,
            (Some(Draft::Create), 401) => &mut self.bridge_registrations_register_401,
            (Some(Draft::Create), 413) => &mut self.bridge_registrations_register_413,
            (Some(Draft::Create), 429) => &mut self.bridge_registrations_register_429,
            (Some(Draft::Create), _) => &mut self.bridge_registrations_register_503,
            (Some(Draft::Update), 200) => &mut self.bridge_registrations_update_200,
            (Some(Draft::Update), 400) => &mut self.bridge_registrations_update_400,
            (Some(Draft::Update), 401) => &mut self.bridge_registrations_update_401,
            (Some(Draft::Update), 409) => &mut self.bridge_registrations_update_409,
            (Some(Draft::Update), 410) => &mut self.bridge_registrations_update_410,
            (Some(Draft::Update), 413) => &mut self.bridge_registrations_update_413,
            (Some(Draft::Update), _) => &mut self.bridge_registrations_update_503,
            (Some(Draft::Subscribe), 200) => &mut self.bridge_registrations_subscribe_200,
            (Some(Draft::Subscribe), 400) => &mut self.bridge_registrations_subscribe_400,
            (Some(Draft::Subscribe), 401) => &mut self.bridge_registrations_subscribe_401,
            (Some(Draft::Subscribe), 409) => &mut self.bridge_registrations_subscribe_409,
            (Some(Draft::Subscribe), 410) => &mut self.bridge_registrations_subscribe_410,
            (Some(Draft::Subscribe), 413) => &mut self.bridge_registrations_subscribe_413,
            (Some(Draft::Subscribe), 429) => &mut self.bridge_registrations_subscribe_429,
            (Some(Draft::Subscribe), _) => &mut self.bridge_registrations_subscribe_503,
            (Some(Draft::List), 200) => &mut self.bridge_registrations_list_200,
            (Some(Draft::List), 400) => &mut self.bridge_registrations_list_400,
            (Some(Draft::List), 401) => &mut self.bridge_registrations_list_401,
            (Some(Draft::List), 410) => &mut self.bridge_registrations_list_410,
            (Some(Draft::List), _) => &mut self.bridge_registrations_list_503,
            (Some(Draft::Remove), 200) => &mut self.bridge_registrations_remove_200,
            (Some(Draft::Remove), 400) => &mut self.bridge_registrations_remove_400,
            (Some(Draft::Remove), 401) => &mut self.bridge_registrations_remove_401,
            (Some(Draft::Remove), 410) => &mut self.bridge_registrations_remove_410,
            (Some(Draft::Remove), _) => &mut self.bridge_registrations_remove_503,
            (Some(Draft::Unsubscribe(_)), 200) => &mut self.bridge_registrations_unsubscribe_200,
            (Some(Draft::Unsubscribe(_)), 400) => &mut self.bridge_registrations_unsubscribe_400,
            (Some(Draft::Unsubscribe(_)), 401) => &mut self.bridge_registrations_unsubscribe_401,
            (Some(Draft::Unsubscribe(_)), 410) => &mut self.bridge_registrations_unsubscribe_410,
            (Some(Draft::Unsubscribe(_)), _) => &mut self.bridge_registrations_unsubscribe_503,
            (None, 405) => &mut self.bridge_registrations_other_405,
            (None, _) => &mut self.bridge_registrations_other_404,
        };
        *counter += 1;
    }
}
