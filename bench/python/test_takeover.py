"""Sessions go on in the next process: user agents notice neither a stop, nor a crash, nor an upgrade of the server.

Each test has a server of its own. Without the feature, SIGTERM closes all clients with 1001, and after SIGKILL they are
reset: `check_silent` fails at once, and so does the first exchange. The clients of `Silence` are silent while the other
tests run, so the tests that need them are the last.
"""

import contextlib
import os
import resource
import socket
import ssl
import struct
import subprocess
import time

import pytest
import requests

import namespaces
from browser import AppServer, exchange, trust
from hibernation import BROADCAST, GONE, Agent, agents, browser, curl, link
from replays.player import PATIENCE, PING, PONG, TEXT, framed
from takeover import KINDS, PLAIN, VERSION_AT, Silence, Source, check_silent, missing, opened_site

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

ENDS = 40
# Longest wait for a message after the start, and from SIGTERM to the last answer to a crowd.
DELIVERED_WITHIN, UPGRADED_WITHIN = 2, 10
CROWD = 2000
# Longest wait for the probes of `Silence`, and for those that are not answered.
PROBED_WITHIN = 60
# Descriptors of the clients.
FILES = 10_000
OTHER = "tests/unchanged"
# Delays in seconds after which a starting process is killed.
EARLY_ENDS = (0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, FILES), hard), hard))
    with opened_site(tmp_path_factory.mktemp("site"), ENDS) as site:
        yield site


@pytest.fixture(scope="module")
def silence(site, tmp_path_factory):
    with Silence(site, tmp_path_factory.mktemp("silence")) as silence:
        yield silence


@pytest.fixture
def server(site):
    with site.running() as server:
        yield server


@contextlib.contextmanager
def closing(clients):
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.callback(client.close)
        yield clients


def opened(server, count=1, **options):
    """This many agents of each kind, each with one channel."""
    return closing(agents(server, list(KINDS.values()) * count, **options))


def foreign(server):
    """Clients that others have written: one of each library for each kind."""
    return [connect(server, kind) for kind in KINDS.values() for connect in (browser, curl)]


def exchange_all(clients):
    for client in clients:
        try:
            client.exchange()
        except (OSError, EOFError, AssertionError) as error:
            raise AssertionError(f"{client.socket}: {error!r}\n{client.server.log()}") from error


def check_next(server, clients):
    """The next process has exactly these clients, all frozen, and none of them has noticed."""
    check_silent(clients)
    server.check_taken_over(len(clients))
    server.check_frozen(*(client.socket for client in clients))
    server.check_sessions()
    check_silent(clients)


def test_firefox_stays_connected_over_a_stop_and_a_start(silence):
    silence.firefox_hears("before")
    with silence.same_firefox() as server:
        server.next_process()
        server.check_taken_over(1)
        silence.firefox_hears("after the start")


@pytest.mark.parametrize("shards", [2, 3, 1])
def test_sessions_go_on_after_a_stop_with_any_number_of_shards(server, monkeypatch, shards):
    trust(monkeypatch, server.authority)
    with opened(server, 4) as clients, closing(foreign(server)) as browsers:
        streams = [client.socket for client in clients] + [each.socket.socket for each in browsers]
        server.stop()
        check_silent(clients)
        server.check_left(len(streams))
        server.shards = shards
        server.start()
        assert server.table() is True
        server.check_taken_over(len(streams))
        server.check_frozen(*streams)
        server.check_gauge()
        server.check_sessions()
        server.check_records()
        check_silent(clients)
        with server.rises("thaws_by_segment_total", len(clients)):
            exchange_all(clients)
        for each in browsers:
            exchange(each, AppServer(), "\u00fc\u0436\u65e5" * 300)
            assert each.hears_nothing(0.01)
        server.check_live(*streams)
        server.check_gauge()
        server.check_records()
    server.check_sessions()
    assert server.number("thaw_failures_total") == 0


