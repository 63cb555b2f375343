"""What FCM and APNs get of a notification: compared with published libraries, and decrypted by them."""

import json
import re
import time

import google.auth.jwt
import pytest
import requests
from firebase_admin import messaging

import upstream
from bridged import BridgedServer, Device, payload
from browser import AppServer
from conftest import PORTS
from node_sender import NodeSender
from test_upstream import assertion, firebase, public_key  # noqa: F401
from tls_front import TlsFront

BRIDGES = ["fcm", "apns"]
TLS_PORT = 8443
TEXTS = ["hello, phone", "\u00fc\u0436\u65e5" * 300]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bridges")
    with upstream.running(directory) as services:
        server = BridgedServer(directory, services, ["bridge.fcm.timeout=25", "bridge.apns.timeout=25"])
        front = TlsFront((server.host, TLS_PORT), (server.host, PORTS["endpoint"]), directory)
        try:
            with server.running():
                server.front = front
                yield server
                assert services.violations() == []
                server.assert_no_secret_in_log()
        finally:
            front.close()


def header(server, name):
    return dict(server.services.calls("apns")[-1]["headers"]).get(name)


def android(server):
    message = json.loads(server.services.calls("fcm")[-1]["body"])["message"]
    return message["android"]


@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_message_of_pywebpush_decrypts_on_the_phone(server, bridge, encoding, text):
    sender = AppServer()
    device = Device(server, bridge, key=sender.key)
    assert sender.push(device.subscription(), text, encoding=encoding).status_code == 201
    assert device.decrypt(device.received()) == text
    assert payload(server.services, bridge)["chid"] == device.channels[0]
    assert AppServer().push(device.subscription(), text, encoding=encoding).status_code == 401


@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
def test_a_message_of_web_push_decrypts_on_the_phone(server, bridge, encoding):
    sender, device = NodeSender(server.front.certificate), Device(server, bridge)
    endpoint = device.endpoint.replace(server.url("endpoint"), f"https://{server.host}:{TLS_PORT}")
    # The audience of its signature is the TLS front, so it sends without one.
    answer = sender.push(device.subscription(endpoint), TEXTS[1], encoding=encoding, signed=False)
    assert answer["status"] == 201, answer
    assert device.decrypt(device.received()) == TEXTS[1]


def test_a_message_without_body_has_a_channel_only(server):
    for bridge in BRIDGES:
        device = Device(server, bridge)
        assert device.post(b"").status_code == 201
        got = payload(server.services, bridge)
        assert set(got) - {"aps", "ver"} == {"chid"}


def test_fcm_gets_lifetime_priority_and_collapse_key(server):
    device = Device(server, "fcm")
    for ttl, told in [("0", "60s"), ("59", "60s"), ("61", "61s"), ("2592000", "2419200s")]:
        reply = device.post(TTL=ttl)
        assert (reply.status_code, reply.headers["ttl"]) == (201, ttl)
        assert android(server)["ttl"] == told
    for urgency, priority in [("high", "HIGH"), ("normal", "NORMAL"), ("low", "NORMAL"), ("very-low", "NORMAL")]:
        assert device.post(Urgency=urgency).status_code == 201
        assert android(server)["priority"] == priority
    assert "collapse_key" not in android(server)
    keys = []
    for of, topic in [(device, "news"), (device, "news"), (device, "other"), (Device(server, "fcm"), "news")]:
        assert of.post(Topic=topic).status_code == 201
        keys.append(android(server)["collapse_key"])
        assert len(keys[-1]) == 22 and topic not in keys[-1]
    assert keys[0] == keys[1] and len(set(keys)) == 3


def test_apns_gets_expiration_priority_and_collapse_id(server):
    device = Device(server, "apns")
    assert device.post(TTL="0").status_code == 201 and header(server, "apns-expiration") == "0"
    assert device.post(TTL="600").status_code == 201
    assert abs(int(header(server, "apns-expiration")) - 600 - time.time()) < 60
    for urgency, priority in [("high", "10"), ("normal", "10"), ("low", "5"), ("very-low", "1")]:
        assert device.post(Urgency=urgency).status_code == 201
        assert header(server, "apns-priority") == priority
    assert header(server, "apns-collapse-id") is None
    ids = []
    for of, topic in [(device, "news"), (device, "news"), (device, "other"), (Device(server, "apns"), "news")]:
        assert of.post(Topic=topic).status_code == 201
        ids.append(header(server, "apns-collapse-id"))
    assert ids[0] == ids[1] and len(set(ids)) == 3 and {len(value) for value in ids} == {22}
    assert header(server, "apns-topic") == "com.mozilla.org.firefox" and header(server, "apns-push-type") == "alert"


