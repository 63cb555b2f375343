"""TLS 1.2, served with `tls.min_version = 1.2`, as openssl s_client and raw bytes find it."""

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from client_hello import EXTENDED_MASTER_SECRET, alert_of, answer, client_hello
from tls_front import make_certificate
from tls_server import TLS_PORTS, Client, TlsServer, get

RSA_NAME = "rsa.example"
SUITES = [
    f"ECDHE-{kind}-{cipher}"
    for kind in ["ECDSA", "RSA"]
    for cipher in ["AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"]
]
NO_COMMON_VERSION, NO_COMMON_PARAMETER = 70, 40
TLS_1_2 = {"versions": (), "suites": [0xC02B], "shares": ()}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    server = TlsServer(directory, shards=1, has_authority=True)
    of_name = directory / "rsa.pem", directory / "rsa-key.pem"
    key = rsa.generate_private_key(65537, 2048)
    make_certificate(RSA_NAME, *of_name, is_authority=False, issuer=server.issuer, key=key)
    files = zip((server.certificate, server.key), of_name)
    server.settings += [f"tls.{kind}=" + ",".join(map(str, paths)) for kind, paths in zip(["cert", "key"], files)]
    server.settings += ["tls.min_version=1.2"]
    try:
        server.start()
        yield server
    finally:
        server.kill()


def connect(server, *options, port="endpoint"):
    """The text of s_client about a connection over which a request was answered."""
    client = Client(server, port, *options)
    try:
        client.wait_for(rb"Verify return code: 0 \(ok\)").say(get(server))
        client.wait_for(rb"HTTP/1.1 \d\d\d ").end()
        return client.text()
    finally:
        client.stop()


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_is_served_with_extended_master_secret(server, suite):
    name = ["-servername", RSA_NAME] if "-RSA-" in suite else []
    text = connect(server, "-tls1_2", "-cipher", suite, *name)
    assert f"New, TLSv1.2, Cipher is {suite}\n" in text, text
    assert "Extended master secret: yes" in text and "Secure Renegotiation IS supported" in text, text
    assert "HTTP/1.1 200 OK" in text, text


@pytest.mark.parametrize("port", TLS_PORTS)
def test_every_port_serves_tls_1_2(server, port):
    assert "New, TLSv1.2, Cipher is ECDHE-ECDSA" in connect(server, "-tls1_2", port=port)


def test_a_client_of_both_versions_gets_tls_1_3(server):
    assert "New, TLSv1.3, Cipher is " in connect(server, "-min_protocol", "TLSv1.2")


@pytest.mark.parametrize("suite", ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-RSA-AES256-SHA", "AES128-GCM-SHA256",
                                   "DHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-CCM"])
def test_suites_without_aead_or_key_exchange_are_refused(server, suite):
    client = Client(server, "endpoint", "-tls1_2", "-cipher", f"{suite}:@SECLEVEL=0", "-servername", RSA_NAME)
    try:
        assert client.end() != 0 and f"SSL alert number {NO_COMMON_PARAMETER}\n" in client.text(), client.text()
    finally:
        client.stop()


HELLOS = {
    "TLS 1.1": (NO_COMMON_VERSION, {**TLS_1_2, "version": 0x0302}),
    "TLS 1.1 without extensions": (NO_COMMON_VERSION, {**TLS_1_2, "version": 0x0302, "schemes": (), "groups": ()}),
    "no extended master secret": (NO_COMMON_PARAMETER, TLS_1_2),
}


@pytest.mark.parametrize("alert, hello", HELLOS.values(), ids=HELLOS)
def test_a_raw_hello_is_refused(server, alert, hello):
    assert alert_of(answer((server.host, TLS_PORTS["endpoint"]), client_hello(**hello))) == alert


def test_the_downgrade_sentinel_marks_a_hello_of_tls_1_2(server):
    hello = client_hello(**TLS_1_2, extensions=[(EXTENDED_MASTER_SECRET, b"")])
    heard = answer((server.host, TLS_PORTS["endpoint"]), hello)
    # RFC 8446 section 4.1.3: the last 8 bytes of the random value.
    assert heard[5] == 2 and heard[9:11] == b"\3\3" and heard[35:43] == b"DOWNGRD\1", heard


def test_renegotiation_gets_alert_40(server):
    client = Client(server, "endpoint", "-tls1_2")
    try:
        client.wait_for(rb"Verify return code: 0 \(ok\)").say("R\n")
        client.wait_for(rb"SSL alert number 40")
    finally:
        client.stop()


def test_neither_a_ticket_nor_a_session_id_is_made(server, tmp_path):
    session = tmp_path / "session"
    text = connect(server, "-tls1_2", "-sess_out", session)
    assert "TLS session ticket:" not in text and "Session-ID: \n" in text, text
    assert not session.exists(), "there is nothing to resume"