def test_unacked_messages_come_again_without_a_word_of_the_client(server):
    bodies = [os.urandom(40) for _ in range(3)]
    with opened(server) as clients:
        heard = {}
        for client in clients:
            for body in bodies:
                server.post(client.endpoint, body)
            heard[client] = [client.text("notification") for _ in bodies]
            # One that is acked does not come again.
            client.ack(heard[client].pop(1))
            client.ping()
        server.next_process()
        with server.rises("acks_total", 2 * len(clients)):
            for client in clients:
                again = [client.text("notification") for _ in heard[client]]
                assert again == heard[client]
                for message in again:
                    client.ack(message)
        exchange_all(clients)
        server.next_process()
        check_next(server, clients)
        exchange_all(clients)


def test_a_post_fails_between_the_processes_and_is_delivered_after_the_start(server):
    with opened(server) as clients:
        server.stop()
        for client in clients:
            with pytest.raises(requests.ConnectionError):
                requests.post(client.endpoint, b"lost", headers={"TTL": "60"}, timeout=0.1, verify=server.authority)
        server.start()
        begin = time.monotonic()
        for client in clients:
            server.post(client.endpoint, b"kept")
        for client in clients:
            client.take_notification(b"kept")
        assert (waited := time.monotonic() - begin) < DELIVERED_WITHIN, f"{waited} s"
        exchange_all(clients)


def test_what_clients_say_between_the_processes_is_answered_in_order(server):
    with opened(server, 2) as clients:
        server.stop()
        rest = {}
        for number, client in enumerate(clients):
            client.say_register()
            client.send(PING, b"between")
            # A frame in two halves. Each part is a segment of its own.
            frame = framed(TEXT, b'{"messageType":"broadcast_subscribe","broadcasts":{"tests/none":"v"}}')
            client.socket.sendall(frame[: number + 1])
            rest[client] = frame[number + 1 :]
        server.start()
        for client in clients:
            client.socket.sendall(rest[client])
        for client in clients:
            heard = [client.frame() for _ in range(3)]
            assert (PONG, b"between") in heard
            heard.remove((PONG, b"between"))
            assert b'"register"' in heard[0][1] and client.channel.encode() in heard[0][1], heard
            assert b"tests/none" in heard[1][1], heard
        server.check_taken_over(len(clients))
        exchange_all(clients)


def reset(client):
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_clients_that_leave_between_the_processes_end_their_sessions(server):
    with opened(server, 3) as clients:
        finishing, resetting, staying = clients[::3], clients[1::3], clients[2::3]
        server.stop()
        for client in finishing:
            client.close()
        for client in resetting:
            reset(client)
        server.start()
        # A FIN is sent again.
        server.wait_for_number("sessions", len(resetting) + len(staying), PATIENCE)
        # A reset is not: the next frame brings another one.
        for client in resetting:
            server.post(client.endpoint, b"anybody there?")
        server.check_sessions()
        server.check_gauge()
        server.check_records()
        check_silent(staying)
        exchange_all(staying)


@pytest.mark.parametrize("moment", ["at once", "side by side", "afterwards"])
def test_clients_that_come_back_on_new_connections_stay_there(server, moment):
    """Before, while and after the process takes their old sessions over."""
    with opened(server, 4) as old:
        server.stop()
        for client in old[::2]:
            client.close()
        server.start()
        if moment == "afterwards":
            server.wait_for_number("takeovers_waiting", 0, PATIENCE)
        with closing([Agent(server, kind) for kind in list(KINDS.values()) * 4]) as new:
            for again, client in zip(new, old):
                again.say_hello(client.uaid)
                if moment == "side by side":
                    time.sleep(0.4 / len(new))
            for again, client in zip(new, old):
                again.hear_hello()
                assert again.uaid == client.uaid
                again.channel, again.endpoint = client.channel, client.endpoint
            for again in new:
                server.post(again.endpoint, b"to the new one")
                again.take_notification(b"to the new one")
                again.ping()
            check_silent(new, 1)
            for client in old[1::2]:
                client.close()
            server.check_sessions()
            server.check_gauge()
            server.check_records()
            exchange_all(new)


