"""A flood of TLS handshakes that clients begin and do not finish, from outside."""

import contextlib
import errno
import resource
import selectors
import socket
import subprocess
import threading
import time

import pytest

from browser import AppServer, Browser, exchange, trust
from client_hello import client_hello
from tls_server import PATIENCE, TLS_PORTS, TlsServer

# Of one shard, and those beyond.
IN_FLIGHT_MAX, BEYOND = 1024, 1024
TIMEOUT_SECONDS = 10


@pytest.fixture
def server(tmp_path, monkeypatch):
    server = TlsServer(tmp_path, shards=1, settings=[f"tls.handshake_timeout={TIMEOUT_SECONDS}"])
    trust(monkeypatch, server.certificate)
    # A Debian login has a soft limit of 1,024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with server.running():
        yield server
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def unread(address, length):
    """Number of sockets at this address in which so many bytes wait."""
    command = ["ss", "--no-header", "--tcp", "--numeric", "src", f"{address[0]}:{address[1]}"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(row.split()[1] == str(length) for row in rows)


class Crowd(threading.Thread):
    """Clients that all say hello at once, and then only listen until the server closes."""

    def __init__(self, address, hello, count):
        super().__init__(daemon=True)
        self.address, self.hello, self.count = address, hello, count
        # Bytes that each has heard, of those that were closed.
        self.heard = []
        self.unread = None

    def run(self):
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
            for _ in range(self.count):
                stream = stack.enter_context(socket.socket())
                stream.setblocking(False)
                assert stream.connect_ex(self.address) in (0, errno.EINPROGRESS)
                waiting.register(stream, selectors.EVENT_WRITE)
            heard, silent = {}, self.count
            while waiting.get_map():
                for key, events in waiting.select():
                    stream = key.fileobj
                    if events & selectors.EVENT_WRITE:
                        stream.sendall(self.hello)
                        waiting.modify(stream, selectors.EVENT_READ)
                        heard[stream], silent = 0, silent - 1
                        continue
                    try:
                        count = len(stream.recv(65536))
                    except ConnectionResetError:
                        # The server closed it with its ClientHello unread.
                        count = 0
                    heard[stream] += count
                    if count == 0:
                        waiting.unregister(stream)
                        self.heard.append(heard[stream])
                if silent == 0 and self.unread is None:
                    self.unread = unread(self.address, len(self.hello))


def test_a_flood_waits_unread_and_is_closed_and_a_session_is_served_meanwhile(server):
    browser, sender = Browser(server), AppServer()
    crowd = Crowd((server.host, TLS_PORTS["websocket"]), client_hello(), IN_FLIGHT_MAX + BEYOND)
    crowd.start()
    in_flight, served = [], 0
    deadline = time.monotonic() + PATIENCE
    while crowd.is_alive():
        assert time.monotonic() < deadline, f"{crowd.count - len(crowd.heard)} are still open"
        in_flight.append(server.number("tls_handshakes_in_flight"))
        # Its app server makes a handshake of its own, which stands in the same line.
        exchange(browser, sender)
        served += 1
        # A session has a budget of registers.
        time.sleep(0.5)
    assert 0 < max(in_flight) <= IN_FLIGHT_MAX, in_flight
    assert crowd.unread > 0, "none has waited in line"
    assert served > 3
    # One that has begun gets the flight of the server, and none gets an alert.
    begun = sum(count > 0 for count in crowd.heard)
    assert len(crowd.heard) == crowd.count and begun >= IN_FLIGHT_MAX
    assert all(count == 0 or count > 200 for count in crowd.heard)
    server.wait_for_number("tls_handshakes_timeout_total", crowd.count)
    server.wait_for_number('tls_handshakes_failed_total{reason="timeout"', begun)
    assert server.number("tls_handshakes_failed_total") == begun
    assert server.number("tls_alerts_sent_total") == 0
    server.wait_for_number("tls_handshakes_in_flight", 0)
    exchange(browser, sender, "afterwards")
