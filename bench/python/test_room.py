"""One address fills the store, and users of others, and good ones of its own, still get messages (decision 0039).

`python bench/python/test_room.py ADDRESSES USERS SECONDS [ROUNDS [STORE]]` makes the attack at full size, with a store
of 1 GiB if no other is named, after as many rounds of 16 messages that each of its users acks, and prints figures.
"""

import itertools
import json
import os
import pathlib
import socket
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid

import pytest

from conftest import PORTS, Server

PATIENCE = 60
PIPELINED = 16
# Loopback callers are charged to no address, so a proxy names the addresses.
SETTINGS = ["proxy.header=x-forwarded-for", "proxy.trusted=127.0.0.0/8", "strangers.new_users=1000000"]
SETTINGS += ["strangers.registers=1000000", "store.user_bytes_per_day=0"]


class Agent:
    """A user agent that a proxy names as a caller from `address`."""

    def __init__(self, server, address=None, uaid=""):
        self.stream = socket.create_connection((server.host, PORTS["websocket"]), timeout=PATIENCE)
        self.bytes = b""
        named = f"X-Forwarded-For: {address}\r\n" if address else ""
        self.stream.sendall(
            f"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{named}"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self.bytes:
            self.more()
        head, self.bytes = self.bytes.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        self.uaid = self.ask(messageType="hello", use_webpush=True, uaid=uaid)["uaid"]

    def more(self):
        part = self.stream.recv(1 << 16)
        assert part, "the server has closed"
        self.bytes += part

    def send(self, **message):
        text = json.dumps(message).encode()
        length = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2, "big")
        # A mask of zeros leaves the text as it is.
        self.stream.sendall(b"\x81" + length + bytes(4) + text)

    def receive(self):
        while True:
            while len(self.bytes) < 4:
                self.more()
            length, at = self.bytes[1] & 127, 2
            if length == 126:
                length, at = int.from_bytes(self.bytes[2:4], "big"), 4
            while len(self.bytes) < at + length:
                self.more()
            kind, text = self.bytes[0] & 15, self.bytes[at : at + length]
            self.bytes = self.bytes[at + length :]
            assert kind in (1, 9, 10), (kind, text)
            if kind == 1:
                return json.loads(text)

    def ask(self, **message):
        self.send(**message)
        return self.receive()

    def subscribe(self):
        registered = self.ask(messageType="register", channelID=str(uuid.uuid4()))
        assert registered["status"] == 200, registered
        return registered["pushEndpoint"]

    def take(self, count):
        """Receives this many notifications and acks each."""
        for _ in range(count):
            note = self.receive()
            named = {"channelID": note["channelID"], "version": note["version"], "code": 100}
            self.send(messageType="ack", updates=[named])

    def close(self):
        self.stream.close()


class Sender:
    """An app server with one connection."""

    def __init__(self, server):
        self.stream = socket.create_connection((server.host, PORTS["endpoint"]), timeout=PATIENCE)
        self.bytes = b""

    def post(self, endpoint, size, count=1):
        """Sends this many messages together; returns their statuses."""
        path = urllib.parse.urlsplit(endpoint).path
        head = f"POST {path} HTTP/1.1\r\nHost: h\r\nTTL: 86400\r\nContent-Encoding: aes128gcm\r\n"
        request = (head + f"Content-Length: {size}\r\n\r\n").encode() + os.urandom(size)
        self.stream.sendall(request * count)
        return [self.status() for _ in range(count)]

    def status(self):
        while b"\r\n\r\n" not in self.bytes:
            self.more()
        head, self.bytes = self.bytes.split(b"\r\n\r\n", 1)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", 0))
        while len(self.bytes) < length:
            self.more()
        self.bytes = self.bytes[length:]
        status = int(head.split(b" ")[1])
        assert status == 201 or b"retry-after" in fields, head
        return status

    def more(self):
        part = self.stream.recv(1 << 16)
        assert part, "the server has closed"
        self.bytes += part


class Mailbox:
    """A user who is absent, with the number of its messages that were accepted."""

    def __init__(self, server, address):
        agent = Agent(server, address)
        self.uaid, self.endpoint, self.accepted = agent.uaid, agent.subscribe(), 0
        agent.close()

    def offer(self, sender, size, count=1):
        """Returns the number of refused messages."""
        accepted = sender.post(self.endpoint, size, count).count(201)
        self.accepted += accepted
        return count - accepted

    def acks(self, server, count):
        agent = Agent(server, uaid=self.uaid)
        assert agent.uaid == self.uaid
        agent.take(count)
        # The acks have come when this is answered.
        assert agent.ask(messageType="broadcast_subscribe", broadcasts={"tests/none": "v"})
        agent.close()
        self.accepted -= count