def test_broadcasts_reach_sessions_of_the_next_process_when_they_change(server):
    put = server.put_broadcasts
    put(**{BROADCAST: "v1", OTHER: "w1"})
    with (
        opened(server, broadcasts={BROADCAST: "v1"}) as told,
        opened(server, broadcasts={BROADCAST: "v0"}) as behind,
        opened(server) as late,
        opened(server, broadcasts={OTHER: "w1"}) as others,
    ):
        subscribers = told + behind + late
        for client in late:
            client.say(messageType="broadcast_subscribe", broadcasts={BROADCAST: "v0"})
            assert client.text("broadcast")["broadcasts"] == {BROADCAST: "v1"}
        for version in ("v2", "v3"):
            server.next_process()
            check_next(server, subscribers + others)
            put(**{BROADCAST: version})
            for client in subscribers:
                assert client.text("broadcast")["broadcasts"] == {BROADCAST: version}
            check_silent(subscribers + others, 0.3)
        # This process cannot know that the version is not new, so it may tell it once.
        for _ in range(2):
            put(**{OTHER: "w1"})
        time.sleep(0.3)
        for client in others:
            client.send(PING, b"behind")
            heard = client.frame()
            if heard[0] == TEXT:
                heard = client.frame()
            assert heard == (PONG, b"behind")
        exchange_all(subscribers + others)


def test_a_broadcast_that_changes_between_the_processes_is_told_after_the_start(site):
    """An id that no source sets is unknown to the next process, so this one has a source."""
    with Source() as source:
        source.versions = {BROADCAST: "v1", OTHER: "w1"}
        settings = [f"broadcast.url=http://{link(site.used)[0][0].split('/')[0]}:{source.port}", "broadcast.interval=3600"]
        with (
            site.running(settings) as server,
            opened(server, broadcasts={BROADCAST: "v1", OTHER: "w1"}) as told,
            opened(server, broadcasts={OTHER: "w1"}) as others,
        ):
            server.stop()
            source.versions[BROADCAST] = "v2"
            server.start()
            for client in told:
                assert client.text("broadcast")["broadcasts"] == {BROADCAST: "v2"}
            check_silent(told + others, 0.5)
            server.next_process()
            check_next(server, told + others)
            exchange_all(told + others)


def test_sessions_go_on_through_processes_that_end_in_every_way(server):
    with opened(server, 4) as clients:
        server.next_process()
        check_next(server, clients)
        server.kill()
        server.check_left(len(clients))
        server.start()
        check_next(server, clients)
        server.next_process()
        check_next(server, clients)
        exchange_all(clients[::2])
        server.next_process()
        check_next(server, clients)
        exchange_all(clients)


def test_sessions_survive_processes_that_are_killed_while_they_start(server):
    with opened(server, 4) as clients:
        server.stop()
        for seconds in EARLY_ENDS:
            with namespaces.inside(server.namespace):
                server.spawn()
            time.sleep(seconds)
            server.kill()
            assert server.table() is False
        server.start()
        check_next(server, clients)
        server.check_records()
        exchange_all(clients)


