//! The requirements, in the order in which they are asked.

use super::answer::{Answer, Level};
use super::subject::Subject;
use super::{content, frames, mailbox, messages, push, vapid};

/// One requirement.
pub struct Requirement {
    pub id: &'static str,
    pub level: Level,
    /// Document and section, or a row of docs/PROTOCOL.md.
    pub citation: &'static str,
    pub sentence: &'static str,
    /// Asks the server.
    pub(super) check: fn(&Subject) -> Answer,
}

const fn must(
    id: &'static str,
    citation: &'static str,
    sentence: &'static str,
    check: fn(&Subject) -> Answer,
) -> Requirement {
    Requirement { id, level: Level::Must, citation, sentence, check }
}

const fn should(
    id: &'static str,
    citation: &'static str,
    sentence: &'static str,
    check: fn(&Subject) -> Answer,
) -> Requirement {
    Requirement { id, level: Level::Should, citation, sentence, check }
}

/// All requirements.
#[rustfmt::skip]
pub static REQUIREMENTS: &[Requirement] = &[
    must("WS-ACCEPT", "RFC 6455 section 4.2.2",
        "Sec-WebSocket-Accept is made from the key of the request.", frames::accept),
    must("WS-NOTHING-UNASKED", "RFC 6455 section 4.2.2",
        "The server names no extension and no sub-protocol that was not offered.", frames::nothing_unasked),
    must("WS-KEY-REQUIRED", "RFC 6455 section 4.2.1",
        "An upgrade without Sec-WebSocket-Key is refused.", frames::key_required),
    must("WS-VERSION", "RFC 6455 section 4.2.2",
        "Another version is refused, and the refusal names version 13.", frames::version),
    must("WS-NOT-MASKED", "RFC 6455 section 5.1", "The server masks no frame.", frames::not_masked_by_server),
    must("WS-UNMASKED", "RFC 6455 section 5.1", "A frame that is not masked ends the connection.", frames::unmasked),
    should("WS-UNMASKED-CODE", "RFC 6455 section 5.1",
        "A frame that is not masked is answered with close code 1002.", frames::unmasked_code),
    must("WS-FRAGMENTS", "RFC 6455 section 5.4", "A fragmented text is read as one message.", frames::fragments),
    must("WS-PING-BETWEEN", "RFC 6455 section 5.4",
        "A ping between fragments is answered.", frames::ping_between_fragments),
    must("WS-CONTINUATION", "RFC 6455 section 5.4",
        "A continuation without a beginning ends the connection.", frames::stray_continuation),
    must("WS-PONG", "RFC 6455 section 5.5.3", "A ping is answered by a pong with the same bytes.", frames::pong),
    must("WS-UNASKED-PONG", "RFC 6455 section 5.5.3", "A pong without a ping changes nothing.", frames::unasked_pong),
    must("WS-CLOSE", "RFC 6455 section 5.5.1",
        "A close frame is answered with a close frame.", frames::close_answered),
    should("WS-CLOSE-CODE", "RFC 6455 section 5.5.1",
        "The answer to a close frame has its code.", frames::close_code_echoed),
    should("WS-CLOSE-TCP", "RFC 6455 section 7.1.1",
        "After the closing handshake the server ends the TCP connection.", frames::server_ends_tcp),
    should("WS-CLOSE-BAD", "RFC 6455 section 7.4.1",
        "A close frame with the reserved code 1005 is answered with 1002.", frames::bad_close_code),
    must("WS-RESERVED-BITS", "RFC 6455 section 5.2",
        "A reserved bit without an extension ends the connection.", frames::reserved_bits),
    must("WS-OPCODE", "RFC 6455 section 5.2", "An unknown opcode ends the connection.", frames::reserved_opcode),
    must("WS-CONTROL-LENGTH", "RFC 6455 section 5.5",
        "A control frame of more than 125 bytes ends the connection.", frames::long_control_frame),
    must("WS-CONTROL-FRAGMENT", "RFC 6455 section 5.5",
        "A fragmented control frame ends the connection.", frames::fragmented_control_frame),
    must("WS-UTF8", "RFC 6455 section 8.1", "A text that is not UTF-8 ends the connection.", frames::not_utf8),
    should("WS-UTF8-CODE", "RFC 6455 section 7.4.1",
        "A text that is not UTF-8 is answered with close code 1007.", frames::not_utf8_code),
    should("WS-BINARY", "RFC 6455 section 7.4.1",
        "A binary message is answered with close code 1003.", frames::binary),
    should("WS-TOO-LONG", "RFC 6455 section 10.4", "A message of 4 MiB ends the connection.", frames::too_long),
    should("WS-SERVER-PING", "RFC 6455 section 5.5.2",
        "The server finds dead connections by pings.", content::server_ping),
    must("MOZ-SUB-PROTOCOL", "docs/PROTOCOL.md WS-UPGRADE-3",
        "The sub-protocol push-notification is echoed if it is offered.", frames::sub_protocol),
    must("MOZ-HELLO", "docs/PROTOCOL.md WS-HELLO-5",
        "The first text answers hello with status 200, a UAID and use_webpush.", messages::hello_reply),
    should("MOZ-HELLO-BROADCASTS", "docs/PROTOCOL.md WS-HELLO-5",
        "The reply to hello has an object of broadcasts.", messages::hello_broadcasts),
    must("MOZ-HELLO-PHONES", "docs/PROTOCOL.md WS-CLIENT-1",
        "A hello without use_webpush and with uaid null, or without it, is answered.", messages::hello_of_phones),
    must("MOZ-UAID-KNOWN", "docs/PROTOCOL.md WS-HELLO-4", "A known UAID is kept.", messages::known_uaid),
    must("MOZ-UAID-UNKNOWN", "docs/PROTOCOL.md WS-HELLO-4", "An unknown UAID is replaced.", messages::unknown_uaid),
    must("MOZ-HELLO-TWICE", "docs/PROTOCOL.md WS-HELLO-1",
        "A second hello ends the connection.", messages::second_hello),
    must("MOZ-HELLO-FIRST", "docs/PROTOCOL.md WS-HELLO-1",
        "A message before hello ends the connection.", messages::hello_first),
    must("MOZ-BAD-JSON", "docs/PROTOCOL.md WS-CLOSE-6",
        "A text that is not JSON ends the connection.", messages::bad_json),
    should("MOZ-UNKNOWN-TYPE", "docs/PROTOCOL.md WS-MSG-4",
        "An unknown messageType ends the connection.", messages::unknown_type),
    must("MOZ-REGISTER", "docs/PROTOCOL.md WS-REPLY-1",
        "The reply to register has its channelID, status 200 and pushEndpoint.", messages::register_reply),
    must("MOZ-REGISTER-AGAIN", "docs/PROTOCOL.md WS-REG-2",
        "A second register of a channel is answered, and both endpoints reach the channel.", messages::register_again),
    must("MOZ-KEY-REPLACED", "docs/PROTOCOL.md WS-REG-1",
        "A second register with another key gives an endpoint for that key.", messages::key_replaced),
    should("MOZ-BAD-KEY", "docs/PROTOCOL.md WS-REG-3",
        "A register with a key that is no point on P-256 is refused.", messages::bad_key),
    must("MOZ-UNREGISTER", "docs/PROTOCOL.md WS-UNREG-1",
        "An unregister without code is answered with its channelID and status 200.", messages::unregister_reply),
    should("MOZ-UNREGISTER-UNKNOWN", "docs/PROTOCOL.md WS-UNREG-1",
        "An unregister of an unknown channel is answered with status 200.", messages::unregister_unknown),
    must("MOZ-NOTIFICATION", "docs/PROTOCOL.md WS-NOTIF-1",
        "A notification has channelID, version, data and headers with the encoding.", mailbox::fields),
    must("MOZ-NO-BODY", "docs/PROTOCOL.md WS-NOTIF-1",
        "A notification of a POST without a body has no data.", mailbox::without_body),
    must("MOZ-VERSIONS", "docs/PROTOCOL.md WP-ID-1", "Two messages have two versions.", mailbox::versions_differ),
    must("MOZ-ACK", "docs/PROTOCOL.md WS-ACK-2", "An acked message does not come again.", mailbox::ack),
    must("MOZ-ACK-NO-CODE", "docs/PROTOCOL.md WS-ACK-1", "An ack without code counts.", mailbox::ack_without_code),
    should("MOZ-ACK-LATER", "docs/PROTOCOL.md WS-CLIENT-5",
        "An ack on a later connection counts.", mailbox::ack_of_an_earlier_connection),
    must("MOZ-UNACKED", "docs/PROTOCOL.md WP-ID-1",
        "An unacked message comes again, with its version, after a reconnect.", mailbox::unacked_again),
    should("MOZ-NOT-TWICE", "docs/PROTOCOL.md WS-CLIENT-6",
        "A message is not repeated at once on a live connection.", mailbox::not_twice),
    should("MOZ-ORDER", "docs/PROTOCOL.md WS-CLIENT-2",
        "Stored messages follow hello in their order, without an ack.", mailbox::in_order),
    should("MOZ-NACK", "docs/PROTOCOL.md WS-NACK-1", "A nack does not disturb the session.", messages::nack),
    must("MOZ-PING", "docs/PROTOCOL.md WS-PING-1", "A ping {} is answered {}.", messages::empty_ping),
    should("MOZ-PING-NAMED", "docs/PROTOCOL.md WS-PING-1",
        "A message of type ping is answered {}.", messages::named_ping),
    should("MOZ-BROADCAST", "docs/PROTOCOL.md WS-BCAST-1",
        "A subscription to an unknown broadcast is answered with an error for its id.", messages::unknown_broadcast),
    must("PUSH-CREATED", "RFC 8030 section 5", "A POST is answered 201 with a Location of its own.", push::created),
    must("PUSH-TTL-REQUIRED", "RFC 8030 section 5.2", "A POST without TTL is answered 400.", push::ttl_required),
    should("PUSH-TTL-NUMBER", "RFC 8030 section 5.2",
        "A TTL that is no number is answered 400.", push::ttl_is_a_number),
    must("PUSH-TTL-NOT-RAISED", "RFC 8030 section 5.2",
        "The TTL of the response is not above that of the request.", push::ttl_not_raised),
    must("PUSH-TTL-ZERO", "RFC 8030 section 5.2",
        "A message with TTL 0 is not delivered to a user agent that comes later.", mailbox::ttl_zero_dropped),
    should("PUSH-TTL-ZERO-NOW", "RFC 8030 section 5.2",
        "A message with TTL 0 is delivered to a connected user agent.", mailbox::ttl_zero_delivered),
    must("PUSH-EXPIRES", "RFC 8030 section 5.2", "A message is not delivered after its TTL.", mailbox::expires),
    must("PUSH-STORED", "RFC 8030 section 5.2",
        "A message for an absent user agent is delivered at its next hello.", mailbox::stored),
    must("PUSH-URGENCY", "RFC 8030 section 5.3", "The four words of Urgency are accepted.", push::urgency_words),
    must("PUSH-URGENCY-SEVERAL", "RFC 8030 section 5.3",
        "Several values of Urgency are answered 400.", push::urgency_several),
    should("PUSH-URGENCY-UNKNOWN", "RFC 8030 section 5.3",
        "Another word of Urgency is answered 400.", push::urgency_unknown),
    must("PUSH-TOPIC", "RFC 8030 section 5.4",
        "A newer message of a topic replaces the older one.", mailbox::topic_replaces),
    must("PUSH-TOPIC-OTHER", "RFC 8030 section 5.4",
        "Messages of another topic, or without one, stay.", mailbox::other_topic_stays),
    must("PUSH-TOPIC-LENGTH", "RFC 8030 section 5.4",
        "A Topic of 32 characters is accepted, one of 33 is answered 400.", push::topic_length),
    must("PUSH-TOPIC-ALPHABET", "RFC 8030 section 5.4",
        "A Topic outside of the base64url alphabet is answered 400.", push::topic_alphabet),
    should("PUSH-DELETE", "docs/PROTOCOL.md WP-DEL-1",
        "A message whose URL was deleted is not delivered.", mailbox::deleted),
    should("PUSH-RECEIPT", "RFC 8030 section 5.1",
        "A request for a receipt that is taken is answered 202 with a Link to the receipt.", push::receipt),
    must("PUSH-4096", "RFC 8030 section 7.2",
        "A body of 4,096 bytes is accepted and delivered whole.", push::body_of_4096),
    must("PUSH-TOO-LARGE", "RFC 8030 section 7.2",
        "A body of 20,000 bytes is answered 413 or delivered whole.", push::large_body),
    must("PUSH-GONE", "RFC 8030 section 7.3",
        "A POST to an unregistered subscription is answered 404 or 410.", push::gone),
    must("PUSH-EXPIRED", "RFC 8030 section 7.3",
        "A POST to an expired subscription is answered 404.", content::expired_subscription),
    must("PUSH-NEVER-ISSUED", "RFC 8030 section 8.3",
        "A POST to a changed endpoint URL is refused.", push::never_issued),
    must("PUSH-URLS", "RFC 8030 section 8.2",
        "Endpoint URLs of one user agent do not show that they belong together.", push::urls_differ),
    must("PUSH-HTTPS", "RFC 8030 section 8", "Endpoint URLs use https.", push::https),
    should("PUSH-429", "RFC 8030 section 8.4",
        "A sender beyond its rate is answered 429 with Retry-After.", content::too_many_requests),
    must("PUSH-HTTP2", "RFC 8030 section 6",
        "A user agent receives messages by HTTP/2 server push.", content::http_2),
    must("HTTP-CHUNKED", "RFC 9112 section 7.1", "A body in chunks is delivered whole.", push::chunked),
    must("HTTP-HOST", "RFC 9112 section 3.2", "A request without Host is answered 400.", push::host_required),
    must("HTTP-ALLOW", "RFC 9110 section 15.5.6", "A 405 of an endpoint names POST in Allow.", push::allowed_methods),
    must("VAPID-GOOD", "RFC 8292 section 4.2", "A locked subscription accepts a token of its key.", vapid::good),
    should("VAPID-UNLOCKED", "RFC 8292 section 2",
        "A subscription without a key accepts a good token.", vapid::unlocked),
    must("VAPID-MISSING", "RFC 8292 section 4.2",
        "A locked subscription refuses a POST without a token.", vapid::missing),
    should("VAPID-MISSING-401", "RFC 8292 section 4.2",
        "A locked subscription answers a POST without a token 401.", vapid::missing_status),
    must("VAPID-CHALLENGE", "RFC 9110 section 15.5.2", "A 401 has WWW-Authenticate.", vapid::challenge),
    must("VAPID-OTHER-KEY", "RFC 8292 section 4.2",
        "A locked subscription refuses a token of another key.", vapid::other_key),
    must("VAPID-SIGNATURE", "RFC 8292 section 4.2",
        "A locked subscription refuses a token with a wrong signature.", vapid::changed_signature),
    must("VAPID-NO-KEY", "RFC 8292 section 4.2",
        "A locked subscription refuses a token without its key.", vapid::key_missing),
    must("VAPID-EXPIRED", "RFC 8292 section 4.2", "A locked subscription refuses an expired token.", vapid::expired),
    must("VAPID-FAR", "RFC 8292 section 4.2",
        "A locked subscription refuses a token that is good for more than 24 hours.", vapid::far_future),
    must("VAPID-AUDIENCE", "RFC 8292 section 4.2",
        "A locked subscription refuses a token for another origin.", vapid::other_audience),
    should("VAPID-ONE-KEY", "RFC 8292 section 3.2",
        "A message whose key agreement uses the key of the token is answered 400.", vapid::one_key_for_both),
    must("CONTENT-DECRYPTS", "RFC 8291 section 4",
        "An encrypted message arrives unchanged and decrypts.", content::decrypts),
    should("CONTENT-ENCODING", "RFC 8291 section 4",
        "A body without Content-Encoding is refused.", content::encoding_required),
    should("CONTENT-UNKNOWN", "RFC 8291 section 4",
        "A body of an unknown Content-Encoding is refused.", content::encoding_unknown),
    should("CONTENT-AESGCM", "docs/PROTOCOL.md WP-ENC-3",
        "A message of the older encoding aesgcm arrives with its salt and key.", content::old_encoding),
    must("UP-BYTES", "UnifiedPush SERV_1.2.0, Push",
        "The notification has exactly the bytes of the POST.", content::every_byte),
    must("UP-NO-VAPID", "UnifiedPush SERV_1.2.0, Push",
        "A POST without VAPID is answered 201 if the subscription is not locked.", content::without_identity),
    must("UP-URL", "UnifiedPush SERV_1.2.0, Endpoint",
        "An endpoint URL has at most 1,000 bytes.", content::url_length),
    should("UP-TTL", "UnifiedPush SERV_1.2.0, Push",
        "The 201 names a TTL (that text asks for TTL 0, RFC 8030 for the real one).", push::ttl_told),
    should("UP-DISCOVERY", "UnifiedPush SERV_1.2.0, Discovery",
        "GET of an endpoint URL tells the version (a MUST that later revisions of that text dropped).", content::discovery),
    should("UP-UNGUESSABLE", "UnifiedPush SERV_1.2.0, Endpoint",
        "An endpoint URL cannot be guessed.", content::unguessable),
];

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| id | level | citation | requirement |\n|---|---|---|---|\n";

    fn markdown() -> String {
        let row = |row: &Requirement| {
            format!("| `{}` | {} | {} | {} |\n", row.id, row.level.word(), row.citation, row.sentence)
        };
        HEAD.to_owned() + &REQUIREMENTS.iter().map(row).collect::<String>()
    }

    /// With `WRITE_DOCS` in the environment it writes the table instead.
    #[test]
    fn the_table_of_conformance_is_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CONFORMANCE.md");
        let document = std::fs::read_to_string(path).unwrap();
        let (before, rest) = document.split_once(HEAD).unwrap();
        let after = rest.split_once("\n\n").map_or("", |(_, after)| after);
        let wanted = format!("{before}{}\n{after}", markdown());
        if std::env::var_os("WRITE_DOCS").is_some() {
            std::fs::write(path, wanted).unwrap();
        } else {
            let said = "docs/CONFORMANCE.md is out of date: WRITE_DOCS=1 cargo test the_table_of_conformance";
            assert!(document == wanted, "{said}");
        }
    }

    #[test]
    fn every_id_is_there_once() {
        let mut ids: Vec<&str> = REQUIREMENTS.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]), "{ids:?}");
    }

    #[test]
    fn every_cited_row_of_the_protocol_exists() {
        let protocol = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/PROTOCOL.md")).unwrap();
        for row in REQUIREMENTS {
            if let Some(id) = row.citation.strip_prefix("docs/PROTOCOL.md ") {
                assert!(protocol.contains(&format!("| {id} |")), "{}: {id}", row.id);
            }
        }
    }
}
