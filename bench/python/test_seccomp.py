"""The two container profiles of `tuning/`, call by call: what the filters of libseccomp answer to each system call."""

import errno
import json
import shutil
import struct
import subprocess

import pytest

import confine
import seccomp
from conftest import REPOSITORY

DOCKER, FLAT = REPOSITORY / "tuning/seccomp.json", REPOSITORY / "tuning/seccomp-oci.json"
RINGS = set(seccomp.RINGS)
# Calls that a container without capabilities may not make. Each was allowed by the profile of another engine.
REFUSED = """
    bpf chroot delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick init_module kcmp kexec_load
    keyctl add_key lookup_dcookie mount mount_setattr move_mount open_by_handle_at open_tree perf_event_open pivot_root
    quotactl reboot request_key setdomainname sethostname setns settimeofday swapoff swapon syslog umount2 unshare
    userfaultfd vhangup clock_settime acct
""".split()
CLONE_NEWUSER, CLONE_THREAD = 0x10000000, 0x00010000
# Calls for which a rule asks for the first argument, and its values: families of sockets, personalities, flags.
WITH_ARGUMENT = {"socket", "personality", "clone"}
FIRST = [*range(48), 131072, 131080, 0xFFFFFFFF, CLONE_NEWUSER, CLONE_THREAD, 0x7E020000]


def answer(program, architecture, number, first=0):
    """The verdict of a filter, by its instructions of classic BPF."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, first, 0, 0, 0, 0, 0)
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, k = struct.unpack_from("<HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif code == 0x54:
            accumulator &= k
        elif code == 0x05:
            at += k
        elif code == 0x06:
            return k
        else:
            compare = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k, 0x45: accumulator & k}
            at += if_true if compare[code] else if_false


class Verdicts:
    """What a profile answers on one machine."""

    def __init__(self, path, machine):
        self.architecture = confine.ARCHITECTURES[machine]
        self.filter = confine.container(path, machine, self.architecture)
        self.program = self.filter.program()

    def __call__(self, number, first=0):
        return answer(self.program, self.architecture, number, first)

    def named(self, name, first=0):
        number = self.filter.number(name)
        return self(number, first) if number >= 0 else None

    def all(self):
        asked = {self.filter.number(name) for name in WITH_ARGUMENT}
        return {(n, first): self(n, first) for n in range(500) for first in (FIRST if n in asked else [0])}


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    """The default profile of Docker, from its module."""
    go = shutil.which("go")
    if not go:
        pytest.skip("needs Go to fetch the default profile of Docker")
    command = [go, "mod", "download", "-json", "@".join(seccomp.SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path_factory.mktemp("go"))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["Dir"] + "/default.json"


def test_both_profiles_are_made_from_the_default_one(default):
    with open(default) as file:
        for name, text in seccomp.made(json.load(file)).items():
            assert (REPOSITORY / "tuning" / name).read_text() == text, f"{name}: run bench/python/seccomp.py"


@pytest.mark.parametrize("machine", confine.ARCHITECTURES)
def test_nothing_but_rings_is_allowed_beyond_the_default_profile(default, machine):
    before, after = Verdicts(default, machine), Verdicts(DOCKER, machine)
    was = before.all()
    differs = {asked[0] for asked, verdict in after.all().items() if verdict != was[asked]}
    assert differs == {after.filter.number(name) for name in RINGS}
    for name in RINGS:
        assert before.named(name) == confine.refuse_with(errno.EPERM) and after.named(name) == confine.ALLOW


@pytest.mark.parametrize("machine", confine.ARCHITECTURES)
def test_the_flat_profile_decides_each_call_as_the_other_does(machine):
    assert Verdicts(FLAT, machine).all() == Verdicts(DOCKER, machine).all()


def test_the_flat_profile_has_no_condition():
    profile = json.loads(FLAT.read_text())
    with_argument = {name for rule in profile["syscalls"] if rule.get("args") for name in rule["names"]}
    assert with_argument == WITH_ARGUMENT, "these tests try arguments of other calls"
    assert set(profile) == {"defaultAction", "defaultErrnoRet", "architectures", "syscalls"}
    for rule in profile["syscalls"]:
        assert rule.keys() <= {"names", "action", "errnoRet", "args"}, rule


@pytest.mark.parametrize("path", [DOCKER, FLAT], ids=["docker", "oci"])
@pytest.mark.parametrize("machine", confine.ARCHITECTURES)
def test_a_container_without_capabilities_may_not_touch_the_host(path, machine):
    verdicts = Verdicts(path, machine)
    allowed = [name for name in REFUSED if verdicts.named(name) == confine.ALLOW]
    assert not allowed
    assert verdicts.named("clone", CLONE_NEWUSER) == confine.refuse_with(errno.EPERM)
    assert verdicts.named("clone", CLONE_THREAD) == confine.ALLOW
    # The C library then falls back to clone, whose flags a filter can see.
    assert verdicts.named("clone3") == confine.refuse_with(errno.ENOSYS)
