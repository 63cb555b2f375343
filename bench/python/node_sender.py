"""An app server that sends with npm's web-push, which bench/node holds."""

import json
import os
import pathlib
import shutil
import subprocess

import py_vapid

from browser import encoded, uncompressed

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "node" / "send.js"
SECONDS = 60


class NodeSender:
    """Whoever sends with Node.js: a VAPID key pair. `certificate` is trusted beside what Node.js trusts."""

    def __init__(self, certificate):
        assert shutil.which("node"), "there is no Node.js: apt-get install nodejs npm"
        assert (SCRIPT.parent / "node_modules").is_dir(), "there is no web-push: npm ci --prefix bench/node"
        self.environment = {**os.environ, "NODE_EXTRA_CA_CERTS": str(certificate)}
        vapid = py_vapid.Vapid02()
        vapid.generate_keys()
        private_key = vapid.private_key.private_numbers().private_value.to_bytes(32, "big")
        self.key = encoded(uncompressed(vapid.public_key))
        self.vapid = {
            "subject": "mailto:tests@example.com",
            "publicKey": self.key,
            "privateKey": encoded(private_key),
        }

    def push(self, subscription, text, encoding="aes128gcm", signed=True, **options):
        """POSTs `text` (None: no body) and returns status, headers and body of the answer, whatever its status."""
        request = {
            "subscription": subscription,
            "vapid": self.vapid if signed else None,
            "text": text,
            "options": {"TTL": 60, "contentEncoding": encoding, **options},
        }
        sent = subprocess.run(
            ["node", str(SCRIPT)],
            input=json.dumps(request) + "\n",
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=SECONDS,
        )
        assert sent.returncode == 0, sent.stderr
        return json.loads(sent.stdout)
