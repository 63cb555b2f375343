"""One real server process for each test that asks for one."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PORTS = {"websocket": 8080, "node": 8081, "endpoint": 8082, "admin": 8083}


def binary():
    """The server under test: MURRE_BIN, else the newest build of this repository."""
    named = os.environ.get("MURRE_BIN")
    if named:
        return named
    built = [path for path in REPOSITORY.glob("target/*/murre") if path.is_file()]
    assert built, "no server binary: set MURRE_BIN or run `cargo build`"
    return str(max(built, key=lambda path: path.stat().st_mtime))


class Server:
    """A server on a loopback address of its own, so that fixed ports never collide."""

    count = 0
    # Further flags of its command.
    flags = ()

    def __init__(self, directory, shards=3, settings=(), prefix=()):
        Server.count += 1
        pid = os.getpid()
        # Listen addresses other than this host with the ports of `ports`.
        self.listen = {}
        self.ports = dict(PORTS)
        self.host = f"127.{200 + Server.count % 50}.{pid >> 8 & 255}.{max(pid & 255, 1)}"
        self.directory = directory
        self.shards = shards
        # What starts it, and becomes it.
        self.prefix = prefix
        # A client may be slow because its host is.
        self.settings = ["delivery.ledger_bytes=4MiB", "websocket.hello_timeout=60", "drain.delay=0", *settings]
        self.process = None

    def url(self, port):
        scheme = "ws" if port == "websocket" else "http"
        return f"{scheme}://{self.host}:{self.ports[port]}"

    def spawn(self):
        """Starts the process, and does not wait for its ports."""
        command = [*self.prefix, binary(), "serve", "--data-dir", str(self.directory / "data")]
        command += ["--shards", str(self.shards)]
        for setting in self.settings:
            command += ["--set", setting]
        for port, number in self.ports.items():
            command += [f"--{port}", self.listen.get(port, f"{self.host}:{number}")]
        command += self.flags
        with open(self.directory / "log", "ab") as log:
            # A variable of whoever runs the tests must not configure the server, and MURRE_BIN is no key of it.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("MURRE_")}
            # The plane of the servers of a whole run of the tests.
            if plane := os.environ.get("TEST_PLANE"):
                environment["MURRE_SHARDS__PLANE"] = plane
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def start(self):
        self.spawn()
        for number in self.ports.values():
            self.wait_for(number)

    @contextlib.contextmanager
    def running(self):
        """Starts it for a block of statements, and kills it behind them."""
        try:
            self.start()
            yield self
        finally:
            self.kill()

    def wait_for(self, number):
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((self.host, number), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, f"ended at start:\n{self.log()}"
                assert time.monotonic() < deadline, f"does not listen on {number}:\n{self.log()}"
                time.sleep(0.01)

    def number(self, name):
        """One number of its metrics, summed over its labels; `name` may end with a label and its value."""
        with urllib.request.urlopen(self.url("admin") + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        starts = tuple(f"murre_{name}{end}" for end in ("{", ",", "}", " "))
        values = [line.split()[1] for line in lines if line.startswith(starts)]
        assert values, f"there is no number {name} in the metrics"
        return sum(int(value) for value in values)

    def put_broadcasts(self, **versions):
        """As the operator, who has the token of the data directory."""
        token = (self.directory / "data" / "keys" / "admin").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(
            self.url("admin") + "/broadcasts", json.dumps(versions).encode(), headers, method="PUT"
        )
        urllib.request.urlopen(request, timeout=60).close()

    def wait_for_number(self, name, wanted, seconds=60):
        deadline = time.monotonic() + seconds
        while (value := self.number(name)) != wanted:
            assert time.monotonic() < deadline, f"{name} {wanted} was awaited for {seconds} s, it is {value}"
            time.sleep(0.02)

    def log(self):
        return (self.directory / "log").read_text(errors="replace")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0, self.log()

    def restart(self, *settings):
        """In order, with more settings than before; of two for one key the later counts."""
        self.stop()
        self.settings += settings
        self.start()

    def kill(self):
        """Returns when its ports are closed: the kernel takes the rings of a killed process down a little later."""
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + 60
        for number in self.ports.values():
            while time.monotonic() < deadline:
                try:
                    socket.create_connection((self.host, number), timeout=1).close()
                except OSError:
                    break
                time.sleep(0.01)


# Set by bench/check. These alone may be missing there: Debian 12 has them too old (docs/TESTING.md).
IS_COMPLETE = os.environ.get("CHECK_IS_COMPLETE") == "yes"
MAY_BE_MISSING = "Skipped: needs Go "


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In the full check a test that cannot run has failed: what is not tested must not be green."""
    report = yield
    if IS_COMPLETE and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.startswith(MAY_BE_MISSING):
            report.outcome, report.longrepr = "failed", f"{item.nodeid} does not run here: {reason}"
    return report


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    with server.running():
        yield server
