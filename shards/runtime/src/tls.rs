//! The seam between the reactor and TLS: handshakes, records and secrets of the connections of one shard.
//!
//! The reactor moves ciphertext and never sees a key. Cryptography is in the crate `tls`, which implements [`Tls`]; the
//! reactor's tests put a script in its place. A connection is named by its slot, from [`Tls::open`] or [`Tls::import`]
//! to [`Tls::end`] or [`Tls::export`].
//!
//! Lives on: the shard's thread. Nothing here blocks.

use machine::counters;

use crate::ports::Port;

/// Bytes of plaintext in one record at most (RFC 8446 section 5.1).
pub const PLAINTEXT_MAX: usize = 16_384;

/// TLS of one shard.
pub trait Tls: 'static {
    /// A connection was accepted on a TLS listener of this port. Nothing was received yet, and nothing is allocated
    /// for a handshake until [`Tls::receive`] is given bytes.
    fn open(&mut self, slot: u32, port: Port);

    /// Returns the progress of the connection; [`Stage::Failed`] for a slot without one.
    fn stage(&self, slot: u32) -> Stage;

    /// Returns true if the peer sent close_notify: no more application data comes (RFC 8446 section 6.1). What it sends
    /// behind that is consumed and dropped.
    fn peer_closed(&self, slot: u32) -> bool;

    /// Returns the number of connections in [`Stage::Handshake`].
    fn handshakes(&self) -> usize;

    /// Takes ciphertext. Opens the whole records at the front of `bytes` in place and moves their plaintext together,
    /// so that it ends up as `bytes[..plain]`. Bytes for the peer (a flight of the handshake, an alert) are appended to
    /// `wire`: ciphertext that goes out before anything that is sealed later. No record that was sealed earlier may be
    /// taken back then.
    ///
    /// During the handshake one call does at most one flight.
    fn receive(&mut self, slot: u32, bytes: &mut [u8], wire: &mut Vec<u8>) -> Received;

    /// Appends the control records that are due before the next application data: an owed KeyUpdate. These are never
    /// taken back. Established connections only, as the four below.
    fn control(&mut self, slot: u32, wire: &mut Vec<u8>);

    /// Seals 1 to [`PLAINTEXT_MAX`] bytes as one record of application data and appends it to `wire`.
    fn seal(&mut self, slot: u32, plain: &[u8], wire: &mut Vec<u8>);

    /// Appends the alert close_notify as one record (RFC 8446 section 6.1).
    fn close_notify(&mut self, slot: u32, wire: &mut Vec<u8>);

    /// Returns true if the connection must end because its key for sealing is used up, and TLS 1.2 has no other one.
    /// Its closing frame can still be sealed.
    fn key_used_up(&self, slot: u32) -> bool;

    /// The kernel took no byte of the last `records` records of [`Tls::seal`] and [`Tls::close_notify`]. They are never
    /// sent, and their sequence numbers are used again. Never reaches behind a call of [`Tls::control`].
    fn rewind(&mut self, slot: u32, records: u32);

    /// Takes the state of an established connection out: for its owner shard, or for the record of a frozen session.
    /// The connection is ended here. There is no way to copy the state, so each sequence number is used once.
    fn export(&mut self, slot: u32) -> Vec<u8>;

    /// Continues a connection that another shard exported, or that was exported to a record, in this slot. Returns the
    /// number of bytes at the front of `state` that were its state, and overwrites them; `None` for any other bytes.
    fn import(&mut self, slot: u32, port: Port, state: &mut [u8]) -> Option<usize>;

    /// Ends the connection and overwrites its secrets. Does nothing for a slot without one.
    fn end(&mut self, slot: u32);

    /// Counts a connection that this server ends within its handshake. [`Tls::end`] follows. Does nothing for a
    /// connection that has failed before.
    fn give_up(&mut self, slot: u32, why: GivenUp);

    /// Counts a connection to a TLS listener of this port that was closed before its handshake began.
    fn count_refused(&mut self, port: Port);

    /// Returns true once after a handshake or a connection has ended. Its secrets may then lie in frames that have
    /// returned: the caller overwrites the stack below itself (`wipe::stack`).
    fn take_leftovers(&mut self) -> bool;

    /// Returns the counters of this shard with its gauges brought up to date.
    fn stats(&mut self) -> &TlsStats;
}

