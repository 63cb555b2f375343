"""Certificates that the server orders by itself, from a real ACME server."""

import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

import pytest
import requests

import acme_gate
from acme_gate import Gate
from browser import AppServer, Browser, exchange, trust
from conftest import REPOSITORY, Server, binary
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from pebble import PORTS, Pebble

IS_ROOT = os.geteuid() == 0
TLS_PORT, HTTP_PORT = 443 if IS_ROOT else 8443, 8088
PATIENCE = 60
NAME = "push.example"

# The commands of the guide, with its name, and without its data directory.
PAGE = (REPOSITORY / "docs/SELF-HOSTING.md").read_text().replace("\\\n", "")
PAGE_NAME = "push.example.org"
PAGE_FLAGS = re.search(r"^ +sudo murre serve --data-dir \S+ (.*)$", PAGE, re.M)[1].split()
PAGE_PROBE = re.search(r"^ +murre (probe .*)$", PAGE, re.M)[1].split()


class AcmeServer(Server):
    """A server that one command starts, with certificates of Pebble. Clients reach it by its names."""

    def __init__(self, directory, monkeypatch):
        super().__init__(directory)
        self.pebble = Pebble(self.host, TLS_PORT, HTTP_PORT, directory)
        self.directory_port = PORTS["directory"]
        self.monkeypatch = monkeypatch
        resolve = socket.getaddrinfo

        def resolve_here(host, port, *rest, **named):
            """Leads names to this server, to the ports that it has in the place of 443 and 80."""
            if host.endswith(".example"):
                host, port = self.host, {443: TLS_PORT, 80: HTTP_PORT}[port]
            return resolve(host, port, *rest, **named)

        monkeypatch.setattr(socket, "getaddrinfo", resolve_here)

    def serve(self, *names):
        """Starts it with these names, by default with one."""
        self.flags = [",".join(names or [NAME]) if word == PAGE_NAME else word for word in PAGE_FLAGS]
        self.flags += ["--public", f"{self.host}:{TLS_PORT}", "--public-http", f"{self.host}:{HTTP_PORT}"]
        self.flags += ["--acme-directory", f"https://{self.host}:{self.directory_port}/dir"]
        # All clients of a test have one address.
        self.flags += ["--set", f"acme.ca={self.pebble.authority}", "--set", "strangers.exempt=127.0.0.0/8"]
        self.start()

    def url(self, port):
        return f"wss://{NAME}/" if port == "websocket" else super().url(port)

    def start_pebble(self):
        """Starts the authority, and makes clients trust what it issues: each run of it has another root."""
        self.pebble.start()
        root = self.directory / "root.pem"
        root.write_text(self.pebble.root())
        trust(self.monkeypatch, root)

    def shown(self, name=NAME):
        """The certificate for a name, verified."""
        with socket.create_connection((name, 443), timeout=PATIENCE) as stream:
            with ssl.create_default_context().wrap_socket(stream, server_hostname=name) as tls:
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
def server(tmp_path, monkeypatch):
    server = AcmeServer(tmp_path, monkeypatch)
    try:
        yield server
    finally:
        if server.process:
            server.kill()
        server.pebble.stop()


@pytest.fixture
def gate(server):
    """A proxy between the server and its authority."""
    gate = Gate(server.pebble)
    server.directory_port = acme_gate.PORT
    try:
        yield gate
    finally:
        gate.stop()


@pytest.mark.parametrize("challenge", ["tls-alpn-01", "http-01"])
def test_one_command_serves_a_name(server, challenge):
    server.settings.append(f"acme.challenge={challenge}")
    server.start_pebble()
    server.serve()
    server.until(lambda: server.orders("issued") == 1)
    assert (server.metric("redirects_challenges_total") > 0) == (challenge == "http-01")
    assert f"set dom.push.serverURL to wss://{NAME}/\n" in server.log()
    browser = Browser(server)
    exchange(browser, AppServer())
    assert browser.subscribe()["endpoint"].startswith(f"https://{NAME}/wpush/")
    page = requests.get(f"http://{NAME}/", timeout=PATIENCE)
    assert [(step.status_code, step.headers["location"]) for step in page.history] == [(308, f"https://{NAME}/")]
    assert page.status_code == 200 and f"set dom.push.serverURL to wss://{NAME}/. " in page.text
    assert page.headers["strict-transport-security"].startswith("max-age=")
    assert requests.post(f"http://{NAME}/wpush/v3/token", timeout=PATIENCE).status_code == 403


