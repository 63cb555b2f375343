"""The stand-ins of FCM and APNs (bench/upstream) as a process of a test."""

import contextlib
import json
import pathlib
import ssl
import subprocess
import urllib.request

from conftest import REPOSITORY


def binary():
    """The newest build of the stand-ins."""
    built = [path for path in REPOSITORY.glob("target/*/murre-upstream") if path.is_file()]
    assert built, "there are no stand-ins: run `cargo build -p upstream`"
    return str(max(built, key=lambda path: path.stat().st_mtime))


class Upstream:
    """Running stand-ins, their control port and the credentials that they take."""

    def __init__(self, directory, addresses):
        self.directory = pathlib.Path(directory)
        self.google, self.apple = addresses["google"], addresses["apple"]
        self.control = f"http://{addresses['control']}"

    def path(self, name):
        return str(self.directory / name)

    def read(self, name):
        return (self.directory / name).read_text()

    def port(self, service):
        return int(getattr(self, service).rsplit(":", 1)[1])

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.control + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def script(self, **members):
        self.call("PUT", "/script", members)

    def answer(self, service, *names):
        self.script(next={service: list(names)})

    def calls(self, service):
        return [call for call in self.call("GET", "/calls") if call["service"] == service]

    def violations(self):
        return self.call("GET", "/state")["violations"]

    def context(self):
        """Trust in the stand-ins alone."""
        return ssl.create_default_context(cafile=self.path("ca.pem"))


@contextlib.contextmanager
def running(directory):
    process = subprocess.Popen(
        [binary(), "--directory", str(directory)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert line, "the stand-ins ended at start"
        yield Upstream(directory, json.loads(line))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
