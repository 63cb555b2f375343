"""The recipes of docs/SELF-HOSTING.md, run command by command as the page has them, on hosts that are directories.

A host has a root of its own, to which the absolute paths of a command lead. Stand-ins take the place of systemd (the
commands of the installed units run), of the user murre (the tests' own user), and of the public name (the address of
the host)."""

import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from datetime import timedelta

import pytest
import requests

from browser import AppServer, Browser, exchange, trust
from conftest import REPOSITORY, Server, binary
from replays.player import Player, clients
from tls_front import make_certificate

PAGE = (REPOSITORY / "docs/SELF-HOSTING.md").read_text()
RECIPES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##)", PAGE.split("## Recipes\n")[1], re.M | re.S))
PATIENCE = 60
TLS_PORT = 8443
URL = "http://push.example.org"
# Of the host, below its root; a longer path that only ends like one of them is none.
ABSOLUTE = re.compile(r"(?<![\w.])/(?=(?:var|etc|usr/local)\b)")


def commands(recipe):
    """The commands of a recipe, in their order."""
    lines = re.findall(r"^ {4}(\S.*)$", RECIPES[recipe].replace("\\\n", " "), re.M)
    assert lines, f"the recipe {recipe} has no commands"
    return lines


class Host(Server):
    """A host on which murre runs as a service."""

    def __init__(self, root):
        super().__init__(root)
        self.root, self.work = root, root / "work"
        for path in ("var/lib", "etc/systemd/system", "etc/murre", "usr/local/bin", "work"):
            (root / path).mkdir(parents=True)
        # Where the operator stands: this repository, and the new binary.
        (self.work / "tuning").symlink_to(REPOSITORY / "tuning")
        (self.work / "murre").symlink_to(binary())
        self.data = root / "var/lib/murre"
        self.names, self.enabled, self.stood_in = {}, set(), []
        self.set(**{f"{port}.listen": f"{self.host}:{number}" for port, number in self.ports.items()})
        self.set(**{"shards.count": 1, "delivery.ledger_bytes": "4MiB", "drain.delay": 0})

    def set(self, **settings):
        """Adds to the settings of the service."""
        with (self.root / "etc/murre/environment").open("a") as file:
            for key, value in settings.items():
                file.write(f"MURRE_{key.upper().replace('.', '__')}={value}\n")

    def environment(self, *files):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MURRE_")}
        kept["PATH"] = f"{self.root}/usr/local/bin:{kept['PATH']}"
        if plane := os.environ.get("TEST_PLANE"):
            kept["MURRE_SHARDS__PLANE"] = plane
        for file in files:
            kept |= dict(line.split("=", 1) for line in file.read_text().splitlines())
        return kept

    def here(self, text):
        """A command with the paths, names and addresses of this host."""
        for name, value in self.names.items():
            text = re.sub(rf"\b{name}\b", str(value), text)
        text = ABSOLUTE.sub(f"{self.root}/", text)
        text = text.replace("http://127.0.0.1:8083", self.url("admin"))
        return text.replace("probe https://push.example.org", f"probe --ws {self.url('websocket')}/")

    def follow(self, recipe, first=None, last=None, **names):
        """Runs the commands of a recipe, or a part of them, and returns what they print."""
        self.names = names
        return [self.run(command) for command in commands(recipe)[first:last]]

    def run(self, command):
        command = re.sub(r"\s#.*$", "", command).removeprefix("runuser -u murre -- ")
        program = command.split()[0]
        if program in ("useradd", "chown"):
            self.stood_in.append(command)
            return ""
        if program == "systemctl":
            return self.systemctl(*command.split()[1:])
        if " serve " in command:
            return self.serve_once(self.here(command))
        environment = self.environment(self.root / "etc/murre/environment")
        done = subprocess.run(
            ["bash", "-ec", self.here(command)], cwd=self.work, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def unit(self, name):
        """The lines of an installed unit."""
        text = (self.root / "etc/systemd/system" / name).read_text()
        return re.findall(r"^(\w+)=(.*)$", text, re.M)

    def command_of(self, name):
        return self.here(dict(self.unit(name))["ExecStart"]).split()

    def spawn(self):
        """As systemd does: the command of the unit, and the settings of its file."""
        unit = dict(self.unit("murre.service"))
        file = self.root / unit["EnvironmentFile"].removeprefix("-/")
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command_of("murre.service"), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment(file), cwd=self.root,
            )

    def systemctl(self, verb, *words):
        units = [word for word in words if not word.startswith("--")]
        now = verb in ("start", "restart", "reload", "stop") or "--now" in words
        if verb == "daemon-reload":
            return ""
        (name,) = units
        name = name if "." in name else f"{name}.service"
        assert self.unit(name), f"{name} is not installed"
        if verb in ("enable", "disable"):
            assert any(key == "WantedBy" for key, _ in self.unit(name)), f"{name} starts with nothing"
            (self.enabled.add if verb == "enable" else self.enabled.discard)(name)
        if name == "murre.service" and now:
            if verb in ("stop", "restart", "disable") and self.process.poll() is None:
                self.stop()
            if verb in ("start", "restart", "enable"):
                self.start()
            if verb == "reload":
                self.process.send_signal(signal.SIGHUP)
        elif name.endswith(".service") and now:
            file = self.root / "etc/murre/environment"
            subprocess.run(self.command_of(name), env=self.environment(file), cwd=self.root, check=True)
        return ""

    def serve_once(self, command):
        """In a terminal, until Ctrl-C."""
        with open(self.directory / "log", "ab") as log:
            environment = self.environment(self.root / "etc/murre/environment")
            self.process = subprocess.Popen(command.split(), stdout=log, stderr=log, env=environment, cwd=self.root)
        for number in self.ports.values():
            self.wait_for(number)
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(timeout=PATIENCE) == 0, self.log()
        return ""

    def backups(self):
        return [path.name for path in (self.data / "backups").iterdir()]


