"""A server with TLS on every port, and openssl s_client as a client of it."""

import contextlib
import re
import subprocess
import threading
import time

from conftest import Server
from tls_front import make_certificate

TLS_PORTS = {"websocket": 8443, "endpoint": 8444, "node": 8445, "admin": 8446}
PATIENCE = 60


class TlsServer(Server):
    """A server with TLS on every port. `url` leads to the TLS ports. Clients must trust `authority`: by default the
    certificate of the server, which signs itself; `has_authority` makes another one that signs it."""

    def __init__(self, directory, has_authority=False, **named):
        super().__init__(directory, **named)
        self.certificate, self.key = directory / "certificate.pem", directory / "key.pem"
        if has_authority:
            self.issuer = directory / "authority.pem", directory / "authority-key.pem"
            make_certificate("authority.example", *self.issuer)
            make_certificate(self.host, self.certificate, self.key, is_authority=False, issuer=self.issuer)
        else:
            self.issuer = self.certificate, self.key
            make_certificate(self.host, *self.issuer)
        self.authority = self.issuer[0]
        self.settings += [f"{port}.tls.listen={self.host}:{number}" for port, number in TLS_PORTS.items()]
        self.settings += [f"tls.cert={self.certificate}", f"tls.key={self.key}"]

    def url(self, port):
        if port == "admin":
            return super().url(port)
        scheme = "wss" if port == "websocket" else "https"
        return f"{scheme}://{self.host}:{TLS_PORTS[port]}"

    def at(self, port):
        return f"{self.host}:{TLS_PORTS[port]}"


def get(server, path="/status"):
    return f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\n\r\n"


class Client:
    """openssl s_client with its standard input open."""

    def __init__(self, server, port, *options, quiet=False):
        command = ["openssl", "s_client", "-connect", server.at(port), "-CAfile", str(server.authority)]
        command += ["-verify_return_error", *(["-quiet"] if quiet else []), *map(str, options)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.heard = b""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        while piece := self.process.stdout.read1(65536):
            self.heard += piece

    def say(self, text):
        self.process.stdin.write(text.encode())
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.flush()

    def wait_for(self, pattern, count=1):
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = not self.reader.is_alive()
            if len(re.findall(pattern, self.heard)) >= count:
                return self
            assert not ended and time.monotonic() < deadline, f"no {pattern}:\n{self.text()}"
            time.sleep(0.01)

    def text(self):
        return self.heard.decode(errors="replace")

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        status = self.process.wait(timeout=PATIENCE)
        self.reader.join(timeout=PATIENCE)
        return status

    def stop(self):
        self.process.kill()
        self.process.wait()
