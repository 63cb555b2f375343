//! Counters of alerts by description and of failed handshakes by reason, as `/metrics` shows them.

use runtime::tls::TlsStats;
use rustls::NamedGroup;

/// Reason for which a handshake failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// A fatal alert with this description was sent.
    AlertSent(u8),
    AlertReceived,
    /// The client left.
    Left,
    /// The handshake took too long.
    Late,
    /// The client sent more bytes than a flight may have.
    Flood,
    /// This server ended the connection.
    Closed,
    /// This server could not go on.
    Internal,
}

/// Kind of a completed handshake.
#[derive(Clone, Copy)]
pub(crate) struct Completed {
    /// An earlier connection was resumed.
    pub is_resumed: bool,
    /// Group of the key exchange.
    pub group: Option<NamedGroup>,
}

/// Counts a completed handshake.
pub(crate) fn count_completed(stats: &mut TlsStats, is_tls12: bool, completed: Completed) {
    let Completed { is_resumed, group } = completed;
    let counter = match (is_tls12, is_resumed) {
        (false, false) => &mut stats.tls_handshakes_full_1_3,
        (false, true) => &mut stats.tls_handshakes_resumed_1_3,
        (true, false) => &mut stats.tls_handshakes_full_1_2,
        (true, true) => &mut stats.tls_handshakes_resumed_1_2,
    };
    *counter += 1;
    let exchanges = match group {
        Some(NamedGroup::X25519MLKEM768) => &mut stats.tls_key_exchanges_x25519mlkem768,
        Some(NamedGroup::X25519) => &mut stats.tls_key_exchanges_x25519,
        Some(NamedGroup::secp256r1) => &mut stats.tls_key_exchanges_secp256r1,
        Some(NamedGroup::secp384r1) => &mut stats.tls_key_exchanges_secp384r1,
        _ => return,
    };
    *exchanges += 1;
}

/// Counts a fatal alert by its description (RFC 8446 section 6).
pub(crate) fn count_alert(stats: &mut TlsStats, description: u8) {
    let counter = match description {
        10 => &mut stats.tls_alerts_sent_unexpected_message,
        20 => &mut stats.tls_alerts_sent_bad_record_mac,
        22 => &mut stats.tls_alerts_sent_record_overflow,
        40 => &mut stats.tls_alerts_sent_handshake_failure,
        42 => &mut stats.tls_alerts_sent_bad_certificate,
        43 => &mut stats.tls_alerts_sent_unsupported_certificate,
        44 => &mut stats.tls_alerts_sent_certificate_revoked,
        45 => &mut stats.tls_alerts_sent_certificate_expired,
        46 => &mut stats.tls_alerts_sent_certificate_unknown,
        47 => &mut stats.tls_alerts_sent_illegal_parameter,
        48 => &mut stats.tls_alerts_sent_unknown_ca,
        49 => &mut stats.tls_alerts_sent_access_denied,
        50 => &mut stats.tls_alerts_sent_decode_error,
        51 => &mut stats.tls_alerts_sent_decrypt_error,
        70 => &mut stats.tls_alerts_sent_protocol_version,
        80 => &mut stats.tls_alerts_sent_internal_error,
        109 => &mut stats.tls_alerts_sent_missing_extension,
        110 => &mut stats.tls_alerts_sent_unsupported_extension,
        116 => &mut stats.tls_alerts_sent_certificate_required,
        120 => &mut stats.tls_alerts_sent_no_application_protocol,
        _ => &mut stats.tls_alerts_sent_other,
    };
    *counter += 1;
}

/// Counts a handshake that failed, and its alert.
pub(crate) fn count_failure(stats: &mut TlsStats, failure: Failure) {
    match failure {
        Failure::AlertSent(description) => count_alert(stats, description),
        Failure::AlertReceived => stats.tls_alerts_received += 1,
        _ => {}
    }
    let counter = match failure {
        Failure::AlertSent(70) => &mut stats.tls_handshakes_failed_version,
        Failure::AlertSent(40) => &mut stats.tls_handshakes_failed_parameters,
        Failure::AlertSent(49) => &mut stats.tls_handshakes_failed_name,
        Failure::AlertSent(120) => &mut stats.tls_handshakes_failed_protocol,
        Failure::AlertSent(42..=46 | 48 | 116) => &mut stats.tls_handshakes_failed_certificate,
        Failure::AlertSent(20 | 22) => &mut stats.tls_handshakes_failed_record,
        // 51 too: a Finished, a signature or a binder is wrong, in a record that opened (RFC 8446 section 6.2).
        Failure::AlertSent(_) => &mut stats.tls_handshakes_failed_message,
        Failure::AlertReceived => &mut stats.tls_handshakes_failed_alert_received,
        Failure::Left => &mut stats.tls_handshakes_failed_left,
        Failure::Late => &mut stats.tls_handshakes_failed_timeout,
        Failure::Flood => &mut stats.tls_handshakes_failed_flood,
        Failure::Closed => &mut stats.tls_handshakes_failed_closed,
        Failure::Internal => &mut stats.tls_handshakes_failed_internal,
    };
    *counter += 1;
}
