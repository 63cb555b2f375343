"""Certificates that the server orders by itself, from a real ACME server."""

import signal
import socket
import ssl
import time
import urllib.request

import pytest

from browser import AppServer, Browser
from conftest import Server
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from pebble import PORTS, Pebble

TLS_PORT = 8443
PATIENCE = 60
NAME = "push.example"


class AcmeServer(Server):
    """A server that shows nothing but certificates of Pebble to user agents."""

    def __init__(self, directory):
        super().__init__(directory)
        self.pebble = Pebble(self.host, TLS_PORT, directory)
        self.settings += [
            f"websocket.tls.listen={self.host}:{TLS_PORT}",
            "acme.agree=true",
            "acme.email=ops@push.example",
            f"acme.directory=https://{self.host}:{PORTS['directory']}/dir",
            f"acme.ca={self.pebble.authority}",
        ]

    def url(self, port):
        return f"wss://{self.host}:{TLS_PORT}" if port == "websocket" else super().url(port)

    def trust(self):
        """Makes clients trust what Pebble issues, and ask for the first name."""
        context = ssl.create_default_context(cadata=self.pebble.root())
        self.connection = {"ssl": context, "server_hostname": NAME}

    def shown(self, name=NAME):
        """The certificate for a name, verified."""
        context = self.connection["ssl"]
        with socket.create_connection((self.host, TLS_PORT), timeout=PATIENCE) as stream:
            with context.wrap_socket(stream, server_hostname=name) as tls:
                return x509.load_der_x509_certificate(tls.getpeercert(binary_form=True))

    def metric(self, line):
        """The value of one line of the metrics."""
        with urllib.request.urlopen(self.url("admin") + "/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        values = [found.rsplit(" ", 1)[1] for found in lines if found.rsplit(" ", 1)[0] == f"murre_{line}"]
        return float(values[0]) if values else None

    def orders(self, outcome):
        return self.metric(f'acme_orders_total{{outcome="{outcome}"}}')

    def until(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def health(self):
        with urllib.request.urlopen(self.url("admin") + "/health", timeout=PATIENCE) as answer:
            return answer.read().decode()

    def reload(self):
        self.process.send_signal(signal.SIGHUP)


@pytest.fixture
def server(tmp_path):
    server = AcmeServer(tmp_path)
    try:
        yield server
    finally:
        if server.process:
            server.kill()
        server.pebble.stop()


def start(server, *names):
    server.settings.append("public.domain=" + ",".join(names or [NAME]))
    server.start()


def refused(server):
    """The alert for a client that comes before there is a certificate."""
    with socket.create_connection((server.host, TLS_PORT), timeout=PATIENCE) as stream:
        with pytest.raises(ssl.SSLError) as error:
            ssl.create_default_context().wrap_socket(stream, server_hostname=NAME)
    return error.value.reason


def test_a_server_waits_for_its_first_certificate_and_orders_none_again(server):
    server.settings.append("acme.profile=shortlived")
    start(server)
    server.until(lambda: server.orders("unreachable") == 1)
    assert "ACCESS_DENIED" in refused(server)
    assert f"the first certificate of {NAME} (the last order failed: " in server.health()
    assert server.metric("acme_next_renewal_seconds") > 200
    server.pebble.start()
    server.trust()
    server.reload()
    server.until(lambda: server.orders("issued") == 1)
    server.until(lambda: "first certificate" not in server.health())
    certificate = server.shown()
    left = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert round(left.total_seconds() / 86400) == 6, "the profile"
    # The window of Pebble is about two thirds of the lifetime.
    server.until(lambda: 2 * 86400 < server.metric("acme_next_renewal_seconds") < 5.6 * 86400)
    assert 5.9 * 86400 < server.metric(f'tls_certificate_expiry_seconds{{name="{NAME}"}}') <= 6 * 86400
    acme = server.directory / "data/acme"
    modes = {path.name: path.stat().st_mode & 0o777 for path in [acme, *acme.iterdir()]}
    assert modes == {"acme": 0o700, "account.json": 0o600, f"{NAME}.pem": 0o600}
    browser, sender = Browser(server), AppServer()
    assert sender.push(browser.subscribe(sender.key), "hello").status_code == 201
    assert browser.decrypt(browser.notification()) == "hello"
    # The former file serves from the first handshake on, also with the authority away.
    server.pebble.stop()
    server.restart()
    assert server.shown() == certificate
    assert [server.orders(outcome) for outcome in ("issued", "unreachable")] == [0, 0]
    log = server.log()
    assert log.count("certificate issued") == log.count("account made") == 1
    secrets = [line for line in (acme / f"{NAME}.pem").read_text().splitlines()[2:] if not line.startswith("-")]
    assert not any(line in log for line in secrets)


def test_a_renewal_leaves_sessions_alone_and_a_lost_account_is_made_anew(server):
    server.pebble.start()
    server.trust()
    start(server)
    server.until(lambda: server.orders("issued") == 1)
    first, browsers = server.shown(), [Browser(server) for _ in range(20)]
    server.pebble.suggest_renewal(pem(first))
    server.reload()
    server.until(lambda: server.shown() != first)
    sender = AppServer()
    for browser in browsers:
        assert sender.push(browser.subscribe(sender.key), "renewed").status_code == 201
        assert browser.decrypt(browser.notification()) == "renewed"
    server.wait_for_number("tls_connections", 20)
    # A new Pebble knows neither account nor certificate. Its first answer costs an order.
    server.pebble.stop()
    server.pebble.start()
    server.trust()
    (server.directory / f"data/acme/{NAME}.pem").unlink()
    server.restart()
    server.until(lambda: server.orders("refused") == 1)
    assert "accountDoesNotExist" in server.log()
    server.reload()
    server.until(lambda: server.orders("issued") == 1)
    assert server.shown() != first


def pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def test_a_name_that_fails_does_not_hinder_one_that_works(server):
    server.pebble.start()
    server.trust()
    server.pebble.set_resolves("absent.example", False)
    start(server, "absent.example", "blocked.example", NAME)
    server.until(lambda: server.orders("issued") == 1 and server.orders("refused") == 2)
    server.shown()
    for name in ("absent.example", "blocked.example"):
        assert name in server.health()
        line = next(line for line in server.log().splitlines() if "order failed" in line and name in line)
        pause = int(line.split("retry_seconds=")[1].split()[0])
        assert 300 <= pause <= 330 and 'outcome="refused"' in line, line
    server.pebble.set_resolves("absent.example", True)
    server.reload()
    server.until(lambda: server.orders("issued") == 2)
    server.shown("absent.example")
    server.until(lambda: server.orders("refused") == 3)
    last = [line for line in server.log().splitlines() if "order failed" in line and "blocked" in line][-1]
    assert 600 <= int(last.split("retry_seconds=")[1].split()[0]) <= 660, last
