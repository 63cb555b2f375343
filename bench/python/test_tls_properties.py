"""Properties of the server's TLS, one test each, as openssl s_client and raw bytes find them.

docs/TLS.md has what the server promises.
"""

import base64
import contextlib
import os
import re
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from client_hello import HEARTBEAT, RENEGOTIATION_INFO, SUPPORTED_VERSIONS, X25519, X25519_MLKEM_768
from client_hello import alert_of, answer, client_hello, is_retry, server_hello
from tls_front import make_certificate
from tls_server import PATIENCE, TLS_PORTS, Client, TlsServer, get

# Names of the server, and the keys of their certificates: one name has two.
KEYS = [
    ("both.example", lambda: rsa.generate_private_key(65537, 2048)),
    ("both.example", lambda: ec.generate_private_key(ec.SECP256R1())),
    ("p384.example", lambda: ec.generate_private_key(ec.SECP384R1())),
    ("ed25519.example", ed25519.Ed25519PrivateKey.generate),
]
EARLY_PORT = 8450
OLD = ["-cipher", "ALL:@SECLEVEL=0"]
NO_COMMON_VERSION, NO_COMMON_PARAMETER, UNKNOWN_NAME, NO_COMMON_PROTOCOL, ILLEGAL = 70, 40, 49, 120, 47


def ticket_key():
    return base64.b64encode(os.urandom(32)).decode()


