//! Numbers of the reactor.

use machine::CloseReason;
use machine::counters;

counters! {
    /// Counters of one shard's connection plane. Own shard only; copied to the board about once a second.
    pub struct PlaneStats {
        gauge connections: "Connections of all ports.",
        gauge connections_max: "Connections the shard has room for, of all ports.",
        gauge endpoint_connections: "Connections of the endpoint and node ports.",
        counter accepts: "Connections accepted.",
        counter accepts_refused: "Connections answered 503 because no place was left for their port (max_connections).",
        counter accepts_dropped: "Refused connections, also by strangers.connections, that were closed without an answer because too many were being answered.",
        counter proxy_headers_refused: "Connections closed because their PROXY header was missing, malformed, late, or of a peer outside proxy.trusted.",
        counter accept_errors: "Accepts that failed.",
        counter accept_ring_changes: "Times accepting moved to another ring.",
        counter dealt_out: "Endpoint connections given to a less loaded shard.",
        counter dealt_in: "Endpoint connections taken over from another shard.",
        counter handed_over: "Connections of app servers on a public port handed over to a less loaded shard after their first request.",
        counter sockets_sent: "Sockets sent to the ring of their owner.",
        counter sockets_received: "Sockets that came from the rings of others.",
        counter sockets_kept: "Sockets that the ring of their owner did not take.",
        counter receives: "Receives that brought bytes.",
        counter received_bytes: "Bytes received.",
        counter receives_starved: "Receives, and questions for the address of a peer, that waited for a free span.",
        gauge sessions_waiting: "Sessions whose bytes wait unread while others are read.",
        gauge newcomers_waiting: "Connections that wait unread for their upgrade or a step of their TLS handshake.",
        counter input_refused: "Connections ended because those of the shard held too much unfinished input.",
        counter input_evicted: "Connections ended because their unfinished input was the oldest and memory was tight.",
        counter commands: "Requests decoded.",
        counter sends: "Sends submitted.",
        counter sent_bytes: "Bytes handed to sends.",
        counter sends_short: "Sends of which the socket did not take everything.",
        counter unsent_notifications: "Notifications given back because a socket was blocked.",
        counter goodbyes: "Connections ended by us with last words.",
        counter goodbyes_cut: "Goodbyes whose peer did not hear them out in time.",
        counter peers_gone: "Connections that peers closed or reset.",
        counter closes: "Slots closed.",
        counter idle_closes: "HTTP connections ended because they were slow or idle.",
        counter idle_evicted: "HTTP connections ended because they were idle and another one needed their place.",
        counter stuck_closes: "WebSockets ended because a message stayed unfinished or the socket took no bytes.",
        counter turns: "Turns of the loop.",
        counter enters: "Visits of rings.",
        counter parks: "Times the shard slept.",
        counter warm_parks: "Of those, times it slept in its hub, since it is woken all the time.",
        gauge side_entries: "Connections with bytes waiting or a move under way.",
        gauge side_bytes: "Bytes of memory for those.",
        gauge unfinished_bytes: "Of those, memory for bytes that were received and not decoded.",
        gauge unfinished_websocket_bytes: "Of those, memory for connections of the WebSocket port.",
        gauge unfinished_endpoint_bytes: "Of those, memory for connections of the endpoint port.",
        gauge unfinished_node_bytes: "Of those, memory for connections of the node port.",
        gauge slab_bytes: "Bytes of memory for the slab of connections.",
    }
}

counters! {
    /// Connections that the shard ended, by reason.
    pub struct CloseStats {
        counter close_handshake_timeout: "No hello in time.",
        counter close_pong_timeout: "No Pong in time.",
        counter close_message_timeout: "A message was begun and not finished in time.",
        counter close_not_reading: "The socket took no byte for the ping timeout.",
        counter close_wrong_state: "A message the state does not allow.",
        counter close_bad_message: "A message that is not understood.",
        counter close_unsupported: "A frame that is not text.",
        counter close_protocol_error: "A frame that RFC 6455 forbids.",
        counter close_bad_text: "Text that is not UTF-8.",
        counter close_too_big: "A message beyond the size limit.",
        counter close_ping_too_soon: "Pings more often than allowed.",
        counter close_idled_out: "SimplePush: idle, and to be woken when there is an update.",
        counter close_superseded: "A newer session of the user agent.",
        counter close_elsewhere: "The user agent is on another node.",
        counter close_storage_down: "Storage could not say who it is.",
        counter close_overloaded: "Something is full.",
        counter close_move_failed: "The socket could not be moved to its owner.",
        counter close_budget_exhausted: "A budget of the session is used up.",
        counter close_address_limit: "The address of the caller reached one of strangers.*.",
        counter close_reset: "The user was dropped.",
        counter close_draining: "The server is going away.",
        counter close_peer_closed: "The peer said goodbye.",
        counter close_finished: "An HTTP exchange was complete.",
        counter close_idle: "HTTP: too slow or idle too long.",
        counter close_said: "The edge had said it.",
        counter close_tls_failed: "The peer broke a rule of TLS.",
    }
}

impl CloseStats {
    pub(super) fn count(&mut self, reason: CloseReason) {
        let counter = match reason {
            CloseReason::HandshakeTimeout => &mut self.close_handshake_timeout,
            CloseReason::PongTimeout => &mut self.close_pong_timeout,
            CloseReason::MessageTimeout => &mut self.close_message_timeout,
            CloseReason::NotReading => &mut self.close_not_reading,
            CloseReason::WrongState => &mut self.close_wrong_state,
            CloseReason::BadMessage => &mut self.close_bad_message,
            CloseReason::Unsupported => &mut self.close_unsupported,
            CloseReason::ProtocolError => &mut self.close_protocol_error,
            CloseReason::BadText => &mut self.close_bad_text,
            CloseReason::TooBig => &mut self.close_too_big,
            CloseReason::PingTooSoon => &mut self.close_ping_too_soon,
            CloseReason::IdledOut => &mut self.close_idled_out,
            CloseReason::Superseded => &mut self.close_superseded,
            CloseReason::Elsewhere => &mut self.close_elsewhere,
            CloseReason::StorageDown => &mut self.close_storage_down,
            CloseReason::Overloaded => &mut self.close_overloaded,
            CloseReason::MoveFailed => &mut self.close_move_failed,
            CloseReason::BudgetExhausted => &mut self.close_budget_exhausted,
            CloseReason::AddressLimit => &mut self.close_address_limit,
            CloseReason::Reset => &mut self.close_reset,
            CloseReason::Draining => &mut self.close_draining,
            CloseReason::PeerClosed => &mut self.close_peer_closed,
            CloseReason::Finished => &mut self.close_finished,
            CloseReason::Idle => &mut self.close_idle,
            CloseReason::Said => &mut self.close_said,
            CloseReason::TlsFailed => &mut self.close_tls_failed,
        };
        *counter += 1;
    }
}
