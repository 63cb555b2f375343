"""wrk saturates the endpoint port: nothing is refused, no connection breaks, and the server is as before."""

import json
import os
import pathlib
import shutil
import subprocess
import threading
import time

import pytest
from pywebpush import WebPusher

from browser import AppServer, Browser, encoded
from conftest import Server

SECONDS = int(os.environ.get("WRK_SECONDS", "30"))
CONNECTIONS = 64
ABSENT = 15
TEXT = "a message of common size, " * 8
SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "wrk" / "post.lua"


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path, shards=os.cpu_count())
    with server.running():
        yield server


class Reader:
    """Takes every notification of one session, acks it and looks at it, until it is told to stop."""

    def __init__(self, browser, data):
        self.browser, self.data = browser, data
        self.versions = set()
        self.failure = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            while True:
                try:
                    notification = self.browser.receive("notification", timeout=0.2)
                except TimeoutError:
                    if self.stopping.is_set():
                        return
                    continue
                assert notification["data"] == self.data, "bytes were changed on the way"
                assert notification["version"] not in self.versions, "a message came twice"
                self.versions.add(notification["version"])
                self.browser.tell_ack(notification)
        except Exception as failure:
            self.failure = failure

    def stop(self):
        """When nothing more comes."""
        self.stopping.set()
        self.thread.join(timeout=120)
        assert not self.thread.is_alive(), "two minutes after the last POST notifications still come"
        assert self.failure is None, self.failure


def test_a_saturated_endpoint_port_refuses_nothing(server, tmp_path, capsys):
    sender, present = AppServer(), Browser(server)
    subscription = present.subscribe(sender.key)
    absent = [Browser(server) for _ in range(ABSENT)]
    endpoints = [subscription["endpoint"]] + [browser.subscribe(sender.key)["endpoint"] for browser in absent]
    for browser in absent:
        browser.close()
    server.wait_for_number("sessions", 1)

    body = WebPusher(subscription).encode(TEXT.encode(), content_encoding="aes128gcm")["body"]
    reader = Reader(present, encoded(body))
    before = server_cpu_seconds(server)
    answer = run_wrk(server, tmp_path, sender, endpoints, body)
    spent = server_cpu_seconds(server) - before
    reader.stop()

    assert {answer[error] for error in ["refused", "connect", "read", "write", "timeout"]} == {0}, answer
    # A shard that shows that its connections are closed has counted what came on them.
    server.wait_for_number("connections", 1, seconds=60)
    posts, dropped = server.number("posts_total"), server.number("posts_accepted_dropped_total")
    direct = server.number("posts_accepted_direct_total")
    # What was under way when wrk stopped it does not count.
    assert 1000 < answer["requests"] <= posts <= answer["requests"] + CONNECTIONS, answer
    assert direct + dropped == posts
    assert 0 < len(reader.versions) <= direct
    with capsys.disabled():
        print(
            f"\nwrk: {answer['seconds']:.0f} s, {CONNECTIONS} connections, {os.cpu_count()} shards on as many cores: "
            f"{posts} POSTs ({posts / answer['seconds']:.0f}/s), {len(reader.versions)} received, "
            f"{spent / posts * 1e6:.1f} us of server CPU a POST, p99 {answer['p99_us'] / 1000:.1f} ms, no error"
        )

    # The server is as before, and a message goes through.
    assert server.process.poll() is None
    assert sender.push(subscription, "afterwards").status_code == 201
    assert present.decrypt(present.notification()) == "afterwards"
    assert absent[0].again(server).hears_nothing()


def run_wrk(server, directory, sender, endpoints, body):
    """One run with a signed body and TTL 0; what wrk counted."""
    wrk = shutil.which("wrk")
    assert wrk, "there is no wrk: apt-get install wrk"
    origin = server.url("endpoint")
    claims = {"aud": origin, "sub": "mailto:tests@example.com", "exp": int(time.time()) + 3600}
    headers = {"TTL": "0", "Content-Encoding": "aes128gcm", **sender.vapid.sign(claims)}
    paths = [endpoint.removeprefix(origin) for endpoint in endpoints]
    (directory / "paths").write_text("".join(f"{path}\n" for path in paths))
    (directory / "headers").write_text("".join(f"{name}: {value}\n" for name, value in headers.items()))
    (directory / "body").write_bytes(body)
    command = [wrk, "--threads", "1", "--connections", str(CONNECTIONS), "--duration", f"{SECONDS}s"]
    command += ["--timeout", "20s", "--script", str(SCRIPT), origin, "--", str(directory)]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS + 60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def server_cpu_seconds(server):
    """User and system time that the kernel has counted for the server."""
    # The name, which may hold blanks, stands between brackets; utime and stime are fields 14 and 15 (proc(5)).
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