def test_aps_of_a_registration_overrides(server):
    usual = {
        "title-loc-key": "SentTab.NoTabArrivingNotification.title",
        "loc-key": "SentTab.NoTabArrivingNotification.body",
    }
    for given, aps in [
        (None, {"alert": usual, "mutable-content": 1}),
        ({"title": "T", "body": "B"}, {"alert": {"title": "T", "body": "B"}, "mutable-content": 1}),
        ({"badge": 3, "sound": "s"}, {"alert": usual, "mutable-content": 1, "badge": 3, "sound": "s"}),
        ({"mutable-content": 0, "category": "c"}, {"alert": usual, "mutable-content": 0, "category": "c"}),
    ]:
        device = Device(server, "apns", aps=None if given is None else json.dumps(given))
        assert device.post().status_code == 201
        assert payload(server.services, "apns")["aps"] == aps
    base = f"{server.url('endpoint')}/v1/apns/firefox/registration"
    body = {"token": "0" * 64, "aps": json.dumps({"thread-id": "x"})}
    refused = requests.post(base, json=body, timeout=60)
    assert (refused.status_code, refused.json()["errno"]) == (400, 108)


def test_3015_bytes_fit_into_a_message_of_fcm(server):
    device = Device(server, "fcm")
    assert device.post(bytes(3_015)).status_code == 201
    assert len(json.dumps(android(server)["data"], separators=(",", ":"))) <= 4_096
    assert_too_large(server, device, 3_016)


def test_4096_bytes_fit_into_a_payload_of_apns(server):
    device = Device(server, "apns")
    most = 0
    for size in range(2_300, 3_100, 100):
        if device.post(bytes(size)).status_code == 201:
            most = size
    while device.post(bytes(most + 1)).status_code == 201:
        most += 1
    assert device.post(bytes(most)).status_code == 201
    assert 4_092 <= len(server.services.calls("apns")[-1]["body"]) <= 4_096
    assert_too_large(server, device, most + 1)


def assert_too_large(server, device, size):
    before = len(server.services.calls(device.bridge))
    reply = device.post(bytes(size))
    assert (reply.status_code, reply.json()["errno"]) == (413, 104), reply.text
    assert len(server.services.calls(device.bridge)) == before and device.is_known()


def test_the_answer_says_by_how_much_a_message_is_too_large(server):
    reply = Device(server, "fcm").post(bytes(3_018))
    assert reply.status_code == 413 and re.search(r"has [1-9][0-9]* bytes too many", reply.json()["message"])


def test_google_auth_verifies_the_assertion(server):
    assert Device(server, "fcm").post().status_code == 201
    account, key = public_key(server.services)
    text = assertion(server.services)
    claims = google.auth.jwt.decode(text, certs=key, audience=account["token_uri"])
    assert claims["iss"] == account["client_email"]
    assert claims["scope"] == "https://www.googleapis.com/auth/firebase.messaging"
    assert claims["exp"] - claims["iat"] == 3600 and abs(claims["iat"] - time.time()) < 300
    header = google.auth.jwt.decode_header(text)
    assert header["alg"] == "RS256" and header.get("kid", account["private_key_id"]) == account["private_key_id"]
    with pytest.raises(ValueError):
        google.auth.jwt.decode(text[:-8] + "AAAAAAAA", certs=key, audience=account["token_uri"])


@pytest.fixture
def services(server):
    return server.services


def test_the_message_is_that_of_firebase_admin(server, services, firebase):  # noqa: F811
    device = Device(server, "fcm", answer="ok")
    assert device.post(b"encrypted", TTL="77", Urgency="high", Topic="news").status_code == 201
    ours = services.calls("fcm")[-1]
    own = json.loads(ours["body"])["message"]["android"]
    config = messaging.AndroidConfig(
        ttl=77, priority="high", collapse_key=own["collapse_key"], data={**own["data"]}
    )
    messaging.send(messaging.Message(token=device.token, android=config), app=firebase)
    theirs = services.calls("fcm")[-1]
    body = json.loads(theirs["body"])
    # The name of an enum (AndroidMessagePriority), which the library writes in lower case.
    body["message"]["android"]["priority"] = body["message"]["android"]["priority"].upper()
    body.pop("validate_only", None)
    assert json.loads(ours["body"]) == body
    assert (ours["method"], ours["path"]) == (theirs["method"], theirs["path"])
    assert set(own["data"]) == {"chid", "body", "con"}
