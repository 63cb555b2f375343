"""Forward endpoints over two servers: one that is reachable, and one that senders do not know, each in a namespace."""

import contextlib
import time

import pytest
import requests
from cryptography.hazmat.primitives import serialization

import namespaces
from browser import PATIENCE, AppServer, Browser
from conftest import Server
from tls_front import make_certificate

pytestmark = pytest.mark.skipif(namespaces.MISSING is not None, reason=namespaces.MISSING or "")

# Addresses of the public internet that belong to no host (RFC 7535).
RELAY, TARGET = "192.31.196.1", "192.31.196.2"
NAME = "target.example"
# Puts a file in the place of the hosts of the system, for one process.
OWN_HOSTS = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']


class RelayServer(Server):
    """A server that knows the other one by its name, and trusts its authority."""

    def __init__(self, directory):
        self.hosts = directory / "hosts"
        settings = ["forward.enabled=true", "log.level=trace"]
        super().__init__(directory, settings=settings, prefix=[*OWN_HOSTS, str(self.hosts)])
        self.host = RELAY
        self.lead(NAME, TARGET)

    def lead(self, name, *addresses):
        """Leads a name to these addresses from now on."""
        self.hosts.write_text("".join(f"{address} {name}\n" for address in addresses))

    def create(self, url, **members):
        return requests.post(f"{self.url('endpoint')}/fpush/v1/new", json={"url": url, **members}, timeout=PATIENCE)

    def endpoint(self, subscription, **members):
        """The same subscription, reached through this server."""
        answer = self.create(subscription["endpoint"], **members)
        assert answer.status_code == 200, answer.text
        return {**subscription, "endpoint": answer.json()["url"]}


class TargetServer(Server):
    """A server with TLS on port 443."""

    def __init__(self, directory):
        self.authority, authority_key = directory / "authority.pem", directory / "authority-key.pem"
        certificate, key = directory / "certificate.pem", directory / "key.pem"
        make_certificate("authority.example", self.authority, authority_key)
        make_certificate(NAME, certificate, key, is_authority=False, issuer=(self.authority, authority_key))
        settings = [f"endpoint.tls.listen={TARGET}:443", f"endpoint.url=https://{NAME}"]
        super().__init__(directory, settings=[*settings, f"tls.cert={certificate}", f"tls.key={key}"])
        self.host = TARGET


@pytest.fixture
def servers(tmp_path, monkeypatch):
    """Both servers; the test is in the namespace of the first."""
    directories = [tmp_path / side for side in ("relay", "target")]
    for directory in directories:
        directory.mkdir()
    relay, target = RelayServer(directories[0]), TargetServer(directories[1])
    with contextlib.ExitStack() as stack:
        places = stack.enter_context(namespaces.linked([f"{RELAY}/24"], [f"{TARGET}/24"]))
        for server, place in ((target, places[1]), (relay, places[0])):
            stack.enter_context(namespaces.inside(place))
            monkeypatch.setenv("SSL_CERT_FILE", str(target.authority))
            stack.enter_context(server.running())
        yield relay, target


def pem(sender, form=serialization.PrivateFormat.PKCS8):
    private = sender.vapid.private_key
    return private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def receive(browser, text):
    notification = browser.notification()
    assert browser.decrypt(notification) == text
    browser.ack(notification)


