"""The scripts of tuning/ on hosts that tuning/tests/hosts composes: what this machine lacks is tested on files."""

import json
import os
import re
import subprocess

import pytest

from conftest import REPOSITORY, binary

TUNING = REPOSITORY / "tuning"
HOSTS = ["two-socket", "small-vm"]
CONCERNS = ["sysctl", "limits", "memory", "nic", "irq", "cores", "power"]
DEVICES = {"ens1f0": {"node": 0, "vector": 100}, "ens2f0": {"node": 1, "vector": 200}}
# Which CPUs of two-socket are on which node, threads of one core side by side.
NODES = {0: {*range(0, 8), *range(16, 24)}, 1: {*range(8, 16), *range(24, 32)}}


class Host:
    """A composed host and the scripts run on it."""

    def __init__(self, kind, root):
        self.root = root
        subprocess.run([TUNING / "tests/hosts" / kind, root], check=True)

    def tune(self, *words, script="murre-tune", murre=None):
        command = [TUNING / script, "--root", self.root, *words]
        environment = {**os.environ, "MURRE": binary() if murre is None else murre}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        return Result(done)

    def text(self, path):
        return (self.root / path).read_text().strip()

    def write(self, path, text):
        (self.root / path).write_text(text + "\n")

    def tree(self):
        """Every path with its content; directories and links too, so that nothing is left behind unseen."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_symlink():
                found[path] = os.readlink(path)
            else:
                found[path] = path.read_bytes() if path.is_file() else None
        return found

    def plan(self, *words):
        """The CPUs of each line of --plan."""
        lines = self.tune("--plan", *words).lines
        return {line.split()[0]: numbers(line.split()[-1]) for line in lines if len(line.split()) > 1}


class Result:
    """What a script said: status, lines, and name -> (word, is, want) of its items."""

    def __init__(self, done):
        self.status, self.error = done.returncode, done.stderr
        self.lines = done.stdout.splitlines()
        matches = [re.fullmatch(r"(\w+) (.+?): is (.*), want (.*) \(.*\)", line) for line in self.lines]
        self.items = {m[2]: (m[1], m[3], m[4]) for m in matches if m}

    def words(self):
        return {line.split()[0] for line in self.lines}

    def named(self, word):
        return {name for name, item in self.items.items() if item[0] == word}


@pytest.fixture(params=HOSTS)
def host(request, tmp_path):
    return Host(request.param, tmp_path)


@pytest.fixture
def server(tmp_path):
    return Host("two-socket", tmp_path)


@pytest.fixture
def guest(tmp_path):
    return Host("small-vm", tmp_path)


def numbers(text):
    """`0-2,8` and masks are sets of CPUs."""
    found = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def mask(text):
    bits = int(text.replace(",", ""), 16)
    return {cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1}


# --- check, apply, revert ---------------------------------------------------------------------------------------------


def test_check_finds_drift_and_changes_nothing(host):
    before = host.tree()
    result = host.tune("--check")
    assert result.status == 1
    assert result.named("drift") >= {"fs.nr_open", "net.ipv4.tcp_max_syn_backlog", "vm.swappiness"}
    assert len(result.items) == len(result.lines), "a line that is not `word name: is X, want Y (why)`"
    assert host.tree() == before
    assert host.tune().lines == result.lines, "checking is the default"


def test_apply_makes_check_pass_and_revert_brings_every_byte_back(host):
    before = host.tree()
    applied = host.tune("--apply")
    assert applied.status == 0, applied.lines
    assert applied.words() <= {"set", "ok", "absent"}
    checked = host.tune("--check")
    assert checked.status == 0, checked.named("drift")
    reverted = host.tune("--revert")
    assert reverted.status == 0 and reverted.words() == {"restored"}
    assert host.tree() == before


@pytest.mark.parametrize("words", [
    ["--irqs", "shards"],
    ["--cores", "0-1", "--backlog", "65535", "--max-connections", "5000000"],
])
def test_whatever_was_asked_for_revert_brings_every_byte_back(host, words):
    before = host.tree()
    assert host.tune("--apply", *words).status == 0
    assert host.tree() != before
    assert host.tune("--check", *words).status == 0
    assert host.tune("--revert").status == 0
    assert host.tree() == before


def test_a_second_apply_changes_nothing_and_keeps_the_first_record(server):
    before = server.tree()
    server.tune("--apply")
    after = server.tree()
    assert server.tune("--apply").words() == {"ok"}
    assert server.tree() == after
    # Somebody undoes one of them and it is applied again: the record is still of what was before murre-tune.
    server.write("proc/sys/net/core/somaxconn", "77")
    assert server.tune("--apply", "sysctl").words() == {"ok", "set"}
    server.tune("--revert")
    assert server.tree() == before


def test_reverting_twice_or_without_a_record_does_nothing(host):
    before = host.tree()
    assert host.tune("--revert").lines == []
    host.tune("--apply", "memory")
    host.tune("--revert", "memory")
    assert host.tune("--revert", "memory").lines == []
    assert host.tree() == before


def test_concerns_can_be_applied_and_reverted_one_by_one_in_any_order(server):
    before = server.tree()
    for concern in CONCERNS:
        assert server.tune("--apply", script=concern).status == 0
    assert server.tune("--check").status == 0
    # Not nic before irq: the files of queues that are gone come back with the queues.
    for concern in ["limits", "cores", "sysctl", "irq", "nic", "power", "memory"]:
        assert server.tune("--revert", script=concern).status == 0
    assert server.tree() == before


def test_what_cannot_be_changed_is_said_and_does_not_hide_the_rest(server):
    before = server.tree()
    refusing = server.root / "bin/ethtool"
    refusing.write_text(refusing.read_text().replace("case $option in", "case $option in\n"
                        "    -L) echo 'netlink error: Operation not supported' >&2; exit 1 ;;"))
    applied = server.tune("--apply")
    assert applied.status == 1
    failed = [line for line in applied.lines if line.startswith("failed")]
    assert failed == [f"failed {nic} queues: is 16, want 14: Operation not supported" for nic in DEVICES]
    checked = server.tune("--check")
    assert checked.named("drift") == {f"{nic} queues" for nic in DEVICES}
    assert server.tune("--revert").status == 0
    after = server.tree()
    assert {path for path in after if after[path] != before[path]} == {refusing}


def test_a_tuning_that_is_not_complete_is_undone_when_the_unit_stops(server):
    """systemd runs ExecStop only of a unit whose start it takes for a success."""
    unit = (TUNING / "murre-tune.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.M))
    success = {0, *map(int, settings["SuccessExitStatus"].split())}
    start, stop = (settings[name].split()[1:] for name in ("ExecStart", "ExecStop"))
    before = server.tree()
    taskset = server.root / "bin/taskset"
    works = taskset.read_text()
    taskset.write_text("#!/bin/sh\nexit 1\n")
    incomplete = server.tune(*start)
    assert {"set", "failed"} <= incomplete.words() and incomplete.status in success
    assert server.tune(*stop).status in success
    taskset.write_text(works)
    assert server.tree() == before
    assert server.tune(*start, "--core", "1").status not in success, "a word too much is no success"


def test_a_value_that_the_kernel_changes_on_its_way_in_is_told(server):
    (server.root / "bin/taskset").write_text("#!/bin/sh\nexit 0\n")
    applied = server.tune("--apply", "cores")
    assert applied.status == 1
    assert "failed thread control-plane (4002 of 4000): is 0-31, want 0,8,16,24: the kernel made it 0-31" in applied.lines


def test_a_record_outlives_what_cannot_be_put_back_now(server):
    before = server.tree()
    server.tune("--apply", "irq", "cores")
    systemctl = server.root / "bin/systemctl"
    works = systemctl.read_text()
    systemctl.write_text("#!/bin/sh\nexit 1\n")
    assert server.tune("--revert").status == 1
    systemctl.write_text(works)
    assert server.tune("--revert").lines == ["restored irqbalance: was stopped, is running"]
    assert server.tree() == before


def test_records_of_the_kernel_are_where_a_boot_forgets_them(server):
    server.tune("--apply")
    state = {path.name for path in (server.root / "run/murre-tune").iterdir()}
    assert state == {"sysctl", "memory", "nic", "irq", "cores", "power"}
    files = {path.name for path in (server.root / "var/lib/murre-tune").iterdir()}
    assert files == {"limits", "cores", "directories"}


# --- what is wanted ---------------------------------------------------------------------------------------------------


def test_shards_are_next_to_the_network_and_share_no_core_with_anything_else(server):
    plan = server.plan()
    assert plan["shards"] | plan["housekeeping"] == set(range(32))
    assert plan["housekeeping"] == {0, 16, 8, 24}, "whole cores, one of each node"
    for nic, facts in DEVICES.items():
        assert plan[nic] == plan["housekeeping"] & NODES[facts["node"]]
    # Both devices on one node: the other node has no shards.
    for nic in DEVICES:
        server.write(f"sys/class/net/{nic}/device/numa_node", "1")
    plan = server.plan()
    assert plan["shards"] == NODES[1] - {8, 24}
    assert plan["housekeeping"] == NODES[0] | {8, 24}
    # Nobody knows: both nodes are near.
    for nic in DEVICES:
        server.write(f"sys/class/net/{nic}/device/numa_node", "-1")
    assert server.plan()["shards"] == set(range(32)) - {0, 16, 8, 24}


def test_a_host_with_nothing_to_spare_is_all_shards(guest):
    assert guest.plan() == {"shards": {0, 1}, "eth0": {0, 1}}
    guest.tune("--apply")
    assert not (guest.root / "etc/systemd/system/system.slice.d").exists()
    assert guest.text("proc/irq/38/smp_affinity_list") == "0"
    assert guest.text("proc/irq/37/smp_affinity_list") == "0-1", "the vector for configuration has no queue"
    assert mask(guest.text("sys/class/net/eth0/queues/rx-0/rps_cpus")) == {0, 1}


@pytest.mark.parametrize("irqs", ["apart", "shards"])
def test_each_queue_belongs_to_one_shard_near_it(server, irqs):
    server.tune("--apply", "--irqs", irqs)
    plan = server.plan()
    for nic, facts in DEVICES.items():
        near = plan["shards"] & NODES[facts["node"]]
        queues = len(near)
        folder = f"sys/class/net/{nic}/queues"
        assert len(list((server.root / folder).glob("rx-*"))) == queues == 14
        vectors = [numbers(server.text(f"proc/irq/{facts['vector'] + 1 + q}/smp_affinity_list")) for q in range(14)]
        protocol = [mask(server.text(f"{folder}/rx-{q}/rps_cpus")) for q in range(14)]
        sends = [mask(server.text(f"{folder}/tx-{q}/xps_cpus")) for q in range(14)]
        assert numbers(server.text(f"proc/irq/{facts['vector']}/smp_affinity_list")) == set(range(32)), "no queue"
        if irqs == "apart":
            assert set.union(*vectors) == plan["housekeeping"] & NODES[facts["node"]]
        else:
            assert protocol == [set()] * 14, "the interrupt is where the work is"
            protocol = vectors
        assert all(len(cpus) == 1 for cpus in protocol) and set.union(*protocol) == near
        assert all(protocol[q] <= sends[q] for q in range(14)), "a shard sends on the queue it receives from"
        assert set.union(*sends) == plan["shards"] and sum(map(len, sends)) == len(plan["shards"])


def test_more_shards_than_queues_share_them_evenly(server):
    for nic in DEVICES:
        subprocess.run([server.root / "bin/ethtool", "-L", nic, "combined", "4"], check=True)
        server.write(f"var/ethtool/{nic}-l", server.text(f"var/ethtool/{nic}-l").replace("16", "4"))
    server.tune("--apply")
    protocol = [mask(server.text(f"sys/class/net/ens1f0/queues/rx-{q}/rps_cpus")) for q in range(4)]
    assert sorted(map(len, protocol)) == [3, 3, 4, 4]
    assert set.union(*protocol) == NODES[0] - {0, 16}


def test_devices_that_are_down_or_have_no_queues_are_no_trouble(server):
    assert "ens9f9" not in server.plan(), "it is down"
    server.write("sys/class/net/ens9f9/operstate", "up")
    assert "ens9f9" in server.plan()
    result = server.tune("nic", "irq")
    assert result.named("absent") == {"ens9f9 queues", "ens9f9 receive ring"}
    assert len(result.error.splitlines()) == 1, result.error


def test_given_cores_are_shards_and_the_rest_is_not(server):
    words = ["--cores", "4-7,20-23"]
    plan = server.plan(*words)
    assert plan["shards"] == numbers("4-7,20-23")
    assert plan["ens1f0"] == numbers("0-3,16-19"), "interrupts stay on the node of the device"
    assert plan["ens2f0"] == NODES[1]
    assert server.tune("--apply", *words).status == 0
    service = server.text("etc/systemd/system/murre.service.d/50-cores.conf")
    assert "MURRE_SHARDS__CORES=4-7,20-23" in service
    for slice in ["system", "user"]:
        assert "AllowedCPUs=0-3,8-19,24-31" in server.text(f"etc/systemd/system/{slice}.slice.d/50-murre.conf")
    control_plane = server.text("proc/4000/task/4002/status")
    assert "Cpus_allowed_list:\t0-3,8-19,24-31" in control_plane
    assert "Cpus_allowed_list:\t1" in server.text("proc/4000/task/4001/status"), "shards pin themselves"


def test_workers_of_a_ring_stay_where_their_shard_is(server):
    """They are there from the first connection that is closed on."""
    assert server.text("proc/4000/task/4004/comm") == "iou-wrk-4001"
    assert not [name for name in server.tune("--check", "cores").items if "iou-" in name]
    assert server.tune("--apply", "cores").status == 0
    assert server.tune("--check", "cores").status == 0
    assert "Cpus_allowed_list:\t1" in server.text("proc/4000/task/4004/status")


@pytest.mark.parametrize("slice", ["system", "user"])
def test_a_murre_that_runs_keeps_the_cpus_of_its_shards(server, slice):
    server.write("proc/4000/cgroup", f"0::/{slice}.slice/murre.service")
    applied = server.tune("--apply", "cores")
    assert applied.status == 1
    failed = [line for line in applied.lines if line.startswith("failed")]
    assert len(failed) == 1 and f"CPUs of {slice}.slice: murre (4000) runs in it; restart murre" in failed[0]
    assert not (server.root / f"etc/systemd/system/{slice}.slice.d").exists()
    server.write("proc/4000/cgroup", "0::/murre.slice/murre.service")
    assert server.tune("--apply", "cores").status == 0
    assert "AllowedCPUs=0,8,16,24" in server.text(f"etc/systemd/system/{slice}.slice.d/50-murre.conf")


def test_only_what_is_worse_than_wanted_is_changed(server):
    server.write("proc/sys/net/core/somaxconn", "65535")
    server.write("proc/sys/net/ipv4/tcp_mem", "1000000\t1100000\t1200000")
    server.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    server.write("sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us", "5")
    server.write("proc/sys/net/ipv4/ip_local_reserved_ports", "8000-8090")
    names = {"net.core.somaxconn", "net.ipv4.tcp_mem (max)", "transparent huge pages", "cpu3 wake-up",
             "net.ipv4.ip_local_reserved_ports"}
    assert server.tune("sysctl", "memory", "power").named("ok") == names
    server.write("proc/sys/net/ipv4/tcp_mem", "1000000\t1100000\t1200")
    server.tune("--apply", "sysctl")
    assert server.text("proc/sys/net/ipv4/tcp_mem") == "1000000 1100000 400000", "nothing is lowered"


def test_ports_that_were_reserved_stay_reserved(server):
    server.tune("--apply", "sysctl")
    assert server.text("proc/sys/net/ipv4/ip_local_reserved_ports") == "9042,8080-8083"


def test_choices_are_read_from_their_brackets(server):
    server.tune("--apply", "memory")
    assert server.text("sys/kernel/mm/transparent_hugepage/enabled") == "always [madvise] never"
    assert server.text("sys/kernel/mm/transparent_hugepage/defrag") == "always defer [defer+madvise] madvise never"


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cores", "3-1"], "--cores takes CPU numbers as 2-15,20, none twice, not 3-1"),
        (["--cores", "1,1"], "none twice, not 1,1"),
        (["--cores", "1-3,2"], "none twice, not 1-3,2"),
        (["--cores", "all"], "--cores takes CPU numbers"),
        (["--cores", "-1"], "--cores takes CPU numbers"),
        (["--cores", "1,"], "--cores takes CPU numbers"),
        (["--cores", "8,64"], "there is no CPU 64 online here; there are 0-31"),
        (["--cores"], "--cores needs a value"),
        (["--root", ""], "--root needs a value"),
        (["sysctls"], "there is no concern sysctls; did you mean sysctl?"),
        (["isq"], "did you mean irq?"),
        (["huge"], "There are: sysctl limits memory nic irq cores power"),
        (["--aply"], "no option --aply"),
        (["--irqs", "both"], "--irqs takes apart or shards, not both"),
        (["--max-connections", "1e6"], "--max-connections takes a number"),
        (["--backlog", "15"], "--backlog takes a number from 16 to 65535, not 15"),
        (["--backlog", "65536"], "--backlog takes a number from 16 to 65535"),
        (["--max-connections", "0"], "--max-connections takes a number"),
    ],
)
def test_nonsense_is_refused_before_anything_is_done(server, words, said):
    before = server.tree()
    result = server.tune("--apply", *words)
    assert (result.status, result.lines) == (2, [])
    assert said in result.error
    assert server.tree() == before


def test_a_directory_that_is_no_host_is_refused(tmp_path):
    command = [TUNING / "murre-tune", "--root", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and f"there is no directory {tmp_path}/proc" in done.stderr


@pytest.mark.parametrize("concern", ["murre-tune", "sysctl", "limits"])
def test_without_murre_nothing_is_judged_and_one_sentence_says_so(server, concern, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    before = server.tree()
    for named, said in [("", "there is no program murre;"), ("/nowhere/murre", "there is no program /nowhere/murre;")]:
        result = server.tune("--apply", script=concern, murre=named)
        assert (result.status, result.lines) == (2, []), result.error
        assert result.error.startswith(f"{concern}: cannot judge kernel settings and limits: {said}"), result.error
        assert result.error.count("\n") == 1 and "set MURRE to the path of its binary" in result.error
    assert server.tree() == before
    assert server.tune("--check", "memory", murre="").status == 1, "concerns that ask no murre go on"


# --- agreement --------------------------------------------------------------------------------------------------------

# What `murre doctor` calls otherwise than the script that mends it.
DOCTOR_NAMES = {
    "io_uring": "kernel.io_uring_disabled",
    "RLIMIT_NOFILE (hard)": "RLIMIT_NOFILE and locked memory (service)",
    "locked memory (hard)": "RLIMIT_NOFILE and locked memory (service)",
    "memory": "memory of the host",
    "cores": "quota of CPUs",
}
# What only the doctor judges, and why.
DOCTOR_ONLY = {
    "kernel": "no setting of a host makes it newer",
    "plane": "the server chooses it by what works",
    "memory of the host": "no setting of a host makes more of it",
    "quota of CPUs": "whoever set it (a container, a unit) must take it away",
}
OF_THE_WHOLE_HOST = "murre runs and holds its connections without it: the doctor is about that, the scripts about the rest"
OF_A_SERVICE = "effective with the next start of the service; the doctor looks at the process that it is"
PORTS = "one question, two settings: one says it where the ports are out of reach, the other where they are not"
OF_THE_HOST = [
    "net.core.netdev_max_backlog", "transparent huge pages", "transparent huge pages, defrag", "vm.nr_hugepages",
    "vm.swappiness", "vm.zone_reclaim_mode", "kernel.numa_balancing", "NIC queues", "NIC receive ring", "irqbalance",
    "default_smp_affinity", "net.core.rps_sock_flow_entries", "irq N NAME", "NIC rx-N rps_cpus",
    "NIC rx-N rps_flow_cnt", "NIC tx-N xps_cpus", "cores", "workqueue cpumask", "thread NAME", "cpuN wake-up",
    "cpuN frequency",
]
# What only the scripts judge, and why.
SCRIPTS_ONLY = {
    "fs.nr_open": "a bound of a bound: the doctor names it where it keeps RLIMIT_NOFILE from being raised",
    "net.ipv4.ip_local_reserved_ports": PORTS,
    "RLIMIT_NOFILE and locked memory (logins)": OF_A_SERVICE,
    "shards.cores (service)": OF_A_SERVICE,
    "CPUs of system.slice": OF_A_SERVICE,
    "CPUs of user.slice": OF_A_SERVICE,
    **dict.fromkeys(OF_THE_HOST, OF_THE_WHOLE_HOST),
}


def general(name):
    """An item's name without the device, CPU, queue or thread it is about: as README.md has it."""
    name = re.sub(r"\b(ens\w+|eth0)\b", "NIC", re.sub(r"^cpu\d+", "cpuN", name))
    name = re.sub(r"^irq \d+ .*", "irq N NAME", re.sub(r"([rt]x)-\d+", r"\1-N", name))
    return re.sub(r"^thread .*", "thread NAME", name)


