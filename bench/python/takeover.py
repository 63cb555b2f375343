"""Servers whose sessions go on in the next process: each has a namespace, and a directory of records on a tmpfs."""

import contextlib
import http.server
import json
import pathlib
import platform
import re
import select
import shutil
import ssl
import struct
import tempfile
import threading
import time

import pytest

import firefox
import namespaces
from browser import AppServer
from hibernation import (
    FREEZE_PATIENCE, IS_ON, TABLE, TLS_BOUND, TLS_WILDCARD, Agent, HibernatingServer, Kind, agents, browser, curl, link,
)
from replays.player import PATIENCE
from segments import established, tables

SHARED_MEMORY = pathlib.Path("/dev/shm")
# Linux with tables of packet rules that persist.
PERSISTING = 6, 9
KINDS = {
    "plain-v4": Kind("", 4),
    "plain-v6": Kind("", 6),
    "tls1.3-v4": Kind("", 4, TLS_WILDCARD, ssl.TLSVersion.TLSv1_3),
    "tls1.3-v6": Kind("", 6, TLS_BOUND, ssl.TLSVersion.TLSv1_3),
    "tls1.2-v4": Kind("", 4, TLS_BOUND, ssl.TLSVersion.TLSv1_2),
    "tls1.2-v6": Kind("", 6, TLS_WILDCARD, ssl.TLSVersion.TLSv1_2),
}
PLAIN = [kind for kind in KINDS.values() if not kind.tls]
# Probes in place of pings, the first one soon after the silence of `hibernate.after`.
PROBES = ["websocket.auto_ping_interval=32", "websocket.auto_ping_timeout=3", "hibernate.ping_interval=3600"]
# Form of the files (shards/hibernate/src/records.rs).
HEADER_BYTES, VERSION_AT, ENTRY_BYTES_AT = 64, 12, 16
LISTENING = "0A"


def missing():
    """Reason why no session can go on in the next process on this host."""
    if namespaces.MISSING:
        return namespaces.MISSING
    if not IS_ON:
        return "hibernation is off"
    if tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) < PERSISTING:
        return "needs Linux 6.9"
    mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    if not any(words[1:3] == [str(SHARED_MEMORY), "tmpfs"] for words in mounts):
        return f"{SHARED_MEMORY} is no tmpfs"
    return None


class TakeoverServer(HibernatingServer):
    """A server that takes the frozen sessions of its last process over, and leaves all of its own when it is stopped."""

    def __init__(self, directory, number, settings=(), has_tls=True):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="murre-", dir=SHARED_MEMORY))
        # The server makes it.
        self.records = self.home / "frozen"
        own = [f"hibernate.dir={self.records}", "drain.mode=hibernate", *settings]
        super().__init__(directory, number, own)
        if has_tls:
            self.use_tls()

    def kill(self):
        """Returns when nothing listens. Packet rules that stay let no SYN through."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + PATIENCE
        with namespaces.inside(self.namespace):
            while listeners():
                assert time.monotonic() < deadline, "a killed process listens"
                time.sleep(0.005)

    def clear(self):
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def next_process(self, *settings):
        """Stops it and starts the next process, with more settings than before."""
        self.stop()
        self.settings += settings
        self.start()

    def check_taken_over(self, count):
        """The present process has these sessions of the last one, and all their users. Shards show it once a second."""
        deadline = time.monotonic() + PATIENCE
        names = "takeovers_total", "takeovers_waiting", "takeovers_dropped_total"
        while (found := [self.number(name) for name in names]) != [count, 0, 0]:
            assert time.monotonic() < deadline, f"{dict(zip(names, found))}, {count} were left\n{self.log()}"
            time.sleep(0.02)

    def wait_for_warning(self, pattern):
        """Ports are open before all is logged."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(f"(WARN|ERROR).*{pattern}", self.log()):
            assert time.monotonic() < deadline, f"no warning of {pattern}:\n{self.log()}"
            time.sleep(0.02)

    def table(self):
        """None if there are no packet rules, else whether a process owns them."""
        with namespaces.inside(self.namespace):
            return tables().get(TABLE)

    def check_left(self, count):
        """Packet rules without an owner, and records that nobody else may read, are all there is of the sessions."""
        assert self.table() is False, self.log()
        assert len(self.entries()) == count, self.log()
        modes = {path.stat().st_mode & 0o777 for path in self.records.iterdir()}
        assert (modes, self.records.stat().st_mode & 0o777) == ({0o600}, 0o700)

    def files(self):
        return sorted(self.records.glob("*.frozen"))

    def entries(self):
        """Records: file, offset and bytes of each."""
        found = []
        for path in self.files():
            data = path.read_bytes()
            (size,) = struct.unpack_from("<I", data, ENTRY_BYTES_AT)
            for at in range(HEADER_BYTES, len(data) - size + 1, size):
                entry = data[at : at + size]
                if entry[4:6] != b"\0\0":
                    found.append((path, at, entry))
        return found

    def entry_of(self, agent):
        """Record of this agent's session."""
        (found,) = [each for each in self.entries() if bytes.fromhex(agent.uaid) in each[2]]
        return found

    def check_records(self):
        """Exactly the frozen sessions have a record."""
        deadline = time.monotonic() + PATIENCE
        while (records := len(self.entries())) != (frozen := self.number("frozen")):
            assert time.monotonic() < deadline, f"{records} records, {frozen} frozen sessions"
            time.sleep(0.05)

    def connections_of_clients(self):
        """Connections to this server that the kernel of the clients has."""
        hosts = set(self.addresses.values())
        return {each for each in established("thread-self") if each[0] in hosts}