def test_a_server_waits_for_its_first_certificate_and_orders_none_again(server):
    server.settings.append("acme.profile=shortlived")
    server.serve()
    server.until(lambda: server.orders("unreachable") == 1)
    with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
        server.shown()
    assert f"the first certificate of {NAME} (the last order failed: " in server.health()
    assert server.metric("acme_next_renewal_seconds") > 200
    server.start_pebble()
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
    assert modes == {"acme": 0o700, f"account-{server.host}_{PORTS['directory']}.json": 0o600, f"{NAME}.pem": 0o600}
    # The former file serves from the first handshake on, also with the authority away.
    server.pebble.stop()
    server.restart()
    assert server.shown() == certificate
    assert [server.orders(outcome) for outcome in ("issued", "unreachable")] == [0, 0]
    log = server.log()
    assert log.count("certificate issued") == log.count("certificate authority account created") == 1
    secrets = [line for line in (acme / f"{NAME}.pem").read_text().splitlines()[2:] if not line.startswith("-")]
    assert not any(line in log for line in secrets)


def test_a_renewal_leaves_sessions_alone_and_a_lost_account_is_made_anew(server):
    server.start_pebble()
    server.serve()
    server.until(lambda: server.orders("issued") == 1)
    first, browsers = server.shown(), [Browser(server) for _ in range(20)]
    server.pebble.suggest_renewal(pem(first))
    server.reload()
    server.until(lambda: server.shown() != first)
    sender = AppServer()
    for browser in browsers:
        exchange(browser, sender)
    server.wait_for_number("tls_connections", 20)
    # A new Pebble knows neither account nor certificate. Its first answer costs an order.
    server.pebble.stop()
    server.start_pebble()
    (server.directory / f"data/acme/{NAME}.pem").unlink()
    server.restart()
    server.until(lambda: server.orders("refused") == 1)
    assert "accountDoesNotExist" in server.log()
    server.reload()
    server.until(lambda: server.orders("issued") == 1)
    assert server.shown() != first


SESSIONS = 10_000


def test_renewal_reload_and_rotation_end_none_of_ten_thousand_sessions(server):
    server.start_pebble()
    server.serve()
    server.until(lambda: server.orders("issued") == 1)
    browsers, sender = [Browser(server) for _ in range(3)], AppServer()
    command = [pathlib.Path(binary()).with_name("murre-bench"), "hold", "--ws", f"{server.host}:{TLS_PORT}"]
    command += ["--ca", server.directory / "root.pem", "--tls-name", NAME, "--sessions", SESSIONS, "--at", SESSIONS]
    command += ["--channels", 0, "--no-broadcast", "--quiet", 0, "--stay", 3600]
    with open(server.directory / "bench.log", "wb") as log, subprocess.Popen(
        list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
    ) as bench:
        try:
            server.wait_for_number("sessions", SESSIONS + len(browsers), seconds=240)
            # No session begins or ends from here on.
            counts = {name: server.number(name) for name in ("hellos_total", "sessions")}
            first, key = server.shown(), (server.directory / "data/keys/tickets").read_bytes()
            server.pebble.suggest_renewal(pem(first))
            server.reload()
            server.until(lambda: server.shown() != first)
            (server.directory / "data/keys/tickets").unlink()
            taken = server.log().count("certificates taken")
            server.reload()
            server.until(lambda: server.log().count("certificates taken") > taken)
            assert (server.directory / "data/keys/tickets").read_bytes() != key
            for browser in browsers:
                exchange(browser, sender)
            # Those of the last second are published, too.
            time.sleep(2)
            assert {name: server.number(name) for name in counts} == counts
            assert bench.poll() is None, (server.directory / "bench.log").read_text()
        finally:
            bench.kill()


