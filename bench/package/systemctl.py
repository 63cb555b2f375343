#!/usr/bin/env python3
"""Stand-in for systemctl in a chroot, which has no systemd: starts and stops the command of a unit.

It knows what maintainer scripts and deb-systemd-invoke ask for. Of a unit and its drop-ins it carries out User, Group,
StateDirectory, RuntimeDirectory (which it keeps), EnvironmentFile, ExecStart, ExecReload by SIGHUP,
AmbientCapabilities, UMask, Type=notify and TimeoutStartSec; the sandbox of the unit is the business of
bench/python/test_sandbox.py. Each call is a line of /run/systemctl.log.
"""

import grp
import os
import pathlib
import pwd
import select
import shlex
import signal
import socket
import subprocess
import sys
import time

STATE = pathlib.Path("/run/systemctl")
LOG = pathlib.Path("/run/systemctl.log")
UNITS = [pathlib.Path(directory) for directory in ("/etc/systemd/system", "/usr/lib/systemd/system")]
STOP_SECONDS = 180


def settings(unit):
    """Settings of a unit and its drop-ins; lines of one name are joined, as those of the lists read here."""
    (main, *_) = [path for path in (directory / unit for directory in UNITS) if path.is_file()]
    drop_ins = [path for directory in UNITS for path in sorted((directory / f"{unit}.d").glob("*.conf"))]
    found = {}
    for path in (main, *drop_ins):
        for line in path.read_text().splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(name, []).append(value)
    return {name: " ".join(values) for name, values in found.items()}


def environment(unit):
    """Variables of the file that the unit names."""
    path = pathlib.Path(unit["EnvironmentFile"].removeprefix("-"))
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def directory(root, name, unit):
    if name:
        path = pathlib.Path(root, name)
        path.mkdir(mode=0o700, exist_ok=True)
        os.chown(path, pwd.getpwnam(unit["User"]).pw_uid, grp.getgrnam(unit["Group"]).gr_gid)


def pid_of(unit):
    """The process of a unit, if it runs."""
    path = STATE / unit
    if not path.exists():
        return None
    pid = path.read_text()
    try:
        state = pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if state == "Z" else int(pid)


def start(unit):
    if pid_of(unit) is not None:
        return 0
    said = settings(unit)
    directory("/var/lib", said.get("StateDirectory"), said)
    directory("/run", said.get("RuntimeDirectory"), said)
    capabilities = ",".join(f"+{name.lower().removeprefix('cap_')}" for name in said["AmbientCapabilities"].split())
    command = ["setpriv", f"--reuid={said['User']}", f"--regid={said['Group']}", "--init-groups", "--no-new-privs"]
    command += [f"--inh-caps=-all,{capabilities}", f"--ambient-caps=-all,{capabilities}"]
    command += shlex.split(said["ExecStart"])
    STATE.mkdir(exist_ok=True)
    notify = STATE / f"{unit}.notify"
    notify.unlink(missing_ok=True)
    os.umask(int(said["UMask"], 8))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard, open(STATE / f"{unit}.log", "ab") as log:
        heard.bind(str(notify))
        for path, mode in ((STATE, 0o755), (notify, 0o666)):
            path.chmod(mode)
        own = {"PATH": "/usr/sbin:/usr/bin", "NOTIFY_SOCKET": str(notify), **environment(said)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own, cwd="/", start_new_session=True
        )
        (STATE / unit).write_text(str(process.pid))
        deadline = time.monotonic() + float(said["TimeoutStartSec"])
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([heard], [], [], 0.05)[0] and b"READY=1" in heard.recv(4096):
                return 0
    return 1


def stop(unit):
    pid = pid_of(unit)
    if pid is not None:
        ended = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        if not select.select([ended], [], [], STOP_SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
            select.select([ended], [], [])
    (STATE / unit).unlink(missing_ok=True)
    return 0


def reload(unit):
    os.kill(pid_of(unit), signal.SIGHUP)
    return 0


def restart(unit):
    stop(unit)
    return start(unit)


def is_active(unit):
    return 0 if pid_of(unit) is not None else 3


def is_enabled(unit):
    enabled = any(UNITS[0].glob(f"*.wants/{unit}"))
    print("enabled" if enabled else "disabled")
    return 0 if enabled else 1


VERBS = {
    "start": start,
    "stop": stop,
    "restart": restart,
    "reload": reload,
    "is-active": is_active,
    "is-enabled": is_enabled,
}


def main():
    with LOG.open("a") as log:
        print(*sys.argv[1:], file=log)
    verb, *units = [word for word in sys.argv[1:] if not word.startswith("-")]
    if verb == "daemon-reload":
        return 0
    return max(VERBS[verb](unit) for unit in units)


if __name__ == "__main__":
    sys.exit(main())
