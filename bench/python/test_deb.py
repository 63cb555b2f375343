"""The package of Debian in a chroot: installed, upgraded under connected user agents, removed and purged.

`bench/release/deb` makes the chroot and both packages. The tests are steps of one life, in this order. What stands for
systemctl starts the binary as the unit says, without its sandbox (bench/package/systemctl.py).
"""

import os
import pathlib
import re
import stat
import subprocess
import time

import pytest
import requests

import namespaces
from conftest import PORTS
from hibernation import Agent, Kind, agents, link
from replays.player import PATIENCE
from takeover import TakeoverServer, check_silent

ROOT = pathlib.Path(os.environ["CHROOT"])
OLD, NEW = (pathlib.Path("/packages", pathlib.Path(os.environ[name]).name) for name in ("OLD", "NEW"))
CROWD = 24
STATE = ROOT / "run/systemctl"
ENVIRONMENT = """
MURRE_WEBSOCKET__LISTEN={host}:8080
MURRE_ENDPOINT__LISTEN={host}:8082
MURRE_ADMIN__LISTEN={host}:8083
MURRE_WEBSOCKET__AUTO_PING_INTERVAL=0
MURRE_WEBSOCKET__PING_MIN_INTERVAL=0
MURRE_HIBERNATE__AFTER=60
MURRE_HIBERNATE__DIR=/run/murre/frozen
MURRE_DRAIN__MODE=hibernate
"""
# What a removal may leave of a purged package: the user, what dpkg itself writes, logs and caches.
MAY_STAY = re.compile(
    r"/etc/(passwd|group|shadow|gshadow)-?$|/etc/\.pwd\.lock$|/var/lib/dpkg/|/var/log/|/var/cache/|/run/|/packages/|/tmp/"
)


