"""An app server that sends the bytes of web-push-php, written down in replays/senders/web-push-php.toml."""

import os
import pathlib
import re
import socket
import ssl
import struct
import time
import tomllib
import urllib.parse

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from browser import PATIENCE, decoded, encoded, uncompressed

SCRIPT = tomllib.loads((pathlib.Path(__file__).parent / "replays/senders/web-push-php.toml").read_text())
NAME = re.compile(r"\$([a-z0-9_]+)")


class PhpSender:
    """Sends each message on a connection of its own to `address`, as a PHP script does. `authority` is trusted."""

    def __init__(self, address, authority):
        self.address = address
        self.context = ssl.create_default_context(cafile=authority)

    def ask(self, message):
        """The status of the answer to a message as those of senders.Sender."""
        kind = message.get("request", message["encoding"])
        url = urllib.parse.urlsplit(message["endpoint"])
        names = {"path": url.path, "host": url.netloc, "scheme": url.scheme, "name": url.hostname}
        names |= {"key": message["public_key"], "subject": message["subject"]}
        body = b""
        if kind != "empty":
            body, salt, public_key = encrypted(message)
            names |= {"salt": encoded(salt), "dh": encoded(public_key), "size": str(len(body))}
        names["exp"] = str(int(time.time()) + SCRIPT["vapid"]["seconds"])
        names["token"] = signed(filled(SCRIPT["vapid"]["claims"], names), decoded(message["private_key"]))
        lines = [filled(line, names) for line in SCRIPT["requests"][kind]["lines"]]
        request = "\r\n".join([*lines, "", ""]).encode() + body
        with socket.create_connection(self.address, timeout=PATIENCE) as plain:
            if url.scheme == "http":
                return {"status": answered(plain, request)}
            with self.context.wrap_socket(plain, server_hostname=url.hostname) as stream:
                return {"status": answered(stream, request)}

    def close(self):
        pass


def answered(stream, request):
    stream.sendall(request)
    with stream.makefile("rb") as answer:
        return int(answer.readline().split()[1])


def filled(text, names):
    return NAME.sub(lambda name: names[name[1]], text)


def signed(claims, private_key):
    text = f"{encoded(SCRIPT['vapid']['header'].encode())}.{encoded(claims.encode())}"
    key = ec.derive_private_key(int.from_bytes(private_key, "big"), ec.SECP256R1())
    pair = utils.decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{encoded(b''.join(number.to_bytes(32, 'big') for number in pair))}"


def derived(salt, secret, info, length):
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


def encrypted(message):
    """The body, its salt and the public key that made it."""
    text, clear_bytes = message["text"].encode(), SCRIPT["padding"]["clear_bytes"]
    other, auth, salt = decoded(message["p256dh"]), decoded(message["auth"]), os.urandom(16)
    private_key = ec.generate_private_key(ec.SECP256R1())
    own = uncompressed(private_key.public_key())
    secret = private_key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), other))
    if message["encoding"] == "aesgcm":
        context = b"P-256\0\0A" + other + b"\0A" + own
        clear, head = struct.pack(">H", clear_bytes - len(text)) + text.rjust(clear_bytes, b"\0"), b""
        info = b"Content-Encoding: auth\0"
    else:
        context = b""
        clear = (text + b"\2").ljust(clear_bytes, b"\0")
        head = salt + struct.pack(">IB", SCRIPT["padding"]["record_bytes"], len(own)) + own
        info = b"WebPush: info\0" + other + own
    secret = derived(auth, secret, info, 32)
    key = derived(salt, secret, b"Content-Encoding: " + message["encoding"].encode() + b"\0" + context, 16)
    nonce = derived(salt, secret, b"Content-Encoding: nonce\0" + context, 12)
    return head + AESGCM(key).encrypt(nonce, clear, None), salt, own
