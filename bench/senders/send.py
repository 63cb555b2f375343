"""Sends with the library of PyPI that its argument names: one JSON object on stdin for each message, one with its answer
on stdout. The libraries are those of bench/python/requirements.txt."""

import json
import sys

import py_vapid
import pywebpush
import requests
import webpush
import webpush_rs
from cryptography.hazmat.primitives import serialization

SECONDS = 60


def with_pywebpush(message):
    subscription = {"endpoint": message["endpoint"], "keys": {"p256dh": message["p256dh"], "auth": message["auth"]}}
    try:
        answer = pywebpush.webpush(
            subscription,
            data=message["text"],
            vapid_private_key=message["private_key"],
            vapid_claims={"sub": message["subject"]},
            content_encoding=message["encoding"],
            ttl=message["ttl"],
            timeout=SECONDS,
        )
    except pywebpush.WebPushException as error:
        answer = error.response
    return answer.status_code


def with_webpush(message):
    """This library makes the body and the header fields, and leaves the POST to its user."""
    key = py_vapid.Vapid02.from_raw(message["private_key"].encode())
    public_key = key.public_key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    sender = webpush.WebPush(key.private_pem(), public_key, message["subject"].removeprefix("mailto:"), message["ttl"])
    keys = webpush.types.WebPushKeys(auth=message["auth"], p256dh=message["p256dh"])
    subscription = webpush.WebPushSubscription(endpoint=message["endpoint"], keys=keys)
    made = sender.get(message["text"], subscription)
    url = str(subscription.endpoint)
    return requests.post(url, data=made.encrypted, headers=made.headers, timeout=SECONDS).status_code


def with_webpush_rs(message):
    """The crate web-push 0.11.0, compiled by the authors of this library."""
    names = ("endpoint", "p256dh", "auth", "private_key", "subject")
    return webpush_rs.send_one(*(message[name] for name in names), message["text"].encode())


def main(send):
    for line in sys.stdin:
        try:
            answer = {"status": send(json.loads(line))}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main({"pywebpush": with_pywebpush, "webpush": with_webpush, "webpush-rs": with_webpush_rs}[sys.argv[1]])
