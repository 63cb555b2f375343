"""An ACME server for tests: Pebble, with a name server that sends every name to one address."""

import datetime
import json
import os
import socket
import ssl
import subprocess
import time
import urllib.request

from golang import program
from tls_front import make_certificate

VERSION = "v2.10.1"
MODULE = "github.com/letsencrypt/pebble/v2/cmd"
PATIENCE = 60
PORTS = {"directory": 14000, "management": 15000, "dns": 8053, "names": 8055}


class Pebble:
    """Validates names at two ports of `host`, and listens there itself."""

    def __init__(self, host, tls_port, http_port, directory):
        self.host, self.directory = host, directory
        self.programs = [program(f"{MODULE}/{name}", VERSION, (1, 24)) for name in ("pebble", "pebble-challtestsrv")]
        self.processes = []
        # Percentage of orders for which an earlier proof of the name counts.
        self.reuses = 50
        # Of the server itself, not of what it issues.
        self.authority, self.key = directory / "pebble.pem", directory / "pebble-key.pem"
        make_certificate(host, self.authority, self.key, is_authority=False)
        profile = {"description": "for tests", "validityPeriod": 90 * 86400}
        settings = {
            "listenAddress": self.at("directory"),
            "managementListenAddress": self.at("management"),
            "certificate": str(self.authority),
            "privateKey": str(self.key),
            "httpPort": http_port,
            "tlsPort": tls_port,
            "domainBlocklist": ["blocked.example"],
            "retryAfter": {"authz": 1, "order": 1},
            "keyAlgorithm": "ecdsa",
            "profiles": {"default": profile, "shortlived": {**profile, "validityPeriod": 6 * 86400}},
        }
        self.config = directory / "pebble.json"
        self.config.write_text(json.dumps({"pebble": settings}))

    def at(self, port):
        return f"{self.host}:{PORTS[port]}"

    def start(self):
        pebble, names = self.programs
        closed = [part for port in ("http01", "https01", "tlsalpn01", "doh") for part in (f"-{port}", "")]
        self.run([names, *closed, "-dnsserver", self.at("dns"), "-management", self.at("names"),
                  "-defaultIPv4", self.host, "-defaultIPv6", ""])
        self.run([pebble, "-config", self.config, "-dnsserver", self.at("dns")])
        for port in ("names", "directory", "management"):
            self.wait_for(port)

    def run(self, command):
        with open(self.directory / "pebble.log", "ab") as log:
            # Of 5 %, its default, an order in a hundred is refused four times in a row, and that is a failed order.
            environment = {**os.environ, "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "2"}
            environment["PEBBLE_AUTHZREUSE"] = str(self.reuses)
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def wait_for(self, port):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return socket.create_connection((self.host, PORTS[port]), timeout=1).close()
            except OSError:
                ended = any(process.poll() is not None for process in self.processes)
                assert not ended and time.monotonic() < deadline, (self.directory / "pebble.log").read_text()
                time.sleep(0.01)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes = []

    def ask(self, url, body=None):
        context = ssl.create_default_context(cafile=self.authority)
        data = None if body is None else json.dumps(body).encode()
        secure = {"context": context} if url.startswith("https") else {}
        with urllib.request.urlopen(url, data, timeout=PATIENCE, **secure) as answer:
            return answer.read().decode()

    def root(self):
        """PEM of the authority that signs what is issued."""
        return self.ask(f"https://{self.at('management')}/roots/0")

    def set_resolves(self, name, resolves):
        """Makes the name server answer for a name, or fail."""
        path = "clear-servfail" if resolves else "set-servfail"
        self.ask(f"http://{self.at('names')}/{path}", {"host": f"{name}."})

    def suggest_renewal(self, certificate):
        """Suggests to renew this certificate (PEM) at once (RFC 9773)."""
        now = datetime.datetime.now(datetime.timezone.utc)
        start, end = (f"{now - datetime.timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}" for hours in (2, 1))
        window = {"suggestedWindow": {"start": start, "end": end}}
        body = {"Certificate": certificate, "ARIResponse": json.dumps(window)}
        self.ask(f"https://{self.at('management')}/set-renewal-info/", body)
