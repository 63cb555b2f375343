"""Plays the habits of published clients against a running server, byte for byte.

Each client has a file of scripts beside this one. A file has the public sources of its bytes, the head of the client's
handshake, and scripts of one step a line. Words that begin with `$` are names. In a text that is sent, a name stands
for its value: `$key_a` is the VAPID key of app server `a`, `$padded_a` the same with padding, and an unknown name that
begins with `$channel` is a fresh channel id. In an expected text, an unknown name takes the value that comes, and a
known one must come again; "*" stands for any text. An expected object has exactly the fields that it names.

| step | meaning |
|---|---|
| `connect` | ends the connection that there is, and upgrades a new one with the head of the client |
| `answer NAME VALUE` | the 101 has this field; `-` is no such field |
| `> TEXT` | sends the text |
| `< JSON` | the next text is this object |
| `ping PAYLOAD`, `pong PAYLOAD` | sends a ping; the next frame is this pong |
| `quiet` | nothing but a pong follows a ping: the server owes no text |
| `settled` | the same after any texts: the server has read everything that was sent |
| `nothing_waits APP ENDPOINT CHANNEL UPDATE` | a new message is the next text, and is acked: no older one waits |
| `post APP ENDPOINT TEXT` | an app server posts, and gets 201; `-` is no body |
| `posts COUNT APP ENDPOINT` | the same, COUNT times |
| `refused STATUS APP ENDPOINT` | a POST gets this status |
| `collect COUNT CHANNEL` | hears notifications and keeps their versions |
| `acks UPDATE` | sends one ack with UPDATE for each version that was kept |
| `drain COUNT CHANNEL UPDATE` | hears notifications and acks each at once; none comes twice |
| `patience SECONDS` | the longest wait for the next frame from here on |
| `within SECONDS` | every frame from here on comes within this time from now; `-` is no limit |
| `busy SECONDS APP ENDPOINT CHANNEL UPDATE` | hears and acks a message each quarter of a second for this time |
| `close CODE REASON` | closes, hears what was under way, and then the same close; `close` alone gives no code |
| `closed CODE` | hears the server close, and answers |
| `drop` | ends the connection without a close frame |
| `absent` | waits until the server has no session |
| `broadcast ID VERSION` | an operator sets a broadcast |
| `stop`, `start`, `kill` | the server process |
"""

import base64
import hashlib
import json
import math
import os
import pathlib
import re
import select
import socket
import struct
import time
import tomllib
import urllib.parse
import uuid

import requests

from browser import AppServer, encoded
from conftest import PORTS

DIRECTORY = pathlib.Path(__file__).parent
# The shortest wait of a client for a reply: `dom.push.requestTimeout` of Firefox.
PATIENCE = 10
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
NAME = re.compile(r"\$[a-z_0-9]+")


def clients():
    """Every client by the name of its file."""
    return {path.stem: tomllib.loads(path.read_text()) for path in sorted(DIRECTORY.glob("*.toml"))}


