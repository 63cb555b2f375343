#!/usr/bin/env python3
"""Runs a command under a filter of system calls, as a container or systemd would start it.

    confine.py container PROFILE.json COMMAND...     a container profile, in a container without capabilities
    confine.py unit UNIT.service COMMAND...          what a unit says of calls, addresses, memory and capabilities
    confine.py unit UNIT.service:DROP_IN.conf COMMAND...        the same with a drop-in, whose lists add to the unit's

The filter is made by libseccomp, which the container tools and systemd use, too. What it cannot do ends it with
status 90.
"""

import ctypes
import errno
import json
import os
import re
import socket
import subprocess
import sys

ALLOW = 0x7FFF0000
EQUAL, NOT_EQUAL, MASKED_EQUAL = 4, 1, 7
COMPARISONS = {"SCMP_CMP_EQ": EQUAL, "SCMP_CMP_NE": NOT_EQUAL, "SCMP_CMP_MASKED_EQ": MASKED_EQUAL}
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
PR_CAPBSET_DROP, CAPABILITIES = 24, {"CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12}
# Lists of a unit that a drop-in adds to.
LISTS = {"AmbientCapabilities", "CapabilityBoundingSet", "RestrictAddressFamilies", "SystemCallFilter"}


class Argument(ctypes.Structure):
    """struct scmp_arg_cmp"""

    _fields_ = [("index", ctypes.c_uint), ("op", ctypes.c_int), ("one", ctypes.c_uint64), ("two", ctypes.c_uint64)]


class Filter:
    """Refuses everything with `refusal` but what is allowed."""

    def __init__(self, refusal):
        self.library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.library.seccomp_init.argtypes = [ctypes.c_uint32]
        self.library.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Argument),
        ]
        self.library.seccomp_load.argtypes = [ctypes.c_void_p]
        self.context = self.library.seccomp_init(refuse_with(refusal))
        self.refusal = refusal
        assert self.context, "no filter"

    def rule(self, action, names, arguments=()):
        if action == refuse_with(self.refusal):
            return
        for name in names:
            number = self.library.seccomp_syscall_resolve_name(name.encode())
            # Calls of other machines have no number here; negative ones are stand-ins for calls that this one lacks.
            if number < 0:
                continue
            array = (Argument * len(arguments))(*arguments)
            result = self.library.seccomp_rule_add_array(self.context, action, number, len(arguments), array)
            assert result == 0, f"{name}: {os.strerror(-result)}"

    def load(self):
        result = self.library.seccomp_load(self.context)
        assert result == 0, f"the filter is refused: {os.strerror(-result)}"


def refuse_with(number):
    return 0x00050000 | number


def container(path):
    """As the container tools read it, for amd64 and without any capability."""
    with open(path) as file:
        profile = json.load(file)
    found = Filter(profile["defaultErrnoRet"])
    for rule in profile["syscalls"]:
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        if includes.get("caps") or not {"amd64"} & set(includes.get("arches", ["amd64"])):
            continue
        if "amd64" in excludes.get("arches", []):
            continue
        action = ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else refuse_with(rule.get("errnoRet", errno.EPERM))
        arguments = [
            Argument(each["index"], COMPARISONS[each["op"]], each["value"], each["valueTwo"])
            for each in rule.get("args") or []
        ]
        found.rule(action, rule["names"], arguments)
    return found


def unit(paths):
    settings = {}
    for path in paths.split(":"):
        with open(path) as file:
            for name, value in re.findall(r"^(\w+)=(.*)$", file.read(), re.M):
                settings[name] = f"{settings[name]} {value}" if name in LISTS & settings.keys() else value
    found = Filter(getattr(errno, settings["SystemCallErrorNumber"]))
    ambient = set(settings.get("AmbientCapabilities", "").split())
    assert ambient <= set(settings.get("CapabilityBoundingSet", " ".join(ambient)).split()), "bounded away"
    keep_capabilities({CAPABILITIES[name] for name in ambient})
    names = set()
    for word in settings["SystemCallFilter"].split():
        names |= group(word) if word.startswith("@") else {word}
    # systemd allows these to every unit.
    names |= group("@default") | {"execve"}
    found.rule(ALLOW, sorted(names - {"socket"}))
    for family in settings["RestrictAddressFamilies"].split():
        found.rule(ALLOW, ["socket"], [Argument(0, EQUAL, getattr(socket, family), 0)])
    if settings["MemoryDenyWriteExecute"] == "yes":
        result = ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
        assert result == 0, "this kernel has no PR_SET_MDWE (since 6.3)"
    return found


def keep_capabilities(kept):
    """Takes all others from root, as far as this kernel knows them. Other users have none."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for number in set(range(last + 1)) - kept if os.geteuid() == 0 else ():
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0, f"cannot drop capability {number}"


def group(name):
    """The calls of a group of systemd, groups in it included."""
    done = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
    found = set()
    for line in done.stdout.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= group(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def main():
    kind, path, *command = sys.argv[1:]
    try:
        found = {"container": container, "unit": unit}[kind](path)
        found.load()
        os.execv(command[0], command)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"confine: {error}", file=sys.stderr)
        sys.exit(90)


if __name__ == "__main__":
    main()
