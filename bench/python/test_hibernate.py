"""Hibernation: silent connections leave the kernel of the server, and their clients notice nothing.

All clients are silent at once, on the stage of `hibernation.py`. Tests run in the order of this file: connections that
the first ones thaw are silent again while the others run, and the last ones end the servers.
"""

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import socket
import struct
import subprocess
import threading
import time
import urllib.parse
import uuid

import pytest

import namespaces
from browser import AppServer, encoded, exchange, trust
from conftest import binary
from hibernation import (
    BROADCAST, CROWDS, FREEZE_PATIENCE, GONE, IS_ON, KINDS, NORMAL, PLACES, SUPERSEDED, TABLE, UNACKED, Agent,
    HibernatingServer, staged,
)
from replays.player import CLOSE, PATIENCE, TEXT, framed
from segments import ACK, FIN, PSH, RST, SYN, forge, numbers, tables

pytestmark = pytest.mark.skipif(namespaces.MISSING is not None, reason=namespaces.MISSING or "")

# Longest wait for a notification of a frozen user, and for all answers to a crowd.
NOTIFIED_WITHIN, CROWD_WITHIN = 2, 10
FAR = 1 << 30
# Segments that do not belong to a connection: flags, distance from the sequence numbers that are right, and data.
FORGED = {
    "reset far ahead": (RST, FAR, 0, b""),
    "reset with ack far ahead": (RST | ACK, FAR, 0, b""),
    "reset within the window": (RST, 1000, 0, b""),
    "reset behind": (RST, -1, 0, b""),
    "fin far ahead": (FIN | ACK, FAR, 0, b""),
    "data far ahead": (PSH | ACK, FAR, 0, b"x" * 100),
    "data long past": (PSH | ACK, -100_000, 0, b"x" * 100),
    "ack of bytes never sent": (ACK, 0, 100_000, b""),
    "syn far ahead": (SYN, FAR, 0, b""),
    "syn within the window": (SYN, 0, 0, b""),
    "syn and ack": (SYN | ACK, 0, 0, b""),
    "no flags": (0, 0, 0, b""),
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with staged(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def server(stage, kind):
    return stage.servers[KINDS[kind].place]


@pytest.fixture
def take(stage, kind):
    """Takes frozen clients of the kind, and closes them behind the test."""
    with contextlib.ExitStack() as stack:
        def taken(count):
            agents = stage.take(kind, count)
            for agent in agents:
                stack.callback(agent.close)
            return agents

        yield taken


@pytest.mark.skipif(not IS_ON, reason="hibernation is off")
@pytest.mark.parametrize(("setting", "limit"), [("after=10", "30"), ("queue=65536", "65535")])
def test_a_setting_out_of_its_range_is_refused_with_the_range(tmp_path, setting, limit):
    command = [binary(), "serve", "--data-dir", str(tmp_path / "data")]
    for each in ["after=30", "queue=77", setting]:
        command += ["--set", f"hibernate.{each}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MURRE_")}
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert refused.returncode != 0
    named = f"hibernate.{setting.partition('=')[0]}"
    assert named in refused.stderr and re.search(rf"\b{limit}\b", refused.stderr), refused.stderr


@pytest.mark.parametrize("place", ["wildcard", "bound", "tls"])
def test_silent_connections_leave_the_kernel_and_stay_sessions(stage, place):
    server = stage.servers[place]
    server.check_frozen(*server.streams)
    server.check_gauge()
    server.check_sessions()
    if IS_ON:
        assert server.number("freezes_total") >= len(server.streams)
        with namespaces.inside(server.namespace):
            assert tables().get(TABLE) is True, "no table that a process owns"


def test_the_first_exchange_thaws(stage, server, kind):
    speaker, listener = stage.repeaters[kind]
    server.check_frozen(speaker.socket, listener.socket)
    with server.rises("thaws_by_segment_total", 1):
        speaker.ping()
    with server.rises("thaws_by_frame_total", 1):
        server.post(listener.endpoint, b"first")
        listener.take_notification(b"first")
    server.check_live(speaker.socket, listener.socket)
    for cause in ["segment", "frame"] if IS_ON else []:
        before = server.number(f"thaws_by_{cause}_total")
        timed = server.number(f'thaw_duration_seconds_count{{cause="{cause}"')
        assert 0 < before <= timed <= server.number(f"thaws_by_{cause}_total"), f"times of thaws by {cause}"


def test_a_frozen_user_is_notified(server, take):
    (agent,) = take(1)
    with server.rises("thaws_by_frame_total", 1), server.rises("acks_total", 1):
        begin = time.monotonic()
        server.post(agent.endpoint, b"wake up")
        agent.take_notification(b"wake up")
        assert (waited := time.monotonic() - begin) < NOTIFIED_WITHIN, f"{waited} s"
    server.check_live(agent.socket)
    server.check_gauge()
    agent.exchange()


def test_a_frozen_client_is_answered(server, take):
    pinger, asker, registrar = agents = take(3)
    with server.rises("thaws_by_segment_total", len(agents)):
        pinger.ping()
        asker.say()
        assert asker.text() == {}
        registrar.say_register()
        registrar.hear_register()
    server.check_live(*(agent.socket for agent in agents))
    server.check_gauge()
    for agent in agents:
        agent.exchange()


def test_a_burst_of_small_segments_meets_large_messages(server, take):
    (agent,) = take(1)
    key, channels = AppServer().key, [str(uuid.uuid4()) for _ in range(30)]
    requests = [{"messageType": "register", "channelID": channel, "key": key} for channel in channels]
    burst = b"".join(framed(TEXT, json.dumps(request).encode()) for request in requests)
    bodies = [os.urandom(4000) for _ in range(10)]
    posting = threading.Thread(target=lambda: [server.post(agent.endpoint, body) for body in bodies])
    posting.start()
    while burst:
        size = random.randint(1, 60)
        agent.socket.sendall(burst[:size])
        burst = burst[size:]
    registered, heard = [], []
    while len(registered) < len(channels) or len(heard) < len(bodies):
        message = agent.text()
        if message["messageType"] == "register":
            assert message["status"] == 200, message
            registered.append(message["channelID"])
        else:
            heard.append(message["data"])
            agent.ack(message)
    posting.join()
    assert registered == channels
    assert heard == [encoded(body) for body in bodies]
    agent.ping()


@contextlib.contextmanager
def crowd(stage, place, agents):
    """Frozen agents that are all heard in time, live afterwards, and closed behind the block."""
    server, streams = stage.servers[place], [agent.socket for agent in agents]
    server.check_frozen(*streams)
    begin = time.monotonic()
    yield server
    assert (waited := time.monotonic() - begin) < CROWD_WITHIN, f"{waited} s"
    server.check_live(*streams)
    server.check_gauge()
    for agent in agents:
        agent.close()


@pytest.mark.parametrize("place", CROWDS)
def test_a_frozen_crowd_speaks_at_once(stage, place):
    agents = stage.crowds[place][: CROWDS[place]]
    with stage.servers[place].rises("thaws_by_segment_total", len(agents)), crowd(stage, place, agents):
        for agent in agents:
            agent.say()
        for agent in agents:
            assert agent.text() == {}
    stage.servers[place].check_sessions()


@pytest.mark.parametrize("place", CROWDS)
def test_a_frozen_crowd_is_notified_at_once(stage, place):
    agents, server = stage.crowds[place][CROWDS[place] :], stage.servers[place]
    with contextlib.ExitStack() as stack:
        senders = [sender(server, agent.endpoint) for agent in agents]
        for one, _ in senders:
            one.connect()
            stack.callback(one.close)
        with server.rises("thaws_by_frame_total", len(agents)), crowd(stage, place, agents):
            for number, (one, path) in enumerate(senders):
                headers = {"TTL": "60", "Content-Encoding": "aes128gcm"}
                one.request("POST", path, body=f"number {number}".encode(), headers=headers)
            for one, _ in senders:
                assert one.getresponse().status == 201
            for number, agent in enumerate(agents):
                agent.take_notification(f"number {number}".encode())
                agent.ping()
    server.check_sessions()


def sender(server, endpoint):
    """A connection of an app server, and the path of the endpoint."""
    url = urllib.parse.urlsplit(endpoint)
    if url.scheme == "https":
        return http.client.HTTPSConnection(url.netloc, timeout=PATIENCE, context=server.context()), url.path
    return http.client.HTTPConnection(url.netloc, timeout=PATIENCE), url.path


def test_a_frozen_client_ends_its_session(server, take):
    """With a FIN, with a reset, and with a close frame."""
    finishing, resetting, closing = take(3)
    with server.rises("thaws_by_segment_total", 3):
        # Also over TLS, where no close_notify comes before it.
        finishing.close()
        resetting.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        resetting.close()
        closing.send(CLOSE, NORMAL.to_bytes(2, "big"))
        assert closing.hear(CLOSE)[:2] == NORMAL.to_bytes(2, "big")
        closing.hear_end()
        closing.close()
    server.check_sessions()
    server.check_gauge()


def test_a_frozen_session_is_superseded(server, kind, take):
    (old,) = take(1)
    new = Agent(server, KINDS[kind])
    with contextlib.closing(new):
        new.say_hello(old.uaid)
        new.hear_hello()
        assert new.uaid == old.uaid
        old.hear_close(SUPERSEDED)
        old.hear_end()
        old.close()
        new.channel = old.channel
        server.post(old.endpoint, b"to the new one")
        new.take_notification(b"to the new one")
        new.exchange()
        server.check_sessions()
        server.check_gauge()


def test_forged_segments_do_not_end_a_frozen_session(server, take):
    agents = dict(zip(FORGED, take(len(FORGED))))
    right = {name: numbers(agent.socket) for name, agent in agents.items()}
    server.check_frozen(*(agent.socket for agent in agents.values()))
    for name, (flags, ahead, ack_ahead, data) in FORGED.items():
        sequence, acknowledged = right[name]
        for _ in range(3):
            forge(agents[name].socket, flags, sequence + ahead, acknowledged + ack_ahead, data)
    # Time in which a server that was deceived ends them.
    time.sleep(0.3)
    for name, agent in agents.items():
        try:
            agent.exchange()
        except (OSError, EOFError, AssertionError) as error:
            raise AssertionError(f"{name}: {error!r}\n{server.log()}") from error
    server.check_gauge()


def test_a_reset_with_the_right_number_ends_a_frozen_session(server, take):
    """The control of the test above: forged segments do arrive."""
    (agent,) = take(1)
    forge(agent.socket, RST, numbers(agent.socket)[0])
    server.wait_for_number("sessions", sum(stream.fileno() != -1 for stream in server.streams) - 1, PATIENCE)
    agent.hear_reset()


@pytest.mark.parametrize("place", ["wildcard", "bound", "tls"])
def test_a_broadcast_reaches_frozen_subscribers(stage, place):
    server = stage.servers[place]
    agents = [agent for kind in KINDS if KINDS[kind].place == place for agent in stage.subscribers[kind]]
    server.check_frozen(*(agent.socket for agent in agents))
    with server.rises("thaws_by_frame_total", len(agents)):
        server.broadcast("v1")
        for agent in agents:
            assert agent.text("broadcast")["broadcasts"] == {BROADCAST: "v1"}
    for agent in agents:
        agent.exchange()
        agent.close()


@pytest.mark.parametrize("client", ["browsers", "curls"])
def test_foreign_clients_exchange_through_a_thaw(stage, server, kind, client, monkeypatch):
    """`websockets` or libcurl asks, and pywebpush answers."""
    if server.authority:
        trust(monkeypatch, server.authority)
    browser = getattr(stage, client)[kind]
    server.check_frozen(browser.socket.socket)
    exchange(browser, AppServer(), "\u00fc\u0436\u65e5" * 300)
    assert browser.hears_nothing(0.05)
    browser.close()


def test_thawed_connections_freeze_a_second_time(stage, server, kind):
    streams = [agent.socket for agent in stage.repeaters[kind]]
    while time.monotonic() < stage.second_deadline and any(server.is_live(*streams)):
        time.sleep(0.2)
    server.check_frozen(*streams)
    server.check_gauge()
    speaker, listener = stage.repeaters[kind]
    with server.rises("thaws_by_segment_total", 1), server.rises("thaws_by_frame_total", 1):
        server.post(listener.endpoint, b"third")
        listener.take_notification(b"third")
        speaker.exchange()
    listener.exchange()


def test_probes_of_a_client_s_kernel_are_answered(stage, kind):
    stage.keepers[kind].exchange()


def test_messages_that_wait_for_their_ack_come_once_and_are_settled(stage):
    """They came before the silence, and nothing says whether such a session is frozen."""
    server, agents = stage.servers["unacked"], stage.unacked
    with server.rises("acks_total", len(agents) * len(UNACKED)):
        for agent in agents:
            for body in UNACKED:
                agent.take_notification(body)
    for agent in agents:
        agent.exchange()
    server.check_gauge()


def test_pings_of_the_server_thaw(stage):
    server, browsers = stage.servers["pinged"], stage.pinged
    if IS_ON:
        # A ping comes each 50 s, and after 45 s of silence a connection is frozen.
        deadline = time.monotonic() + FREEZE_PATIENCE
        while server.number("thaws_by_frame_total") < len(browsers):
            assert time.monotonic() < deadline, "no ping was sent to a frozen session"
            time.sleep(0.2)
    for browser in browsers:
        exchange(browser, AppServer())
    server.check_sessions()
    assert server.number("close_pong_timeout_total") == 0


def test_without_the_capability_a_server_says_why_and_freezes_nothing(stage):
    server, agents = stage.servers["powerless"], stage.powerless
    server.check_live(*(agent.socket for agent in agents))
    if IS_ON:
        assert server.number("frozen") == 0 and server.number("freezes_total") == 0
        assert re.search(r"CAP_NET_ADMIN|permi|privilege", "\n".join(server.events()), re.I), server.log()
        assert not murre_tables(server)
    for agent in agents:
        agent.exchange()


@pytest.mark.skipif(not IS_ON, reason="hibernation is off")
def test_a_second_server_with_the_same_queue_says_why_and_leaves_the_first_alone(stage, tmp_path):
    first = stage.servers["bound"]
    agents = stage.take("bound-v4", 2)
    second = HibernatingServer(tmp_path, PLACES.index("bound"))
    second.namespace, second.host, second.listen = first.namespace, "127.0.0.1", {}
    second.addresses = {4: second.host}
    with namespaces.inside(first.namespace):
        with second.running():
            # Its ports are open before it has tried.
            deadline = time.monotonic() + PATIENCE
            while not second.events():
                assert time.monotonic() < deadline, second.log()
                time.sleep(0.05)
            assert second.number("frozen") == 0
            with contextlib.closing(Agent(second, KINDS["bound-v4"])) as agent:
                agent.say_hello()
                agent.hear_hello()
                agent.exchange()
    assert murre_tables(first) == [TABLE[1]]
    for agent in agents:
        first.check_frozen(agent.socket)
        agent.exchange()
        agent.close()


@pytest.mark.skipif(not IS_ON, reason="hibernation is off")
def test_no_thaw_failed(stage):
    for place, server in stage.servers.items():
        assert server.number("thaw_failures_total") == 0, f"{place}:\n{server.log()}"


def sleepers(stage, place):
    """Clients that have been frozen from the first silence on."""
    found = [agent for kind in KINDS if KINDS[kind].place == place for agent in stage.sleepers[kind]]
    stage.servers[place].check_frozen(*(agent.socket for agent in found))
    return found


def murre_tables(server):
    with namespaces.inside(server.namespace):
        return [name for family, name in tables() if name.startswith("murre")]


def check_table_is_gone(server):
    """The kernel frees what a process owned a little after its end."""
    deadline = time.monotonic() + PATIENCE
    while left := murre_tables(server):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.parametrize("place", ["wildcard", "tls"])
def test_sigterm_closes_frozen_sessions_and_takes_the_rules_away(stage, place):
    server, agents = stage.servers[place], sleepers(stage, place)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    for agent in agents:
        agent.hear_close(GONE)
    for agent in agents:
        agent.hear_end()
    stopping.join()
    assert server.process.returncode == 0
    check_table_is_gone(server)


def test_after_sigkill_frozen_clients_are_reset_and_come_back(stage):
    server, agents = stage.servers["bound"], sleepers(stage, "bound")
    server.kill()
    check_table_is_gone(server)
    # Some speak while there is no server, the others to the next one.
    end = Agent.hear_reset if IS_ON else Agent.hear_end
    for agent in agents[::2]:
        end(agent)
    server.start()
    for agent in agents[1::2]:
        end(agent)
    for agent, kind in zip(agents, itertools.cycle(kind for kind in KINDS.values() if kind.place == "bound")):
        with contextlib.closing(Agent(server, kind)) as again:
            again.say_hello(agent.uaid)
            again.hear_hello()
            assert again.uaid == agent.uaid
            again.channel = agent.channel
            server.post(agent.endpoint, b"welcome back")
            again.take_notification(b"welcome back")
            again.exchange()
