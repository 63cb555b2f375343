"""WebSocket connections of libcurl, which the package curl_cffi brings along."""

import os
import socket
import ssl

from curl_cffi import CurlInfo, CurlOpt, CurlWsFlag
from curl_cffi.requests.websockets import WebSocket, WebSocketTimeout

from replays.player import PATIENCE

# CURL_SSLVERSION_* and CURL_SSLVERSION_MAX_*.
VERSIONS = {ssl.TLSVersion.TLSv1_2: 6 | 6 << 16, ssl.TLSVersion.TLSv1_3: 7 | 7 << 16}


class CurlSocket:
    """One connection, with the methods of one of `websockets`. libcurl answers pings by itself, but only in `recv`."""

    def __init__(self, address, authority=None, version=None):
        # The certificates of tests name no IPv6 address.
        options = {CurlOpt.SSL_VERIFYHOST: 0, CurlOpt.PROXY: ""}
        if version:
            options[CurlOpt.SSLVERSION] = VERSIONS[version]
        self.client = WebSocket()
        self.client.connect(
            address,
            headers={"Sec-WebSocket-Protocol": "push-notification"},
            default_headers=False,
            timeout=PATIENCE,
            verify=str(authority) if authority else None,
            curl_options=options,
        )
        # A second descriptor of the connection, to ask for its addresses.
        self.socket = socket.socket(fileno=os.dup(self.client.curl.getinfo(CurlInfo.ACTIVESOCKET)))

    def send(self, text):
        self.client.send(text.encode(), CurlWsFlag.TEXT, timeout=PATIENCE)

    def recv(self, timeout=PATIENCE):
        try:
            message, flags = self.client.recv(timeout=timeout)
        except WebSocketTimeout:
            raise TimeoutError from None
        assert flags & CurlWsFlag.TEXT, f"a message was expected, got {message} with the flags {flags}"
        return message.decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.client.close()