def examine(host, connections, backlog=4096):
    """Subject -> finding of the doctor."""
    command = [binary(), "doctor", "--json", "--root", host.root, "--max-connections", str(connections)]
    # The scripts set a host up for rings, and a variable of whoever runs the tests must not configure the doctor.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MURRE_")}
    command += ["--set", f"shards.backlog={backlog}", "--set", "shards.plane=io_uring"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout, done.stderr
    return {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}


def doctor(host, connections):
    """Subject -> verdict."""
    return {what: finding["verdict"] for what, finding in examine(host, connections).items()}


def recommended(findings):
    """What the commands of the doctor would set: sysctls and limits of the unit, name -> value."""
    found = {}
    for finding in findings.values():
        for command in finding["mend"]:
            if setting := re.match(r'sysctl -w ([\w.-]+)="?([^"#]*[^"# ])"?', command):
                found[setting[1]] = setting[2].split()
            if limit := re.search(r"\[Service\] (Limit\w+)=(\S+)", command):
                found[limit[1]] = [limit[2]]
    return found


@pytest.mark.parametrize(("connections", "backlog"), [(100_000, 4096), (1_000_000, 4096), (3_000_000, 65535)])
def test_the_doctor_and_the_scripts_agree(host, connections, backlog):
    words = ["--max-connections", str(connections), "--backlog", str(backlog)]
    scripts = host.tune(*words, "sysctl").items
    findings = examine(host, connections, backlog)
    shared = 0
    for what, finding in findings.items():
        name = DOCTOR_NAMES.get(what, what)
        if what == "net.ipv4.ip_local_port_range" and what not in scripts:
            name = "net.ipv4.ip_local_reserved_ports"
        if name not in scripts:
            continue
        shared += 1
        word, _, want = scripts[name]
        assert (finding["verdict"] == "ok") == (word in ("ok", "absent")), (finding, scripts[name])
        # These two say in words what they want; the values that are set are compared below.
        if word != "absent" and what not in ("io_uring", "net.ipv4.ip_local_port_range"):
            assert re.findall(r"\d+", want) == re.findall(r"\d+", finding["wanted"]), (finding, want)
    assert shared >= 7
    advised = recommended(findings)
    host.tune("--apply", *words, "sysctl", "limits")
    unit = host.text("etc/systemd/system/murre.service.d/50-limits.conf")
    for name, value in advised.items():
        if name.startswith("Limit"):
            assert f"{name}={value[0]}" in unit.splitlines(), f"the doctor says {name}={value[0]}"
        else:
            assert host.text("proc/sys/" + name.replace(".", "/")).split() == value, f"the doctor says {name}={value}"
    log_in(host)
    left = {what for what, finding in examine(host, connections, backlog).items() if finding["verdict"] != "ok"}
    assert {DOCTOR_NAMES.get(what, what) for what in left} <= DOCTOR_ONLY.keys()


def test_the_page_on_capacity_says_what_the_tools_want(server):
    """What they want for a million is in its table of limits."""
    page = (REPOSITORY / "docs/CAPACITY.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)`[^|]*\| ([^|]*) \|", page, re.M))
    wants = {name: want for name, (_, _, want) in server.tune("--max-connections", "1000000", "sysctl").items.items()}
    for name, item in [("net.ipv4.tcp_mem", "net.ipv4.tcp_mem (max)"), ("net.core.somaxconn", "net.core.somaxconn")]:
        assert re.search(r"[\d,]+", rows[name])[0].replace(",", "") == re.search(r"\d+", wants[item])[0], name


