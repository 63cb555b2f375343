"""Servers that hibernate, each in a network namespace, and their clients in another one, who are silent together.

One silence takes up to 45 s, so every test takes its clients from one stage, where all have been silent at once.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import re
import socket
import ssl
import time
import uuid

import pytest
import requests

import namespaces
from browser import Browser, encoded, opened
from conftest import PORTS, Server
from curl_client import CurlSocket
from replays.player import CLOSE, PATIENCE, PING, PONG, TEXT, Connection
from segments import established, key
from tls_front import make_certificate

# HIBERNATE=off runs the tests against live connections, without what only hibernation shows: a check of the tests.
IS_ON = os.environ.get("HIBERNATE") != "off"
AFTER, QUEUE = 30, 77
TABLE = "inet", f"murre_{QUEUE}"
SETTINGS = [f"hibernate.after={AFTER}", f"hibernate.queue={QUEUE}"] if IS_ON else []
# A connection freezes within one and a half times AFTER; the rest is for a slow host.
FREEZE_PATIENCE = 180 if IS_ON else 0
HEAD = ["GET / HTTP/1.1", "Host: $host", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
HEAD += ["Sec-WebSocket-Key: $nonce"]
# Messages that a client does not read before its silence.
UNACKED = [bytes([number]) * 4000 for number in range(3)]
BROADCAST = "tests/frozen"
GONE, SUPERSEDED, NORMAL = 1001, 1011, 1000
# Probes of the client's kernel, in seconds: the first one finds its connection frozen, and one must be answered.
KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3}
# Connections beside the sessions, after a test.
OTHERS_MAX = 4
HIBERNATION = ("freezes", "thaws")
PLACES = ["wildcard", "bound", "tls", "pinged", "powerless", "unacked"]
TLS_WILDCARD, TLS_BOUND = 443, 8443


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of client: its server, the family of its address, its port, and its version of TLS."""

    place: str
    family: int
    port: int = PORTS["websocket"]
    tls: ssl.TLSVersion | None = None


KINDS = {f"{place}-v{family}": Kind(place, family) for place in ("wildcard", "bound") for family in (4, 6)}
KINDS |= {
    "tls1.3-wildcard-v4": Kind("tls", 4, TLS_WILDCARD, ssl.TLSVersion.TLSv1_3),
    "tls1.3-bound-v6": Kind("tls", 6, TLS_BOUND, ssl.TLSVersion.TLSv1_3),
    "tls1.2-wildcard-v6": Kind("tls", 6, TLS_WILDCARD, ssl.TLSVersion.TLSv1_2),
    "tls1.2-bound-v4": Kind("tls", 4, TLS_BOUND, ssl.TLSVersion.TLSv1_2),
}
# Clients of each kind that tests take: of one that runs all cases.
CLIENTS_EACH = 26
# Two crowds for each of these servers: one that speaks, and one that is notified.
CROWDS = {"wildcard": 500, "tls": 100}


def addresses(number):
    """Address of a server by family."""
    return {4: f"10.77.{number}.1", 6: f"2001:db8:77:{number}::1"}


def link(number):
    """Addresses of the clients' end of the link to a server, and of its own end."""
    ends = [f"10.77.{number}.{end}/24" for end in (2, 1)], [f"2001:db8:77:{number}::{end}/64" for end in (2, 1)]
    return list(zip(*ends))


