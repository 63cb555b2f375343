"""A WebSocket connection of tokio-tungstenite over OpenSSL, which bench/openssl holds."""

from conftest import REPOSITORY
from node_client import ProgramSocket

PROGRAM = REPOSITORY / "target/openssl/debug/openssl-agent"


class OpensslSocket(ProgramSocket):
    """One connection that trusts `authority` only."""

    def __init__(self, address, authority):
        assert PROGRAM.is_file(), "there is no openssl-agent: bench/check python builds it"
        super().__init__([str(PROGRAM), address, str(authority)])