class Attack:
    """Users of some addresses, to whom as much as possible is sent."""

    def __init__(self, server, addresses, users, size):
        self.server, self.size = server, size
        self.addresses = [f"198.51.{nth >> 8}.{nth & 255}" for nth in range(1, addresses + 1)]
        self.boxes = [Mailbox(server, address) for address in self.addresses for _ in range(users)]
        self.refused, self.lock, self.ended, self.threads = 0, threading.Lock(), threading.Event(), []

    def offer(self, sender, box):
        refused = box.offer(sender, self.size, PIPELINED)
        with self.lock:
            self.refused += refused

    def acks_first(self, rounds):
        sender = Sender(self.server)
        for box in self.boxes:
            for _ in range(rounds):
                self.offer(sender, box)
                box.acks(self.server, box.accepted)

    def flood(self, boxes):
        sender = Sender(self.server)
        for box in itertools.cycle(boxes):
            if self.ended.is_set():
                return
            self.offer(sender, box)

    def begin(self, connections):
        for nth in range(connections):
            boxes = self.boxes[nth::connections]
            self.threads.append(threading.Thread(target=self.flood, args=(boxes,), daemon=True))
            self.threads[-1].start()

    def wait_until_refused(self, rounds):
        """Returns when as many messages were refused as its users are offered in these rounds."""
        deadline = time.monotonic() + 5 * PATIENCE
        while self.refused < rounds * PIPELINED * len(self.boxes):
            assert time.monotonic() < deadline, f"refused {self.refused}"
            time.sleep(0.05)

    def end(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(PATIENCE)


class Good:
    """Users who get little: at addresses of their own, and at those of the attack."""

    def __init__(self, server, attack, count, size):
        self.server, self.size = server, size
        self.elsewhere = [Mailbox(server, f"203.0.{nth >> 8}.{nth & 255}") for nth in range(1, count // 5 + 2)]
        beside = itertools.cycle(attack.addresses)
        self.neighbours = [Mailbox(server, next(beside)) for _ in range(count)]
        self.sender, self.refused, self.fresh = Sender(server), 0, beside

    def turn(self, nth):
        """One message for a user of each kind; now and then for new users, who never acked."""
        boxes = [self.elsewhere[nth % len(self.elsewhere)], self.neighbours[nth % len(self.neighbours)]]
        if nth % 20 == 0:
            boxes += [Mailbox(self.server, next(self.fresh)), Mailbox(self.server, f"192.0.2.{nth // 20 % 256}")]
            self.elsewhere.append(boxes[-1])
        self.refused += sum(box.offer(self.sender, self.size) for box in boxes)


@pytest.mark.parametrize("addresses, acked", [(1, False), (5, False), (1, True), (5, True)])
def test_an_address_that_fills_the_store_refuses_itself(tmp_path, addresses, acked):
    """An empty journal has 64 MiB: room is scarce from the start."""
    server = Server(tmp_path, settings=[*SETTINGS, "store.max_bytes=77MiB"])
    with server.running():
        attack = Attack(server, addresses, 6, 4000)
        if acked:
            attack.acks_first(4)
        good = Good(server, attack, 60, 200)
        attack.begin(2)
        attack.wait_until_refused(10)
        for nth in range(120):
            good.turn(nth)
        attack.end()
        accepted = sum(box.accepted for box in attack.boxes)
        assert good.refused == 0
        server.wait_for_number("store_share_full_total", attack.refused)
        assert server.number("store_full_total") == 0 and server.number("store_scarce") == 1
        assert accepted < 3000 * (addresses + 1)
        # Nothing that was accepted was removed, and an ack makes room.
        for box in [*attack.boxes, *good.neighbours, *good.elsewhere]:
            box.acks(server, box.accepted)


def measured(addresses, users, seconds, acked=0, store="1GiB"):
    """The attack. Returns true if no message for a good user was refused."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(pathlib.Path(directory), 2, [*SETTINGS, f"store.max_bytes={store}"])
        with server.running():
            attack = Attack(server, addresses, users, 4096)
            if acked:
                attack.acks_first(acked)
            good = Good(server, attack, 1000, 1000)
            attack.begin(6)
            began = time.monotonic()
            for nth in itertools.count():
                good.turn(nth)
                if nth % 100 == 0:
                    names = ["scarce", "room", "share_full_total", "full_total", "disk_bytes"]
                    numbers = {name: server.number(f"store_{name}") for name in names}
                    accepted = sum(box.accepted for box in attack.boxes)
                    passed = time.monotonic() - began
                    print(f"{passed:.0f} s: {accepted=} {attack.refused=} {good.refused=} good={2 * nth} {numbers}")
                    if passed > seconds:
                        break
                # Each of the thousand gets one about every hundred seconds.
                time.sleep(0.1)
            attack.end()
            return good.refused == 0


if __name__ == "__main__":
    sys.exit(0 if measured(*map(int, sys.argv[1:5]), *sys.argv[5:]) else 1)
