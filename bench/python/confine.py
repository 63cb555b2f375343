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
import resource
import socket
import stat
import subprocess
import sys

ALLOW = 0x7FFF0000
NOT_EQUAL, LESS, EQUAL, MASKED_EQUAL = 1, 2, 4, 7
COMPARISONS = {
    "SCMP_CMP_NE": NOT_EQUAL, "SCMP_CMP_LT": LESS, "SCMP_CMP_EQ": EQUAL, "SCMP_CMP_MASKED_EQ": MASKED_EQUAL,
}
# The architectures of libseccomp, by the names of container profiles.
ARCHITECTURES = {"amd64": 0xC000003E, "arm64": 0xC00000B7}
AF_MAX = 46
CLONE_NEWNS, CLONE_NEWUTS, MS_REC, MS_PRIVATE = 0x20000, 0x4000000, 0x4000, 0x40000
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
PR_CAPBSET_DROP, CAPABILITIES = 24, {"CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12}
# Lists of a unit that a drop-in adds to.
LISTS = {"AmbientCapabilities", "CapabilityBoundingSet", "RestrictAddressFamilies", "SystemCallFilter"}


class Argument(ctypes.Structure):
    """struct scmp_arg_cmp"""

    _fields_ = [("index", ctypes.c_uint), ("op", ctypes.c_int), ("one", ctypes.c_uint64), ("two", ctypes.c_uint64)]


class Filter:
    """Refuses everything with `refusal` but what is allowed, or with `None` allows everything but what is refused."""

    def __init__(self, refusal, architecture=None):
        self.library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.library.seccomp_init.argtypes = [ctypes.c_uint32]
        self.library.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Argument),
        ]
        self.library.seccomp_load.argtypes = [ctypes.c_void_p]
        for call in (self.library.seccomp_arch_add, self.library.seccomp_arch_remove):
            call.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self.library.seccomp_arch_native.restype = ctypes.c_uint32
        self.library.seccomp_syscall_resolve_name_arch.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
        self.default = ALLOW if refusal is None else refuse_with(refusal)
        self.context = self.library.seccomp_init(self.default)
        assert self.context, "no filter"
        self.architecture = architecture or 0
        if architecture:
            # Zero is the architecture of this host, which may be the same.
            self.library.seccomp_arch_add(self.context, architecture)
            if self.library.seccomp_arch_native() != architecture:
                assert self.library.seccomp_arch_remove(self.context, self.library.seccomp_arch_native()) == 0

    def rule(self, action, names, arguments=()):
        if action == self.default:
            return
        for name in names:
            # The number on this host; libseccomp translates it for another architecture.
            number = self.library.seccomp_syscall_resolve_name(name.encode())
            # Calls of other machines have no number here; negative ones are stand-ins for calls that this one lacks.
            if number < 0:
                continue
            array = (Argument * len(arguments))(*arguments)
            result = self.library.seccomp_rule_add_array(self.context, action, number, len(arguments), array)
            assert result == 0, f"{name}: {os.strerror(-result)}"

    def number(self, name):
        """The number on the architecture of the filter; negative if it has no such call."""
        return self.library.seccomp_syscall_resolve_name_arch(self.architecture, name.encode())

    def program(self):
        """The filter as instructions of classic BPF, as the kernel gets them."""
        self.library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
        descriptor = os.memfd_create("filter")
        try:
            assert self.library.seccomp_export_bpf(self.context, descriptor) == 0, "no export"
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)

    def load(self):
        result = self.library.seccomp_load(self.context)
        assert result == 0, f"the filter is refused: {os.strerror(-result)}"


def refuse_with(number):
    return 0x00050000 | number


def container(path, machine="amd64", architecture=None):
    """As the container tools read it, in a container without any capability. A flat profile has no conditions."""
    with open(path) as file:
        profile = json.load(file)
    found = Filter(profile["defaultErrnoRet"], architecture)
    for rule in profile["syscalls"]:
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        # Each kernel that murre runs on is later than the 4.8 of `minKernel`.
        assert includes.keys() | excludes.keys() <= {"caps", "arches", "minKernel"}, rule
        if includes.get("caps") or machine not in includes.get("arches", [machine]):
            continue
        if machine in excludes.get("arches", []):
            continue
        action = ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else refuse_with(rule.get("errnoRet", errno.EPERM))
        arguments = [
            Argument(each["index"], COMPARISONS[each["op"]], each["value"], each.get("valueTwo", 0))
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
    seclude(settings)
    found = Filter(getattr(errno, settings["SystemCallErrorNumber"]))
    ambient = set(settings.get("AmbientCapabilities", "").split())
    assert ambient <= set(settings.get("CapabilityBoundingSet", " ".join(ambient)).split()), "bounded away"
    keep_capabilities({CAPABILITIES[name] for name in ambient})
    names = set()
    # In the order of the unit; a line that begins with ~ takes away.
    for line in settings["SystemCallFilter"].replace(" ~", "\n~").splitlines():
        words = line.removeprefix("~").split()
        calls = set().union(*(group(word) if word.startswith("@") else {word} for word in words))
        names = names - calls if line.startswith("~") else names | calls
    # systemd allows these to every unit.
    names |= group("@default") | {"execve"}
    found.rule(ALLOW, sorted(names - {"socket"}))
    families = {int(getattr(socket, family)) for family in settings["RestrictAddressFamilies"].split()}
    for family in range(AF_MAX):
        action = ALLOW if family in families else refuse_with(errno.EAFNOSUPPORT)
        found.rule(action, ["socket"], [Argument(0, EQUAL, family, 0)])
    if settings["MemoryDenyWriteExecute"] == "yes":
        result = ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
        assert result == 0, "this kernel has no PR_SET_MDWE (since 6.3)"
    return found


def seclude(settings):
    """What else the unit says of the process: its limits, its name, its view of other processes, its files."""
    library = ctypes.CDLL(None, use_errno=True)
    os.umask(int(settings["UMask"], 8))
    resource.setrlimit(resource.RLIMIT_CORE, (int(settings["LimitCORE"]),) * 2)
    if os.geteuid() == 0:
        assert settings["ProtectHostname"] == "yes" and settings["ProtectProc"] == "invisible"
        assert library.unshare(CLONE_NEWNS | CLONE_NEWUTS) == 0, os.strerror(ctypes.get_errno())
        assert library.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0, os.strerror(ctypes.get_errno())
        hidden = library.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=invisible")
        assert hidden == 0, os.strerror(ctypes.get_errno())
    refused = Filter(None)
    if settings["RestrictSUIDSGID"] == "yes":
        modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "mkdir": 1, "mkdirat": 2, "creat": 1}
        for call, index in modes.items():
            for bit in (stat.S_ISUID, stat.S_ISGID):
                refused.rule(refuse_with(errno.EPERM), [call], [Argument(index, MASKED_EQUAL, bit, bit)])
    if settings["RestrictRealtime"] == "yes":
        for policy in (os.SCHED_FIFO, os.SCHED_RR):
            refused.rule(refuse_with(errno.EPERM), ["sched_setscheduler"], [Argument(1, EQUAL, policy, 0)])
    refused.load()


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
