"""murre under the filters that its container profile and its systemd unit ask for, made by libseccomp as those do."""

import configparser
import errno
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

from conftest import REPOSITORY, Server, binary

CONFINE = [sys.executable, str(pathlib.Path(__file__).parent / "confine.py")]
PROFILE, FLAT_PROFILE = REPOSITORY / "tuning/seccomp.json", REPOSITORY / "tuning/seccomp-oci.json"
UNIT = REPOSITORY / "tuning/murre.service"
DROP_IN = REPOSITORY / "tuning/hibernate.conf"
WITH_DROP_IN = f"{UNIT}:{DROP_IN}"
RING_CALLS = {"io_uring_setup", "io_uring_enter", "io_uring_register"}


def run(command):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MURRE_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def plane(server):
    with urllib.request.urlopen(server.url("admin") + "/health", timeout=10) as answer:
        return json.load(answer)["plane"]


def serves_and_starts_again(server):
    probe = run([binary(), "probe", "--ws", server.url("websocket")])
    assert probe.returncode == 0, probe.stdout + probe.stderr + server.log()
    server.restart()
    server.stop()


@pytest.mark.parametrize(
    ("kind", "path"),
    [("container", PROFILE), ("container", FLAT_PROFILE), ("unit", UNIT), ("unit", WITH_DROP_IN)],
    ids=["container", "flat", "unit", "drop-in"],
)
def test_a_server_works_in_its_sandbox_and_ends_in_order(tmp_path, kind, path):
    server = Server(tmp_path, prefix=[*CONFINE, kind, str(path)])
    if os.geteuid() == 0:
        # Of what root may, the unit leaves its user the ports below 1024.
        server.flags = ["--domain", "push.example", "--public", "none", "--public-http", f"{server.host}:80"]
        server.flags += ["--endpoint-url", server.url("endpoint")]
    try:
        server.start()
        # Its ports take connections before its shards begin; the answer comes behind the fence.
        assert plane(server)["fence"] == "closed", server.log()
        status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        assert "NoNewPrivs:\t1\n" in status
        # The last one is the server's own.
        filters = {"container": 1, "unit": 2}[kind] + 1
        assert f"Seccomp_filters:\t{filters}\n" in status, "a filter is not on"
        if kind == "unit":
            limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
            assert re.search(r"Max core file size +0 +0 ", limits) and "Umask:\t0077\n" in status
        serves_and_starts_again(server)
    finally:
        server.kill()


def without(names, directory, number):
    """The profile without its rules about these calls, and with this answer to what it refuses."""
    profile = json.loads(PROFILE.read_text()) | {"defaultErrnoRet": number}
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in names]
    path = directory / "profile.json"
    path.write_text(json.dumps(profile))
    return str(path)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])
def test_the_default_profile_is_refused_with_the_one_that_is_not(tmp_path, number):
    """Also what proves that the filter of these tests filters."""
    profile = without(RING_CALLS, tmp_path, number)
    rings = ["--set", "shards.plane=io_uring"]
    serve = [binary(), "serve", "--data-dir", str(tmp_path / "data"), *rings]
    refused = run([*CONFINE, "container", profile, *serve])
    assert refused.returncode == 69, refused.stderr
    said = refused.stderr.splitlines()[-1]
    assert "io_uring: refused by a seccomp filter: " in said and "tuning/seccomp.json" in said, said
    assert not (tmp_path / "data").exists()
    doctor = run([*CONFINE, "container", profile, binary(), "doctor", "--json", *rings])
    assert doctor.returncode == 69
    ring = next(f for f in json.loads(doctor.stdout)["findings"] if f["what"] == "io_uring")
    assert ring["verdict"] == "FAIL" and "tuning/seccomp.json" in ring["mend"][0]
    doctor = run([*CONFINE, "container", str(PROFILE), binary(), "doctor", "--json"])
    ring = next(f for f in json.loads(doctor.stdout)["findings"] if f["what"] == "io_uring")
    assert ring["verdict"] == "ok"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])
def test_a_server_polls_under_the_default_profile_and_says_why(tmp_path, number):
    server = Server(tmp_path, prefix=[*CONFINE, "container", without(RING_CALLS, tmp_path, number)])
    try:
        server.start()
        shown = plane(server)
        assert shown["kind"] == "poll" and "refused by a seccomp filter" in shown["why"], shown
        assert shown["fence"] == "closed", shown
        serves_and_starts_again(server)
    finally:
        server.kill()


def test_a_server_that_cannot_forbid_itself_rings_serves_and_says_so(tmp_path):
    server = Server(tmp_path, prefix=[*CONFINE, "container", without({"seccomp"}, tmp_path, errno.EPERM)])
    try:
        server.start()
        shown = plane(server)
        assert shown["kind"] == "io_uring" and shown["fence"].startswith("open: Operation not permitted"), shown
        assert "rings fenced; further ones cannot be forbidden" in server.log()
        serves_and_starts_again(server)
    finally:
        server.kill()


