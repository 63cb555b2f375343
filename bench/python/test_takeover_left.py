"""What a process leaves is found by what was left, held by one process, and owed to the last ack and POST.

After a stop with `drain.mode = hibernate`, packet rules without a reader drop every new connection. Each test has a
server of its own, and starts it again with other settings, other rights, or beside another process.
"""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time

import pytest
import requests

import namespaces
from conftest import binary
from hibernation import QUEUE, TABLE, Agent, agents
from replays.player import PATIENCE
from segments import tables
from takeover import PLAIN, TakeoverServer, check_silent, missing, opened_site

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

ENDS = 14
OTHER_QUEUE = QUEUE + 1
# Longest wait of a start for a process that holds the sessions, and for all that the start does beside it.
HELD_WITHIN = 60 + 30
# Time for which the store takes nothing. Freezing takes less.
STALL = 4
MESSAGES = 10


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with opened_site(tmp_path_factory.mktemp("site"), ENDS) as site:
        yield site


@pytest.fixture
def server(site):
    with site.running(has_tls=False) as server:
        yield server


@contextlib.contextmanager
def opened(server, count=2, kinds=PLAIN):
    with contextlib.ExitStack() as stack:
        clients = agents(server, list(kinds) * count)
        for client in clients:
            stack.callback(client.close)
        yield clients


def check_serves(server):
    """A new user agent is served."""
    client = Agent(server, PLAIN[0])
    try:
        client.say_hello()
        client.hear_hello()
        client.exchange()
    finally:
        client.close()


def without_hibernation(server):
    server.settings = [each for each in server.settings if not each.startswith(("hibernate.", "drain.mode"))]


def other_queue(server):
    server.settings.append(f"hibernate.queue={OTHER_QUEUE}")


def readable_directory(server):
    server.records.chmod(0o750)


def lost_records(server):
    """As a reboot of a container host does, without a reboot."""
    shutil.rmtree(server.records)
    server.settings += ["hibernate.after=0", "drain.mode=close"]


def without_directory(server):
    server.settings = [each for each in server.settings if not each.startswith(("hibernate.dir", "drain.mode"))]


def other_directory(server):
    server.settings.append(f"hibernate.dir={server.home}/other")