class Installed(TakeoverServer):
    """The server of the package, in its network namespace."""

    def __init__(self, namespace):
        (_, ours) = link(0)
        self.host = ours[0].split("/")[0]
        self.addresses = {4: self.host}
        self.namespace, self.ports, self.streams = namespace, dict(PORTS), []
        self.http = requests.Session()

    def run(self, *words, status=0):
        """Output of a command in the chroot."""
        with namespaces.inside(self.namespace):
            path = "/usr/local/bin:/usr/sbin:/usr/bin"
            environment = {"PATH": path, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
            done = subprocess.run(
                ["chroot", ROOT, *map(str, words)], stdin=subprocess.DEVNULL, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        assert status is None or done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{self.log()}"
        return done.stdout

    def log(self):
        path = STATE / "murre.service.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pid(self):
        return int((STATE / "murre.service").read_text())

    def calls(self):
        return (ROOT / "run/systemctl.log").read_text()


def paths():
    """Everything in the chroot, without what is mounted."""
    found = set()
    for top, directories, files in os.walk(ROOT):
        inside = "/" + os.path.relpath(top, ROOT).removeprefix(".")
        directories[:] = [name for name in directories if f"{inside}/{name}" not in ("//proc", "//sys", "//dev")]
        found.update(os.path.normpath(f"{inside}/{name}") for name in [*files, *directories])
    return found


@pytest.fixture(scope="module")
def installed():
    """The namespaces, with this thread in that of the clients."""
    with namespaces.star(link(0)) as (hub, points), namespaces.inside(hub):
        server = Installed(points[0])
        server.before = paths()
        server.crowd = []
        yield server
        for client in server.crowd:
            client.close()
        if (STATE / "murre.service").exists():
            server.run("systemctl", "stop", "murre.service", status=None)


def test_an_installation_starts_a_server_that_passes_the_probe(installed):
    installed.run("dpkg", "--install", OLD)
    for check in ("is-active", "is-enabled"):
        installed.run("systemctl", check, "murre.service")
    owner = pathlib.Path(f"/proc/{installed.pid()}").stat().st_uid
    assert owner == int(installed.run("id", "-u", "murre")) != 0
    data = (ROOT / "var/lib/murre").stat()
    assert (data.st_uid, stat.S_IMODE(data.st_mode)) == (owner, 0o700)
    installed.run("murre", "probe")
    assert "ok installed" in installed.run("dpkg-query", "--show", "--showformat=${Status}", "murre")


def test_what_the_package_brings_is_in_its_place(installed):
    assert "/etc/murre/murre.toml" in installed.run("dpkg-query", "--show", "--showformat=${Conffiles}", "murre")
    pages = sorted((ROOT / "usr/share/man/man1").glob("murre*.1.gz"))
    assert "murre.1.gz" in [page.name for page in pages]
    for page in pages:
        assert "SYNOPSIS" in installed.run("man", "--warnings=all", "-P", "cat", page.name.removesuffix(".1.gz"))
    installed.run("bash", "-n", "/usr/share/bash-completion/completions/murre")
    notices = installed.run("zcat", "/usr/share/doc/murre/NOTICES.gz")
    for name in ("ring", "tokio", "rustls", "fjall", "scylla"):
        assert re.search(rf"^{name} [0-9.]+: ", notices, re.MULTILINE), f"{name} is not in the notices"


def test_sysctls_are_those_that_the_doctor_recommends(installed):
    advised = dict(line.split("\t")[1:3] for line in installed.run("murre", "doctor", "--sysctls").splitlines())
    lines = (ROOT / "usr/lib/sysctl.d/50-murre.conf").read_text().splitlines()
    for name, value in (line.split(" = ") for line in lines if not line.startswith("#")):
        assert advised.get(name) == value, f"{name}: {advised.get(name)} is recommended"


def test_an_upgrade_keeps_the_configuration_and_disconnects_nobody(installed):
    settings = ROOT / "etc/murre/murre.toml"
    text = settings.read_text()
    settings.write_text(text.replace('#drain.delay = ', 'drain.delay = 1\n#drain.delay = '))
    assert settings.read_text() != text
    (ROOT / "etc/murre/environment").write_text(ENVIRONMENT.format(host=installed.host))
    drop_in = ROOT / "etc/systemd/system/murre.service.d/hibernate.conf"
    drop_in.parent.mkdir()
    drop_in.write_text((ROOT / "usr/share/doc/murre/examples/hibernate.conf").read_text())
    installed.run("systemctl", "restart", "murre.service")
    installed.crowd = agents(installed, [Kind("", 4)] * CROWD)
    before = installed.pid()
    begin = time.monotonic()
    installed.run("dpkg", "--install", "--force-confold", NEW)
    print(f"upgrade of {CROWD} sessions: {time.monotonic() - begin:.1f} s")
    assert installed.pid() != before
    check_silent(installed.crowd)
    installed.check_taken_over(CROWD)
    for client in installed.crowd:
        client.exchange()
    assert "drain.delay = 1\n" in settings.read_text()
    # The old version served until the new one was unpacked: nothing but a restart.
    calls = [line.split() for line in installed.calls().splitlines() if line.endswith(" murre.service")]
    assert "restart" in calls[-1] and not any("stop" in words for words in calls), calls


def test_a_user_agent_that_gave_up_comes_back_after_a_reload(installed):
    installed.run("systemctl", "reload", "murre.service")
    installed.crowd.append(again := Agent(installed, Kind("", 4)))
    again.say_hello(installed.crowd[0].uaid)
    again.hear_hello()
    assert again.uaid == installed.crowd[0].uaid


def test_a_removal_stops_the_server_and_keeps_settings_and_data(installed):
    pid = installed.pid()
    installed.run("dpkg", "--remove", "murre")
    assert not pathlib.Path(f"/proc/{pid}/exe").exists() and not (ROOT / "usr/bin/murre").exists()
    for kept in ("etc/murre/murre.toml", "etc/murre/environment", "var/lib/murre/keys/crypto"):
        assert (ROOT / kept).exists(), kept


def test_an_installation_after_a_removal_has_the_same_keys_and_sessions(installed):
    installed.run("dpkg", "--install", NEW)
    installed.check_taken_over(CROWD)
    for client in installed.crowd[1:]:
        client.exchange()
        client.close()
    installed.crowd = []


def test_a_host_that_cannot_run_it_has_it_installed_all_the_same(installed):
    with open(ROOT / "etc/murre/environment", "a") as environment:
        environment.write("MURRE_MAX_CONNECTIONS=lots\n")
    installed.run("dpkg-reconfigure", "murre")
    assert "MURRE_MAX_CONNECTIONS" in installed.log()
    installed.run("systemctl", "is-active", "murre.service", status=3)
    assert "ok installed" in installed.run("dpkg-query", "--show", "--showformat=${Status}", "murre")


def test_a_purge_leaves_the_user_alone(installed):
    (ROOT / "etc/systemd/system/murre.service.d/hibernate.conf").unlink()
    (ROOT / "etc/systemd/system/murre.service.d").rmdir()
    installed.run("dpkg", "--purge", "murre")
    left = [path for path in sorted(paths() - installed.before) if not MAY_STAY.search(path)]
    assert left == []
    installed.run("id", "-u", "murre")
    assert not (ROOT / "run/murre").exists()
    deadline = time.monotonic() + PATIENCE
    while any(path.name.startswith("murre") for path in STATE.glob("*.service")):
        assert time.monotonic() < deadline