def listeners():
    """Listening TCP sockets of this network namespace."""
    found = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/thread-self/net/{name}") as table:
            found += [words[1] for words in map(str.split, table) if words[3] == LISTENING]
    return found


def check_silent(agents, seconds=0):
    """No frame, end or reset has come to these agents, and none comes in this time."""
    assert not any(agent.unread for agent in agents)
    poll = select.poll()
    for agent in agents:
        poll.register(agent.socket, select.POLLIN)
    heard = poll.poll(seconds * 1000)
    assert not heard, f"{len(heard)} of {len(agents)} clients were disturbed"


class Source:
    """A source of broadcasts in this network namespace."""

    def __init__(self):
        self.versions = {}
        source = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps({"broadcasts": source.versions}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.port = self.http.server_port

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


class Site:
    """Ends of links for servers, each used once, around the namespace of the clients."""

    def __init__(self, hub, points, directory):
        self.hub, self.points, self.directory = hub, points, directory
        self.used = 0

    def server(self, settings=(), has_tls=True):
        """A server that does not run yet."""
        number = self.used
        self.used += 1
        directory = self.directory / str(number)
        directory.mkdir()
        server = TakeoverServer(directory, number, settings, has_tls)
        server.namespace, server.device = self.points[number], f"link{number}"
        return server

    @contextlib.contextmanager
    def running(self, settings=(), has_tls=True):
        server = self.server(settings, has_tls)
        try:
            server.start()
            yield server
        finally:
            server.clear()


@contextlib.contextmanager
def opened_site(directory, size):
    """A site with this many ends, with this thread in the namespace of the clients."""
    with namespaces.star(*map(link, range(size))) as (hub, points), namespaces.inside(hub):
        yield Site(hub, points, directory)


class Silence:
    """Servers and clients that are silent while tests of others run."""

    def __init__(self, site, directory):
        self.site, self.directory = site, directory
        self.firefox = None

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.probed = stack.enter_context(self.site.running(PROBES))
            self.frozen_by_silence = stack.enter_context(self.site.running())
            self.of_firefox = stack.enter_context(self.site.running(has_tls=False))
            self.open_clients()
            if firefox.program():
                self.open_firefox(stack)
            self.deadline = time.monotonic() + FREEZE_PATIENCE
            self.open = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.open.close()

    def open_clients(self):
        kinds, hub, device = list(KINDS.values()), self.site.hub, self.probed.device
        self.answering = agents(self.probed, kinds * 2)
        # Addresses of a host that vanishes. Later, so that the system chooses them for no other client.
        sources = {family: address[:-1] + "3" for family, address in self.probed.addresses.items()}
        added = [(f"{sources[4]}/24", "dev", device), (f"{sources[6]}/64", "dev", device, "nodad")]
        for address in added:
            namespaces.run("-n", hub, "address", "add", *address)
        self.vanished = [Agent(self.probed, kind, sources[kind.family]) for kind in kinds]
        for client in self.vanished:
            client.say_hello()
        for client in self.vanished:
            client.hear_hello()
        # All are frozen now, and the next ping is due when they would be frozen by their silence.
        self.probed.next_process()
        for address in added:
            namespaces.run("-n", hub, "address", "del", *address[:3])
        self.clients = agents(self.frozen_by_silence, kinds * 4)
        self.browsers = [connect(self.frozen_by_silence, kind) for kind in kinds for connect in (browser, curl)]

    def open_firefox(self, stack):
        site = firefox.Site()
        stack.callback(site.close)
        self.firefox = firefox.Firefox(self.of_firefox.url("websocket") + "/", site, self.directory)
        stack.callback(self.firefox.close)
        self.sender = AppServer()
        self.subscription = self.firefox.subscribe("takeover", self.sender.key)

    def firefox_hears(self, text):
        """A push reaches the page of Firefox, which was not loaded again."""
        if self.firefox is None:
            pytest.skip("there is no Firefox")
        acks = self.of_firefox.number("acks_total")
        assert self.sender.push(self.subscription, text).status_code == 201
        assert self.firefox.push("takeover").decode() == text
        self.of_firefox.wait_for_number("acks_total", acks + 1)
        assert self.firefox.unheard() == []

    @contextlib.contextmanager
    def same_firefox(self):
        """Firefox has the same id and the same connection behind a block of statements, so it has said no hello."""
        if self.firefox is None:
            pytest.skip("there is no Firefox")
        server = self.of_firefox
        before = self.firefox.user_agent_id(), server.connections_of_clients()
        assert before[0] and len(before[1]) == 1, before
        yield server
        assert (self.firefox.user_agent_id(), server.connections_of_clients()) == before
        assert server.number("sessions") == 1

    def wait_for_frozen(self, server, count):
        while (frozen := server.number("frozen")) != count:
            assert time.monotonic() < self.deadline, f"{frozen} of {count} sessions are frozen\n{server.log()}"
            time.sleep(0.2)