@pytest.mark.skipif(not IS_ROOT, reason="needs root for port 443 and for a name")
def test_the_guide_leads_to_a_notification_in_five_minutes_and_the_probe_checks_the_server(server):
    begun = time.monotonic()
    server.settings.append("acme.profile=default")
    server.start_pebble()
    server.serve()
    server.until(lambda: server.orders("issued") == 1)
    hosts = server.directory / "hosts"
    hosts.write_text(f"{server.host} {NAME}\n")

    def run(*words):
        """The name resolves for this command only."""
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, hosts, binary(), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    check = [word.replace(PAGE_NAME, NAME) for word in PAGE_PROBE]
    done = run(*check, "--ca", server.directory / "root.pem")
    assert time.monotonic() - begun < 300
    rows = {words[0]: words[1:] for words in map(str.split, done.stdout.splitlines())}
    assert all(rows[step][1] == "ms" for step in ("connect", "post", "decrypt", "unregister")), done
    assert [rows[name][0] for name in ("scheme", "port", "host", "certificate")] == ["ok"] * 4, done
    assert 85 <= int(rows["certificate"][-1]) <= 90, done
    # All is well but the address, which is none of the internet.
    assert rows["address"][0] == "FAIL" and done.returncode == 17, done
    assert done.stdout.splitlines()[-1].endswith(f"{NAME} has no public address but {server.host}"), done
    done = run(*check, "--ca", server.pebble.authority)
    assert done.returncode == 10 and "is not trusted" in done.stdout, done
    done = run("probe", f"http://{NAME}")
    assert done.returncode == 2 and f"give https://{NAME}" in done.stderr, done


# Paths of Pebble: the request that is withheld when the server is killed, whether it has reached the authority, and
# the number of orders until the certificate.
KILLS = [("order-plz", True, 2), ("chalZ", False, 1), ("finalize-order", False, 1), ("certZ", True, 1)]


def test_a_server_that_is_killed_within_its_order_goes_on_with_it_or_makes_one_more(server, gate):
    # Each order needs a proof of its own.
    server.pebble.reuses = 0
    server.start_pebble()
    acme = server.directory / "data/acme"
    for path, reaches, orders in KILLS:
        gate.withhold(path, reaches)
        gate.asked.clear(), gate.accepted.clear()
        server.serve()
        assert gate.is_there.wait(PATIENCE), server.log()
        server.kill()
        gate.released.set()
        assert not (acme / f"{NAME}.pem").exists()
        assert (acme / f"{NAME}.order").exists() == (path != "order-plz")
        server.start()
        server.until(lambda: server.orders("issued") == 1)
        assert gate.accepted["order-plz"] == orders, path
        assert gate.accepted["finalize-order"] == 1, path
        # With the refused nonces of Pebble, and looks at what it has not done yet.
        assert sum(gate.asked.values()) < 60, gate.asked
        server.shown()
        assert not (acme / f"{NAME}.order").exists()
        server.stop()
        (acme / f"{NAME}.pem").unlink()


def test_a_rate_limit_is_waited_for_as_long_as_the_authority_asks_and_ends_no_order(server, gate):
    def refused(count):
        """The pause after the failed order of this number."""
        server.until(lambda: server.orders("refused") == count)
        line = [line for line in server.log().splitlines() if "certificate order failed" in line][-1]
        assert "too many orders" in line, line
        return int(line.split("retry_seconds=")[1].split()[0])

    gate.refuse("order-plz", 7200)
    server.start_pebble()
    server.serve()
    assert refused(1) == 7200
    assert 7100 < server.metric("acme_next_renewal_seconds") <= 7200
    # An order that has begun is kept, and a short pause of the authority does not shorten that of the server.
    gate.admit("order-plz")
    gate.refuse("finalize-order", 1)
    server.reload()
    assert 600 <= refused(2) <= 660
    asked = dict(gate.asked)
    time.sleep(2)
    assert gate.asked == asked, "it asks again before its time"
    gate.admit("finalize-order")
    server.reload()
    server.until(lambda: server.orders("issued") == 1)
    assert gate.accepted["order-plz"] == 1
    server.shown()


def pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def test_a_name_that_fails_does_not_hinder_one_that_works(server):
    server.start_pebble()
    server.pebble.set_resolves("absent.example", False)
    server.serve("absent.example", "blocked.example", NAME)
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