class Connection:
    """One WebSocket over a raw socket, or over a connected `stream` that the caller made."""

    def __init__(self, address, head, stream=None):
        self.socket = stream or socket.create_connection(address, timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce = base64.b64encode(os.urandom(16)).decode()
        lines = [line.replace("$host", f"{address[0]}:{address[1]}").replace("$nonce", nonce) for line in head]
        self.socket.sendall("".join(line + "\r\n" for line in lines + [""]).encode())
        self.unread, self.pings = b"", 0
        while b"\r\n\r\n" not in self.unread:
            self.receive()
        answer, _, self.unread = self.unread.partition(b"\r\n\r\n")
        status, *fields = answer.decode().split("\r\n")
        self.fields = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        assert status.startswith("HTTP/1.1 101 "), answer
        digest = hashlib.sha1(nonce.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        assert self.fields["sec-websocket-accept"] == base64.b64encode(digest).decode(), answer

    def receive(self):
        chunk = self.socket.recv(65536)
        if not chunk:
            raise EOFError("the server ended the connection")
        self.unread += chunk

    def send(self, opcode, payload):
        self.socket.sendall(framed(opcode, payload))

    def frame(self):
        """The next frame that is no ping of the server."""
        while True:
            while (found := self.whole()) is None:
                self.receive()
            opcode, payload = found
            if opcode != PING:
                return opcode, payload
            self.pings += 1
            self.send(PONG, payload)

    def idle(self, seconds):
        """Answers pings of the server for this long; nothing else may come."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and select.select([self.socket], [], [], left)[0]:
            self.receive()
            while (found := self.whole()) is not None:
                opcode, payload = found
                assert opcode == PING, found
                self.pings += 1
                self.send(PONG, payload)

    def whole(self):
        """Takes one frame off what was read: whole, unmasked and uncompressed, as this server sends it."""
        if len(self.unread) < 2:
            return None
        first, size = self.unread[:2]
        start = 4 if size == 126 else 2
        if len(self.unread) < start:
            return None
        assert first & 0xF0 == 0x80 and size < 127, self.unread[:2]
        if size == 126:
            size = struct.unpack(">H", self.unread[2:4])[0]
        if len(self.unread) < start + size:
            return None
        payload, self.unread = self.unread[start : start + size], self.unread[start + size :]
        return first & 0x0F, payload


def framed(opcode, payload):
    """A masked frame, as every client sends it (RFC 6455 section 5.3)."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
    assert size < 65536, size
    mask = os.urandom(4)
    body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return bytes([0x80 | opcode]) + length + mask + body


class Player:
    """One client of a server. Names keep their values from script to script."""

    def __init__(self, server, client, names=None):
        self.server = server
        self.head = client["head"]["lines"]
        self.scripts = client["scripts"]
        self.names = names or {}
        self.senders, self.http = {}, requests.Session()
        self.connection, self.kept, self.wait, self.deadline = None, [], PATIENCE, math.inf
        # Pings of the server that `busy` heard.
        self.pings = 0

    def play(self, script):
        for line in self.scripts[script]["steps"].strip().splitlines():
            verb, _, rest = line.strip().partition(" ")
            try:
                getattr(self, {">": "say", "<": "hear"}.get(verb, verb))(rest)
            except (AssertionError, OSError, EOFError) as error:
                raise AssertionError(f"{script}: {line.strip()}: {error}") from error

    def value(self, name):
        kind, _, app = name[1:].partition("_")
        if kind in ("key", "padded"):
            key = self.sender(app).key
            return key + "=" * (-len(key) % 4 if kind == "padded" else 0)
        if name.startswith("$channel"):
            return self.names.setdefault(name, str(uuid.uuid4()))
        return self.names[name]

    def filled(self, text):
        return NAME.sub(lambda name: self.value(name[0]), text)

    def sender(self, app):
        return self.senders.setdefault(app, AppServer())

    def connect(self, _):
        self.leave()
        self.connection = Connection((self.server.host, PORTS["websocket"]), self.head)

    def leave(self):
        if self.connection:
            self.connection.socket.close()
        self.connection = None

    def drop(self, _):
        self.leave()

    def answer(self, rest):
        name, value = rest.split(" ")
        assert self.connection.fields.get(name.lower(), "-") == value, self.connection.fields

    def say(self, text):
        self.connection.send(TEXT, self.filled(text).encode())

    def next(self):
        self.connection.socket.settimeout(self.wait)
        frame = self.connection.frame()
        assert time.monotonic() < self.deadline, "too late"
        return frame

    def text(self):
        opcode, payload = self.next()
        assert opcode == TEXT, (opcode, payload)
        return json.loads(payload)

    def hear(self, expected):
        heard = self.text()
        assert self.fits(json.loads(expected), heard), heard

    def fits(self, expected, heard):
        if isinstance(expected, dict):
            same = isinstance(heard, dict) and expected.keys() == heard.keys()
            return same and all(self.fits(expected[key], heard[key]) for key in expected)
        if expected == "*":
            return isinstance(heard, str)
        if isinstance(expected, str) and NAME.fullmatch(expected) and isinstance(heard, str):
            return self.names.setdefault(expected, heard) == heard
        # True is no 1.
        return type(expected) is type(heard) and expected == heard

    def ping(self, payload):
        self.connection.send(PING, payload.encode())

    def pong(self, payload):
        assert (heard := self.next()) == (PONG, payload.encode()), heard

    def quiet(self, _):
        payload = os.urandom(8).hex()
        self.ping(payload)
        self.pong(payload)

    def settled(self, _):
        self.ping(payload := os.urandom(8).hex())
        while self.next() != (PONG, payload.encode()):
            pass

    def nothing_waits(self, rest):
        app, endpoint, channel, update = rest.split(" ", 3)
        self.post(f"{app} {endpoint} marker {os.urandom(8).hex()}")
        heard = self.text()
        assert (heard.get("channelID"), heard.get("data")) == (self.names[channel], self.names["$data"]), heard
        self.say_ack(update, [heard["version"]])
        self.quiet("")

    def push(self, app, endpoint, text):
        """Posts a body, which murre never reads, with one VAPID token for each app server; `-` is no body."""
        endpoint = self.filled(endpoint)
        url = urllib.parse.urlsplit(endpoint)
        sender = self.sender(app)
        if not hasattr(sender, "authorization"):
            claims = {"aud": f"{url.scheme}://{url.netloc}", "sub": "mailto:tests@example.com"}
            sender.authorization = sender.vapid.sign(claims)
        headers = {"TTL": "3600", **sender.authorization}
        if text == "-":
            return self.http.post(endpoint, headers=headers, timeout=PATIENCE).status_code
        headers["Content-Encoding"] = "aes128gcm"
        return self.http.post(endpoint, text.encode(), headers=headers, timeout=PATIENCE).status_code

    def post(self, rest):
        app, endpoint, text = rest.split(" ", 2)
        assert (status := self.push(app, endpoint, text)) == 201, status
        if text != "-":
            self.names["$data"] = encoded(text.encode())

    def posts(self, rest):
        count, app, endpoint = rest.split(" ")
        for at in range(int(count)):
            self.post(f"{app} {endpoint} number {at}")

    def refused(self, rest):
        expected, app, endpoint = rest.split(" ")
        assert (status := self.push(app, endpoint, "let me in")) == int(expected), status

    def notified(self, channel):
        heard = self.text()
        assert (heard["messageType"], heard["channelID"]) == ("notification", self.names[channel]), heard
        return heard["version"]

    def collect(self, rest):
        count, channel = rest.split(" ")
        self.kept += [self.notified(channel) for _ in range(int(count))]
        assert len(set(self.kept)) == len(self.kept), "one came twice"

    def acks(self, update):
        self.say_ack(update, self.kept)
        self.kept = []

    def busy(self, rest):
        count, pause, app, endpoint, channel, update = rest.split(" ", 5)
        for _ in range(int(count)):
            self.nothing_waits(f"{app} {endpoint} {channel} {update}")
            self.connection.idle(float(pause))
        self.quiet("")
        self.pings = self.connection.pings

    def say_ack(self, update, versions):
        updates = ",".join(self.filled(update.replace("$version", version)) for version in versions)
        self.connection.send(TEXT, f'{{"messageType":"ack","updates":[{updates}]}}'.encode())

    def drain(self, rest):
        count, channel, update = rest.split(" ", 2)
        seen = set()
        while len(seen) < int(count):
            version = self.notified(channel)
            assert version not in seen, "one came twice"
            seen.add(version)
            self.say_ack(update, [version])

    def patience(self, seconds):
        self.wait = float(seconds)

    def within(self, seconds):
        self.deadline = math.inf if seconds == "-" else time.monotonic() + float(seconds)

    def close(self, rest):
        code, _, reason = rest.partition(" ")
        payload = struct.pack(">H", int(code)) + reason.encode() if code else b""
        self.connection.send(CLOSE, payload)
        # Notifications that were on their way come first.
        while (heard := self.next())[0] == TEXT:
            pass
        assert heard == (CLOSE, payload), heard
        self.leave()

    def closed(self, code):
        opcode, payload = self.next()
        assert (opcode, payload[:2]) == (CLOSE, struct.pack(">H", int(code))), (opcode, payload)
        self.connection.send(CLOSE, payload)
        self.leave()

    def absent(self, _):
        self.server.wait_for_number("sessions", 0)

    def broadcast(self, rest):
        name, version = rest.split(" ", 1)
        self.server.put_broadcasts(**{name: version})

    def stop(self, _):
        self.server.stop()

    def start(self, _):
        self.server.start()

    def kill(self, _):
        self.server.kill()