def test_messages_reach_a_server_that_the_sender_cannot_reach(servers):
    relay, target = servers
    browser, sender, secrets = Browser(target), AppServer(), []
    # Without keys, with a sender only, and with a key for the target, which takes messages of no other key.
    forward = AppServer()
    pushed = 0
    for key, members in [
        (None, {}),
        (None, {"server_pubkey": sender.key}),
        (forward.key, {"server_pubkey": sender.key, "forward_privkey": pem(forward)}),
        (
            forward.key,
            {
                "server_pubkey": sender.key,
                "forward_privkey": pem(forward, serialization.PrivateFormat.TraditionalOpenSSL),
            },
        ),
    ]:
        direct = browser.subscribe(key)
        through = relay.endpoint(direct, **members)
        assert len(through["endpoint"]) <= 1000
        secrets += [direct["endpoint"], through["endpoint"].rsplit("/", 1)[1]]
        for text in ("hello", "x" * 3_000):
            answer = sender.push(through, text, ttl=77, headers={"Urgency": "high", "Topic": f"t{pushed}"})
            assert (answer.status_code, answer.json()) == (201, {"msg": "upstream status code"}), answer.text
            assert answer.headers["ttl"] == "77" and "location" not in answer.headers
            receive(browser, text)
            pushed += 1
        if members:
            assert AppServer().push(through, "x").status_code == 401
        # Draft encodings are not passed on.
        assert sender.push(through, "x", encoding="aesgcm").status_code == 400
    relay.wait_for_number('forward_total{status="2xx"', pushed)
    relay.wait_for_number("forwards_created_total", 4)
    log = relay.log()
    for secret in [*secrets, NAME, sender.key, forward.key, TARGET]:
        assert secret not in log, f"{secret} is in the log:\n{log}"
    browser.close()


def test_answers_of_the_target_are_those_to_the_sender(servers):
    relay, target = servers
    browser, sender = Browser(target), AppServer()
    direct = browser.subscribe()
    gone, unknown = relay.endpoint(direct), relay.endpoint({**direct, "endpoint": f"https://{NAME}/wpush/v1/none"})
    with_key = browser.subscribe(AppServer().key)
    unauthorized = relay.endpoint(with_key)
    sender.push(gone, "hello")
    browser.unregister(browser.notification()["channelID"])
    for subscription, status, errno in [(gone, 410, 106), (unknown, 404, 102), (unauthorized, 502, 901)]:
        answer = sender.push(subscription, "x")
        assert (answer.status_code, answer.json()["errno"]) == (status, errno), answer.text
    target.kill()
    answer = sender.push(unauthorized, "x")
    assert (answer.status_code, answer.json()["errno"]) == (502, 902), answer.text
    browser.close()


def test_no_address_but_public_ones_is_called(servers):
    relay, target = servers
    browser, sender = Browser(target), AppServer()
    through = relay.endpoint(browser.subscribe())
    posts = target.number("posts_total")
    for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00::1"):
        # Alone, and beside an address that may be called.
        for addresses in ([address], [TARGET, address]):
            relay.lead(NAME, *addresses)
            assert relay.create(f"https://{NAME}/x").json()["errno"] == 108, addresses
            answer = sender.push(through, "x")
            assert (answer.status_code, answer.json()["errno"]) == (502, 902), addresses
    relay.lead(NAME, TARGET)
    for url in (f"http://{NAME}/", f"https://{NAME}:8443/", f"https://{TARGET}/", f"https://u@{NAME}/"):
        assert relay.create(url).status_code == 400, url
    # Its numbers are a second old.
    time.sleep(2)
    assert target.number("posts_total") == posts
    assert sender.push(through, "again").status_code == 201
    receive(browser, "again")
    browser.close()


def test_settings_say_who_may_create_and_what_may_be_called(servers):
    relay, _ = servers
    assert relay.create(f"https://{NAME}/x").status_code == 200
    relay.restart("forward.create_token=0123456789abcdef", "forward.hosts=other.example")
    assert relay.create(f"https://{NAME}/x").status_code == 401
    bearer = {"Authorization": "Bearer 0123456789abcdef"}
    url = f"{relay.url('endpoint')}/fpush/v1/new"
    assert requests.post(url, json={"url": f"https://{NAME}/x"}, headers=bearer, timeout=PATIENCE).status_code == 400
    relay.restart("forward.enabled=false")
    assert requests.post(url, json={"url": f"https://{NAME}/x"}, headers=bearer, timeout=PATIENCE).status_code == 404
