"""Bridges whose services, credentials or records fail, or are called too often: each test has a server of its own."""

import concurrent.futures
import hashlib
import hmac
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

import upstream
from bridged import KEY, BridgedServer, Device, asking, calls_of, told
from browser import AppServer, Browser, exchange
from conftest import binary


@pytest.fixture
def services(tmp_path):
    with upstream.running(tmp_path) as services:
        yield services


@pytest.fixture
def start(services, tmp_path):
    """Starts a server with these settings; it is ended with the test, and its log has no secret."""
    started = []

    def start(*settings):
        server = BridgedServer(tmp_path, services, settings)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.kill()
        server.assert_no_secret_in_log()


def test_a_refused_access_token_is_replaced(start, services):
    server = start()
    device = Device(server, "fcm")
    assert device.post().status_code == 201
    services.answer("fcm", "unauthenticated", "ok")
    assert device.post().status_code == 201
    assert (len(calls_of(server, device)), len(services.calls("token"))) == (3, 2)
    used = [dict(call["headers"])["authorization"] for call in calls_of(server, device)]
    assert used[0] == used[1] != used[2]
    # A service that refuses every token does not get a new one for each notification.
    services.answer("fcm", "unauthenticated", "ok")
    assert told(device.post()) == (502, 901, None)
    assert (len(calls_of(server, device)), len(services.calls("token"))) == (4, 2)


@pytest.mark.parametrize(
    "answer, expected",
    [
        ("invalid_grant", (502, 901, None)),
        ("invalid_scope", (502, 901, None)),
        ("unauthorized_client", (502, 901, None)),
        ("unavailable", (503, 201, "120")),
        ("silence", (502, 903, None)),
    ],
)
def test_an_answer_of_the_token_endpoint_has_its_row(start, services, answer, expected):
    services.script(always={"token": answer})
    server = start("bridge.fcm.timeout=2")
    device = Device(server, "fcm")
    assert told(device.post()) == expected
    assert device.is_known() and services.calls("fcm") == []
    if expected[1] == 901:
        server.wait_for_log("ERROR")
        server.wait_for_errors("fcm", "authentication", 1)


@pytest.mark.parametrize("bridge", ["fcm", "apns"])
@pytest.mark.parametrize("certificate", ["expired", "wrong_name", "untrusted"])
def test_a_certificate_that_is_not_trusted_is_no_connection(start, services, bridge, certificate):
    services.script(certificate=certificate)
    server = start()
    device = Device(server, bridge)
    assert told(device.post()) == (502, 902, None)
    assert device.is_known() and services.call("GET", "/calls") == []
    server.wait_for_errors(bridge, "connection_unavailable", 1)


def lead(services, url):
    """Settings under which both services are at this URL, and the token endpoint is where it was."""
    channels = json.loads(services.read("apns.json"))
    channels["firefox"]["url"] = url
    elsewhere = services.directory / "elsewhere.json"
    elsewhere.write_text(json.dumps(channels))
    return [f"bridge.fcm.base_url={url}", f"bridge.apns.channels={elsewhere}"]


@pytest.mark.parametrize("url", ["https://localhost:1", "https://nowhere.invalid"])
def test_a_service_without_an_address_or_a_listener_is_no_connection(start, services, url):
    server = start(*lead(services, url), "bridge.fcm.timeout=25", "bridge.apns.timeout=25")
    for bridge in ("fcm", "apns"):
        device = Device(server, bridge)
        assert told(device.post()) == (502, 902, None), bridge
        assert device.is_known()
        server.wait_for_errors(bridge, "connection_unavailable", 1)


@pytest.mark.parametrize("bridge", ["fcm", "apns"])
@pytest.mark.parametrize("answer", ["silence", "slow"])
def test_a_stalled_service_is_answered_by_the_deadline(start, services, bridge, answer):
    server = start("bridge.fcm.timeout=2", "bridge.apns.timeout=2")
    healthy, device = Device(server, bridge), Device(server, bridge, answer=answer)
    assert healthy.post().status_code == 201
    browser, sender = Browser(server), AppServer()
    with concurrent.futures.ThreadPoolExecutor(10) as pool:

        def post(number):
            began = time.monotonic()
            return told(device.post(b"encrypted %d" % number)), time.monotonic() - began

        replies = [pool.submit(post, number) for number in range(10)]
        # The others are served meanwhile.
        exchange(browser, sender)
        assert Device(server, "apns" if bridge == "fcm" else "fcm").post().status_code == 201
        for reply in replies:
            outcome, seconds = reply.result()
            assert outcome == (502, 903, None) and seconds >= 1.9
            assert seconds < 8, "the host of the tests may be slow, but not by so much"
    browser.close()
    # On a busy host, the time of a call may end before it is sent.
    bodies = [call["body"] for call in calls_of(server, device)]
    assert bodies and len(set(bodies)) == len(bodies) <= 10, "no retry: the service may have taken it"
    server.wait_for_errors(bridge, "timeout", 10)
    assert device.is_known() and healthy.post().status_code == 201