def test_a_kill_under_load_ends_no_session_that_was_frozen(server):
    """Of those that speak, each goes on or is told. A record may be left of a connection that was live."""
    with opened(server, 8) as clients:
        speakers, silent = clients[: len(clients) // 2], clients[len(clients) // 2 :]
        server.next_process()
        check_next(server, clients)
        for client in speakers:
            client.say()
        server.kill()
        server.start()
        check_silent(silent)
        went_on = 0
        for client in speakers:
            try:
                assert client.text() == {}
                client.exchange()
                went_on += 1
            except (ConnectionResetError, BrokenPipeError, EOFError, ssl.SSLEOFError):
                client.close()
        exchange_all(silent)
        server.check_sessions()
        server.check_gauge()
        server.check_records()
        print(f"{went_on} of {len(speakers)} that spoke went on")


def test_a_stop_that_closes_leaves_nothing(server):
    with opened(server) as clients:
        server.next_process("drain.mode=close")
        check_next(server, clients)
        server.stop()
        for client in clients:
            client.hear_close(GONE)
            client.hear_end()
        assert server.table() is None and server.files() == []
        server.start()
        server.check_taken_over(0)
        assert server.number("sessions") == 0


def test_a_start_without_hibernation_after_a_crash_removes_rules_and_records(server):
    with opened(server, 2) as clients:
        server.next_process()
        check_next(server, clients)
        server.kill()
        server.check_left(len(clients))
        for client in clients[::2]:
            client.send(PING, b"")
        server.settings += ["hibernate.after=0", "drain.mode=close"]
        server.start()
        assert server.table() is None and server.files() == []
        server.wait_for_warning("given up")
        for number, client in enumerate(clients):
            client.hear_reset(speaks=number % 2 != 0)
    with opened(server) as clients:
        exchange_all(clients)


def test_damaged_records_and_those_of_a_future_version_are_lost_alone(server):
    with opened(server, 4) as clients:
        server.stop()
        path, at, entry = server.entry_of(victim := clients[0])
        # In the sequence numbers of its connection, where a restored socket would be wrong.
        change(path, at + 46, bytes(byte ^ 0xFF for byte in entry[46:50]))
        # Sessions with TLS have larger records, and a file for each size.
        future, _, _ = server.entry_of(next(client for client in clients if client.kind.tls))
        assert future != path
        lost = [client for client in clients if server.entry_of(client)[0] == future]
        change(future, VERSION_AT, b"\xff\0\0\0")
        server.start()
        lost.append(victim)
        left = [client for client in clients if client not in lost]
        assert left and len(lost) > 1
        check_silent(clients)
        server.check_taken_over(len(left))
        server.wait_for_warning("damaged records.*skipped")
        server.wait_for_warning("another version.*ignored")
        for client in lost:
            client.hear_reset()
        exchange_all(left)
        for client in lost:
            client.close()
            with closing([Agent(server, client.kind)]) as (again,):
                again.say_hello(client.uaid)
                again.hear_hello()
                assert again.uaid == client.uaid
                again.exchange()
        server.check_sessions()
        server.check_records()


def change(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("fault", ["readable for others", "on a disk"])
def test_a_directory_that_is_not_private_or_on_a_disk_is_refused_with_the_reason(site, tmp_path, fault):
    server = site.server()
    if fault == "on a disk":
        assert filesystem(tmp_path) not in ("tmpfs", "ramfs"), "set TMPDIR to a directory of a disk"
        server.settings.append(f"hibernate.dir={tmp_path}/frozen")
    else:
        server.records.mkdir()
        server.records.chmod(0o755)
    try:
        server.start()
        reason = {"readable for others": "others may read it", "on a disk": "not on a tmpfs"}[fault]
        server.wait_for_warning(f"hibernation off.*{reason}")
        assert server.table() is None
        with opened(server) as clients:
            exchange_all(clients)
            server.stop()
            for client in clients:
                client.hear_close(GONE)
                client.hear_end()
        assert server.files() == []
    finally:
        server.clear()


def filesystem(path):
    found = subprocess.run(["stat", "-f", "-c", "%T", path], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def unfinished(client):
    """Bytes of a frame that is not whole are in no record."""
    client.socket.sendall(framed(PING, b"whole") + framed(PING, b"half")[:3])
    assert client.frame() == (PONG, b"whole")


def talkative(client):
    """These broadcasts are larger than a record."""
    versions = {f"tests/{number}" * 10: "new" for number in range(20)}
    client.server.put_broadcasts(**versions)
    client.say(messageType="broadcast_subscribe", broadcasts=dict.fromkeys(versions, "old"))
    assert client.text("broadcast")["broadcasts"] == versions


@pytest.mark.parametrize("prepare", [unfinished, talkative])
def test_sessions_that_cannot_be_frozen_are_closed_alone(server, prepare):
    """What the kernel keeps of their connections must not keep the ports from the next process."""
    with opened(server) as clients, opened(server) as others:
        for client in clients:
            prepare(client)
        server.stop()
        for client in clients:
            client.hear_close(GONE)
            client.hear_end()
            client.close()
        server.start()
        check_next(server, others)
        exchange_all(others)


def test_a_crowd_notices_no_upgrade(server):
    kinds = list(KINDS.values()) + PLAIN * 3
    crowd = [Agent(server, kinds[number % len(kinds)]) for number in range(CROWD)]
    with closing(crowd):
        for client in crowd:
            client.say_hello()
        for client in crowd:
            client.hear_hello()
        begin = time.monotonic()
        server.stop()
        stopped = time.monotonic()
        server.start()
        started = time.monotonic()
        check_silent(crowd)
        for client in crowd:
            client.send(PING, b"alive")
        for client in crowd:
            assert client.frame() == (PONG, b"alive")
        waited = time.monotonic() - begin
        print(f"{CROWD} clients: stopped {stopped - begin:.2f} s, started {started - begin:.2f} s, answered {waited:.2f} s")
        assert waited < UPGRADED_WITHIN, f"{waited} s"
        server.check_taken_over(CROWD)
        server.check_sessions()


def test_silent_sessions_survive_a_crash(silence):
    """Frozen by their silence. Clients that were live are told, and come back."""
    server = silence.frozen_by_silence
    clients, browsers = silence.clients, silence.browsers
    streams = [client.socket for client in clients] + [each.socket.socket for each in browsers]
    silence.wait_for_frozen(server, len(streams))
    server.check_frozen(*streams)
    check_silent(clients)
    live, frozen = clients[::2], clients[1::2]
    for client in live:
        client.ping()
    server.kill()
    server.check_left(len(frozen) + len(browsers))
    for client in live:
        # Below TLS, which makes an end of every error.
        with contextlib.suppress(ConnectionResetError):
            assert socket.socket.recv(client.socket, 1 << 16) == b""
        client.close()
    server.start()
    with closing([Agent(server, client.kind) for client in live]) as again:
        for new, client in zip(again, live):
            new.say_hello(client.uaid)
            new.hear_hello()
            assert new.uaid == client.uaid
        server.check_taken_over(len(frozen) + len(browsers))
        server.check_sessions()
        check_silent(frozen)
        exchange_all(frozen + again)
    for each in browsers:
        each.send(messageType="broadcast_subscribe", broadcasts={"tests/none": "v"})
        each.receive("broadcast")


def test_firefox_stays_connected_over_its_silence_and_a_crash(silence):
    with silence.same_firefox() as server:
        silence.wait_for_frozen(server, 1)
        server.kill()
        server.start()
        server.check_taken_over(1)
        silence.firefox_hears("after the crash")


def test_probes_come_in_place_of_pings_and_find_hosts_that_are_gone(silence):
    """All were frozen by the stop of the last process. Without probes, all are thawed by pings."""
    server, answering, vanished = silence.probed, silence.answering, silence.vanished
    server.wait_for_number("close_pong_timeout_total", len(vanished), PROBED_WITHIN)
    for client in vanished:
        client.close()
    server.check_taken_over(len(answering) + len(vanished))
    server.check_sessions()
    assert server.number("probes_total") >= len(answering) + len(vanished)
    assert server.number("probes_answered_total") >= len(answering)
    assert server.number("freezes_total") == server.number("thaws_by_segment_total") == 0
    assert server.number("thaws_by_frame_total") <= len(vanished)
    check_silent(answering)
    server.check_frozen(*(client.socket for client in answering))
    server.check_records()
    exchange_all(answering)
