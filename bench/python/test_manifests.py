"""The manifests of tuning/kubernetes: a server with their configuration answers the probes of their pods.

No cluster runs them here. Addresses, the data directory and the store are those of the test; the rest is as the files
have it. bench/tidy/src/manifests.rs checks what can be read off them."""

import os
import re
import subprocess
import textwrap
import time
import urllib.error
import urllib.request

import pytest

from browser import AppServer, Browser, exchange
from conftest import REPOSITORY, Server, binary

FILES = {name: (REPOSITORY / f"tuning/kubernetes/{name}.yaml").read_text() for name in ("cluster", "single")}


class Pod(Server):
    """A server with the configuration and the arguments of one of the files."""

    def __init__(self, directory, name):
        super().__init__(directory)
        self.text = FILES[name]
        written = textwrap.dedent(re.search(r"^  murre\.toml: \|\n(.*?)^---", self.text, re.M | re.S)[1])
        self.config = directory / "murre.toml"
        self.config.write_text(written.replace("0.0.0.0", self.host).replace("/var/lib/murre", str(directory)))
        # What the container names, and the port of operators.
        named = re.findall(r"- name: (\w+)\n +containerPort: (\d+)", self.text)
        self.ports = {"admin": 8083, **{port: int(number) for port, number in named}}
        self.ports["websocket"] = self.ports["endpoint"] = self.ports["public"]
        self.variables = {}
        if name == "cluster":
            self.variables = {"MURRE_STORE__KIND": "embedded", "MURRE_STORE__SCYLLA__PASSWORD": "of the secret"}

    def spawn(self):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MURRE_")}
        if plane := os.environ.get("TEST_PLANE"):
            kept["MURRE_SHARDS__PLANE"] = plane
        kept |= {"MURRE_ADMIN__LISTEN": f"{self.host}:{self.ports['admin']}", **self.variables}
        args = re.findall(r'"([^"]+)"', re.search(r'^ +args: \["serve", (.*)\]$', self.text, re.M)[1])
        args = [str(self.config) if word == "/etc/murre/murre.toml" else word for word in args]
        # The URL of the endpoint is that of the file; clients of the test post to it by the address.
        with open(self.directory / "log", "ab") as log:
            command = [binary(), "serve", *args, "--endpoint-url", self.url("endpoint")]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=kept)

    def probes(self):
        """Status of each probe of the file."""
        found = {}
        for name, path, port in re.findall(r"(\w+Probe):\n +httpGet:\n +path: (\S+)\n +port: (\w+)", self.text):
            try:
                with urllib.request.urlopen(f"http://{self.host}:{self.ports[port]}{path}", timeout=60) as answer:
                    found[name] = answer.status
            except urllib.error.HTTPError as error:
                found[name] = error.code
        return found

    def number_of(self, name):
        return int(re.search(rf"^ +{name}: (\d+)$", self.text, re.M)[1])


@pytest.fixture(params=FILES)
def pod(request, tmp_path):
    pod = Pod(tmp_path, request.param)
    try:
        yield pod
    finally:
        if pod.process and pod.process.poll() is None:
            pod.kill()


def test_the_probes_of_a_pod_are_answered_and_a_drain_fits(pod):
    pod.start()
    assert pod.probes() == {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 200}
    browser = Browser(pod)
    exchange(browser, AppServer())
    began = time.monotonic()
    pod.process.terminate()
    while pod.probes()["readinessProbe"] == 200:
        assert time.monotonic() - began < 60, pod.log()
        time.sleep(0.02)
    # It serves for drain.delay, in which the probe notices.
    exchange(browser, AppServer())
    assert pod.process.wait(timeout=pod.number_of("terminationGracePeriodSeconds")) == 0, pod.log()


def test_the_variables_of_a_service_would_keep_murre_from_starting(pod):
    """Which is why `enableServiceLinks` is off."""
    assert "\n      enableServiceLinks: false\n" in pod.text
    pod.variables["MURRE_PORT"] = "tcp://10.0.0.1:80"
    pod.spawn()
    assert pod.process.wait(timeout=60) == 78
    assert "variable MURRE_PORT: there is no key port" in pod.log()
