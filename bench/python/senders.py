"""Libraries that send, each in a program of its own, to a server whose name and port are as in production."""

import contextlib
import dataclasses
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable

import py_vapid
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from browser import PATIENCE, Browser, encoded, uncompressed
from conftest import REPOSITORY, Server
from namespaces import MISSING, inside, star
from php_sender import PhpSender
from tls_front import make_certificate

HERE = REPOSITORY / "bench/senders"
NAME = "push.example.org"
SUBJECT = "mailto:tests@example.com"
# Scheme and port of the endpoint URLs.
PLACES = [("http", 80), ("https", 443), ("http", 8082), ("https", 8443)]
BOTH = ("aes128gcm", "aesgcm")
TEXTS = ["hello, page", "\u00fc\u0436\u65e5" * 300]
WITHOUT_PORT = "vapid_audience_without_port_total"
# Password of the store of certificates that Java reads.
PASSWORD = "password"


class Place(Server):
    """A server with endpoint URLs of NAME, and what its clients trust."""

    def __init__(self, directory, scheme, port):
        super().__init__(directory)
        self.is_usual = port == {"http": 80, "https": 443}[scheme]
        self.origin = f"{scheme}://{NAME}" + ("" if self.is_usual else f":{port}")
        self.address = self.host, port
        self.settings.append(f"endpoint.url={self.origin}")
        self.authority, issuer_key = directory / "authority.pem", directory / "authority-key.pem"
        make_certificate("authority.example", self.authority, issuer_key)
        if scheme == "https":
            self.ports["endpoint-tls"] = port
            certificate, key = directory / "certificate.pem", directory / "key.pem"
            make_certificate(NAME, certificate, key, is_authority=False, issuer=(self.authority, issuer_key))
            self.settings += [f"tls.cert={certificate}", f"tls.key={key}"]
        else:
            self.ports["endpoint"] = port
        self.hosts = directory / "hosts"
        self.hosts.write_text(f"127.0.0.1 localhost\n{self.host} {NAME}\n")
        self.java_store = directory / "authorities.p12"
        authority = x509.load_pem_x509_certificate(self.authority.read_bytes())
        protection = serialization.BestAvailableEncryption(PASSWORD.encode())
        trusted = [pkcs12.PKCS12Certificate(authority, b"tests")]
        self.java_store.write_bytes(pkcs12.serialize_java_truststore(trusted, protection))


@pytest.fixture(scope="module")
def place(request, tmp_path_factory):
    """A running server in a network of its own, in which its ports are free."""
    if MISSING or not shutil.which("unshare"):
        pytest.skip(MISSING or "needs util-linux")
    server = Place(tmp_path_factory.mktemp("place"), *request.param)
    with star() as (network, _), inside(network), server.running():
        yield server


class Sender:
    """A program that reads a message from each line of its input, and writes a line with the answer to it. In its view
    of the file system /etc/hosts knows the server."""

    def __init__(self, place, *command):
        self.log = place.directory / "sender-log"
        bound = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
        trust = {name: str(place.authority) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", bound, "sh", place.hosts, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **trust},
            )

    def ask(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], f"no answer:\n{self.errors()}"
        line = self.process.stdout.readline()
        assert line, f"ended without an answer:\n{self.errors()}"
        return json.loads(line)

    def errors(self):
        return self.log.read_text(errors="replace")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class NodeSender(Sender):
    """npm's web-push, which takes what it needs in another form."""

    def __init__(self, place):
        super().__init__(place, "node", REPOSITORY / "bench/node/send.js")

    def ask(self, message):
        vapid = {"subject": message["subject"], "publicKey": message["public_key"]}
        keys = {"p256dh": message["p256dh"], "auth": message["auth"]}
        return super().ask({
            "subscription": {"endpoint": message["endpoint"], "keys": keys},
            "vapid": {**vapid, "privateKey": message["private_key"]},
            "text": message["text"],
            "options": {"TTL": message["ttl"], "contentEncoding": message["encoding"]},
        })


