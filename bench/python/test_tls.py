"""TLS of the server itself, with clients of others: openssl s_client, curl, websockets and pywebpush."""

import contextlib
import functools
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

import pytest

from browser import AppServer, Browser, exchange, trust
from openssl_agent import OpensslSocket
from tls_front import make_certificate
from tls_server import PATIENCE, TLS_PORTS, Client, TlsServer, get


@pytest.fixture
def server(tmp_path, monkeypatch):
    server = TlsServer(tmp_path)
    trust(monkeypatch, server.certificate)
    with server.running():
        yield server


@pytest.fixture
def client(server):
    """Makes clients, and ends them."""
    made = []

    def make(port, *options, **named):
        made.append(Client(server, port, *options, **named))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize("port", TLS_PORTS)
def test_every_port_speaks_tls_1_3_and_verifies(server, client, port):
    one = client(port, "-tls1_3", "-verify_ip", server.host)
    one.wait_for(rb"Verify return code: 0 \(ok\)")
    one.say(get(server))
    one.wait_for(rb"HTTP/1.1 200 OK")
    assert "TLSv1.3" in one.text()


def test_key_updates_of_both_kinds_are_taken_and_answered(server, client):
    # k sends one, K asks for one in return.
    one = client("websocket").wait_for(rb"Verify return code: 0")
    # The server has sent its ticket when it answers: one that it owes before that goes out with the ticket.
    one.say(get(server))
    one.wait_for(rb"HTTP/1.1 200 OK")
    for turn in range(1, 6):
        for count, command in enumerate("kKK", start=3 * turn - 2):
            one.say(command + "\n")
            one.wait_for(rb"KEYUPDATE", count)
        one.say(get(server))
        one.wait_for(rb"HTTP/1.1 200 OK", turn + 1)
    server.wait_for_number("tls_key_updates_received_total", 15)
    # One answers both that came before it (RFC 8446 section 4.6.3).
    server.wait_for_number("tls_key_updates_sent_total", 5)


def test_a_ticket_resumes_also_after_a_restart(server, client, tmp_path):
    session = tmp_path / "session.pem"
    one = client("websocket", "-sess_out", session, "-no_ign_eof")
    one.say(get(server))
    one.wait_for(rb"HTTP/1.1 200 OK")
    one.end()
    assert session.exists(), one.text()
    for port in ["websocket", "endpoint"]:
        again = client(port, "-sess_in", session)
        again.say(get(server))
        again.wait_for(rb"HTTP/1.1 200 OK").wait_for(rb"Reused, TLSv1.3")
    server.wait_for_number('tls_handshakes_total{version="1.3",kind="resumed"', 2)
    assert server.number('tls_handshakes_total{version="1.3",kind="full"') == 1
    # Its key is in the data directory.
    server.restart()
    client("websocket", "-sess_in", session).wait_for(rb"Reused, TLSv1.3")
    (server.directory / "data/keys/tickets").unlink()
    server.restart()
    client("websocket", "-sess_in", session).wait_for(rb"New, TLSv1.3")


def test_bytes_that_come_with_the_finished_are_served(server):
    """The request is in the segments of the client's last flight."""
    context = ssl.create_default_context(cafile=server.certificate)
    for pieces in [1, 7, 400]:
        with socket.create_connection((server.host, TLS_PORTS["endpoint"]), timeout=PATIENCE) as stream:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_hostname=server.host)
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    stream.sendall(outgoing.read())
                    incoming.write(stream.recv(65536))
            tls.write(get(server).encode())
            flight = outgoing.read()
            for at in range(0, len(flight), max(1, len(flight) // pieces)):
                stream.sendall(flight[at : at + max(1, len(flight) // pieces)])
            heard = b""
            while b"\r\n\r\n" not in heard:
                incoming.write(stream.recv(65536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    heard += tls.read(65536)
            assert heard.startswith(b"HTTP/1.1 200 "), heard


def test_curl_posts_and_websockets_receives(server, tmp_path):
    browser = Browser(server)
    endpoint = browser.subscribe()["endpoint"]
    assert endpoint.startswith(server.url("endpoint") + "/wpush/"), endpoint
    for length in [1, 4000]:
        body = tmp_path / "body"
        body.write_bytes(bytes(range(256)) * (length // 256 + 1))
        command = ["curl", "--silent", "--show-error", "--cacert", server.certificate, "--write-out", "%{http_code}"]
        command += ["--tlsv1.3", "-H", "TTL: 60", "-H", "Content-Encoding: aes128gcm", "--data-binary", f"@{body}"]
        answer = subprocess.run([*command, endpoint], capture_output=True, timeout=PATIENCE, text=True)
        assert (answer.returncode, answer.stdout[-3:]) == (0, "201"), answer
        browser.ack(browser.notification())
    assert browser.hears_nothing()


@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
@pytest.mark.parametrize("text", ["hello, page", "x" * 3000])
def test_pywebpush_sends_over_https_and_a_wss_browser_decrypts(server, encoding, text):
    browser = Browser(server)
    exchange(browser, AppServer(), text, encoding)
    assert browser.hears_nothing()


def test_tungstenite_over_openssl_receives(server):
    connect, sender = functools.partial(OpensslSocket, authority=server.certificate), AppServer()
    with contextlib.closing(Browser(server, connect=connect)) as agent:
        exchange(agent, sender, "\u00fc\u0436\u65e5" * 300)
    server.wait_for_number("sessions", 0)


def test_messages_that_waited_come_in_order_in_large_records(server):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    browser.close()
    texts = [f"{n} " + "x" * 3000 for n in range(40)]
    for text in texts:
        assert sender.push(subscription, text, ttl=3600).status_code == 201
    again = browser.again(server)
    for text in texts:
        notification = again.notification()
        assert again.decrypt(notification) == text
        again.tell_ack(notification)
    assert again.hears_nothing()


def test_a_large_message_of_the_client_is_read(server):
    """Several records and several receives for one WebSocket message."""
    browser = Browser(server)
    wanted = {f"tests/{'n' * 100}{n}": "v" for n in range(60)}
    browser.send(messageType="broadcast_subscribe", broadcasts=wanted)
    answer = browser.receive("broadcast")
    assert len(answer["broadcasts"]["errors"]) == 60


def test_sessions_stay_while_the_certificate_changes(server):
    browsers = [Browser(server) for _ in range(20)]
    before = ssl.get_server_certificate((server.host, TLS_PORTS["websocket"]))
    make_certificate(server.host, server.certificate, server.key)
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + PATIENCE
    while ssl.get_server_certificate((server.host, TLS_PORTS["websocket"])) == before:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)
    assert server.log().count("certificates taken") == 2, server.log()
    sender = AppServer()
    for browser in browsers:
        exchange(browser, sender)


def test_admin_pages_are_served_over_tls(server):
    context = ssl.create_default_context(cafile=server.certificate)
    url = f"https://{server.at('admin')}"
    for path in ["/health", "/metrics"]:
        with urllib.request.urlopen(url + path, timeout=PATIENCE, context=context) as answer:
            assert answer.status == 200