@pytest.mark.parametrize("bridge, answer", [("fcm", "unavailable"), ("apns", "ServiceUnavailable")])
def test_twenty_failures_open_the_breaker(start, services, bridge, answer):
    server = start()
    device = Device(server, bridge, answer=answer)
    for _ in range(20):
        assert told(device.post()) == (503, 201, "120")
    status, errno, retry_after = told(device.post())
    assert (status, errno) == (503, 201) and 10 <= int(retry_after) <= 60
    assert len(calls_of(server, device)) == 20
    server.wait_for_errors(bridge, "shed", 1)
    server.wait_for_number(f'bridge_breaker{{bridge="{bridge}",app="firefox"', 1)
    # The other profiles are not delayed.
    other = Device(server, {"fcm": "apns", "apns": "fcm"}[bridge])
    assert other.post().status_code == 201
    # One probe, after about ten seconds, closes it.
    healthy = Device(server, bridge)
    deadline = time.monotonic() + 30
    while (reply := healthy.post()).status_code != 201:
        assert told(reply)[:2] == (503, 201) and time.monotonic() < deadline
        time.sleep(0.5)
    server.wait_for_number(f'bridge_breaker{{bridge="{bridge}",app="firefox"', 0)
    assert device.is_known()


def test_what_has_no_place_is_refused_at_once(start, services):
    server = start("bridge.max_in_flight=1", "bridge.queue=0")
    device, slow = Device(server, "fcm"), Device(server, "fcm")
    assert device.post().status_code == 201
    services.script(tokens={slow.token: "ok;delay=2000"})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow.post)
        server.wait_for_number("bridge_in_flight", 1)
        status, errno, retry_after = told(device.post())
        assert (status, errno) == (503, 201) and int(retry_after) >= 10
        assert first.result().status_code == 201
    server.wait_for_errors("fcm", "shed", 1)
    assert device.is_known() and len(calls_of(server, device)) == 1


def test_retries_have_a_budget(start, services):
    """Ten, and a tenth of the calls."""
    server = start()
    device, healthy = Device(server, "fcm", answer="refused"), Device(server, "fcm")
    for _ in range(18):
        status, errno, retry_after = told(device.post())
        assert (status, errno) == (503, 201) and int(retry_after) >= 10
        # More than half of the calls end well, or the breaker opens.
        assert [healthy.post().status_code for _ in range(3)] == [201] * 3
    assert 18 + 10 <= len(calls_of(server, device)) <= 18 + 10 + 8
    assert device.is_known()


@pytest.mark.parametrize("bridge, answer", [("fcm", "bad_token"), ("apns", "BadDeviceToken")])
def test_a_wrong_configuration_removes_nobody(start, services, bridge, answer):
    """More than a fifth of fifty answers refuse the token."""
    server = start()
    healthy = Device(server, bridge)
    for _ in range(39):
        assert healthy.post().status_code == 201
    devices = [Device(server, bridge, answer=answer) for _ in range(13)]
    for device in devices:
        assert told(device.post()) == (502, 900, None)
    server.wait_for_number(f'bridge_guard_active{{bridge="{bridge}",app="firefox"', 1)
    assert server.log().count("bridge guard active") == 1
    assert healthy.post().status_code == 201 and all(device.is_known() for device in devices)


def test_a_profile_that_is_not_configured_ends_no_subscription(start, services):
    server = start()
    devices = [Device(server, bridge) for bridge in ("fcm", "apns")]
    renamed = []
    for name, key in (("fcm.json", "bridge.fcm.credentials"), ("apns.json", "bridge.apns.channels")):
        profiles = json.loads(services.read(name))
        path = services.directory / f"other-{name}"
        path.write_text(json.dumps({"other": profiles["firefox"]}))
        renamed.append(f"{key}={path}")
    server.restart(*renamed)
    for device in devices:
        assert told(device.post()) == (502, 900, None)
        assert device.is_known()
        server.wait_for_errors(device.bridge, "config", 1)
    assert [call for bridge in ("fcm", "apns") for call in services.calls(bridge)] == []