WAYS = {
    "settings deleted": (without_hibernation, "gone"),
    "other queue": (other_queue, "adopted"),
    "directory of mode 750": (readable_directory, "gone"),
    "records gone": (lost_records, "gone"),
    "directory deleted": (without_directory, "replaced"),
    "other directory": (other_directory, "replaced"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_start_serves_whatever_an_earlier_process_has_left(server, way):
    """Those of the demonstrated ways, and two more."""
    change, outcome = WAYS[way]
    with opened(server) as clients:
        server.stop()
        assert server.table() is False
        change(server)
        server.start()
        with namespaces.inside(server.namespace):
            found = {name: owned for (_, name), owned in tables().items()}
        if outcome == "gone":
            assert found == {}
        else:
            name = f"murre_{OTHER_QUEUE}" if change is other_queue else TABLE[1]
            assert found == {name: True}
        if outcome == "adopted":
            check_silent(clients)
            server.check_taken_over(len(clients))
            for client in clients:
                client.exchange()
        else:
            if outcome == "gone":
                server.wait_for_warning("given up")
            for client in clients:
                client.hear_reset()
            assert not server.records.exists() or server.files() == []
        check_serves(server)


def test_rules_of_another_data_directory_that_name_a_port_are_removed(site, server):
    """Nothing in the data directory of this server says that they are there."""
    with opened(server):
        server.stop()
    assert server.table() is False
    second = site.server(has_tls=False)
    second.namespace, second.host, second.addresses = server.namespace, server.host, server.addresses
    without_hibernation(second)
    try:
        second.start()
        assert second.table() is None
        second.wait_for_warning(f"packet rules of an earlier process removed.*{TABLE[1]}")
        check_serves(second)
    finally:
        second.clear()


def doctor(server, *prefix):
    """The finding of `murre doctor` about rules that were left."""
    command = [*prefix, binary(), "doctor", "--json", "--set", f"data_dir={server.directory}/data"]
    for setting in server.settings:
        command += ["--set", setting]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MURRE_")}
    with namespaces.inside(server.namespace):
        said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert said.stdout, said.stderr
    findings = json.loads(said.stdout)["findings"]
    return [each for each in findings if each["what"] == "packet rules that were left"]


def test_a_start_without_the_capability_is_refused_with_a_sentence_and_the_doctor_says_so(server):
    bare = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
    with opened(server) as clients:
        assert doctor(server) == [], "a server runs"
        server.stop()
        (finding,) = doctor(server)
        assert (finding["verdict"], TABLE[1] in finding["found"]) == ("warn", True), finding
        (finding,) = doctor(server, *bare)
        assert (finding["verdict"], TABLE[1] in finding["found"]) == ("FAIL", True), finding
        server.prefix = bare
        with namespaces.inside(server.namespace):
            server.spawn()
        assert server.process.wait(timeout=PATIENCE) != 0
        assert f"cannot remove the packet rules {TABLE[1]}" in server.log() and "CAP_NET_ADMIN" in server.log()
        assert server.table() is False, "nothing was touched"
        server.prefix = ()
        server.start()
        check_silent(clients)
        server.check_taken_over(len(clients))
        for client in clients:
            client.exchange()
    assert doctor(server) == []


def wait_for_log(server, text, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while text not in server.log():
        assert time.monotonic() < deadline, f"{text!r} was awaited:\n{server.log()}"
        time.sleep(0.05)


def test_a_start_waits_for_the_process_that_has_the_sessions(server):
    """An overlapping upgrade: the earlier process still freezes when the next one starts."""
    with opened(server) as clients:
        server.stop()
        held = os.open(server.records, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            with namespaces.inside(server.namespace):
                server.spawn()
            wait_for_log(server, "the start waits for its end")
            assert server.table() is False and len(server.entries()) == len(clients), "nothing is touched"
            assert server.process.poll() is None
        finally:
            os.close(held)
        with namespaces.inside(server.namespace):
            server.wait_for(8080)
        check_silent(clients)
        server.check_taken_over(len(clients))
        for client in clients:
            client.exchange()


def test_a_second_server_on_a_copy_touches_nothing_of_a_living_one(site):
    with site.running(has_tls=False) as server:
        server.stop()
        # One address, so that the second server has ports of its own.
        server.listen = {}
        server.start()
        with opened(server, kinds=[kind for kind in PLAIN if kind.family == 4]) as clients:
            # All are frozen in the next process.
            server.next_process()
            server.check_taken_over(len(clients))
            files = server.files()
            (site.directory / "copy").mkdir()
            second = TakeoverServer(site.directory / "copy", 0, has_tls=False)
            try:
                shutil.copytree(server.directory / "data", second.directory / "data")
                second.namespace, second.host, second.listen = server.namespace, "127.0.0.2", {}
                second.settings += [f"hibernate.dir={server.records}", f"hibernate.queue={OTHER_QUEUE}"]
                with namespaces.inside(server.namespace):
                    second.spawn()
                wait_for_log(second, "the start waits for its end")
                wait_for_log(second, "hibernation off", HELD_WITHIN)
                with namespaces.inside(server.namespace):
                    second.wait_for(8083)
                    health = requests.get(second.url("admin") + "/health", timeout=PATIENCE)
                assert "another process has had the frozen sessions" in second.log()
                assert server.files() == files and server.table() is True
                check_silent(clients)
                for client in clients:
                    client.exchange()
                server.next_process()
                check_silent(clients)
                server.check_taken_over(len(clients))
                assert "hibernation" in health.text, health.text
            finally:
                # The first one listens on.
                second.process.kill()
                second.process.wait()
                shutil.rmtree(second.home, ignore_errors=True)


@contextlib.contextmanager
def own_file_system(directory):
    """A file system in a file, which can be frozen. Gives what freezes it for a time."""
    image = directory / "image"
    with open(image, "wb") as file:
        file.truncate(96 << 20)
    store = directory / "data" / "store"
    store.mkdir(parents=True)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, store], check=True, capture_output=True)
    # A store is made in an empty directory.
    (store / "lost+found").rmdir()
    frozen = []

    @contextlib.contextmanager
    def stalled():
        subprocess.run(["fsfreeze", "-f", store], check=True)
        frozen.append(True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", store], check=True)
            frozen.clear()

    try:
        yield stalled
    finally:
        if frozen:
            subprocess.run(["fsfreeze", "-u", store], check=False)
        subprocess.run(["umount", store], check=True)


def test_acks_and_posts_under_way_are_kept_while_the_store_stalls(site):
    """The stop lasts as long as the store: what was acked does not come again, and a POST is answered."""
    server = site.server(has_tls=False)
    with own_file_system(server.directory) as stalled, concurrent.futures.ThreadPoolExecutor() as threads:
        try:
            server.start()
            with opened(server, 1) as (receiver, absent, *_):
                endpoint, uaid = receiver.endpoint, receiver.uaid
                receiver.close()
                absent.close()
                server.wait_for_number("sessions", 0)
                for number in range(MESSAGES):
                    server.post(endpoint, b"%d" % number)
                client = Agent(server, PLAIN[0])
                client.say_hello(uaid)
                client.hear_hello()
                heard = [client.text("notification") for _ in range(MESSAGES)]
                with stalled():
                    for message in heard:
                        client.ack(message)
                    # Behind the acks.
                    client.ping()
                    headers = {"TTL": "60", "Content-Encoding": "aes128gcm"}
                    post = server.http.post
                    posting = threads.submit(post, absent.endpoint, b"kept", headers=headers, timeout=PATIENCE)
                    # All are at the store, which has taken none.
                    server.wait_for_number("acks_total", MESSAGES)
                    server.process.terminate()
                    time.sleep(STALL)
                    assert server.process.poll() is None, "it ended with work at the store:\n" + server.log()
                assert server.process.wait(timeout=PATIENCE) == 0, server.log()
                assert posting.result().status_code == 201
                server.start()
                check_silent([client])
                server.check_taken_over(1)
                client.exchange()
                again = Agent(server, PLAIN[0])
                again.say_hello(absent.uaid)
                again.hear_hello()
                assert again.text("notification")["channelID"] == absent.channel
                again.close()
                client.close()
        finally:
            server.clear()
