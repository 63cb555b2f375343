"""Limits on callers of IPv6, over a link between two network namespaces: one interface has addresses of many networks."""

import contextlib
import time

import pytest
from websockets.exceptions import InvalidStatus

import namespaces
from browser import PATIENCE, AppServer, Browser, exchange, opened
from conftest import PORTS, Server

pytestmark = pytest.mark.skipif(namespaces.MISSING is not None, reason=namespaces.MISSING or "")

SERVER = {4: "10.77.0.1", 6: "2001:db8::1"}
# Two addresses of one /64, one of another; two that are IPv4.
SAME, ALSO, OTHER = "2001:db8:a:1::1", "2001:db8:a:1:ffff:ffff:ffff:ffff", "2001:db8:a:2::1"
MAPPED, ALSO_MAPPED = "10.77.0.2", "10.77.0.3"
# The first address of its interface, from which app servers come.
SENDER = "10.77.0.9"
CONNECTIONS_MAX = 5


class LinkedServer(Server):
    """A server whose WebSocket listener takes both families on one socket, so that IPv4 comes mapped into IPv6."""

    def __init__(self, directory):
        super().__init__(directory, settings=[f"strangers.connections={CONNECTIONS_MAX}"])
        self.host = SERVER[4]
        self.listen = {"websocket": f"[::]:{PORTS['websocket']}"}


@pytest.fixture
def server(tmp_path):
    """The server in its namespace; the test is in that of the clients."""
    ours = [f"{SERVER[4]}/24", f"{SERVER[6]}/32"]
    theirs = [*(f"{address}/24" for address in (SENDER, MAPPED, ALSO_MAPPED))]
    theirs += [f"{address}/32" for address in (SAME, ALSO, OTHER)]
    with namespaces.linked(ours, theirs) as (place, clients):
        server = LinkedServer(tmp_path)
        try:
            with namespaces.inside(place):
                server.start()
            with namespaces.inside(clients):
                yield server
        finally:
            with namespaces.inside(place):
                server.kill()


def agent(server, address):
    """A user agent with this address."""
    host = f"[{SERVER[6]}]" if ":" in address else SERVER[4]

    def connect(_url):
        return opened(f"ws://{host}:{PORTS['websocket']}", source_address=(address, 0))

    return Browser(server, connect=connect)


def is_full(server, address):
    with pytest.raises(InvalidStatus) as caught:
        agent(server, address)
    return caught.value.response.status_code == 503


def test_a_64_is_one_caller_and_mapped_ipv4_is_ipv4(server):
    with contextlib.ExitStack() as stack:
        def take(address, count):
            agents = [agent(server, address) for _ in range(count)]
            for one in agents:
                stack.callback(one.close)
            return agents

        agents = take(SAME, CONNECTIONS_MAX - 2) + take(ALSO, 2)
        assert is_full(server, SAME) and is_full(server, ALSO)
        # One line within a second, and the next one in a minute.
        deadline = time.monotonic() + PATIENCE
        while "network=2001:db8:a::/48" not in (log := server.log()):
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
        agents += take(OTHER, CONNECTIONS_MAX)
        assert is_full(server, OTHER)
        agents += take(MAPPED, CONNECTIONS_MAX)
        assert is_full(server, MAPPED)
        # Of the same /64, if it counted as IPv6.
        agents += take(ALSO_MAPPED, CONNECTIONS_MAX)
        for one in agents[:: CONNECTIONS_MAX - 1]:
            exchange(one, AppServer())
        assert server.number('strangers_refused_total{limit="connections"') == 4
        # Those of the app server are gone.
        server.wait_for_number("strangers_addresses", 4)
    agent(server, SAME).close()
    log = server.log()
    assert not any(address in log for address in (SAME, ALSO, OTHER, MAPPED, ALSO_MAPPED)), log
