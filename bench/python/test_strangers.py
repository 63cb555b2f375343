"""Limits on callers by their address, with websockets as the user agent and addresses of the loopback interface."""

import functools
import socket
import time
import uuid

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from browser import AppServer, Browser, exchange, opened
from conftest import PORTS, Server

LIMITS = ["strangers.connections=40", "strangers.new_users=60", "strangers.registers=80"]


@pytest.fixture(params=[1, 2, 7])
def limited(tmp_path, request):
    server = Server(tmp_path, request.param, LIMITS)
    with server.running():
        yield server


def agent(server, address, uaid=None):
    """A user agent at an address of the loopback interface."""
    return Browser(server, uaid, functools.partial(opened, source_address=(address, 0)))


def refused(server, limit):
    return server.number(f'strangers_refused_total{{limit="{limit}"')


def agent_in_time(server, address):
    """A user agent, as soon as the server has seen that another one is gone."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return agent(server, address)
        except InvalidStatus:
            assert time.monotonic() < deadline, "no place is free"
            time.sleep(0.02)


def test_one_address_has_as_many_connections_as_it_may_and_others_have_theirs(limited):
    one, other = "127.77.1.1", "127.77.1.2"
    agents = [agent(limited, one) for _ in range(39)]
    # An app server at the same address is one of its connections.
    sender = socket.create_connection((limited.host, PORTS["endpoint"]), source_address=(one, 0))
    sender.sendall(b"GET /status HTTP/1.1\r\nHost: h\r\n\r\n")
    assert sender.recv(4096).startswith(b"HTTP/1.1 200 ")
    for _ in range(20):
        with pytest.raises(InvalidStatus) as caught:
            agent(limited, one)
        assert caught.value.response.status_code == 503
    assert refused(limited, "connections") == 20
    exchange(agent(limited, other), AppServer())
    # Those that have one keep it, and a place is free when one of them ends.
    exchange(agents[0], AppServer())
    agents.pop().close()
    sender.close()
    agents += [agent_in_time(limited, one), agent_in_time(limited, one)]
    with pytest.raises(InvalidStatus):
        agent(limited, one)
    # Refusals are logged within a second, and with a part of the address only.
    deadline = time.monotonic() + 60
    while "network=127.77.1.0/24" not in (log := limited.log()):
        assert time.monotonic() < deadline, log
        time.sleep(0.05)
    assert one not in log


def test_new_users_of_one_address_are_limited_and_known_ones_are_not(limited):
    address = "127.77.2.1"
    known = [agent(limited, address)]
    known[0].subscribe()
    for _ in range(29):
        agent(limited, address).close()
    # Below half of the limit no hello was refused, and beyond twice of it none is served.
    served = 30
    while served <= 120:
        try:
            agent(limited, address).close()
        except ConnectionClosed as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (1013, "AddressLimit")
            break
        served += 1
    assert 60 <= served <= 120
    assert refused(limited, "new_users") == 1
    known[0].close()
    for _ in range(5):
        again = agent(limited, address, known[0].uaid)
        assert again.uaid == known[0].uaid
        again.close()
    agent(limited, "127.77.2.2").close()


def test_a_returning_user_is_no_new_one(limited):
    address = "127.77.2.3"
    known, channel = agent(limited, address), str(uuid.uuid4())
    known.send(messageType="register", channelID=channel)
    assert known.receive("register")["status"] == 200
    with pytest.raises(ConnectionClosed):
        while True:
            agent(limited, address).close()
    known.unregister(channel)
    known.close()
    limited.wait_for_number("idle_users_dropped_total", 1)
    for _ in range(5):
        again = agent(limited, address, known.uaid)
        assert again.uaid == known.uaid
        again.close()
    again = agent(limited, address, known.uaid)
    exchange(again, AppServer())
    limited.wait_for_number("hellos_returned_total", 6)
    assert (limited.number("hellos_reassigned_total"), refused(limited, "new_users")) == (0, 1)


def test_registers_beyond_the_limit_close_and_answer_no_status(limited):
    address = "127.77.3.1"
    first, second = agent(limited, address), agent(limited, address)
    for _ in range(40):
        first.subscribe()
        second.subscribe()
    first.send(messageType="register", channelID="deadbeef-0000-4000-8000-000000000000")
    with pytest.raises(ConnectionClosed) as caught:
        first.receive()
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1013, "AddressLimit")
    # The other has no register left, and keeps what it has.
    second.send(messageType="ping")
    assert second.receive() == {}
    agent(limited, "127.77.3.2").subscribe()
    assert refused(limited, "registers") == 1


def test_the_limits_are_off_by_default(server):
    agents = [agent(server, "127.77.4.1") for _ in range(70)]
    exchange(agents[-1], AppServer())
    assert server.number("strangers_addresses") == 0


def test_refusals_by_a_rule_are_counted_by_mode_and_logged_with_a_network(tmp_path):
    token = "a-token-of-sixteen-or-more"
    rules = ["access.register=token", f"access.tokens={token}", f"endpoint.allowed_keys={AppServer().key}"]
    server, address = Server(tmp_path, settings=[*LIMITS, *rules]), "127.77.5.1"
    with server.running():
        for _ in range(3):
            with pytest.raises(InvalidStatus) as caught:
                agent(server, address)
            assert caught.value.response.status_code == 401
        allowed = functools.partial(
            opened, source_address=(address, 0), additional_headers={"Authorization": f"Bearer {token}"}
        )
        browser = Browser(server, None, allowed)
        assert AppServer().push(browser.subscribe(), "text").status_code == 401
        server.wait_for_number('access_refused_total{mode="token"', 3)
        server.wait_for_number('access_refused_total{mode="allowed_keys"', 1)
        assert server.number('access_refused_total{mode="vapid"') == 0
        deadline = time.monotonic() + 60
        while (log := server.log()).count("callers refused by a rule of access") < 2:
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
        lines = [line for line in log.splitlines() if "callers refused by a rule of access" in line]
        assert 'mode="token"' in lines[0] and 'network=127.77.5.0/24' in lines[0], lines
        assert address not in log and token not in log
