//! Reasons for which the server ends a connection.

/// Reason for which the server ends a connection. The edge has the one table to close codes and HTTP statuses
/// (PROTOCOL.md 1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CloseReason {
    /// No hello in time. 1011.
    HandshakeTimeout,
    /// No Pong in time. 1011.
    PongTimeout,
    /// A WebSocket message was begun and not finished within `http.request_timeout`. 1008.
    MessageTimeout,
    /// The socket took no byte for `websocket.auto_ping_timeout` while the server had bytes for it. 1008.
    NotReading,
    /// A message that this state does not allow: a first message that is no hello, or a second hello. 1011.
    WrongState,
    /// Invalid JSON, unknown messageType, wrong types, missing fields. 1011.
    BadMessage,
    /// A binary frame or first frame that is not text. 1003.
    Unsupported,
    /// A frame that RFC 6455 forbids. 1002.
    ProtocolError,
    /// Text that is not UTF-8. 1007.
    BadText,
    /// A message beyond the size limit. 1009.
    TooBig,
    /// `{}` more often than `websocket.ping_min_interval`. 4774.
    PingTooSoon,
    /// A SimplePush session that can be woken neither sent nor received anything for `simplepush.wake_timeout`. 4774.
    IdledOut,
    /// A newer session of this UAID. 1011.
    Superseded,
    /// The user is connected to another node, or another node requested the end. 1011.
    Elsewhere,
    /// Storage could not look up the user. 1011.
    StorageDown,
    /// This shard or its target is full, or too many hellos wait. 1013.
    Overloaded,
    /// The socket could not be moved to its owner. 1013.
    MoveFailed,
    /// A budget of this session is used up (registers, deferred ids). 1013.
    BudgetExhausted,
    /// The address of the caller has used up one of `strangers.*`. 1013.
    AddressLimit,
    /// The user was dropped on purpose; it starts over. 1000.
    Reset,
    /// The server is going away. 1001.
    Draining,
    /// The peer sent Close; its code is echoed.
    PeerClosed,
    /// HTTP: the exchange is complete and the connection is not kept.
    Finished,
    /// HTTP: too slow or idle too long. 408 while a request is under way, else no answer.
    Idle,
    /// The edge has already written the last answer.
    Said,
    /// The peer broke a rule of TLS, or its handshake failed. The alert is all that it is sent.
    TlsFailed,
}
