"""A server whose bridges lead to the stand-ins of FCM and APNs, and devices that are registered at it."""

import json
import os
import re
import time

import requests
from cryptography.hazmat.primitives.asymmetric import ec

from browser import Browser, encoded, uncompressed
from conftest import Server

KEY = "auth-key-of-the-bridge-tests"
PATIENCE = 60


class BridgedServer(Server):
    """A server with both bridges. `services` are the stand-ins that it calls."""

    def __init__(self, directory, services, settings=()):
        self.services = services
        base = [
            f"bridge.auth_keys={KEY}",
            f"bridge.ca_file={services.path('ca.pem')}",
            f"bridge.fcm.credentials={services.path('fcm.json')}",
            f"bridge.fcm.base_url=https://localhost:{services.port('google')}",
            f"bridge.apns.channels={services.path('apns.json')}",
            "log.level=trace",
        ]
        super().__init__(directory, shards=2, settings=[*base, *settings])
        self.devices = []

    def errors(self, bridge, reason):
        """Outcomes of one reason so far."""
        with requests.get(f"{self.url('admin')}/metrics", timeout=PATIENCE) as answer:
            wanted = re.compile(rf'murre_bridge_errors_total{{bridge="{bridge}",.*reason="{reason}"}} (\d+)')
            return sum(int(number) for number in wanted.findall(answer.text))

    def wait_for_errors(self, bridge, reason, wanted):
        deadline = time.monotonic() + PATIENCE
        while (count := self.errors(bridge, reason)) != wanted:
            assert time.monotonic() < deadline, f"{wanted} times {reason} were awaited, there are {count}"
            time.sleep(0.05)

    def wait_for_log(self, text, count=1):
        deadline = time.monotonic() + PATIENCE
        while self.log().count(text) < count:
            assert time.monotonic() < deadline, f"no {text!r} in the log:\n{self.log()[-4000:]}"
            time.sleep(0.05)

    def secrets(self):
        """Everything that the log must not have, by its kind."""
        found = {"key of secrets": {KEY}}
        found["device token"] = {device.token for device in self.devices}
        found["secret of a device"] = {device.secret for device in self.devices}
        found["UAID"] = {form for device in self.devices for form in (device.uaid, device.uaid.replace("-", ""))}
        found["private key"] = {
            line
            for name in ("AuthKey.p8", "apns-key.pem")
            for line in self.services.read(name).splitlines()
            if not line.startswith("-----")
        }
        found["private key"].add(self.services.read("service-account.json").split("\\n")[1])
        calls = self.services.call("GET", "/calls")
        values = [value for call in calls for name, value in call["headers"] if name == "authorization"]
        found["access or provider token"] = {value.split(" ", 1)[1] for value in values}
        bodies = [call["body"] for call in calls if call["service"] == "token"]
        fields = [field for body in bodies for field in body.split("&")]
        found["assertion"] = {field[10:] for field in fields if field.startswith("assertion=")}
        return found

    def assert_no_secret_in_log(self):
        log = self.log()
        for kind, values in self.secrets().items():
            for value in values:
                assert value not in log, f"a {kind} is in the log: {value}"


def asking(bridge, answer):
    """A device token for which the stand-in gives this answer."""
    text = f"answer.{answer}.{os.urandom(4).hex()}"
    return text.encode().hex() if bridge == "apns" else text


class Device:
    """A registered app of a phone, and the keys of one subscription."""

    decrypt = Browser.decrypt

    def __init__(self, server, bridge, token=None, app="firefox", answer="ok", **members):
        self.server, self.bridge = server, bridge
        self.token = token or asking(bridge, answer)
        self.base = f"{server.url('endpoint')}/v1/{bridge}/{app}/registration"
        reply = requests.post(self.base, json={"token": self.token, **members}, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        body = reply.json()
        self.uaid, self.secret, self.endpoint = body["uaid"], body["secret"], body["endpoint"]
        self.channels = [body["channelID"]]
        self.private_key = ec.generate_private_key(ec.SECP256R1())
        self.auth = os.urandom(16)
        server.devices.append(self)

    def call(self, method, path="", body=None, timeout=PATIENCE):
        headers = {"Authorization": f"webpush {self.secret}"}
        return requests.request(method, f"{self.base}/{self.uaid}{path}", json=body, headers=headers, timeout=timeout)

    def put(self, token):
        reply = self.call("PUT", body={"token": token})
        assert (reply.status_code, reply.json()) == (200, {}), reply.text
        self.token = token

    def is_known(self):
        reply = self.call("GET")
        if reply.status_code == 200:
            assert reply.json() == {"uaid": self.uaid, "channelIDs": self.channels}
            return True
        assert (reply.status_code, reply.json()["errno"]) == (410, 103), reply.text
        return False

    def post(self, body=b"encrypted", **headers):
        fields = {"TTL": "60", "Content-Encoding": "aes128gcm"} if body else {"TTL": "60"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.post(self.endpoint, data=body, headers=fields, timeout=PATIENCE)

    def subscription(self, endpoint=None):
        keys = {"p256dh": encoded(uncompressed(self.private_key.public_key())), "auth": encoded(self.auth)}
        return {"endpoint": endpoint or self.endpoint, "keys": keys}

    def received(self, position=-1):
        """What the stand-in got, as a notification of a browser."""
        data = payload(self.server.services, self.bridge, position)
        names = {"con": "encoding", "enc": "encryption", "cryptokey": "crypto_key"}
        return {"data": data["body"], "headers": {names[name]: data[name] for name in names if name in data}}


def payload(services, bridge, position=-1):
    """The common map of a call."""
    body = json.loads(services.calls(bridge)[position]["body"])
    return body["message"]["android"]["data"] if bridge == "fcm" else body


def told(reply):
    """Status, errno and Retry-After of an answer."""
    errno = None if reply.status_code == 201 else reply.json()["errno"]
    return reply.status_code, errno, reply.headers.get("retry-after")


def calls_of(server, device):
    """Calls of the service for one device."""
    calls = server.services.calls(device.bridge)
    return [call for call in calls if device.token in (call["body"] if device.bridge == "fcm" else call["path"])]