def python(library):
    return lambda place: Sender(place, sys.executable, HERE / "send.py", library)


def java(library):
    """Built by the step `senders` of bench/check."""
    built = REPOSITORY / "target/senders"

    def start(place):
        trust = [f"-Djavax.net.ssl.trustStore={place.java_store}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
        classes = f"{built / 'java'}:{(built / 'classpath').read_text()}"
        return Sender(place, "java", "-XX:TieredStopAtLevel=1", *trust, "-cp", classes, "Senders", library)

    return start


def compiled(path):
    return lambda place: Sender(place, REPOSITORY / "target/senders" / path)


@dataclasses.dataclass
class Library:
    """The start of its program, its encodings, whether it leaves the port out of `aud`, and the schemes it speaks."""

    start: Callable
    encodings: tuple
    leaves_port_out: bool
    schemes: tuple = ("http", "https")


# Those that need no compiler. npm's web-push speaks TLS even where the URL begins with http://.
LIBRARIES = {
    "pywebpush": Library(python("pywebpush"), BOTH, False),
    "webpush of PyPI": Library(python("webpush"), BOTH[:1], True),
    "webpush-rs": Library(python("webpush-rs"), BOTH[:1], True),
    "web-push of npm": Library(NodeSender, BOTH, False, ("https",)),
    "web-push-php": Library(lambda place: PhpSender(place.address, place.authority), BOTH, True),
}
# Those that are built first.
COMPILED = {
    "webpush-java": Library(java("martijndwars"), BOTH, True),
    "interaso webpush": Library(java("interaso"), BOTH[:1], False),
    "webpush-go": Library(compiled("go"), BOTH[:1], False),
    "web-push of crates.io": Library(compiled("rust/debug/senders"), BOTH, True),
}


def exchanges(libraries):
    """The parameters of a test: each library at each place that it reaches."""
    reached = [(place, name) for place in PLACES for name in libraries if place[0] in libraries[name].schemes]
    ids = [f"{place[0]}-{place[1]}-{name.replace(' ', '-')}" for place, name in reached]
    return pytest.mark.parametrize("place, library", reached, ids=ids, indirect=["place"])


each_place = pytest.mark.parametrize("place", PLACES, ids=[f"{place[0]}-{place[1]}" for place in PLACES], indirect=True)


class AppServer:
    """A key pair, and the messages that it signs."""

    def __init__(self):
        vapid = py_vapid.Vapid02()
        vapid.generate_keys()
        self.key = encoded(uncompressed(vapid.public_key))
        self.private_key = encoded(vapid.private_key.private_numbers().private_value.to_bytes(32, "big"))

    def message(self, subscription, text, **more):
        message = {"endpoint": subscription["endpoint"], **subscription["keys"], "text": text, "ttl": 60}
        return {**message, "public_key": self.key, "private_key": self.private_key, "subject": SUBJECT, **more}


def sends(place, library):
    """One library sends each text in each encoding, and a user agent decrypts it."""
    with contextlib.ExitStack() as stack:
        app, browser, sender = AppServer(), Browser(place), library.start(place)
        stack.callback(browser.close)
        stack.callback(sender.close)
        posts, without_port = (place.number(name) for name in ("posts_total", WITHOUT_PORT))
        for encoding, text in (messages := list(itertools.product(library.encodings, TEXTS))):
            subscription = browser.subscribe(app.key)
            assert subscription["endpoint"].startswith(place.origin + "/wpush/")
            answer = sender.ask(app.message(subscription, text, encoding=encoding))
            assert answer.get("status") == 201, (encoding, answer)
            notification = browser.notification()
            assert notification["headers"]["encoding"] == encoding
            assert browser.decrypt(notification) == text
            browser.ack(notification)
        # Both come from one snapshot of each shard, which follows the answers.
        place.wait_for_number("posts_total", posts + len(messages))
        counted = place.number(WITHOUT_PORT) - without_port
        assert counted == (len(messages) if library.leaves_port_out and not place.is_usual else 0)
        assert browser.hears_nothing()
