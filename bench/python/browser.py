"""A browser and a page as the published Python libraries see them: websockets, pywebpush, http_ece, cryptography."""

import base64
import contextlib
import json
import os
import uuid

import http_ece
import py_vapid
import pywebpush
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.sync.client import connect

# Longest wait for what must come: a host that has other things to do is no fault of the server.
PATIENCE = 60


def encoded(raw):
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decoded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def uncompressed(public_key):
    return public_key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def trust(monkeypatch, authorities):
    """Makes clients trust the authorities of a PEM file."""
    # ssl reads the first, requests (which pywebpush uses) the second.
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authorities))


class AppServer:
    """Whoever sends: a VAPID key pair."""

    def __init__(self):
        self.vapid = py_vapid.Vapid02()
        self.vapid.generate_keys()
        self.key = encoded(uncompressed(self.vapid.public_key))

    def push(self, subscription, text, ttl=60, encoding="aes128gcm", claims=None, headers=None):
        """POSTs `text` (None: no body) with pywebpush and returns the response, whatever its status."""
        claims = {"sub": "mailto:tests@example.com"} if claims is None else claims
        try:
            return pywebpush.webpush(
                subscription,
                data=text,
                vapid_private_key=self.vapid,
                vapid_claims=claims,
                content_encoding=encoding,
                ttl=ttl,
                headers=headers,
                timeout=PATIENCE,
            )
        except pywebpush.WebPushException as error:
            assert error.response is not None, error
            return error.response


def opened(address, **options):
    """A connection. The two threads of websockets use one object of OpenSSL, which is not made for that: of some hundred
    connections over TLS one never sends its request, so such a connection is tried again."""
    tries = 3 if address.startswith("wss:") else 1
    while True:
        tries -= 1
        try:
            timeout = PATIENCE / (1 + tries)
            return connect(address, subprotocols=["push-notification"], open_timeout=timeout, **options)
        except TimeoutError:
            if tries == 0:
                raise


class Browser:
    """One user agent with one page. `connect` makes its connection; by default websockets does."""

    def __init__(self, server, uaid=None, connect=opened):
        self.open = contextlib.ExitStack()
        self.socket = self.open.enter_context(connect(server.url("websocket")))
        self.private_key = ec.generate_private_key(ec.SECP256R1())
        self.auth = os.urandom(16)
        self.send(messageType="hello", use_webpush=True, uaid=uaid or "", broadcasts={})
        hello = self.receive("hello")
        assert hello["status"] == 200
        self.uaid = hello["uaid"]

    def send(self, **message):
        self.socket.send(json.dumps(message))

    def receive(self, kind=None, timeout=PATIENCE):
        message = json.loads(self.socket.recv(timeout=timeout))
        assert kind is None or message.get("messageType") == kind, message
        return message

    def subscribe(self, key=None):
        """Registers a channel; the result is what a page hands to its app server."""
        channel = str(uuid.uuid4())
        message = {"messageType": "register", "channelID": channel}
        if key:
            message["key"] = key
        self.send(**message)
        answer = self.receive("register")
        assert (answer["status"], answer["channelID"]) == (200, channel), answer
        keys = {"p256dh": encoded(uncompressed(self.private_key.public_key())), "auth": encoded(self.auth)}
        return {"endpoint": answer["pushEndpoint"], "keys": keys}

    def unregister(self, channel):
        self.send(messageType="unregister", channelID=channel, code=200)
        assert self.receive("unregister")["status"] == 200

    def again(self, server):
        """The same user agent with a new connection: the same UAID, the same keys."""
        browser = Browser(server, self.uaid)
        assert browser.uaid == self.uaid
        browser.private_key, browser.auth = self.private_key, self.auth
        return browser

    def notification(self):
        return self.receive("notification")

    def decrypt(self, notification):
        """The clear text, by http_ece, from what Firefox would get."""
        body, headers = decoded(notification["data"]), notification["headers"]
        if headers["encoding"] == "aes128gcm":
            clear = http_ece.decrypt(body, private_key=self.private_key, auth_secret=self.auth)
        else:
            clear = http_ece.decrypt(
                body,
                salt=decoded(parameter(headers["encryption"], "salt")),
                private_key=self.private_key,
                dh=decoded(parameter(headers["crypto_key"], "dh")),
                auth_secret=self.auth,
                version="aesgcm",
            )
        return clear.decode()

    def ack(self, *notifications, code=100):
        """Acks, and returns when the server has dealt with it. Nothing else may be under way."""
        self.tell_ack(*notifications, code=code)
        # An unknown broadcast is always answered, after what was sent before it.
        self.send(messageType="broadcast_subscribe", broadcasts={"tests/none": "v"})
        self.receive("broadcast")

    def tell_ack(self, *notifications, code=100):
        updates = [{"channelID": n["channelID"], "version": n["version"], "code": code} for n in notifications]
        self.send(messageType="ack", updates=updates)

    def hears_nothing(self, seconds=0.4):
        try:
            heard = self.socket.recv(timeout=seconds)
        except TimeoutError:
            return True
        raise AssertionError(f"silence was expected, got {heard}")

    def close(self):
        self.open.close()


def exchange(browser, sender, text="hello", encoding="aes128gcm"):
    """Sends a text to a new subscription of a browser, which decrypts and acks it."""
    response = sender.push(browser.subscribe(sender.key), text, encoding=encoding)
    assert response.status_code == 201, response.text
    notification = browser.notification()
    assert notification["headers"]["encoding"] == encoding
    assert browser.decrypt(notification) == text
    assert response.headers["location"].endswith("/m/" + notification["version"])
    browser.ack(notification)


def parameter(header, name):
    """One value of a Crypto-Key or Encryption header."""
    for section in header.split(","):
        for item in section.split(";"):
            key, _, value = item.strip().partition("=")
            if key == name:
                return value
    raise AssertionError(f"no {name} in {header}")
