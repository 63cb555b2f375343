"""Notifications to bridged users through the real server, against stand-ins of FCM and APNs (docs/BRIDGES.md).

Each row of its two tables is one test: status, errno and Retry-After of the answer to the sender, the calls of the
service, the reason label, and whether the record is kept.
"""

import pytest
import requests

import upstream
from bridged import BridgedServer, Device, calls_of, told

# Answers of the stand-in to one notification, and what follows: status, errno, Retry-After, calls of the service,
# reason label, record kept.
NO_ANSWER = {
    "refused": (503, 201, "120", 2, "unavailable", True),
    "goaway_before": (503, 201, "120", 2, "unavailable", True),
    "no_json": (502, 902, None, 1, "upstream_500", True),
    "empty": (502, 902, None, 1, "upstream_500", True),
    "teapot": (502, 902, None, 1, "upstream_418", True),
    "redirect": (502, 902, None, 1, "upstream_302", True),
    "large": (502, 902, None, 1, "upstream_500", True),
    "endless_headers": (502, 902, None, 1, "connection_unavailable", True),
    "reset": (502, 902, None, 1, "connection_unavailable", True),
    "close": (502, 902, None, 1, "connection_unavailable", True),
    "goaway_mid_stream": (502, 902, None, 1, "connection_unavailable", True),
}
FCM = {
    "unregistered": (410, 106, None, 1, "recipient_gone", False),
    "not_found": (502, 900, None, 1, "not_found", True),
    "not_found_empty": (502, 900, None, 1, "not_found", True),
    "sender_id_mismatch": (502, 900, None, 1, "sender_mismatch", True),
    "invalid_argument": (502, 900, None, 1, "bad_token", True),
    "bad_token": (502, 900, None, 1, "bad_token", True),
    "bad_field": (500, 900, None, 1, "bad_request", True),
    "bad_field_with_code": (500, 900, None, 1, "bad_request", True),
    "unauthenticated": (502, 901, None, 2, "authentication", True),
    "third_party_auth_error": (502, 901, None, 1, "authentication", True),
    "permission_denied": (502, 901, None, 1, "authentication", True),
    "quota": (429, 201, "60", 1, "quota", True),
    "quota;retry-after=7": (429, 201, "10", 1, "quota", True),
    "quota;retry-after=77": (429, 201, "77", 1, "quota", True),
    "quota;retry-after=date+9000": (429, 201, "3600", 1, "quota", True),
    "resource_exhausted": (429, 201, "60", 1, "quota", True),
    "unavailable": (503, 201, "120", 1, "unavailable", True),
    "unavailable;retry-after=33": (503, 201, "33", 1, "unavailable", True),
    "internal": (503, 201, "120", 1, "unavailable", True),
    **NO_ANSWER,
}
OLD = "timestamp=1700000000000"
APNS = {
    "Unregistered": (410, 106, None, 1, "recipient_gone", False),
    "ExpiredToken": (410, 106, None, 1, "recipient_gone", False),
    # The token was registered after the time that APNs names.
    f"Unregistered;{OLD}": (502, 900, None, 1, "recipient_gone", True),
    f"ExpiredToken;{OLD}": (502, 900, None, 1, "recipient_gone", True),
    "BadDeviceToken": (502, 900, None, 1, "bad_token", True),
    "DeviceTokenNotForTopic": (502, 900, None, 1, "bad_token", True),
    "PayloadTooLarge": (413, 104, None, 1, "too_much_data", True),
    "TooManyRequests": (429, 201, "60", 1, "quota", True),
    "ExpiredProviderToken": (502, 901, None, 1, "authentication", True),
    "TooManyProviderTokenUpdates": (503, 201, "120", 1, "authentication", True),
    **{
        reason: (502, 901, None, 1, "authentication", True)
        for reason in (
            "InvalidProviderToken",
            "MissingProviderToken",
            "BadCertificate",
            "BadCertificateEnvironment",
            "Forbidden",
            "UnrelatedKeyIdInToken",
            "BadEnvironmentKeyIdInToken",
        )
    },
    "TopicDisallowed": (502, 900, None, 1, "config", True),
    "BadTopic": (502, 900, None, 1, "config", True),
    "MissingTopic": (502, 900, None, 1, "config", True),
    "BadCollapseId": (500, 900, None, 1, "bad_request", True),
    "BadPriority": (500, 900, None, 1, "bad_request", True),
    "BadPath": (500, 900, None, 1, "bad_request", True),
    "MethodNotAllowed": (500, 900, None, 1, "bad_request", True),
    "InternalServerError": (503, 201, "120", 1, "unavailable", True),
    "ServiceUnavailable": (503, 201, "120", 1, "unavailable", True),
    "IdleTimeout": (503, 201, "120", 1, "unavailable", True),
    "Shutdown": (503, 201, "120", 2, "unavailable", True),
    **NO_ANSWER,
}
ROWS = [("fcm", answer) for answer in FCM] + [("apns", answer) for answer in APNS]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all rows; its log has no secret in the end."""
    directory = tmp_path_factory.mktemp("bridges")
    with upstream.running(directory) as services:
        # The host of the tests may be slow.
        server = BridgedServer(directory, services, ["bridge.fcm.timeout=25", "bridge.apns.timeout=25"])
        with server.running():
            yield server
            server.assert_no_secret_in_log()


@pytest.mark.parametrize("bridge, answer", ROWS)
def test_an_answer_of_the_service_has_its_row(server, bridge, answer):
    status, errno, retry_after, calls, reason, is_kept = (FCM if bridge == "fcm" else APNS)[answer]
    # Successes between the failures of the rows, which would open the breaker and make the guard active.
    healthy = Device(server, bridge)
    assert [told(healthy.post()) for _ in range(3)] == [(201, None, None)] * 3
    device = Device(server, bridge, answer=answer)
    before, errors = len(calls_of(server, device)), server.errors(bridge, reason)
    assert told(device.post()) == (status, errno, retry_after)
    assert len(calls_of(server, device)) == before + calls
    server.wait_for_errors(bridge, reason, errors + 1)
    assert device.is_known() == is_kept
    if not is_kept:
        assert told(device.post()) == (410, 106, None), "without another call"
        assert len(calls_of(server, device)) == before + calls
    assert server.services.violations() == []


@pytest.mark.parametrize("bridge", ["fcm", "apns"])
def test_success_is_201_and_its_location_is_a_message(server, bridge):
    device = Device(server, bridge)
    reply = device.post(TTL="3000000")
    assert (reply.status_code, reply.headers["ttl"]) == (201, str(30 * 24 * 3600))
    assert requests.delete(reply.headers["location"], timeout=60).status_code == 204
    assert device.is_known() and len(calls_of(server, device)) == 1
    assert server.services.violations() == []


@pytest.mark.parametrize(
    "bridge, answer",
    [
        ("fcm", "refused"),
        ("fcm", "goaway_before"),
        ("apns", "Shutdown"),
        ("apns", "refused"),
        ("apns", "goaway_before"),
    ],
)
def test_what_was_not_processed_is_sent_once_more(server, bridge, answer):
    device = Device(server, bridge)
    assert device.post().status_code == 201
    server.services.answer(bridge, answer, "ok")
    assert device.post().status_code == 201
    assert len(calls_of(server, device)) == 3
    assert server.services.violations() == []


def test_a_device_token_of_apns_that_is_not_hexadecimal_is_not_sent(server):
    device = Device(server, "apns", token="not-hexadecimal")
    errors = server.errors("apns", "bad_token")
    assert told(device.post()) == (502, 900, None)
    assert calls_of(server, device) == [] and device.is_known()
    server.wait_for_errors("apns", "bad_token", errors + 1)


def test_a_channel_with_a_certificate_sends(server):
    device = Device(server, "apns", app="beta")
    assert device.post().status_code == 201
    [call] = calls_of(server, device)
    assert call["has_certificate"] and "authorization" not in dict(call["headers"])
    assert server.services.violations() == []


def test_an_unregistered_channel_is_410(server):
    for bridge in ("fcm", "apns"):
        device = Device(server, bridge)
        assert device.call("DELETE", f"/subscription/{device.channels.pop()}").status_code == 200
        assert told(device.post()) == (410, 106, None)
        assert calls_of(server, device) == [] and device.is_known()