def test_what_only_one_of_them_knows_is_written_down(tmp_path):
    known, judged = set(), set()
    for kind in HOSTS:
        (tmp_path / kind).mkdir()
        host = Host(kind, tmp_path / kind)
        known |= {general(name) for name in host.tune("--check").items}
        judged |= {DOCTOR_NAMES.get(what, what) for what in doctor(host, 1_000_000)}
    assert judged - known == DOCTOR_ONLY.keys()
    assert known - judged == SCRIPTS_ONLY.keys()


def log_in(host):
    """Writes the limits of the service into proc, as systemd would when it starts it."""
    unit = host.text("etc/systemd/system/murre.service.d/50-limits.conf")
    values = dict(re.findall(r"^Limit(\w+)=(\w+)$", unit, re.M))
    hard = {"Max open files": values["NOFILE"], "Max locked memory": values["MEMLOCK"].replace("infinity", "unlimited")}
    lines = [f"{name:<25} {value:<20} {value:<20} units" for name, value in hard.items()]
    host.write("proc/self/limits", "\n".join(lines))


def test_the_unit_has_the_limits_that_the_scripts_want(server):
    server.tune("--apply", "limits")
    unit = (TUNING / "murre.service").read_text()
    ours = server.text("etc/systemd/system/murre.service.d/50-limits.conf")
    limits = re.compile(r"^Limit\w+=.*$", re.M)
    # That on core dumps keeps secrets, and is no matter of size.
    of_size = [line for line in limits.findall(unit) if line != "LimitCORE=0"]
    assert limits.findall(ours) == of_size and len(of_size) == 2
    assert int(server.text("proc/sys/fs/nr_open")) < 1_100_000
    server.tune("--apply", "sysctl")
    assert int(server.text("proc/sys/fs/nr_open")) >= 1_100_000, "the kernel refuses a limit above nr_open"


