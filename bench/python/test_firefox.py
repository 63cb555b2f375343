"""The main job with a real Firefox: its own push client, its own decryption, its own service worker."""

import time

import pytest

from browser import AppServer, trust
from conftest import Server
from firefox import WAIT, Firefox, Site
from tls_server import TlsServer

TEXT = "\u00fc\u0436\u65e5 hello, worker"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One server and one Firefox for all tests here; each test has a service worker and a subscription of its own."""
    server, site = Server(tmp_path_factory.mktemp("server")), Site()
    try:
        server.start()
        firefox = Firefox(server.url("websocket") + "/", site, tmp_path_factory.mktemp("firefox"))
        try:
            yield server, firefox
        finally:
            firefox.close()
    finally:
        site.close()
        server.kill()


@pytest.fixture
def server(running):
    return running[0]


@pytest.fixture
def firefox(running):
    firefox = running[1]
    yield firefox
    assert firefox.unheard() == [], "a message came twice, or a subscription was lost"


@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
@pytest.mark.parametrize("size", [1, 100])
def test_firefox_decrypts_and_acks_a_message(server, firefox, encoding, size):
    sender, acks = AppServer(), server.number("acks_total")
    subscription = firefox.subscribe(f"{encoding}-{size}", sender.key)
    assert subscription["endpoint"].startswith(server.url("endpoint") + "/wpush/")
    response = sender.push(subscription, TEXT * size, encoding=encoding)
    assert response.status_code == 201, response.text
    assert firefox.push(f"{encoding}-{size}").decode() == TEXT * size
    server.wait_for_number("acks_total", acks + 1)


def test_firefox_hears_a_message_without_body(server, firefox):
    sender, acks = AppServer(), server.number("acks_total")
    subscription = firefox.subscribe("empty", sender.key)
    assert sender.push(subscription, None).status_code == 201
    assert firefox.push("empty") is None
    # What goes without its ack comes again, in the next test.
    server.wait_for_number("acks_total", acks + 1)


def test_firefox_hears_what_was_sent_while_it_was_offline(server, firefox):
    sender, acks = AppServer(), server.number("acks_total")
    subscription = firefox.subscribe("offline", sender.key)
    stored = server.number("posts_accepted_stored_total")
    server.wait_for_number("sessions", 1)
    firefox.set_offline(True)
    try:
        server.wait_for_number("sessions", 0)
        texts = [f"{TEXT} {n}" for n in range(3)]
        for text in texts:
            assert sender.push(subscription, text, ttl=3600).status_code == 201
    finally:
        firefox.set_offline(False)
    # The worker handles pushes side by side, so that their reports may overtake each other.
    assert sorted(firefox.push("offline").decode() for _ in texts) == texts
    server.wait_for_number("posts_accepted_stored_total", stored + len(texts))
    server.wait_for_number("acks_total", acks + len(texts))


def test_firefox_hears_what_was_sent_while_it_was_closed(server, firefox):
    sender, acks = AppServer(), server.number("acks_total")
    subscription = firefox.subscribe("closed", sender.key)
    stored = server.number("posts_accepted_stored_total")
    server.wait_for_number("sessions", 1)
    firefox.quit()
    server.wait_for_number("sessions", 0)
    assert sender.push(subscription, TEXT, ttl=3600).status_code == 201
    firefox.start()
    assert firefox.push("closed").decode() == TEXT
    server.wait_for_number("posts_accepted_stored_total", stored + 1)
    server.wait_for_number("acks_total", acks + 1)


@pytest.mark.parametrize("end", [Server.stop, Server.kill])
def test_a_subscription_survives_the_end_of_the_server(server, firefox, end):
    sender = AppServer()
    subscription = firefox.subscribe(end.__name__, sender.key)
    user_agent = firefox.user_agent_id()
    end(server)
    server.start()
    server.wait_for_number("sessions", 1)
    assert sender.push(subscription, TEXT).status_code == 201
    assert firefox.push(end.__name__).decode() == TEXT
    # Of a server that has just begun to count.
    server.wait_for_number("acks_total", 1)
    assert firefox.user_agent_id() == user_agent != ""


def test_an_unsubscribed_endpoint_is_gone_for_good(firefox):
    sender = AppServer()
    subscription = firefox.subscribe("leaver", sender.key)
    assert firefox.unsubscribe("leaver") == [True, None]
    # Firefox does not wait for the server before it tells the page.
    deadline = time.monotonic() + WAIT
    while (response := sender.push(subscription, "anybody there?", ttl=0)).status_code == 201:
        assert time.monotonic() < deadline, f"410 was awaited for {WAIT} s, POSTs still get 201"
    assert (response.status_code, response.json()["errno"]) == (410, 106)


@pytest.mark.parametrize("restarted", ["firefox", "server"])
def test_the_last_unsubscribe_drops_the_user_and_a_new_subscription_works(tmp_path, restarted):
    """Without a subscription Firefox says no UAID, and the server keeps no user."""
    home = tmp_path / "server"
    home.mkdir()
    server, site, sender = Server(home), Site(), AppServer()
    try:
        server.start()
        firefox = Firefox(server.url("websocket") + "/", site, tmp_path)
        try:
            for name in ["first", "second", "third"]:
                numbers = ["acks_total", "unregisters_total", "idle_users_dropped_total"]
                acks, unregisters, dropped = (server.number(number) for number in numbers)
                subscription = firefox.subscribe(name, sender.key)
                assert sender.push(subscription, TEXT).status_code == 201
                assert firefox.push(name).decode() == TEXT
                server.wait_for_number("acks_total", acks + 1)
                assert firefox.unsubscribe(name) == [True, None]
                # Firefox does not wait for the server before it tells the page.
                server.wait_for_number("unregisters_total", unregisters + 1)
                if restarted == "firefox":
                    firefox.quit()
                else:
                    firefox.set_offline(True)
                server.wait_for_number("idle_users_dropped_total", dropped + 1)
                assert sender.push(subscription, "anybody there?", ttl=0).status_code == 410
                if restarted == "firefox":
                    firefox.start()
                else:
                    server.stop()
                    server.start()
                    firefox.set_offline(False)
            assert firefox.unheard() == [], "a message came twice, or a subscription was lost"
        finally:
            firefox.close()
    finally:
        site.close()
        server.kill()


@pytest.fixture
def tls_server(tmp_path, monkeypatch):
    """A server with TLS whose certificate is signed by an authority, as Firefox demands."""
    server = TlsServer(tmp_path, has_authority=True)
    trust(monkeypatch, server.authority)
    with server.running():
        yield server


@pytest.fixture
def tls_firefox(tls_server, tmp_path):
    """A Firefox that trusts the authority of the server in its profile."""
    site = Site()
    try:
        firefox = Firefox(tls_server.url("websocket") + "/", site, tmp_path)
        try:
            firefox.trust(tls_server.authority)
            yield firefox
        finally:
            firefox.close()
    finally:
        site.close()


def test_firefox_receives_over_wss_and_resumes_by_its_ticket_after_a_restart(tls_server, tls_firefox):
    server, firefox, sender = tls_server, tls_firefox, AppServer()
    subscription = firefox.subscribe("tls", sender.key)
    assert subscription["endpoint"].startswith(f"https://{server.at('endpoint')}/wpush/"), subscription
    user_agent = firefox.user_agent_id()

    def receive(text):
        assert sender.push(subscription, text).status_code == 201
        assert firefox.push("tls").decode() == text
        server.wait_for_number("acks_total", 1)

    receive("first")
    for has_key, text in [(True, "resumed"), (False, "full")]:
        firefox.set_offline(True)
        server.wait_for_number("sessions", 0)
        server.stop()
        if not has_key:
            (server.directory / "data/keys/tickets").unlink()
        server.start()
        firefox.set_offline(False)
        server.wait_for_number("sessions", 1)
        # Before any POST, all handshakes are those of Firefox, and the counters began at the start.
        made = server.number("tls_handshakes_total")
        resumed = server.number('tls_handshakes_total{version="1.3",kind="resumed"')
        assert made >= 1 and resumed == (made if has_key else 0), (made, resumed)
        assert server.number('tls_key_exchanges_total{group="x25519mlkem768"') == made
        receive(text)
    assert firefox.user_agent_id() == user_agent != ""
    assert firefox.unheard() == [], "a message came twice, or the subscription was lost"