@pytest.fixture
def new_host(tmp_path):
    """Makes hosts, and ends their servers."""
    hosts = []

    def make(name="host"):
        hosts.append(Host(tmp_path / name))
        return hosts[-1]

    yield make
    for host in hosts:
        if host.process and host.process.poll() is None:
            host.kill()


@pytest.fixture
def host(new_host):
    """One on which the recipe to install was followed."""
    host = new_host()
    host.follow("Install")
    return host


class User:
    """A browser that has subscribed, and its app server."""

    def __init__(self, host):
        self.sender, self.browser = AppServer(), Browser(host)
        self.subscription = self.browser.subscribe(self.sender.key)

    def post(self, text="hello", leads_to=None):
        """`leads_to` is the host to which DNS leads the name of the endpoint."""
        if not leads_to:
            return self.sender.push(self.subscription, text).status_code
        endpoint = self.subscription["endpoint"].replace(URL, leads_to.url("endpoint"))
        claims = {"aud": URL, "sub": "mailto:tests@example.com"}
        return self.sender.push({**self.subscription, "endpoint": endpoint}, text, claims=claims).status_code

    def comes_back(self, host, *texts):
        """Connects again with the same UAID, and gets these messages."""
        self.browser = self.browser.again(host)
        heard = [self.browser.notification() for _ in texts]
        assert [self.browser.decrypt(each) for each in heard] == list(texts)
        self.browser.ack(*heard)


def until(condition, host):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, host.log()
        time.sleep(0.05)


def test_every_recipe_names_a_test_that_exists():
    assert len(RECIPES) >= 10
    for title, text in RECIPES.items():
        named = re.findall(r"`(test_\w+)`", re.findall(r"^\*Test: .*\*$", text, re.M)[0])
        files = re.findall(r"`(bench/python/test_\w+\.py)`", text)
        assert named or files, title
        assert all(name in globals() for name in named), (title, named)
        assert all((REPOSITORY / file).is_file() for file in files), (title, files)