# --- documents and style ----------------------------------------------------------------------------------------------


def explained():
    """The rows of README.md about items: name -> what it is for, what it costs, how that was verified."""
    text = (TUNING / "README.md").read_text().split("## What each item does")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|(.*)\|(.*)\|$", text, re.M)
    return {name: [cell.strip() for cell in cells] for name, *cells in rows}


def test_every_item_is_explained_and_nothing_else(tmp_path):
    rows, items = explained(), set()
    for kind in HOSTS:
        (tmp_path / kind).mkdir()
        items |= {general(name) for name in Host(kind, tmp_path / kind).tune("--check").items}
    assert items == rows.keys()
    # Words of how far it was tried: on a composed tree, on the machine of the one who wrote it, or by a checker.
    tried = r"\b(tree|here|verify)\b"
    for name, (why, cost, verified) in rows.items():
        assert why and cost, f"README.md says neither why nor what {name} costs"
        assert re.search(tried, verified), f"README.md does not say how {name} was verified: {verified}"


def scripts():
    return [path for path in TUNING.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!")]


@pytest.mark.parametrize("script", scripts(), ids=lambda path: str(path.relative_to(TUNING)))
def test_shellcheck_has_nothing_to_say(script):
    done = subprocess.run(["shellcheck", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = script.name not in ("lib.sh", "plan.sh")
    assert os.access(script, os.X_OK) == runs, "what is run is executable, what is sourced is not"