@pytest.mark.parametrize(
    "bridge, data",
    [("fcm", {}), ("fcm", {"token": "device-token-1"}), ("apns", {"rel_channel": "firefox"})],
)
def test_an_imported_record_without_token_or_app_is_gone(start, services, tmp_path, bridge, data):
    server = start()
    pattern = Device(server, bridge)
    pattern.channels.append("9d8c7b6a-0000-4000-8000-000000000001")
    imported = object.__new__(Device)
    imported.__dict__ = {**pattern.__dict__, "uaid": "deadbeef-0000-4000-8000-00000000000a"}
    imported.channels = ["9d8c7b6a-0000-4000-8000-000000000001"]
    line = {"uaid": imported.uaid, "router_type": bridge, "router_data": data, "channels": imported.channels}
    line["connected_at"] = int(time.time() * 1000)
    lines = tmp_path / "lines"
    lines.write_text(json.dumps(line) + "\n")
    server.stop()
    command = [binary(), "import", str(lines), "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stdout + done.stderr
    server.start()
    # The same key makes its secret.
    text = imported.uaid.replace("-", "").encode()
    imported.secret = hmac.new(KEY.encode(), text, hashlib.sha256).hexdigest()
    assert imported.is_known()
    reply = imported.call("POST", "/subscription", {})
    assert reply.status_code == 200, reply.text
    imported.channels.append(reply.json()["channelID"])
    imported.endpoint = reply.json()["endpoint"]
    assert told(imported.post()) == (410, 106, None)
    assert not imported.is_known()
    assert services.calls(bridge) == []


TWICE = [
    ("fcm", "not_found"),
    ("fcm", "not_found_empty"),
    ("fcm", "sender_id_mismatch"),
    ("fcm", "invalid_argument"),
    ("fcm", "bad_token"),
    ("apns", "BadDeviceToken"),
    ("apns", "DeviceTokenNotForTopic"),
    ("apns", "Unregistered;timestamp=1700000000000"),
    ("apns", "ExpiredToken;timestamp=1700000000000"),
    ("apns", None),
]


def test_the_same_refusal_a_minute_later_removes_the_user(start, services):
    """All rows at once, because no setting shortens the minute."""
    server = start()

    def tokens(bridge, answer):
        return asking(bridge, answer) if answer else "not-hexadecimal"

    ended = [Device(server, bridge, token=tokens(bridge, answer)) for bridge, answer in TWICE]
    renewed = [Device(server, bridge, token=tokens(bridge, answer)) for bridge, answer in TWICE]
    for device in ended + renewed:
        assert told(device.post()) == (502, 900, None)
    marked = time.monotonic()
    for device in ended:
        assert told(device.post()) == (502, 900, None), "too early to be believed"
        assert device.is_known()
    for device, (bridge, answer) in zip(renewed, TWICE):
        device.put(tokens(bridge, answer))
    time.sleep(max(0, marked + 61.5 - time.monotonic()))
    for device in ended:
        assert told(device.post()) == (410, 106, None), device.token
        assert not device.is_known()
    for device in renewed:
        assert told(device.post()) == (502, 900, None), "PUT clears the mark"
        assert device.is_known()
    assert services.violations() == []


def test_a_faulty_set_of_credentials_leaves_the_old_one_in_force(start, services):
    good = {name: services.read(name) for name in ("fcm.json", "apns.json", "service-account.json", "AuthKey.p8")}
    server = start()
    devices = [Device(server, bridge) for bridge in ("fcm", "apns")]

    def write(name, text):
        pathlib.Path(services.path(name)).write_text(text)

    def works():
        return [device.post().status_code for device in devices] == [201, 201]

    assert works()
    account = json.loads(good["service-account.json"])
    faults = [
        ("fcm.json", "{"),
        ("fcm.json", good["fcm.json"].replace("project_id", "project_name")),
        ("fcm.json", good["fcm.json"].replace("service-account.json", "nowhere.json")),
        ("service-account.json", json.dumps({**account, "private_key": "no key"})),
        ("apns.json", good["apns.json"].replace('"key_id"', '"kid"')),
        ("AuthKey.p8", account["private_key"]),
    ]
    refused = "keys not reloaded; the old keys stay"
    for count, (name, text) in enumerate(faults, 1):
        assert text != good[name]
        write(name, text)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log(refused, count)
        write(name, good[name])
        assert works(), f"{name}: {text[:80]}"
    profiles = json.loads(good["fcm.json"])
    write("fcm.json", json.dumps({**profiles, "later": profiles["firefox"]}))
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_log("keys reloaded", 1)
    later = Device(server, "fcm", app="later")
    assert later.post().status_code == 201 and works()
    assert services.violations() == []
