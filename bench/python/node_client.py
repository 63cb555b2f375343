"""WebSocket connections that another program holds: npm's ws, in bench/node."""

import os
import pathlib
import queue
import shutil
import subprocess
import threading

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "node" / "receive.js"
SECONDS = 60


class ProgramSocket:
    """One connection of a program that sends each line of its input, and writes each message as a line."""

    def __init__(self, command, **environment):
        pipe, environment = subprocess.PIPE, {**os.environ, **environment}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, text=True)
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
        assert message is not None, f"the connection ended: {self.process.stderr.read()}"
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


class NodeSocket(ProgramSocket):
    """One connection of ws. Node.js trusts `authority` beside its own list."""

    def __init__(self, address, authority):
        assert shutil.which("node"), "there is no Node.js: apt-get install nodejs npm"
        assert (SCRIPT.parent / "node_modules" / "ws").is_dir(), "there is no ws: npm ci --prefix bench/node"
        super().__init__(["node", str(SCRIPT), address], NODE_EXTRA_CA_CERTS=str(authority))
