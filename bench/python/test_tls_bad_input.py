"""Bad input of TLS from outside, byte by byte: the alert that the peer reads, and the counters."""

import collections
import contextlib
import socket
import ssl

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from client_hello import alert_of, answer, block, client_hello
from tls_server import PATIENCE, TLS_PORTS, TlsServer, get

COUNTERS = [
    "tls_not_tls_total", "tls_handshakes_failed_total", "tls_alerts_sent_total", "tls_updates_refused_total",
    "admin_tls_not_tls_total",
]


def sent(alert):
    """The line of the metric for this alert, and the sum over all alerts."""
    return [f'tls_alerts_sent_total{{alert="{alert}"', "tls_alerts_sent_total"]


def failed(reason):
    """As above, for failed handshakes."""
    return [f'tls_handshakes_failed_total{{reason="{reason}"', "tls_handshakes_failed_total"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = TlsServer(tmp_path_factory.mktemp("server"))
    with server.running():
        yield server


@pytest.fixture(scope="module")
def counted():
    """Numbers that the counters must show after all tests here. The server publishes them once a second."""
    return collections.Counter(dict.fromkeys(COUNTERS, 0))


def address(server, port="endpoint"):
    return server.host, TLS_PORTS[port]


NOT_TLS = {
    "ssh": b"SSH-2.0-x\r\n",
    "ssl_2": b"\x80\x2e\x01\x03\x01",
    "record_too_large": b"\x16\x03\x01\x41\x01",
    "application_data": b"\x17\x03\x03\x00\x05",
    "wrong_major_version": b"\x16\x02\x01\x00\x05",
}


@pytest.mark.parametrize("port", TLS_PORTS)
@pytest.mark.parametrize("data", NOT_TLS.values(), ids=NOT_TLS)
def test_first_bytes_that_are_no_tls_get_alert_50(server, counted, port, data):
    assert alert_of(answer(address(server, port), data)) == 50
    # The admin listener counts no alerts.
    counted.update(["admin_tls_not_tls_total"] if port == "admin" else ["tls_not_tls_total", *sent("decode_error")])


@pytest.mark.parametrize("port", TLS_PORTS)
def test_plain_http_gets_one_400_that_names_https(server, counted, port):
    heard = answer(address(server, port), get(server).encode() * 2).decode()
    counted.update(["admin_tls_not_tls_total" if port == "admin" else "tls_not_tls_total"])
    assert heard.startswith("HTTP/1.1 400 Bad Request\r\n") and heard.count("HTTP/1.1") == 1, heard
    assert "https://" in heard.partition("\r\n\r\n")[2], heard


PART = client_hello()[:3] + b"\0\x14" + client_hello()[5:25]
HELLOS = {
    "tls_1_1": (70, "protocol_version", "version", client_hello(version=0x0302, versions=())),
    "tls_1_1_without_extensions": (
        70, "protocol_version", "version", client_hello(version=0x0302, versions=(), groups=(), shares=(), schemes=())),
    "no_common_suite": (40, "handshake_failure", "parameters", client_hello(suites=[0x1304])),
    "record_too_large_behind_a_part": (22, "record_overflow", "record", PART + b"\x16\3\1\x41\1"),
}


@pytest.mark.parametrize("number, alert, reason, hello", HELLOS.values(), ids=HELLOS)
def test_a_hello_that_is_refused_gets_its_alert(server, counted, number, alert, reason, hello):
    assert alert_of(answer(address(server), hello)) == number
    counted.update([*sent(alert), *failed(reason)])


def test_a_flight_of_more_than_16_kib_is_closed_without_an_answer(server, counted):
    # The head of a ClientHello of 64,000 bytes, in records of 8 KiB.
    part = b"\x16\3\1\x20\0"
    assert answer(address(server), part + b"\1\0\xfa\0" + bytes(8188) + 2 * (part + bytes(8192))) == b""
    counted.update(failed("flood"))


def test_without_a_place_a_connection_is_closed_before_its_handshake(tmp_path):
    full = TlsServer(tmp_path, shards=1, settings=["max_connections=4"])
    try:
        full.start()
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stream = stack.enter_context(socket.create_connection(address(full, "websocket"), timeout=PATIENCE))
                stream.sendall(client_hello())
                assert stream.recv(1) == b"\x16"
            assert answer(address(full, "websocket"), client_hello()) == b""
            full.wait_for_number("tls_handshakes_refused_total", 1)
            full.wait_for_number("accepts_refused_total", 1)
            assert full.number("tls_handshakes_failed_total") == 0
    finally:
        full.kill()


def expand(secret, label, length):
    """HKDF-Expand-Label without context (RFC 8446 section 7.1)."""
    info = length.to_bytes(2, "big") + block(b"tls13 " + label, 1) + b"\0"
    return HKDFExpand(hashes.SHA384(), length, info).derive(secret)


class Established:
    """A connection over which OpenSSL made the handshake. It reads; the test seals records itself."""

    def __init__(self, server, tmp_path):
        context = ssl.create_default_context(cafile=server.authority)
        context.keylog_filename = tmp_path / "keys"
        self.stream = socket.create_connection(address(server), timeout=PATIENCE)
        self.incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, outgoing, server_hostname=server.host)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.stream.sendall(outgoing.read())
                self.incoming.write(self.stream.recv(65536))
        self.stream.sendall(outgoing.read())
        assert self.tls.cipher()[0] == "TLS_AES_256_GCM_SHA384"
        lines = (line.split() for line in (tmp_path / "keys").read_text().splitlines())
        # The file has the lines of earlier connections, too.
        self.secret = [bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"][-1]
        self.sequence = 0

    def seal(self, inner):
        """One record with this inner plaintext, its type included (RFC 8446 section 5.2)."""
        iv, header = expand(self.secret, b"iv", 12), b"\x17\3\3" + (len(inner) + 16).to_bytes(2, "big")
        nonce = (int.from_bytes(iv, "big") ^ self.sequence).to_bytes(12, "big")
        self.sequence += 1
        return header + AESGCM(expand(self.secret, b"key", 32)).encrypt(nonce, inner, header)

    def key_update(self):
        """One record that announces the next key, which seals from then on."""
        record = self.seal(b"\x18\0\0\1\0\x16")
        self.secret, self.sequence = expand(self.secret, b"traffic upd", 48), 0
        return record

    def alert_for(self, data):
        """The alert that OpenSSL reads from the server's answer, and that must be its end."""
        self.stream.sendall(data)
        with self.stream, contextlib.suppress(ConnectionResetError):
            while piece := self.stream.recv(65536):
                self.incoming.write(piece)
        self.incoming.write_eof()
        with pytest.raises(ssl.SSLError) as raised:
            while self.tls.read(65536):
                pass
        return raised.value.reason


@pytest.fixture
def established(server, tmp_path):
    return Established(server, tmp_path)


def changed(record):
    return record[:-1] + bytes([record[-1] ^ 1])


def cut(record):
    return record[:3] + (len(record) - 6).to_bytes(2, "big") + record[5:-1]


# Alerts, as OpenSSL and the metric name them.
UNEXPECTED, BAD_MAC = "SSLV3_ALERT_UNEXPECTED_MESSAGE", "SSLV3_ALERT_BAD_RECORD_MAC"
OVERFLOW, ILLEGAL = "TLSV1_ALERT_RECORD_OVERFLOW", "SSLV3_ALERT_ILLEGAL_PARAMETER"
NAMES = {
    UNEXPECTED: "unexpected_message", BAD_MAC: "bad_record_mac", OVERFLOW: "record_overflow",
    ILLEGAL: "illegal_parameter",
}
# The start of a request, as the inner plaintext of a record.
DATA = b"GET /\x17"
RECORDS = {
    "changed": (BAD_MAC, lambda it: changed(it.seal(DATA))),
    "truncated": (BAD_MAC, lambda it: cut(it.seal(DATA))),
    "replayed": (BAD_MAC, lambda it: 2 * it.seal(DATA)),
    "reordered": (BAD_MAC, lambda it: b"".join(reversed([it.seal(DATA), it.seal(DATA)]))),
    "longer_than_the_bound": (OVERFLOW, lambda it: b"\x17\3\3\x41\1"),
    "plaintext_longer_than_the_bound": (OVERFLOW, lambda it: it.seal(bytes(16385) + b"\x17")),
    "unknown_type": (UNEXPECTED, lambda it: b"\x63\3\3\0\1\0"),
    "unknown_type_inside": (UNEXPECTED, lambda it: it.seal(b"\1\x63")),
    "heartbeat": (UNEXPECTED, lambda it: b"\x18\3\3\0\3\1\0\0"),
    "heartbeat_inside": (UNEXPECTED, lambda it: it.seal(b"\1\0\0\x18")),
    "change_cipher_spec": (UNEXPECTED, lambda it: b"\x14\3\3\0\1\1"),
    "no_inner_type": (UNEXPECTED, lambda it: it.seal(bytes(20))),
    "hello_in_the_clear": (UNEXPECTED, lambda it: client_hello()),
    "renegotiation": (UNEXPECTED, lambda it: it.seal(client_hello()[5:] + b"\x16")),
    "bytes_behind_a_key_update": (UNEXPECTED, lambda it: it.seal(b"\x18\0\0\1\0\x18\x16")),
    "key_update_2": (ILLEGAL, lambda it: it.seal(b"\x18\0\0\1\2\x16")),
}


@pytest.mark.parametrize("alert, records", RECORDS.values(), ids=RECORDS)
def test_a_record_that_breaks_a_rule_gets_its_alert(established, counted, alert, records):
    assert established.alert_for(records(established)) == alert
    counted.update(sent(NAMES[alert]))


def test_a_record_of_another_connection_gets_alert_20(server, established, counted, tmp_path):
    other = Established(server, tmp_path)
    with other.stream:
        assert established.alert_for(other.seal(DATA)) == BAD_MAC
    counted.update(sent(NAMES[BAD_MAC]))


@pytest.mark.parametrize("kind", ["key_updates", "empty_records"])
def test_more_than_32_records_without_data_get_alert_10(server, established, counted, kind):
    make = established.key_update if kind == "key_updates" else lambda: established.seal(b"\x17")
    # 32 are taken, and data begins a new count.
    taken = b"".join(make() for _ in range(32)) + established.seal(get(server).encode() + b"\x17")
    established.stream.sendall(taken)
    heard = b""
    while b"\r\n\r\n" not in heard:
        established.incoming.write(established.stream.recv(65536))
        with contextlib.suppress(ssl.SSLWantReadError):
            heard += established.tls.read(65536)
    assert heard.startswith(b"HTTP/1.1 200 "), heard
    assert established.alert_for(b"".join(make() for _ in range(33))) == UNEXPECTED
    counted.update([*sent(NAMES[UNEXPECTED]), "tls_updates_refused_total"])


def test_a_request_cut_by_the_end_of_the_socket_is_not_answered(server, tmp_path):
    head = f"POST /wpush/v2/unknown HTTP/1.1\r\nHost: {server.host}\r\nTTL: 0\r\nContent-Length: 10\r\n\r\n"
    request = head.encode() + bytes(10)
    answers = {}
    for sent in [40, len(head) - 1, len(head), len(request) - 1, len(request)]:
        established = Established(server, tmp_path)
        with established.stream as stream:
            stream.sendall(established.seal(request[:sent] + b"\x17"))
            # Without close_notify.
            stream.shutdown(socket.SHUT_WR)
            while piece := stream.recv(65536):
                established.incoming.write(piece)
        # Raises if the server's end has no close_notify.
        established.incoming.write_eof()
        answers[sent] = b"".join(iter(lambda: established.tls.read(65536), b""))
    assert answers.pop(len(request)).startswith(b"HTTP/1.1 404 "), answers
    assert not any(answers.values()), answers


def test_all_of_it_was_counted_once(server, counted):
    for name, number in counted.items():
        server.wait_for_number(name, number)
