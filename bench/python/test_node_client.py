"""Node.js at both ends over TLS: npm's ws receives over wss, npm's web-push sends over https."""

import contextlib
import functools

import pytest

from browser import Browser
from node_client import NodeSocket
from node_sender import NodeSender
from tls_server import TlsServer


@pytest.fixture
def server(tmp_path):
    server = TlsServer(tmp_path, has_authority=True)
    with server.running():
        yield server


@pytest.mark.parametrize("text", ["hello, page", "\u00fc\u0436\u65e5" * 300])
def test_ws_receives_over_wss_and_web_push_sends_over_https(server, text):
    connect, sender = functools.partial(NodeSocket, authority=server.authority), NodeSender(server.authority)
    with contextlib.closing(Browser(server, connect=connect)) as agent:
        subscription = agent.subscribe(sender.key)
        assert subscription["endpoint"].startswith(f"https://{server.at('endpoint')}/wpush/"), subscription
        answer = sender.push(subscription, text)
        assert answer["status"] == 201, answer
        notification = agent.notification()
        assert agent.decrypt(notification) == text
        agent.ack(notification)
        server.wait_for_number("acks_total", 1)
    server.wait_for_number("sessions", 0)
    # One of ws, one of web-push.
    server.wait_for_number("tls_handshakes_total", 2)