def test_install(host):
    assert host.enabled == {"murre.service"}
    assert (host.root / "usr/local/bin/murre").stat().st_mode & 0o777 == 0o755
    assert host.stood_in == ["useradd --system --home-dir /var/lib/murre --shell /usr/sbin/nologin murre"]
    exchange(Browser(host), AppServer())


def test_a_phone(host):
    """Sunup says hello, registers, gets a message, acks it, and comes back."""
    player = Player(host, clients()["sunup"])
    try:
        player.play("without_code")
    finally:
        player.leave()
    assert "/wpush/" in player.names["$endpoint"]


def test_back_up_each_day(host):
    for day in range(1, 10):
        (host.data / "backups" / str(day)).mkdir(parents=True)
    (host.data / "backups/kept").mkdir()
    user = User(host)
    host.follow("Back up each day")
    assert host.enabled == {"murre.service", "murre-backup.timer"}
    kept = int(re.search(r"the newest `store\.backups_keep` \((\d+)\) stay", PAGE)[1])
    *older, new = sorted((name for name in host.backups() if name != "kept"), key=int)
    assert "kept" in host.backups() and older == [str(day) for day in range(10 - kept + 1, 10)]
    assert (host.data / "backups" / new / "keys/crypto").read_bytes() == (host.data / "keys/crypto").read_bytes()
    assert user.post() == 201
    (timer,) = [path for path in (REPOSITORY / "tuning").glob("*.timer")]
    assert dict(host.unit(timer.name))["OnCalendar"] == "daily"


