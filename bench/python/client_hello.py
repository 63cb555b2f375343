"""A ClientHello byte by byte (RFC 8446 section 4.1.2), for what openssl s_client cannot offer, and the first answer."""

import hashlib
import os
import socket
import struct

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import x25519

PATIENCE = 60
ALERT, HANDSHAKE = 21, 22
# Extensions.
HEARTBEAT, EXTENDED_MASTER_SECRET, SUPPORTED_VERSIONS, KEY_SHARE, RENEGOTIATION_INFO = 15, 23, 43, 51, 0xFF01
# Groups.
X25519, X25519_MLKEM_768 = 0x001D, 0x11EC


def block(data, width=2):
    return len(data).to_bytes(width, "big") + data


def numbers(*values):
    return b"".join(value.to_bytes(2, "big") for value in values)


def public_key(group):
    """A public key of a group. That of a group which the server does not know may be any bytes."""
    if group not in (X25519, X25519_MLKEM_768):
        return os.urandom(65)
    key = x25519.X25519PrivateKey.generate().public_key()
    data = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    # Coefficients of zero: an encapsulation key, whose private key nobody has.
    return data if group == X25519 else bytes(1152) + os.urandom(32) + data


def share(entry):
    """The share of a group, or of a pair of a group and bytes."""
    group, data = entry if isinstance(entry, tuple) else (entry, public_key(entry))
    return numbers(group) + block(data)


def client_hello(
    record_version=0x0301,
    version=0x0303,
    versions=(0x0304,),
    suites=(0x1301, 0x1302, 0x1303),
    groups=(X25519,),
    shares=(X25519,),
    schemes=(0x0403, 0x0503, 0x0804, 0x0805, 0x0806, 0x0807),
    compressions=(0,),
    extensions=(),
):
    """One record with one ClientHello. Extensions whose list is empty are left out, as a client of TLS 1.1 does;
    `extensions` are pairs of number and content besides."""
    lists = [
        (10, groups and block(numbers(*groups))),
        (13, schemes and block(numbers(*schemes))),
        (SUPPORTED_VERSIONS, versions and block(numbers(*versions), 1)),
        (KEY_SHARE, shares and block(b"".join(map(share, shares)))),
    ]
    lists = [(number, data) for number, data in lists if data] + list(extensions)
    content = b"".join(numbers(number) + block(data) for number, data in lists)
    body = numbers(version) + os.urandom(32) + block(os.urandom(32), 1) + block(numbers(*suites))
    body += block(bytes(compressions), 1) + (block(content) if content else b"")
    return bytes([HANDSHAKE]) + numbers(record_version) + block(b"\1" + block(body, 3))


def answer(address, data):
    """Sends bytes to a new connection, and returns all that comes back until the server closes it. After the record
    of a ServerHello it does not wait for more."""
    heard = b""
    with socket.create_connection(address, timeout=PATIENCE) as stream:
        stream.sendall(data)
        try:
            while not (heard[:1] == bytes([HANDSHAKE]) and is_whole(heard)) and (piece := stream.recv(65536)):
                heard += piece
        except ConnectionResetError:
            # The server closed while bytes of the client were unread.
            pass
    return heard


def is_whole(record):
    return len(record) >= 5 and len(record) >= 5 + int.from_bytes(record[3:5], "big")


def is_retry(heard):
    """True if a ServerHello is a HelloRetryRequest (RFC 8446 section 4.1.3)."""
    return heard[11:43] == hashlib.sha256(b"HelloRetryRequest").digest()


def alert_of(heard):
    """The description of a fatal alert in the clear, and nothing besides."""
    assert len(heard) == 7 and heard[0] == ALERT and heard[3:6] == b"\0\2\2", heard
    return heard[6]


def server_hello(heard):
    """Suite, group and further extensions of a ServerHello."""
    assert heard[0] == HANDSHAKE and heard[5] == 2, heard
    at = 9 + 2 + 32
    at += 1 + heard[at]
    suite, compression, length = struct.unpack_from(">HBH", heard, at)
    assert compression == 0
    at, end, extensions = at + 5, at + 5 + length, {}
    while at < end:
        number, size = struct.unpack_from(">HH", heard, at)
        extensions[number] = heard[at + 4 : at + 4 + size]
        at += 4 + size
    return suite, int.from_bytes(extensions.pop(KEY_SHARE)[:2], "big"), extensions
