"""npm's web-push sends, through TLS as in production; a Python user agent receives and decrypts."""

import json

import pytest

from browser import Browser
from conftest import PORTS, Server
from node_sender import NodeSender
from tls_front import TlsFront

TLS_PORT = 8443
TEXTS = ["hello, page", "\u00fc\u0436\u65e5" * 300]


@pytest.fixture
def server(tmp_path):
    """A server whose endpoint URLs lead to the TLS front."""
    server = Server(tmp_path)
    server.settings.append(f"endpoint.url=https://{server.host}:{TLS_PORT}")
    with server.running():
        yield server


@pytest.fixture
def sender(server, tmp_path):
    front = TlsFront((server.host, TLS_PORT), (server.host, PORTS["endpoint"]), tmp_path)
    try:
        yield NodeSender(front.certificate)
    finally:
        front.close()


@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_message_of_web_push_arrives_and_decrypts(server, sender, encoding, text):
    browser = Browser(server)
    subscription = browser.subscribe(sender.key)
    assert subscription["endpoint"].startswith(f"https://{server.host}:{TLS_PORT}/wpush/")
    answer = sender.push(subscription, text, encoding=encoding)
    assert answer["status"] == 201, answer
    notification = browser.notification()
    assert notification["headers"]["encoding"] == encoding
    assert browser.decrypt(notification) == text
    assert answer["headers"]["location"].endswith("/m/" + notification["version"])
    browser.ack(notification)
    assert browser.hears_nothing()


@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
def test_web_push_needs_no_key_where_none_was_registered(server, sender, encoding):
    browser = Browser(server)
    subscription = browser.subscribe()
    assert sender.push(subscription, "unsigned", encoding=encoding, signed=False)["status"] == 201
    assert browser.decrypt(browser.notification()) == "unsigned"


def test_web_push_sends_without_body(server, sender):
    browser = Browser(server)
    assert sender.push(browser.subscribe(sender.key), None)["status"] == 201
    assert {"data", "headers"}.isdisjoint(browser.notification())


def test_options_of_web_push_are_heeded(server, sender):
    browser = Browser(server)
    subscription = browser.subscribe(sender.key)
    browser.close()
    for text in ["old", "new"]:
        answer = sender.push(subscription, text, topic="score", urgency="high", TTL=40 * 24 * 3600)
        assert (answer["status"], answer["headers"]["ttl"]) == (201, str(30 * 24 * 3600)), answer
    again = browser.again(server)
    assert again.decrypt(again.notification()) == "new"
    assert again.hears_nothing()


def test_web_push_is_told_what_is_wrong(server, sender, tmp_path):
    browser, stranger = Browser(server), NodeSender(tmp_path / "certificate.pem")
    subscription = browser.subscribe(sender.key)
    refused = stranger.push(subscription, "let me in")
    assert (refused["status"], json.loads(refused["body"])["errno"]) == (401, 109)
    assert sender.push(subscription, "first")["status"] == 201
    browser.unregister(browser.notification()["channelID"])
    gone = sender.push(subscription, "second")
    assert (gone["status"], json.loads(gone["body"])["errno"]) == (410, 106)