@pytest.mark.parametrize("unit", ["murre-backup.service", "murre-backup.timer"])
def test_systemd_takes_the_units_of_a_backup(unit, tmp_path):
    for name in ("murre-backup.service", "murre-backup.timer"):
        text = (REPOSITORY / "tuning" / name).read_text()
        (tmp_path / name).write_text(text.replace("/usr/local/bin/murre", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", tmp_path / unit]
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and str(tmp_path) not in done.stderr, done.stderr


@pytest.mark.parametrize("backup", ["/var/lib/murre.before/backups/saved", "/var/lib/elsewhere"])
def test_restore(host, backup):
    user = User(host)
    user.browser.close()
    assert user.post("before") == 201
    host.run("murre maintain backup --data-dir /var/lib/murre --name saved")
    assert user.post("behind") == 201
    shutil.copytree(host.data / "backups/saved", host.root / "var/lib/elsewhere")
    host.follow("Restore", BACKUP=backup)
    user.comes_back(host, "before")
    exchange(user.browser, user.sender)
    assert user.post() == 201, "the URL of before the backup"
    assert (host.root / "var/lib/murre.before/store").is_dir()


def test_upgrade(host):
    user = User(host)
    user.browser.close()
    assert user.post("accepted") == 201
    first = host.process.pid
    *_, probed = host.follow("Upgrade")
    assert host.process.pid != first and "all well" in probed
    assert "before-upgrade" in host.backups()
    user.comes_back(host, "accepted")
    with pytest.raises(AssertionError, match="there is a backup of this name"):
        host.follow("Upgrade", last=1)


def test_move_to_another_host(new_host):
    old, new = new_host("old"), new_host("new")
    old.follow("Install")
    # Endpoint URLs name the service, as they do with a domain.
    old.run("systemctl stop murre")
    old.set(**{"endpoint.url": URL})
    old.run("systemctl start murre")
    user = User(old)
    user.browser.close()
    lines = commands("Move to another host")
    moved = next(at for at, line in enumerate(lines) if "-xzpf" in line)
    assert user.post("accepted", leads_to=old) == 201
    old.follow("Move to another host", last=moved)
    assert old.enabled == set() and old.process.poll() == 0
    installed = commands("Install").index("systemctl daemon-reload") + 1
    new.follow("Install", last=installed)
    for file in ("murre-data.tar.gz", "murre-settings.tar.gz"):
        shutil.copy(old.work / file, new.work)
    new.run("tar -C /etc -xzpf murre-settings.tar.gz")
    # The listeners of the tests are those of one address each; a host has its own by default.
    settings = new.root / "etc/murre/environment"
    moved_settings = settings.read_text().replace(old.host, new.host)
    new.follow("Move to another host", first=moved, last=-1)
    settings.write_text(moved_settings)
    new.follow("Move to another host", first=-1)
    assert new.enabled == {"murre.service"}
    user.comes_back(new, "accepted")
    assert user.post("again", leads_to=new) == 201, "the URL of the old host"
    user.browser.ack(user.browser.notification())


def test_a_disk_is_full(new_host):
    """A file system of 300 MiB, which backups fill until the store refuses messages."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a tmpfs")
    host = new_host()
    host.data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m,mode=700", "murre", host.data], check=True)
    try:
        host.follow("Install")
        user = User(host)
        user.browser.close()
        assert user.post() == 201
        oldest = host.data / "backups/1"
        oldest.mkdir(parents=True)
        free = os.statvfs(host.data).f_bavail * os.statvfs(host.data).f_frsize
        with (oldest / "store").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free - (8 << 20))
        until(lambda: user.post() == 503, host)
        printed = host.follow("A disk is full", last=3)
        assert str(host.data) in printed[0] and "1\n" in printed[2], printed
        host.follow("A disk is full", first=3, OLDEST=1)
        until(lambda: user.post() == 201, host)
    finally:
        if host.process and host.process.poll() is None:
            host.kill()
        subprocess.run(["umount", host.data], check=True)


def test_a_key_is_lost(host):
    user = User(host)
    host.run("murre maintain backup --data-dir /var/lib/murre --name saved")
    host.stop()
    (host.data / "keys/crypto").unlink()
    host.spawn()
    assert host.process.wait(timeout=PATIENCE) == 78, "as the recipe says"
    assert "new-keys" in host.log() or "crypto" in host.log()
    last = commands("A key is lost").index("systemctl start murre") + 1
    host.follow("A key is lost", last=last, BACKUP=host.data / "backups/saved")
    assert user.post("the key is back") == 201
    user.comes_back(host, "the key is back")


def test_a_key_is_lost_without_a_backup(host):
    user = User(host)
    host.stop()
    (host.data / "keys/crypto").unlink()
    first = commands("A key is lost").index("systemctl start murre") + 1
    host.follow("A key is lost", first=first)
    host.run("systemctl start murre")
    assert user.post() == 404, "as the recipe says"
    user.comes_back(host)
    exchange(user.browser, user.sender)


def test_a_certificate_is_expired(new_host, monkeypatch):
    host = new_host()
    chain, key = host.root / "etc/murre/chain.pem", host.root / "etc/murre/key.pem"
    make_certificate(host.host, chain, key, age=timedelta(hours=2))
    host.set(**{"tls.cert": chain, "tls.key": key, "websocket.tls.listen": f"{host.host}:{TLS_PORT}"})
    host.follow("Install")
    session = Browser(host)
    (page,) = host.follow("A certificate is expired", last=1)
    troubles = {condition["name"]: condition["trouble"] for condition in json.loads(page)["conditions"]}
    assert "chain.pem ended on" in troubles["certificate"], page
    make_certificate(host.host, host.work / "chain.pem", host.work / "key.pem")
    trust(monkeypatch, host.work / "chain.pem")
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"https://{host.host}:{TLS_PORT}/status", timeout=PATIENCE)
    host.follow("A certificate is expired", first=1)

    def is_good():
        with contextlib.suppress(ssl.SSLError, urllib.error.URLError):
            return urllib.request.urlopen(f"https://{host.host}:{TLS_PORT}/status", timeout=PATIENCE).status == 200

    until(is_good, host)
    exchange(session, AppServer())
