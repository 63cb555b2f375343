"""SIGKILL at random while devices are registered: what was answered 200 is in storage."""

import random
import threading
import time

import pytest
import requests

import upstream
from bridged import BridgedServer, Device

KILLS, THREADS = 10, 4


@pytest.fixture
def server(tmp_path):
    with upstream.running(tmp_path) as services:
        server = BridgedServer(tmp_path, services, ["store.kind=embedded", "log.level=info", "bridge.fcm.timeout=25"])
        with server.running():
            yield server


class Phone:
    """A device with the calls that were answered, and the one that was not."""

    def __init__(self, server, name):
        self.device = Device(server, "fcm", token=f"device-{name}-0")
        self.name, self.count = name, 0
        self.is_removed = False
        self.open = None

    def step(self, choice):
        device = self.device
        if choice < 0.4:
            self.count += 1
            self.open = ("token", f"device-{self.name}-{self.count}")
            device.put(self.open[1])
        elif choice < 0.75 or len(device.channels) == 1:
            self.open = ("subscribe", None)
            reply = device.call("POST", "/subscription", {})
            assert reply.status_code == 200, reply.text
            device.channels.append(reply.json()["channelID"])
        elif choice < 0.95:
            channel = device.channels[-1]
            self.open = ("unsubscribe", channel)
            assert device.call("DELETE", f"/subscription/{channel}").status_code == 200
            device.channels.remove(channel)
        else:
            self.open = ("remove", None)
            assert device.call("DELETE").status_code == 200
            self.is_removed = True
        self.open = None

    def check(self):
        """Compares with storage. The call without an answer may have had its effect, or not."""
        call, argument = self.open or (None, None)
        reply = self.device.call("GET")
        if self.is_removed or (call == "remove" and reply.status_code == 410):
            assert (reply.status_code, reply.json()["errno"]) == (410, 103), reply.text
            return
        assert reply.status_code == 200, f"{self.device.uaid} is lost: {reply.text}"
        there, known = set(reply.json()["channelIDs"]), set(self.device.channels)
        lost, more = known - there, there - known
        assert lost <= ({argument} if call == "unsubscribe" else set()), f"lost: {lost}, {call} was under way"
        assert len(more) <= (call == "subscribe"), f"back: {more}, {call} was under way"
        if self.device.channels[0] in there:
            tokens = {self.device.token} | ({argument} if call == "token" else set())
            before = len(self.device.server.services.calls("fcm"))
            assert self.device.post().status_code == 201
            [call] = self.device.server.services.calls("fcm")[before:]
            sent = [token for token in tokens if f'"{token}"' in call["body"]]
            assert len(sent) == 1, f"sent to another token than {tokens}"


def test_what_was_answered_200_survives_kills(server):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    steps = 0
    for kill in range(KILLS):
        # Stand-ins keep a thousand calls.
        server.services.call("DELETE", "/")
        phones, faults, is_over = [], [], threading.Event()

        def work(number, chance):
            while not is_over.is_set():
                try:
                    phone = Phone(server, f"{kill}-{number}-{len(phones)}")
                    phones.append(phone)
                    for _ in range(chance.randrange(1, 12)):
                        if is_over.is_set() or phone.is_removed:
                            break
                        phone.step(chance.random())
                except requests.RequestException:
                    return
                except AssertionError as fault:
                    faults.append(fault)
                    return

        threads = [
            threading.Thread(target=work, args=(number, random.Random(chance.random()))) for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(chance.uniform(0.05, 1))
        server.kill()
        is_over.set()
        for thread in threads:
            thread.join()
        assert faults == []
        server.start()
        steps += sum(phone.count + len(phone.device.channels) for phone in phones)
        for phone in phones:
            phone.check()
    assert steps > 10 * KILLS, "there were hardly any registrations"