def node(directory, *settings):
    """A server with further certificates, for names."""
    directory.mkdir()
    server = TlsServer(directory, shards=1, has_authority=True)
    files = [(server.certificate, server.key)]
    for count, (name, key) in enumerate(KEYS):
        files.append((directory / f"{count}.pem", directory / f"{count}-key.pem"))
        make_certificate(name, *files[-1], is_authority=False, issuer=server.issuer, key=key())
    server.settings += [f"tls.{kind}=" + ",".join(map(str, paths)) for kind, paths in zip(["cert", "key"], zip(*files))]
    server.settings += settings
    server.start()
    return server


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A server, one that has its ticket keys, and one that has other keys."""
    directory, shared = tmp_path_factory.mktemp("nodes"), ticket_key()
    with contextlib.ExitStack() as stack:
        made = []
        for name, settings in [
            ("server", [f"tls.ticket_keys={shared}"]),
            ("same_keys", [f"tls.ticket_keys={shared}", "tls.unknown_name=default"]),
            ("other_keys", [f"tls.ticket_keys={ticket_key()}"]),
        ]:
            made.append(node(directory / name, *settings))
            stack.callback(made[-1].kill)
        yield made


@pytest.fixture(scope="module")
def server(nodes):
    return nodes[0]


def connect(server, *options):
    """The text of s_client about a connection over which a request was answered."""
    client = Client(server, "endpoint", *options)
    try:
        client.wait_for(rb"Verify return code: 0 \(ok\)").say(get(server))
        client.wait_for(rb"HTTP/1.1 200 OK").end()
        # Some of its text comes at its end only.
        return client.text()
    finally:
        client.stop()


def refused(server, *options):
    """The alert that s_client reads in the place of a connection."""
    client = Client(server, "endpoint", *options)
    try:
        assert client.end() != 0, client.text()
        _, found, number = client.text().partition("SSL alert number ")
        assert found, client.text()
        return int(number.split()[0])
    finally:
        client.stop()


NEW = "New, TLSv1.3, Cipher is "
BOTH = ["-servername", "both.example"]
ACCEPTED = {
    "TLS 1.3 alone": (["-tls1_3"], NEW),
    "TLS 1.3 beside older versions": (["-min_protocol", "TLSv1", *OLD], NEW),
    "TLS 1.3 without middlebox compatibility": (["-no_middlebox"], NEW),
    "suite AES-128-GCM": (["-ciphersuites", "TLS_AES_128_GCM_SHA256"], NEW + "TLS_AES_128_GCM_SHA256"),
    "suite AES-256-GCM": (["-ciphersuites", "TLS_AES_256_GCM_SHA384"], NEW + "TLS_AES_256_GCM_SHA384"),
    "suite ChaCha20-Poly1305": (["-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"], NEW + "TLS_CHACHA20_POLY1305"),
    "first suite of the client": (
        ["-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"], NEW + "TLS_CHACHA20_POLY1305"),
    "group X25519": (["-groups", "X25519"], "Server Temp Key: X25519, 253 bits"),
    "group P-256": (["-groups", "P-256"], "Server Temp Key: ECDH, prime256v1, 256 bits"),
    "group P-384": (["-groups", "P-384"], "Server Temp Key: ECDH, secp384r1, 384 bits"),
    "HelloRetryRequest": (["-groups", "P-521:P-384", "-msg"], r"(?s)<<<[^\n]*ServerHello\n.*<<<[^\n]*ServerHello\n"),
    "ecdsa_secp256r1_sha256": (["-sigalgs", "ecdsa_secp256r1_sha256"], r"digest: SHA256\nPeer signature type: ECDSA"),
    "ecdsa_secp384r1_sha384": (
        ["-servername", "p384.example", "-sigalgs", "ecdsa_secp384r1_sha384"],
        r"digest: SHA384\nPeer signature type: ECDSA"),
    "ed25519": (["-servername", "ed25519.example", "-sigalgs", "ed25519"], "Peer signature type: ed25519"),
    "rsa_pss_rsae_sha256": ([*BOTH, "-sigalgs", "RSA-PSS+SHA256"], r"digest: SHA256\nPeer signature type: RSA-PSS"),
    "rsa_pss_rsae_sha384": ([*BOTH, "-sigalgs", "RSA-PSS+SHA384"], r"digest: SHA384\nPeer signature type: RSA-PSS"),
    "rsa_pss_rsae_sha512": ([*BOTH, "-sigalgs", "RSA-PSS+SHA512"], r"digest: SHA512\nPeer signature type: RSA-PSS"),
    "ECDSA before RSA": ([*BOTH, "-sigalgs", "RSA-PSS+SHA256:ECDSA+SHA256"], "Peer signature type: ECDSA"),
    "no request for a client certificate": (["-msg"], r"(?s)\A(?!.*CertificateRequest)"),
    "no stapled OCSP answer": (["-status"], "OCSP response: no response sent"),
    "ALPN http/1.1": (["-alpn", "h2,http/1.1"], "ALPN protocol: http/1.1"),
    "no ALPN": ([], "No ALPN negotiated"),
    "no SNI": (["-noservername"], r"subject=CN = 127\."),
    "known SNI": (["-servername", "p384.example"], "subject=CN = p384.example"),
    "known SNI in upper case": (["-servername", "P384.EXAMPLE"], "subject=CN = p384.example"),
}
REFUSED = {
    "TLS 1.2": (["-tls1_2"], NO_COMMON_VERSION),
    "suite AES-128-CCM": (["-ciphersuites", "TLS_AES_128_CCM_SHA256"], NO_COMMON_PARAMETER),
    "group P-521": (["-groups", "P-521"], NO_COMMON_PARAMETER),
    "group X448": (["-groups", "X448"], NO_COMMON_PARAMETER),
    "group ffdhe2048": (["-groups", "ffdhe2048"], NO_COMMON_PARAMETER),
    "rsa_pkcs1_sha256": ([*BOTH, "-sigalgs", "RSA+SHA256"], NO_COMMON_PARAMETER),
    "ecdsa_sha1": (["-sigalgs", "ECDSA+SHA1", *OLD], NO_COMMON_PARAMETER),
    "ecdsa_secp521r1_sha512": (["-sigalgs", "ECDSA+SHA512"], NO_COMMON_PARAMETER),
    "signature of another kind of key": (["-sigalgs", "RSA-PSS+SHA256"], NO_COMMON_PARAMETER),
    "ALPN h2 alone": (["-alpn", "h2"], NO_COMMON_PROTOCOL),
    "unknown SNI": (["-servername", "other.example"], UNKNOWN_NAME),
}


@pytest.mark.parametrize("options, shown", ACCEPTED.values(), ids=ACCEPTED)
def test_s_client_is_served(server, options, shown):
    text = connect(server, *options)
    assert re.search(shown, text), text


@pytest.mark.parametrize("options, alert", REFUSED.values(), ids=REFUSED)
def test_s_client_is_refused(server, options, alert):
    assert refused(server, *options) == alert


@pytest.mark.parametrize("version", ["-tls1_1", "-tls1"])
def test_versions_before_1_2_get_the_alert_of_rfc_8446_appendix_d_2(server, version):
    assert refused(server, version, *OLD) == NO_COMMON_VERSION


def test_unknown_names_get_the_first_certificate_on_demand(nodes):
    assert "subject=CN = 127." in connect(nodes[1], "-servername", "other.example")


def hybrid(data):
    """The offer of X25519MLKEM768 alone, with this share."""
    return {"groups": [X25519_MLKEM_768], "shares": [(X25519_MLKEM_768, data)]}


# Offers that s_client of OpenSSL 3.0 cannot make.
RAW_REFUSED = {
    "SSL 3.0": ({"record_version": 0x0300, "version": 0x0300, "versions": ()}, NO_COMMON_VERSION),
    "share of X25519MLKEM768 with coefficients that are none": (hybrid(b"\xff" * 1184 + b"\x09" + bytes(31)), ILLEGAL),
    "share of X25519MLKEM768 that is too short": (hybrid(bytes(1215)), ILLEGAL),
    "share of X25519MLKEM768 that is too long": (hybrid(bytes(1217)), ILLEGAL),
    "share of X25519MLKEM768 whose point has a low order": (hybrid(bytes(1216)), ILLEGAL),
    "share of X25519 that has a low order": ({"shares": [(X25519, bytes(32))]}, ILLEGAL),
    "compression alone": ({"compressions": [1]}, ILLEGAL),
    "compression beside none": ({"compressions": [1, 0]}, ILLEGAL),
}


@pytest.mark.parametrize("hello, alert", RAW_REFUSED.values(), ids=RAW_REFUSED)
def test_a_raw_hello_is_refused(server, hello, alert):
    assert alert_of(answer((server.host, TLS_PORTS["endpoint"]), client_hello(**hello))) == alert


def test_the_hybrid_group_is_taken_and_old_extensions_are_not_answered(server):
    groups = [X25519_MLKEM_768, X25519]
    old = [(HEARTBEAT, b"\1"), (RENEGOTIATION_INFO, b"\0")]
    hello = client_hello(groups=groups, shares=groups, extensions=old)
    heard = answer((server.host, TLS_PORTS["endpoint"]), hello)
    suite, group, others = server_hello(heard)
    assert (suite, group, list(others)) == (0x1301, X25519_MLKEM_768, [SUPPORTED_VERSIONS])
    assert not is_retry(heard)


@pytest.mark.parametrize("groups, retry", [([X25519, X25519_MLKEM_768], False), ([X25519_MLKEM_768, X25519], True)])
def test_a_client_that_sends_x25519_alone_is_asked_for_the_hybrid_group_only_if_it_prefers_it(server, groups, retry):
    heard = answer((server.host, TLS_PORTS["endpoint"]), client_hello(groups=groups, shares=[X25519]))
    assert (server_hello(heard)[1], is_retry(heard)) == (groups[0], retry)


def ticket(server, path):
    """Connects, and keeps the ticket in a file."""
    text = connect(server, "-sess_out", path)
    assert path.exists(), text
    return text


def test_one_ticket_is_sent_that_ends_with_the_next_period_and_offers_no_early_data(server, tmp_path):
    text = ticket(server, tmp_path / "session")
    assert text.count("Post-Handshake New Session Ticket arrived") == 1, text
    # Its key opens until the end of the next period of six hours.
    seconds = int(re.search(r"lifetime hint: (\d+) \(seconds\)", text)[1])
    assert 6 * 3600 <= seconds <= 12 * 3600, text
    assert "Max Early Data: 0\n" in text, text


@pytest.mark.parametrize(
    "other, start", [(0, "Reused"), (1, "Reused"), (2, "New")], ids=["same", "same_keys", "other_keys"]
)
def test_a_ticket_resumes_on_nodes_with_its_key(nodes, tmp_path, other, start):
    ticket(nodes[0], tmp_path / "session")
    text = connect(nodes[other], "-sess_in", tmp_path / "session")
    assert f"{start}, TLSv1.3, Cipher is " in text, text


def test_resumption_makes_a_key_exchange_also_for_a_client_that_can_do_without(server, tmp_path):
    ticket(server, tmp_path / "session")
    text = connect(server, "-sess_in", tmp_path / "session", "-allow_no_dhe_kex")
    assert "Reused, TLSv1.3" in text and "Server Temp Key: X25519, 253 bits" in text, text


@pytest.fixture
def early_ticket(server, tmp_path):
    """A ticket that allows early data, of another server with the same name, as a file."""
    session, address = tmp_path / "session", f"{server.host}:{EARLY_PORT}"
    command = ["openssl", "s_server", "-accept", address, "-cert", server.certificate, "-key", server.key, "-tls1_3"]
    other = subprocess.Popen([*command, "-max_early_data", "16384", "-www"], stdout=subprocess.PIPE)
    try:
        # It prints ACCEPT when it listens.
        assert b"ACCEPT" in iter(lambda: other.stdout.readline().strip(), b"")
        ask = ["openssl", "s_client", "-connect", address, "-sess_out", session, "-CAfile", server.authority, "-quiet"]
        subprocess.run(ask, input=b"GET / HTTP/1.0\r\n\r\n", capture_output=True, timeout=PATIENCE, check=True)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    return session


@pytest.mark.parametrize(
    "size, record", [(1, 16_384), (8000, 16_384), (8192, 16_384), (16_000, 16_384), (6000, 1500), (16_000, 1500)]
)
def test_early_data_is_skipped_and_the_handshake_goes_on(server, early_ticket, tmp_path, size, record):
    early = tmp_path / "early"
    early.write_bytes(bytes(size))
    text = connect(server, "-sess_in", early_ticket, "-early_data", early, "-max_send_frag", record)
    assert "New, TLSv1.3" in text and "Early data was rejected" in text, text