class HibernatingServer(Server):
    """A server in its namespace that freezes silent connections."""

    def __init__(self, directory, number, settings=(), prefix=()):
        own = ["websocket.auto_ping_interval=0", "websocket.ping_min_interval=0", *SETTINGS, *settings]
        super().__init__(directory, shards=2, settings=own, prefix=prefix)
        self.addresses = addresses(number)
        self.host = self.addresses[4]
        # All addresses, with one socket for both families.
        self.listen = {"websocket": f"[::]:{PORTS['websocket']}"}
        self.authority = None
        # Sockets of clients that may be frozen.
        self.streams = []

    def start(self):
        with namespaces.inside(self.namespace):
            super().start()

    def bind(self):
        """Listens on one address of each family, for user agents and app servers alike."""
        listen = ",".join(f"{host}:{PORTS['websocket']}" for host in (self.addresses[4], f"[{self.addresses[6]}]"))
        self.listen = {"websocket": listen, "endpoint": f"{listen},{self.host}:{PORTS['endpoint']}"}
        self.settings.append(f"endpoint.url=http://{self.host}:{PORTS['websocket']}")

    def use_tls(self):
        """Has a port for both roles on all addresses, and one for user agents on one address of each family."""
        self.authority, certificate_key = self.directory / "certificate.pem", self.directory / "key.pem"
        make_certificate(self.host, self.authority, certificate_key)
        self.settings += [f"tls.cert={self.authority}", f"tls.key={certificate_key}", "tls.min_version=1.2"]
        self.settings += [f"public.listen=[::]:{TLS_WILDCARD}", f"endpoint.url=https://{self.host}"]
        bound = ",".join(f"{host}:{TLS_BOUND}" for host in (self.addresses[4], f"[{self.addresses[6]}]"))
        self.settings.append(f"websocket.tls.listen={bound}")

    def context(self, version=None):
        """What clients trust, and the one version of TLS that they speak."""
        context = ssl.create_default_context(cafile=self.authority)
        # The certificate names the IPv4 address only.
        context.check_hostname = False
        if version:
            context.minimum_version = context.maximum_version = version
        return context

    @functools.cached_property
    def http(self):
        session = requests.Session()
        session.trust_env = False
        session.verify = str(self.authority) if self.authority else True
        return session

    def post(self, endpoint, body):
        headers = {"TTL": "60", "Content-Encoding": "aes128gcm"}
        answer = self.http.post(endpoint, body, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 201, (answer.status_code, answer.text)

    def events(self):
        """What the server has logged about reduced service and hibernation."""
        return [line for line in self.log().splitlines() if re.search(r"(WARN|ERROR).*hibernat", line)]

    def broadcast(self, version):
        self.put_broadcasts(**{BROADCAST: version})

    def is_live(self, *streams):
        """Whether the kernel has each of these connections."""
        return [key(stream) in table for table in [established(self.process.pid)] for stream in streams]

    def frozen_streams(self):
        """Number of the clients' open connections that the kernel of the server does not have."""
        return self.is_live(*(stream for stream in self.streams if stream.fileno() != -1)).count(False)

    def check_frozen(self, *streams):
        live = sum(self.is_live(*streams))
        assert not IS_ON or live == 0, f"{live} of {len(streams)} silent connections are in the kernel:\n{self.log()}"

    def check_live(self, *streams):
        live = sum(self.is_live(*streams))
        assert live == len(streams), f"the kernel has {live} of {len(streams)} connections:\n{self.log()}"

    def check_gauge(self):
        """`frozen` counts exactly the open connections that the kernel does not have. Shards show it once a second."""
        deadline = time.monotonic() + PATIENCE
        while IS_ON and (gauge := self.number("frozen")) != (frozen := self.frozen_streams()):
            assert time.monotonic() < deadline, f"frozen is {gauge}, {frozen} connections are not in the kernel"
            time.sleep(0.05)

    def check_sessions(self):
        """Each open connection of a client is a session, and no other connection is left."""
        is_open = [stream.fileno() != -1 for stream in self.streams]
        self.wait_for_number("sessions", sum(is_open), PATIENCE)
        deadline = time.monotonic() + PATIENCE
        # Connections that `http` keeps are no sessions.
        while (connections := self.number("connections")) > sum(is_open) + OTHERS_MAX:
            assert time.monotonic() < deadline, f"{connections} connections, {sum(is_open)} sessions"
            time.sleep(0.05)

    @contextlib.contextmanager
    def rises(self, name, least):
        """A counter rises by this at least in a block of statements."""
        is_shown = IS_ON or not name.startswith(HIBERNATION)
        before = self.number(name) if is_shown else 0
        yield
        deadline = time.monotonic() + PATIENCE
        while is_shown and (risen := self.number(name) - before) < least:
            assert time.monotonic() < deadline, f"{name} rose by {risen}, not by {least}"
            time.sleep(0.05)


class Agent(Connection):
    """A user agent that makes its frames itself, so that it sends and reads nothing that a test does not ask for."""

    def __init__(self, server, kind, source=""):
        """`source`: address of the client, if it has several."""
        self.server, self.kind = server, kind
        host = server.addresses[kind.family]
        stream = socket.create_connection((host, kind.port), timeout=PATIENCE, source_address=(source, 0))
        if kind.tls:
            stream = server.context(kind.tls).wrap_socket(stream)
        shown = f"[{host}]" if kind.family == 6 else host
        super().__init__((shown, kind.port), HEAD, stream)
        server.streams.append(self.socket)

    def say(self, **message):
        self.send(TEXT, json.dumps(message).encode())

    def hear(self, opcode):
        """Payload of the next frame, which must be of this kind."""
        found, payload = self.frame()
        assert found == opcode, (found, payload)
        return payload

    def text(self, kind=None):
        message = json.loads(self.hear(TEXT))
        assert kind is None or message.get("messageType") == kind, message
        return message

    def say_hello(self, uaid="", broadcasts=None):
        self.say(messageType="hello", use_webpush=True, uaid=uaid, broadcasts=broadcasts or {})

    def hear_hello(self):
        self.uaid = self.text("hello")["uaid"]

    def say_register(self):
        self.channel = str(uuid.uuid4())
        self.say(messageType="register", channelID=self.channel)

    def hear_register(self):
        answer = self.text("register")
        assert (answer["status"], answer["channelID"]) == (200, self.channel), answer
        self.endpoint = answer["pushEndpoint"]

    def take_notification(self, body):
        """Hears a message, and acks it."""
        heard = self.text("notification")
        assert (heard["channelID"], heard["data"]) == (self.channel, encoded(body)), heard
        self.ack(heard)

    def ack(self, heard):
        update = {"channelID": heard["channelID"], "version": heard["version"], "code": 100}
        self.say(messageType="ack", updates=[update])

    def ping(self):
        self.send(PING, payload := os.urandom(8))
        assert self.hear(PONG) == payload

    def exchange(self):
        """Bytes both ways, of every sort."""
        self.ping()
        self.say()
        assert self.text() == {}
        self.say_register()
        self.hear_register()
        body = os.urandom(40)
        self.server.post(self.endpoint, body)
        self.take_notification(body)
        self.ping()

    def hear_close(self, code):
        assert int.from_bytes(self.hear(CLOSE)[:2], "big") == code

        self.send(CLOSE, code.to_bytes(2, "big"))

    def hear_end(self):
        assert self.socket.recv(1) == b""

    def keep_alive(self):
        """Has its kernel probe the connection."""
        for option, value in KEEPALIVE.items():
            self.socket.setsockopt(socket.IPPROTO_TCP, option, value)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def hear_reset(self, speaks=True):
        """The server's kernel does not know the connection when the client speaks; `speaks`: it does so now."""
        with contextlib.suppress(BrokenPipeError), pytest.raises(ConnectionResetError):
            if speaks:
                self.send(PING, b"")
            # Below TLS, which makes an end of every error.
            while socket.socket.recv(self.socket, 65536):
                pass

    def close(self):
        self.socket.close()


def agents(server, kinds, broadcasts=None):
    """Agents of these kinds, each with one channel. All ask before the first hears an answer."""
    made = [Agent(server, kind) for kind in kinds]
    for step in (lambda one: one.say_hello(broadcasts=broadcasts), Agent.hear_hello, Agent.say_register):
        for agent in made:
            step(agent)
    for agent in made:
        agent.hear_register()
    return made


def browser(server, kind):
    """A user agent that `websockets` connects. It answers pings by itself, and sends none."""
    options = {"ping_interval": None, "proxy": None, "ssl": server.context(kind.tls) if kind.tls else None}
    return connected(server, lambda _: opened(url(server, kind), **options))


def curl(server, kind):
    """A user agent that libcurl connects."""
    return connected(server, lambda _: CurlSocket(url(server, kind), server.authority, kind.tls))


def url(server, kind):
    host = f"[{server.addresses[6]}]" if kind.family == 6 else server.addresses[4]
    return f"{'wss' if kind.tls else 'ws'}://{host}:{kind.port}"


def connected(server, connect):
    made = Browser(server, connect=connect)
    server.streams.append(made.socket.socket)
    return made


class Stage:
    """All servers, and all clients after their first silence."""

    def __init__(self, directory, place_of):
        bare = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
        options = {
            "pinged": {"settings": ["websocket.auto_ping_interval=50", "websocket.auto_ping_timeout=10"]},
            "powerless": {"prefix": bare},
        }
        self.servers = {}
        for number, place in enumerate(PLACES):
            (directory / place).mkdir()
            server = HibernatingServer(directory / place, number, **options.get(place, {}))
            server.namespace = place_of[place]
            self.servers[place] = server
        self.servers["bound"].bind()
        self.servers["tls"].use_tls()

    def open(self):
        """Starts the servers and opens all clients."""
        for server in self.servers.values():
            server.start()
        self.pinged = [browser(self.servers["pinged"], Kind("pinged", family)) for family in (4, 6) for _ in range(4)]
        self.powerless = agents(self.servers["powerless"], [Kind("powerless", 4), Kind("powerless", 6)])
        self.unacked = agents(self.servers["unacked"], [Kind("unacked", 4), Kind("unacked", 6)])
        for agent in self.unacked:
            for body in UNACKED:
                agent.server.post(agent.endpoint, body)
        self.browsers, self.curls = {}, {}
        self.subscribers, self.repeaters, self.sleepers, self.keepers = {}, {}, {}, {}
        self.idle = collections.defaultdict(list)
        for name, kind in KINDS.items():
            server = self.servers[kind.place]
            self.browsers[name], self.curls[name] = browser(server, kind), curl(server, kind)
            self.subscribers[name] = agents(server, [kind] * 2, broadcasts={BROADCAST: "v0"})
            # Those that are frozen twice, and those that sleep until their server ends.
            self.repeaters[name] = agents(server, [kind] * 2)
            self.sleepers[name] = agents(server, [kind] * 4)
            self.keepers[name] = agents(server, [kind])[0]
            self.keepers[name].keep_alive()
            self.idle[name] = agents(server, [kind] * CLIENTS_EACH)
        self.crowds = {}
        for place, size in CROWDS.items():
            kinds = [kind for kind in KINDS.values() if kind.place == place]
            self.crowds[place] = agents(self.servers[place], (kinds * 2 * size)[: 2 * size])

    def wait(self):
        """Waits once until all but the pinged are frozen. Tests judge what is not frozen by then."""
        silent = [self.servers[place] for place in PLACES[:3]]
        deadline = time.monotonic() + FREEZE_PATIENCE
        while time.monotonic() < deadline:
            if all(server.frozen_streams() == len(server.streams) for server in silent):
                return
            time.sleep(0.5)

    @functools.cached_property
    def second_deadline(self):
        """When all that the first tests thawed must be frozen again, as the first test that asks finds it."""
        return time.monotonic() + FREEZE_PATIENCE

    def take(self, name, count):
        """Frozen agents that no other test has."""
        assert len(self.idle[name]) >= count, "CLIENTS_EACH is too small"
        taken, self.idle[name] = self.idle[name][:count], self.idle[name][count:]
        self.servers[KINDS[name].place].check_frozen(*(agent.socket for agent in taken))
        return taken


@contextlib.contextmanager
def staged(directory):
    """The stage, with this thread in the namespace of the clients."""
    with contextlib.ExitStack() as stack:
        hub, places = stack.enter_context(namespaces.star(*map(link, range(len(PLACES)))))
        stack.enter_context(namespaces.inside(hub))
        stage = Stage(directory, dict(zip(PLACES, places)))
        for server in stage.servers.values():
            stack.callback(lambda server=server: server.process and server.kill())
        stage.open()
        stage.wait()
        yield stage
