//! Table of goodbyes: maps a reason to close codes (PROTOCOL.md 1.3) and HTTP statuses.

use machine::CloseReason;

use protocol::webpush::errno::ApiError;

/// Returns the code and the text of the close frame. Returns `None` when no frame is sent: the edge echoes the peer's
/// own close where it reads it, or it has already written the last answer.
pub fn close_frame(reason: CloseReason) -> Option<(u16, &'static str)> {
    Some(match reason {
        CloseReason::HandshakeTimeout => (1011, "HandshakeTimeout"),
        CloseReason::PongTimeout => (1011, "PongTimeout"),
        CloseReason::MessageTimeout => (1008, "MessageTimeout"),
        CloseReason::NotReading => (1008, "NotReading"),
        CloseReason::WrongState => (1011, "SM"),
        CloseReason::BadMessage => (1011, "Json"),
        CloseReason::Unsupported => (1003, "UnsupportedMessage"),
        CloseReason::ProtocolError => (1002, "Protocol"),
        CloseReason::BadText => (1007, "Utf8"),
        CloseReason::TooBig => (1009, "TooBig"),
        CloseReason::PingTooSoon => (4774, "PingTooSoon"),
        CloseReason::IdledOut => (4774, "IdledOut"),
        CloseReason::Superseded => (1011, "SM"),
        CloseReason::Elsewhere => (1011, "SM"),
        CloseReason::StorageDown => (1011, "SM"),
        CloseReason::Overloaded => (1013, "Overloaded"),
        CloseReason::MoveFailed => (1013, "Overloaded"),
        CloseReason::BudgetExhausted => (1013, "BudgetExhausted"),
        CloseReason::AddressLimit => (1013, "AddressLimit"),
        CloseReason::Reset => (1000, "SM"),
        CloseReason::Draining => (1001, "GoingAway"),
        CloseReason::Idle
        | CloseReason::PeerClosed
        | CloseReason::Finished
        | CloseReason::Said
        | CloseReason::TlsFailed => return None,
    })
}

/// Returns the fault that an HTTP connection receives before it ends; `None` unless a request is `under_way` that must
/// be answered.
pub fn http_fault(reason: CloseReason, under_way: bool) -> Option<ApiError> {
    match reason {
        CloseReason::Idle | CloseReason::HandshakeTimeout if under_way => Some(ApiError::RequestTimeout),
        CloseReason::Overloaded
        | CloseReason::MoveFailed
        | CloseReason::StorageDown
        | CloseReason::BudgetExhausted
        | CloseReason::AddressLimit
        | CloseReason::Draining
            if under_way =>
        {
            Some(ApiError::Unavailable)
        }
        CloseReason::Idle
        | CloseReason::HandshakeTimeout
        | CloseReason::Overloaded
        | CloseReason::MoveFailed
        | CloseReason::StorageDown
        | CloseReason::BudgetExhausted
        | CloseReason::AddressLimit
        | CloseReason::Draining
        | CloseReason::PongTimeout
        | CloseReason::MessageTimeout
        | CloseReason::NotReading
        | CloseReason::WrongState
        | CloseReason::BadMessage
        | CloseReason::Unsupported
        | CloseReason::ProtocolError
        | CloseReason::BadText
        | CloseReason::TooBig
        | CloseReason::PingTooSoon
        | CloseReason::IdledOut
        | CloseReason::Superseded
        | CloseReason::Elsewhere
        | CloseReason::Reset
        | CloseReason::PeerClosed
        | CloseReason::Finished
        | CloseReason::Said
        | CloseReason::TlsFailed => None,
    }
}
