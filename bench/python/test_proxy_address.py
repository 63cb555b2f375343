"""Addresses of callers through the proxies of docs/PROXIES.md, seen by the limits that count them."""

import contextlib
import itertools
import json
import socket
import time

import pytest
from websockets.exceptions import WebSocketException

from browser import opened
from test_proxies import ENDING, INNER_TLS_PORT, NAME, PASSING, PATIENCE, proxied  # noqa: F401 (a fixture)

# Connections of one address: none is refused below the half of it, and all are beyond its double.
LIMIT = 8
FLOOD = f"strangers.connections={LIMIT}"
CROWD, OTHER = "127.77.0.1", "127.77.0.2"
FIELD = "proxy_set_header X-Forwarded-For $remote_addr;"
APPENDS = {FIELD: "proxy_set_header X-Forwarded-For $http_x_forwarded_for,$remote_addr;"}
FORWARDED = {FIELD: "proxy_set_header Forwarded $http_forwarded,for=$remote_addr;"}


@contextlib.contextmanager
def session(server, source, field="X-Forwarded-For", forged=None):
    """A session of this address, after its hello."""
    headers = {field: forged} if forged else {}
    with opened(server.url("websocket"), source_address=(source, 0), additional_headers=headers) as stream:
        stream.send(json.dumps({"messageType": "hello", "use_webpush": True, "uaid": ""}))
        assert json.loads(stream.recv(timeout=PATIENCE))["status"] == 200
        yield stream


def opened_until_refused(server, open_files, source, forge=lambda number: None, field="X-Forwarded-For"):
    """Number of sessions that an address gets, each with what it says itself about its address."""
    for number in itertools.count():
        assert number <= 2 * LIMIT, "no session of this address is refused"
        try:
            open_files.enter_context(session(server, source, field, forge(number)))
        except TimeoutError:
            raise
        except (OSError, EOFError, WebSocketException):
            return number


def check(server, forge=lambda number: None, field="X-Forwarded-For"):
    with contextlib.ExitStack() as open_files:
        got = opened_until_refused(server, open_files, CROWD, forge, field)
        assert got >= LIMIT // 2
        # With the address of the proxy for all, these would be refused, too.
        for _ in range(LIMIT // 2 - 1):
            open_files.enter_context(session(server, OTHER))


@pytest.mark.parametrize("kind", ENDING + PASSING)
def test_callers_are_told_apart_by_their_addresses(proxied, kind):  # noqa: F811
    """HAProxy sends version 2 of the PROXY header and nginx version 1; the others send X-Forwarded-For."""
    check(proxied(kind, FLOOD))


@pytest.mark.parametrize("kind", ENDING)
def test_an_address_that_a_caller_says_itself_does_not_count(proxied, kind):  # noqa: F811
    check(proxied(kind, FLOOD), lambda number: f"192.0.2.{number}, 10.0.0.{number}")


def test_a_proxy_that_appends_is_read_from_the_right(proxied):  # noqa: F811
    check(proxied("nginx", FLOOD, changes=APPENDS), lambda number: f"192.0.2.{number}")


def test_forwarded_is_read_from_the_right(proxied):  # noqa: F811
    server = proxied("nginx", FLOOD, "proxy.header=forwarded", changes=FORWARDED)
    check(server, lambda number: f'for=192.0.2.{number};host="a, for="', "Forwarded")


def test_a_field_of_a_caller_that_is_no_proxy_is_ignored(proxied):  # noqa: F811
    server = proxied("nginx", FLOOD)
    with contextlib.ExitStack() as open_files:
        for number in itertools.count():
            assert number <= 2 * LIMIT, "no connection of this address is refused"
            stream = open_files.enter_context(
                socket.create_connection((server.host, 8080), timeout=PATIENCE, source_address=(CROWD, 0))
            )
            head = f"GET /__lbheartbeat__ HTTP/1.1\r\nHost: {NAME}\r\nX-Forwarded-For: 192.0.2.{number}\r\n\r\n"
            answer = b""
            with contextlib.suppress(ConnectionError):
                stream.sendall(head.encode())
                answer = stream.recv(4096)
            if not answer.startswith(b"HTTP/1.1 200"):
                break
        assert number >= LIMIT // 2, answer
        open_files.enter_context(session(server, OTHER))


@pytest.mark.parametrize(
    "first, source",
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", "127.0.0.1"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n", "127.0.0.1"),
        (b"PROXY UNKNOWN " + b"x" * 100, "127.0.0.1"),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x02\x09", "127.0.0.1"),
        # A header that is right, of a caller that is not trusted.
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", CROWD),
    ],
)
def test_a_connection_without_a_header_of_a_proxy_is_closed(proxied, first, source):  # noqa: F811
    server = proxied("haproxy_tcp")
    # Some connections without a byte were made at the start, which may count or not.
    for _ in range(10):
        at = (server.host, INNER_TLS_PORT)
        with socket.create_connection(at, timeout=PATIENCE, source_address=(source, 0)) as stream:
            with contextlib.suppress(ConnectionError):
                stream.sendall(first)
                assert stream.recv(4096) == b""
    deadline = time.monotonic() + PATIENCE
    while server.number("proxy_headers_refused_total") < 10:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)
    with session(server, OTHER):
        pass
