"""A proxy in front of Pebble that counts requests, withholds one, and refuses as an authority with limits does."""

import collections
import http.client
import http.server
import json
import ssl
import threading

from pebble import PATIENCE, Pebble

PORT = 14001
# Fields that belong to one connection.
OF_CONNECTION = {"connection", "content-length", "transfer-encoding"}


class Gate:
    """Listens beside a Pebble, with its certificate. Pebble makes URLs of the host that a request names."""

    def __init__(self, pebble: Pebble):
        self.pebble = pebble
        # By the first part of a path: requests in all, and those that Pebble accepted.
        self.asked, self.accepted = collections.Counter(), collections.Counter()
        self.refusals = {}
        self.withheld, self.reaches = None, False
        self.is_there, self.released = threading.Event(), threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(handler):
                self.answer(handler)

            do_GET = do_HEAD = do_POST = answer

            def log_message(handler, *_):
                pass

        self.listener = http.server.ThreadingHTTPServer((pebble.host, PORT), Handler)
        self.listener.daemon_threads = True
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pebble.authority, pebble.key)
        self.listener.socket = context.wrap_socket(self.listener.socket, server_side=True)
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def withhold(self, path, reaches):
        """Holds back the next request for this path, or, if it `reaches` Pebble, its answer."""
        self.withheld, self.reaches = path, reaches
        self.is_there.clear()
        self.released.clear()

    def refuse(self, path, retry_after):
        """Answers requests for this path as an authority does whose limit is reached (RFC 8555 section 6.6)."""
        self.refusals[path] = retry_after

    def admit(self, path):
        del self.refusals[path]

    def answer(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        path = handler.path.split("/")[1]
        self.asked[path] += 1
        handler.close_connection = True
        if path in self.refusals:
            problem = {"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many orders", "status": 429}
            fields = {"Content-Type": "application/problem+json", "Retry-After": str(self.refusals[path])}
            return self.write(handler, 429, fields, json.dumps(problem).encode())
        is_withheld = path == self.withheld
        if is_withheld and not self.reaches:
            return self.hold()
        status, fields, content = self.ask(handler, body)
        self.accepted[path] += status < 400
        # Pebble refuses some nonces, and then nothing was done.
        if is_withheld and status < 400:
            return self.hold()
        self.write(handler, status, fields, content)

    def hold(self):
        self.withheld = None
        self.is_there.set()
        self.released.wait(PATIENCE)

    def ask(self, handler, body):
        context = ssl.create_default_context(cafile=self.pebble.authority)
        address = self.pebble.at("directory")
        connection = http.client.HTTPSConnection(address, context=context, timeout=PATIENCE)
        fields = {name: value for name, value in handler.headers.items() if name.lower() not in OF_CONNECTION}
        connection.request(handler.command, handler.path, body or None, fields)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        fields = {name: value for name, value in answer.getheaders() if name.lower() not in OF_CONNECTION}
        return answer.status, fields, content

    def write(self, handler, status, fields, content):
        handler.send_response_only(status)
        for name, value in {**fields, "Content-Length": str(len(content)), "Connection": "close"}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    def stop(self):
        self.released.set()
        self.listener.shutdown()
        self.listener.server_close()
