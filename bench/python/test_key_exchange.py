"""Key exchanges with crypto/tls of Go at the other end: X25519MLKEM768 by default, others on demand."""

import json
import subprocess
import time

import pytest

from conftest import REPOSITORY, binary
from golang import own_program
from tls_front import make_certificate
from tls_server import PATIENCE, TlsServer

HYBRID = "X25519MLKEM768"
# Names of the program, of Go and of the metric.
GROUPS = [
    (HYBRID, HYBRID, "x25519mlkem768"),
    ("X25519", "X25519", "x25519"),
    ("P256", "CurveP256", "secp256r1"),
    ("P384", "CurveP384", "secp384r1"),
]


@pytest.fixture(scope="module")
def handshake():
    return own_program(REPOSITORY / "bench/go/handshake", (1, 26))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = TlsServer(tmp_path_factory.mktemp("server"), shards=1)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def shake(handshake, server, *options, port="endpoint"):
    """What Go says of connections on which a request was answered."""
    command = [handshake, "-ca", server.authority, *map(str, options), server.at(port)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert answer.returncode == 0, answer
    return [json.loads(line) for line in answer.stdout.splitlines()]


def said(group, resumed=False, status=200):
    return {"group": group, "retried": False, "resumed": resumed, "status": status}


@pytest.mark.parametrize("port", ["websocket", "endpoint", "node", "admin"])
def test_go_exchanges_keys_by_ml_kem_by_default_also_when_it_resumes(handshake, server, port):
    first, second = shake(handshake, server, "-times", 2, port=port)
    assert first["group"] == second["group"] == HYBRID
    assert not first["retried"] and not first["resumed"] and not second["retried"]
    if port == "endpoint":
        assert [first, second] == [said(HYBRID), said(HYBRID, resumed=True)]


@pytest.mark.parametrize("group, name, label", GROUPS)
def test_a_client_of_one_group_is_served_and_counted(handshake, server, group, name, label):
    number = f'tls_key_exchanges_total{{group="{label}"'
    before = server.number(number)
    assert shake(handshake, server, "-groups", group) == [said(name)]
    # Shards publish their numbers about once a second, those of earlier tests as well.
    deadline = time.monotonic() + PATIENCE
    while server.number(number) <= before:
        assert time.monotonic() < deadline, number
        time.sleep(0.05)


@pytest.mark.parametrize("at", [1, 5, 6, 100, 1216, 1448])
def test_a_hello_in_two_segments_is_read(handshake, server, at):
    assert shake(handshake, server, "-split", at) == [said(HYBRID)]


@pytest.mark.parametrize("groups, group", [("", HYBRID), (HYBRID, HYBRID), ("X25519", "X25519"), ("P384", "CurveP384")])
def test_calls_of_murre_offer_ml_kem_and_x25519_at_once(handshake, tmp_path, groups, group):
    """A server that knows X25519 alone finds a share of it in the first ClientHello."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make_certificate("127.0.0.1", certificate, key, is_authority=False)
    command = [handshake, "-cert", certificate, "-key", key, *(["-groups", groups] if groups else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as go:
        try:
            address = go.stdout.readline().strip()
            probe = [binary(), "probe", "--ws", f"wss://{address}/", "--ca", certificate, "--timeout", "5"]
            assert subprocess.run(probe, capture_output=True, timeout=PATIENCE).returncode != 0
            heard = json.loads(go.stdout.readline())
        finally:
            go.stdin.close()
    assert (heard["group"], heard["retried"]) == (group, group == "CurveP384")
