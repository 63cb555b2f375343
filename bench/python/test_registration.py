"""The registration API as the push component of Mozilla's application services uses it.

Requests and expectations are those of `components/push/src/internal/communications.rs` of
mozilla/application-services, at the revision in docs/CLIENTS.md, written anew: the component cannot be built outside
its workspace.
"""

import base64
import hashlib
import hmac
import uuid

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import upstream
from bridged import KEY, BridgedServer

TOKEN = "device-token-1"


def vapid_key():
    point = ec.generate_private_key(ec.SECP256R1()).public_key()
    raw = point.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class UaidNotRecognized(Exception):
    """The server does not know the UAID: the component forgets it and registers anew."""


class AlreadyRegistered(Exception):
    pass


class Communication(Exception):
    pass


class Component:
    """A client that holds what the component holds, and sends what it sends."""

    def __init__(self, server, bridge="fcm", sender="firefox"):
        self.base = f"{server.url('endpoint')}/v1/{bridge}/{sender}/registration"
        self.uaid = self.auth = None
        self.channels = []

    def call(self, method, path, body=None):
        headers = {"Authorization": f"webpush {self.auth}"} if self.auth else {}
        reply = requests.request(method, self.base + path, json=body, headers=headers, timeout=60)
        if reply.status_code == 200:
            return reply.json()
        # The errors of the server, as clients of 2023 read them: all members are there, and errno is no null.
        error = reply.json()
        assert isinstance(error["errno"], int) and isinstance(error["message"], str), error
        assert error["code"] == reply.status_code
        raise {409: AlreadyRegistered, 410: UaidNotRecognized}.get(reply.status_code, Communication)(error)

    def register(self, token=TOKEN, key=None):
        reply = self.call("POST", "", {"token": token, "key": key})
        self.uaid, self.auth = reply["uaid"], reply["secret"]
        self.channels = [reply["channelID"]]
        return reply["endpoint"]

    def subscribe(self, key=None):
        if not self.uaid:
            return self.register(key=key)
        reply = self.call("POST", f"/{self.uaid}/subscription", {"key": key})
        self.channels.append(reply["channelID"])
        return reply["endpoint"]

    def update(self, token):
        self.call("PUT", f"/{self.uaid}", {"token": token})

    def channel_list(self):
        reply = self.call("GET", f"/{self.uaid}")
        assert reply["uaid"] == self.uaid, "the component compares byte for byte"
        return reply["channelIDs"]

    def unsubscribe(self, channel):
        self.call("DELETE", f"/{self.uaid}/subscription/{channel}")
        self.channels.remove(channel)

    def unsubscribe_all(self):
        self.call("DELETE", f"/{self.uaid}")

    def verify(self):
        """The component unsubscribes everything when the lists differ."""
        return sorted(self.channel_list()) == sorted(self.channels)


@pytest.fixture(params=["memory", "embedded"])
def bridge_server(tmp_path, request):
    with upstream.running(tmp_path) as services:
        server = BridgedServer(tmp_path, services, [f"store.kind={request.param}"])
        with server.running():
            yield server


def post(endpoint):
    headers = {"TTL": "60", "Content-Encoding": "aes128gcm"}
    return requests.post(endpoint, data=b"encrypted", headers=headers, timeout=60)


def test_a_life_of_a_device(bridge_server):
    component = Component(bridge_server)
    endpoints = [component.subscribe(), component.subscribe()]
    assert len(set(endpoints)) == 2 and str(uuid.UUID(component.uaid)) == component.uaid
    message = uuid.UUID(component.uaid).hex.encode()
    assert component.auth == hmac.new(KEY.encode(), message, hashlib.sha256).hexdigest()
    assert component.verify()
    component.update("device-token-2")
    assert component.verify()
    first = component.channels[0]
    component.unsubscribe(first)
    assert component.verify()
    assert post(endpoints[0]).status_code == 410
    with pytest.raises(UaidNotRecognized):
        component.call("DELETE", f"/{component.uaid}/subscription/{first}")
    component.unsubscribe_all()
    assert post(endpoints[1]).status_code == 410
    for call in [component.channel_list, component.unsubscribe_all, component.subscribe]:
        with pytest.raises(UaidNotRecognized):
            call()


def test_a_lost_uaid_begins_anew(bridge_server):
    component = Component(bridge_server)
    component.register()
    lost = component.uaid
    component.uaid = str(uuid.uuid4())
    with pytest.raises(Communication) as error:
        component.channel_list()
    assert error.value.args[0]["errno"] == 109, "the secret of another user"
    component.uaid = component.auth = None
    component.register()
    assert component.uaid != lost and component.verify()


def test_another_kind_of_user_conflicts(bridge_server):
    component = Component(bridge_server)
    component.register()
    other = Component(bridge_server, "webpush", "any")
    other.uaid, other.auth = component.uaid, component.auth
    with pytest.raises(AlreadyRegistered):
        other.update("device-token-3")
    assert component.verify()


def test_a_channel_with_another_key_conflicts(bridge_server):
    component = Component(bridge_server)
    component.register()
    keys = [vapid_key(), vapid_key()]
    channel = str(uuid.uuid4())

    def subscribe(key):
        return component.call("POST", f"/{component.uaid}/subscription", {"channelID": channel, "key": key})

    assert subscribe(keys[0])["channelID"] == subscribe(keys[0])["channelID"] == channel
    for other in [keys[1], None]:
        with pytest.raises(AlreadyRegistered) as error:
            subscribe(other)
        assert error.value.args[0]["errno"] == 108
    component.channels.append(channel)
    assert component.verify()


def test_wrong_secrets_are_the_same_for_everybody(bridge_server):
    component = Component(bridge_server)
    component.register()
    component.auth = "0" * 64
    errors = []
    for uaid in [component.uaid, str(uuid.uuid4())]:
        component.uaid = uaid
        with pytest.raises(Communication) as error:
            component.channel_list()
        errors.append(error.value.args[0])
    assert errors[0] == errors[1] and errors[0]["code"] == 401


def test_a_user_of_webpush_says_hello(bridge_server):
    from browser import Browser

    component = Component(bridge_server, "webpush", "any")
    endpoint = component.register()
    browser = Browser(bridge_server, uaid=uuid.UUID(component.uaid).hex)
    assert browser.uaid == uuid.UUID(component.uaid).hex
    assert post(endpoint).status_code == 201
    assert browser.notification()["channelID"] == component.channels[0]


def test_without_keys_there_is_no_api(server):
    reply = requests.post(Component(server).base, json={"token": TOKEN}, timeout=60)
    assert reply.status_code == 404 and reply.json()["errno"] is None