/// Progress of a TLS connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nothing was received: it costs its slot only.
    Fresh,
    /// Between its first byte and the Finished of the client: it holds the state of a handshake.
    Handshake,
    /// Application data can be sealed.
    Established,
    /// It failed. The alert is written, and nothing more is opened or sealed.
    Failed,
}

/// Result of [`Tls::receive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes of plaintext at the front. Those before a failure are not used.
    pub plain: usize,
    /// Bytes of ciphertext that are done with. The rest is the start of an incomplete record, or was not reached
    /// because this call has done its flight of a handshake.
    pub consumed: usize,
    pub next: Next,
}

/// State of the connection after [`Tls::receive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// More ciphertext is needed, or none comes any more ([`Tls::peer_closed`]).
    More,
    /// The rest may hold whole records: call again.
    Again,
    /// The peer broke a rule or sent a fatal alert. The alert in `wire`, if any, is the last record that may be sent.
    Failed,
}

/// Reason for which this server ends a connection within its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivenUp {
    /// The handshake took too long.
    Late,
    /// The client sent more bytes than a flight may have.
    Flood,
    /// The server is going away, or needs the memory.
    Closed,
}

counters! {
    /// Counters of TLS on one shard.
    pub struct TlsStats {
        gauge tls_connections: "TLS connections, handshakes included.",
        gauge tls_handshakes_in_flight: "TLS handshakes between the first byte of the client and its Finished.",
        gauge tls_state_bytes: "Bytes of memory for the secrets of TLS connections and for handshakes.",
        counter tls_handshakes_full_1_3: "TLS handshakes that were completed, by version, and by kind: full, or resumed by a ticket.",
        counter tls_handshakes_resumed_1_3: "TLS handshakes that were completed, by version, and by kind: full, or resumed by a ticket.",
        counter tls_handshakes_full_1_2: "TLS handshakes that were completed, by version, and by kind: full, or resumed by a ticket.",
        counter tls_handshakes_resumed_1_2: "TLS handshakes that were completed, by version, and by kind: full, or resumed by a ticket.",
        counter tls_key_exchanges_x25519mlkem768: "TLS handshakes that were completed, by the group of their key exchange.",
        counter tls_key_exchanges_x25519: "TLS handshakes that were completed, by the group of their key exchange.",
        counter tls_key_exchanges_secp256r1: "TLS handshakes that were completed, by the group of their key exchange.",
        counter tls_key_exchanges_secp384r1: "TLS handshakes that were completed, by the group of their key exchange.",
        counter tls_handshakes_failed_version: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_parameters: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_name: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_protocol: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_certificate: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_record: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_message: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_alert_received: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_left: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_timeout: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_flood: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_closed: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_failed_internal: "TLS handshakes that did not complete, by reason.",
        counter tls_handshakes_timeout: "TLS connections closed because their handshake took longer than tls.handshake_timeout.",
        counter tls_handshakes_refused: "TLS connections closed before their handshake began because no place was left.",
        counter tls_not_tls: "Connections to a TLS port whose first bytes are not a TLS record.",
        counter tls_alerts_sent_unexpected_message: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_bad_record_mac: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_record_overflow: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_handshake_failure: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_bad_certificate: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_unsupported_certificate: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_certificate_revoked: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_certificate_expired: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_certificate_unknown: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_illegal_parameter: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_unknown_ca: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_access_denied: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_decode_error: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_decrypt_error: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_protocol_version: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_internal_error: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_missing_extension: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_unsupported_extension: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_certificate_required: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_no_application_protocol: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_sent_other: "Fatal TLS alerts sent, by description (RFC 8446 section 6).",
        counter tls_alerts_received: "Fatal TLS alerts received.",
        counter tls_key_updates_received: "KeyUpdates received.",
        counter tls_key_updates_sent: "KeyUpdates sent.",
        counter tls_rekeys: "Of the KeyUpdates sent, those that this server began because half of the records that a key may seal were sealed.",
        counter tls_updates_refused: "TLS connections ended because of too many KeyUpdates or empty records without data between them.",
        counter node_tls_handshakes: "TLS connections that other nodes made to this one.",
        counter node_tls_handshakes_failed: "Connections to node.tls.listen that spoke no TLS, or whose other end did not trust our certificate.",
        counter node_tls_handshakes_timeout: "Connections to node.tls.listen cut because their handshake took too long.",
        counter node_tls_refused: "Connections to node.tls.listen closed before their handshake began because no place was left.",
        gauge node_tls_connections: "Connections to node.tls.listen, handshakes included.",
    }
}