def listening(pid):
    """Ports on which a process of another network namespace listens: those of IPv4, and those of IPv6."""
    found = []
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        found.append({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"})
    return found


def own_certificate(directory):
    """By the command of docs/TLS.md."""
    page = (REPOSITORY / "docs/TLS.md").read_text()
    command = re.search(r"^    (openssl req -x509 .*?cert\.pem)$", page, re.M | re.S)[1].replace("\\\n", " ")
    subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    return ["--tls-cert", str(directory / "cert.pem"), "--tls-key", str(directory / "key.pem")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace")
@pytest.mark.parametrize("families", ["AF_INET AF_INET6 AF_UNIX", "AF_INET AF_UNIX"], ids=["IPv6", "no-IPv6"])
def test_a_domain_is_served_on_the_addresses_that_the_host_has(tmp_path, families):
    unit = tmp_path / "murre.service"
    unit.write_text(re.sub(r"(?m)^(RestrictAddressFamilies)=.*$", rf"\1={families}", UNIT.read_text()))
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    serve = [binary(), "serve", "--data-dir", str(tmp_path / "data"), "--domain", "push.example.org", "--shards", "1"]
    command = [*alone, *CONFINE, "unit", str(unit), *serve, *own_certificate(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MURRE_")}
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + 60
        while "node ready" not in (said := (tmp_path / "log").read_text()):
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.05)
        over_v4, over_v6 = listening(process.pid)
        assert {80, 443} <= over_v4
        assert over_v6 == ({80, 443} if "AF_INET6" in families else set())
        assert "certificate of an authority" not in said
    finally:
        process.kill()
        process.wait()
    if "AF_INET6" not in families:
        refused = run([*command, "--public", "0.0.0.0:443,[::]:443"])
        assert refused.returncode == 69, refused.stderr
        last = refused.stderr.splitlines()[-1]
        assert "IPv6: not there: " in last and "addresses of IPv4 only" in last, last


# Asks for what a server that freezes connections needs: repair mode, a mark, netlink of the packet filter and a grace
# period. Prints the first that is refused, or "all".
NEEDS = """
import ctypes, os, socket
plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
def netlink():
    # Made without the capability, too: the table of rules is what needs it, and it is not touched here.
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
def membarrier():
    number = 324 if os.uname().machine == "x86_64" else 283
    assert ctypes.CDLL(None).syscall(number, 1, 0, 0) == 0, "membarrier"
for name, need in {
    "repair": lambda: plain.setsockopt(socket.IPPROTO_TCP, 19, 1),
    "mark": lambda: plain.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x6D75),
    "netlink": netlink,
    "membarrier": membarrier,
}.items():
    try:
        need()
    except (OSError, AssertionError) as error:
        print(name, error)
        break
else:
    print("all")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the capability that the drop-in leaves")
@pytest.mark.parametrize(("path", "first"), [(UNIT, "repair"), (WITH_DROP_IN, "all")], ids=["unit", "drop-in"])
def test_only_the_drop_in_lets_a_server_freeze_connections(path, first):
    asked = run([*CONFINE, "unit", str(path), sys.executable, "-c", NEEDS])
    assert asked.stdout.split()[:1] == [first], asked.stdout + asked.stderr


def test_the_unit_raises_the_limits_and_starts_again_after_what_heals():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    service = unit["Service"]
    connections = int(service["LimitNOFILE"])
    assert connections >= 1_000_000 and service["LimitMEMLOCK"] == "infinity"
    assert service["User"] == "murre" and service["Restart"] == "on-failure"
    # drain.delay, 30 s for the ledgers, 15 s for the end, and the sessions at drain.rate.
    assert int(service["TimeoutStopSec"]) >= 5 + 30 + 15 + connections / 10_000
    # A fault, an address in use, no data directory, a full disk, a ledger that waits (src/server/src/status.rs).
    assert not {"70", "71", "73", "74", "75"} & set(service["RestartPreventExitStatus"].split())
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


@pytest.mark.parametrize("drop_ins", [[], [DROP_IN]], ids=["unit", "drop-in"])
def test_the_exposure_of_the_unit_is_at_most_two(tmp_path, drop_ins):
    units = tmp_path / "etc/systemd/system"
    (units / "murre.service.d").mkdir(parents=True)
    shutil.copy(UNIT, units)
    for path in drop_ins:
        shutil.copy(path, units / "murre.service.d")
    # The file that ExecStart names must be there.
    command = tmp_path / "usr/local/bin/murre"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    judged = run(["systemd-analyze", "security", "--offline=true", f"--root={tmp_path}", "murre.service"])
    exposure = re.search(r"Overall exposure level for murre.service: ([0-9.]+)", judged.stdout)
    assert exposure, judged.stdout + judged.stderr
    assert float(exposure[1]) <= 2.0, judged.stdout
