"""Certificates of clients on the endpoint and node listeners, with OpenSSL (Python's ssl) as the client."""

import datetime
import signal
import socket
import ssl
import time

import pytest

from tls_front import make_certificate
from tls_server import PATIENCE, TLS_PORTS, TlsServer, get

PATHS = {"endpoint": "/status", "node": "/status", "websocket": "/status"}
REQUIRED, UNKNOWN, EXPIRED = "CERTIFICATE_REQUIRED", "UNKNOWN_CA", "CERTIFICATE_EXPIRED"


class Authority:
    """Signs certificates of clients."""

    def __init__(self, directory, name):
        self.directory, self.name = directory, name
        self.files = directory / f"{name}.pem", directory / f"{name}-key.pem"
        make_certificate(f"{name}.example", *self.files)

    def certificate(self, name, **named):
        files = self.directory / f"{self.name}-{name}.pem", self.directory / f"{self.name}-{name}-key.pem"
        make_certificate(f"{name}.example", *files, is_authority=False, issuer=self.files, **named)
        return files


class Clients:
    """A server whose endpoint and node listeners ask for certificates."""

    def __init__(self, directory, is_required):
        self.ours, self.other = Authority(directory, "ours"), Authority(directory, "other")
        self.good, self.wrong = self.ours.certificate("good"), self.other.certificate("wrong")
        self.expired = self.ours.certificate("expired", age=datetime.timedelta(hours=2))
        self.ca = directory / "clients.pem"
        self.ca.write_bytes(self.ours.files[0].read_bytes())
        self.server = TlsServer(directory, has_authority=True)
        for port in ("endpoint", "node"):
            self.server.settings += [f"{port}.tls.client_ca={self.ca}"]
            self.server.settings += [f"{port}.tls.client_required={str(is_required).lower()}"]

    def connect(self, port, certificate=None, session=None):
        context = ssl.create_default_context(cafile=self.server.authority)
        if certificate:
            context.load_cert_chain(*certificate)
        stream = socket.create_connection((self.server.host, TLS_PORTS[port]), timeout=PATIENCE)
        return context.wrap_socket(stream, server_hostname=self.server.host, session=session)

    def is_served(self, port, certificate=None):
        with self.connect(port, certificate) as tls:
            tls.sendall(get(self.server, PATHS[port]).encode())
            assert tls.recv(4096).startswith(b"HTTP/1.1 ")
            return True

    def refusal(self, port, certificate=None):
        """The alert. A client of TLS 1.3 learns of it behind its handshake."""
        with pytest.raises(ssl.SSLError) as caught, self.connect(port, certificate) as tls:
            tls.recv(1)
        return caught.value.reason


@pytest.fixture(params=[True, False])
def clients(tmp_path, request):
    clients = Clients(tmp_path, request.param)
    clients.is_required = request.param
    with clients.server.running():
        yield clients


@pytest.mark.parametrize("port", ["endpoint", "node"])
def test_a_certificate_that_is_shown_must_verify_and_may_be_required(clients, port):
    assert clients.is_served(port, clients.good)
    assert UNKNOWN in clients.refusal(port, clients.wrong)
    assert EXPIRED in clients.refusal(port, clients.expired)
    if clients.is_required:
        assert REQUIRED in clients.refusal(port)
    else:
        assert clients.is_served(port)
    # User agents have none, and are not asked.
    assert clients.is_served("websocket") and clients.is_served("websocket", clients.wrong)


def test_a_long_chain_fits_and_one_of_more_than_64_kib_does_not(clients):
    own, issuer = clients.good[0].read_bytes(), clients.ours.files[0].read_bytes()
    length = len(ssl.PEM_cert_to_DER_cert(issuer.decode()))
    for chain_bytes, fits in ((40_000, True), (70_000, False)):
        chain = clients.server.directory / "chain.pem"
        chain.write_bytes(own + issuer * (chain_bytes // length))
        if fits:
            assert clients.is_served("endpoint", (chain, clients.good[1]))
        else:
            refusal = pytest.raises((ssl.SSLError, ConnectionError))
            with refusal, clients.connect("endpoint", (chain, clients.good[1])) as tls:
                tls.sendall(get(clients.server).encode())
                assert not tls.recv(4096), "a request is answered"
                raise ConnectionResetError


def test_a_ticket_is_no_way_around_a_certificate(tmp_path):
    clients = Clients(tmp_path, True)
    context = ssl.create_default_context(cafile=clients.server.authority)

    def connect(port, session=None):
        stream = socket.create_connection((clients.server.host, TLS_PORTS[port]), timeout=PATIENCE)
        return context.wrap_socket(stream, server_hostname=clients.server.host, session=session)

    with clients.server.running():
        with connect("websocket") as tls:
            tls.sendall(get(clients.server).encode())
            tls.recv(4096)
            session = tls.session
        assert session.has_ticket
        with connect("websocket", session) as tls:
            assert tls.session_reused
        # The listeners share the keys of tickets, but those that ask for certificates take none.
        for port in ("endpoint", "node"):
            with pytest.raises(ssl.SSLError, match=REQUIRED), connect(port, session) as tls:
                assert not tls.session_reused
                tls.recv(1)
        context.load_cert_chain(*clients.good)
        with connect("endpoint") as tls:
            tls.sendall(get(clients.server).encode())
            tls.recv(4096)
            assert not tls.session.has_ticket


def test_a_reload_takes_other_authorities_or_changes_nothing(clients):
    def reload(text, awaited):
        lines = clients.server.log().count(awaited)
        clients.ca.write_bytes(text)
        clients.server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE
        while clients.server.log().count(awaited) == lines:
            assert time.monotonic() < deadline, clients.server.log()
            time.sleep(0.02)

    with clients.connect("endpoint", clients.good) as there:
        reload(b"no certificate", "client_ca")
        assert clients.is_served("endpoint", clients.good)
        reload(clients.other.files[0].read_bytes(), "certificates taken")
        for port in ("endpoint", "node"):
            assert clients.is_served(port, clients.wrong)
            assert UNKNOWN in clients.refusal(port, clients.good)
        # The connection from before goes on.
        there.sendall(get(clients.server).encode())
        assert there.recv(4096).startswith(b"HTTP/1.1 200 ")
