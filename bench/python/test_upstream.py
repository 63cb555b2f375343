"""Independent verifiers: published libraries of Google and of others speak to the stand-ins of FCM and APNs.

firebase-admin must understand the answers as Google's own, google-auth must get its token, and aioapns must send; each
of their requests passes the checks that those of the server pass.
"""

import asyncio
import json

import aioapns
import aioapns.connection
import firebase_admin
import google.auth.jwt
import pytest
from cryptography.hazmat.primitives import serialization
from firebase_admin import credentials, exceptions, messaging

import upstream

DEVICE = "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0"


@pytest.fixture
def services(tmp_path):
    with upstream.running(tmp_path) as services:
        yield services


@pytest.fixture
def firebase(services, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", services.path("ca.pem"))
    url = f"https://localhost:{services.port('google')}/v1/projects/{{0}}/messages:send"
    monkeypatch.setattr(messaging._MessagingService, "FCM_URL", url)
    app = firebase_admin.initialize_app(credentials.Certificate(services.path("service-account.json")), name=url)
    yield app
    firebase_admin.delete_app(app)


def message(**android):
    return messaging.Message(token="device-token", android=messaging.AndroidConfig(**android))


def test_firebase_admin_sends(services, firebase):
    sent = message(ttl=60, priority="normal", collapse_key="k", data={"chid": "x", "body": "y"})
    assert messaging.send(sent, app=firebase).startswith("projects/murre-test/messages/")
    assert services.violations() == []
    assert [call["status"] for call in services.calls("token") + services.calls("fcm")] == [200, 200]


@pytest.mark.parametrize(
    "answer, error",
    [
        ("unregistered", messaging.UnregisteredError),
        ("sender_id_mismatch", messaging.SenderIdMismatchError),
        ("quota", messaging.QuotaExceededError),
        ("third_party_auth_error", messaging.ThirdPartyAuthError),
        ("not_found", exceptions.NotFoundError),
        ("invalid_argument", exceptions.InvalidArgumentError),
        ("bad_token", exceptions.InvalidArgumentError),
        ("permission_denied", exceptions.PermissionDeniedError),
        ("resource_exhausted", exceptions.ResourceExhaustedError),
        ("internal", exceptions.InternalError),
    ],
)
def test_firebase_admin_understands_an_answer(services, firebase, answer, error):
    # It sends again after some statuses.
    services.script(always={"fcm": answer})
    with pytest.raises(exceptions.FirebaseError) as raised:
        messaging.send(message(), app=firebase)
    assert type(raised.value) is error


def test_google_auth_verifies_an_assertion(services, firebase):
    messaging.send(message(), app=firebase)
    # Its own assertion names Google's endpoint whatever the token_uri is.
    assert_right_assertion(services, "https://oauth2.googleapis.com/token")


def assertion(services):
    """The assertion of the last call of the token endpoint."""
    form = services.calls("token")[-1]["body"]
    return dict(pair.split("=", 1) for pair in form.split("&"))["assertion"]


def public_key(services):
    """PEM of the key that verifies assertions of the service account."""
    account = json.loads(services.read("service-account.json"))
    private = serialization.load_pem_private_key(account["private_key"].encode(), password=None)
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return account, private.public_key().public_bytes(encoding, form)


def assert_right_assertion(services, audience):
    account, key = public_key(services)
    claims = google.auth.jwt.decode(assertion(services), certs=key, audience=audience)
    assert claims["iss"] == account["client_email"]
    assert claims["exp"] - claims["iat"] <= 3600
    return claims


@pytest.fixture
def apns(services, monkeypatch):
    for protocol in (aioapns.connection.APNsProductionClientProtocol, aioapns.connection.APNsDevelopmentClientProtocol):
        monkeypatch.setattr(protocol, "APNS_SERVER", "localhost")
        monkeypatch.setattr(protocol, "APNS_PORT", services.port("apple"))
    token = {"key": services.read("AuthKey.p8"), "key_id": "ABC123DEFG", "team_id": "DEF123GHIJ"}

    def send(count=1, certificate=False, device=DEVICE, **members):
        """The results of notifications that are sent at once."""
        credential = token
        if certificate:
            joined = services.directory / "client.pem"
            joined.write_text(services.read("apns-certificate.pem") + services.read("apns-key.pem"))
            credential = {"client_cert": str(joined)}

        async def run():
            client = aioapns.APNs(
                **credential, topic="com.mozilla.org.firefox", ssl_context=services.context(), max_connections=1
            )
            members.setdefault("message", {"aps": {"alert": "hello", "mutable-content": 1}, "chid": "x"})
            members.setdefault("push_type", aioapns.PushType.ALERT)
            requests = [aioapns.NotificationRequest(device_token=device, **members) for _ in range(count)]
            try:
                return await asyncio.gather(*map(client.send_notification, requests))
            finally:
                client.pool.close()

        return asyncio.run(run())

    return send


@pytest.mark.parametrize("certificate", [False, True])
def test_aioapns_sends(services, apns, certificate):
    results = apns(count=20, certificate=certificate, time_to_live=60, priority=5, collapse_key="k")
    assert [result.status for result in results] == ["200"] * 20
    assert services.violations() == []
    assert {call["has_certificate"] for call in services.calls("apns")} == {certificate}
    if not certificate:
        assert services.calls("apns")[0]["claims"]["iss"] == "DEF123GHIJ"


@pytest.mark.parametrize("reason", ["BadDeviceToken", "Unregistered", "TooManyRequests", "ServiceUnavailable"])
def test_aioapns_understands_an_answer(services, apns, reason):
    services.answer("apns", reason)
    [result] = apns()
    assert not result.is_successful and result.description == reason
    assert (result.timestamp is not None) == (reason == "Unregistered")


def test_aioapns_is_refused_for_a_fault(services, apns):
    [result] = apns(device="00fg")
    assert result.description == "BadDeviceToken"
    assert len(services.violations()) == 1
