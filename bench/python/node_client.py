"""A WebSocket connection of npm's ws, which bench/node holds."""

import os
import pathlib
import queue
import shutil
import subprocess
import threading

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "node" / "receive.js"
SECONDS = 60


class NodeSocket:
    """One connection. Node.js trusts `authority` beside its own list."""

    def __init__(self, address, authority):
        assert shutil.which("node"), "there is no Node.js: apt-get install nodejs npm"
        assert (SCRIPT.parent / "node_modules" / "ws").is_dir(), "there is no ws: npm ci --prefix bench/node"
        environment = {**os.environ, "NODE_EXTRA_CA_CERTS": str(authority)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            ["node", str(SCRIPT), address], stdin=pipe, stdout=pipe, stderr=pipe, env=environment, text=True
        )
        self.received = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.received.put(line)
        self.received.put(None)

    def send(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def recv(self, timeout=SECONDS):
        """The next message. Raises TimeoutError after `timeout` seconds, as websockets does."""
        try:
            message = self.received.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        assert message is not None, f"the connection of Node.js ended: {self.process.stderr.read()}"
        return message

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The connection ends in order with its standard input.
        self.process.stdin.close()
        try:
            status = self.process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert status == 0, self.process.stderr.read()
