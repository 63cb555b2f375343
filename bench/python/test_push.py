"""The main job, end to end, with published Python clients against the real server process."""

import pytest
from websockets.exceptions import ConnectionClosed

from browser import AppServer, Browser, exchange
from conftest import Server


@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
@pytest.mark.parametrize("text", ["hello, page", "\u00fc\u0436\u65e5" * 300])
def test_a_message_arrives_and_decrypts(server, encoding, text):
    browser = Browser(server)
    exchange(browser, AppServer(), text, encoding)
    assert browser.hears_nothing()


@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
@pytest.mark.parametrize("end", [Server.stop, Server.kill])
def test_what_a_restart_brings_back_decrypts(server, encoding, end):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    sender.push(subscription, "unacked when it ended", ttl=3600, encoding=encoding)
    browser.notification()
    browser.close()
    sender.push(subscription, "stored for later", ttl=3600, encoding=encoding)
    end(server)
    server.start()
    again = browser.again(server)
    for text in ["unacked when it ended", "stored for later"]:
        notification = again.notification()
        assert notification["headers"]["encoding"] == encoding
        assert again.decrypt(notification) == text


def test_a_message_without_body_arrives(server):
    browser, sender = Browser(server), AppServer()
    assert sender.push(browser.subscribe(sender.key), None).status_code == 201
    assert {"data", "headers"}.isdisjoint(browser.notification())


def test_the_offered_subprotocol_does_no_harm(server):
    browser = Browser(server)
    assert browser.socket.subprotocol in (None, "push-notification")


def test_offline_messages_wait_in_order(server):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    browser.close()
    texts = [f"number {n}" for n in range(25)]
    for text in texts:
        assert sender.push(subscription, text, ttl=3600).status_code == 201
    again = browser.again(server)
    for text in texts:
        # The next page comes when the one before is acked.
        notification = again.notification()
        assert again.decrypt(notification) == text
        again.tell_ack(notification)
    assert again.hears_nothing()
    again.close()
    assert Browser(server, browser.uaid).hears_nothing()


@pytest.mark.parametrize("code", [100, 101, 102])
def test_each_ack_code_ends_a_message(server, code):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    sender.push(subscription, "once", ttl=3600)
    browser.ack(browser.notification(), code=code)
    browser.close()
    assert Browser(server, browser.uaid).hears_nothing()


def test_an_unacked_message_comes_again(server):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    sender.push(subscription, "again", ttl=3600)
    first = browser.notification()
    browser.close()
    assert Browser(server, browser.uaid).notification() == first


def test_another_key_is_refused(server):
    browser, sender, stranger = Browser(server), AppServer(), AppServer()
    subscription = browser.subscribe(sender.key)
    response = stranger.push(subscription, "let me in")
    assert (response.status_code, response.json()["errno"]) == (401, 109)
    elsewhere = {"aud": "https://elsewhere.test", "sub": "mailto:tests@example.com"}
    response = sender.push(subscription, "wrong audience", claims=elsewhere)
    assert (response.status_code, response.json()["errno"]) == (401, 109)
    assert browser.hears_nothing()


def test_an_unsubscribed_endpoint_is_gone(server):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    sender.push(subscription, "first")
    browser.unregister(browser.notification()["channelID"])
    response = sender.push(subscription, "second")
    assert (response.status_code, response.json()["errno"]) == (410, 106)


def test_a_topic_replaces(server):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    browser.close()
    for text in ["old", "older news is no news", "new"]:
        assert sender.push(subscription, text, ttl=60, headers={"Topic": "score"}).status_code == 201
    again = browser.again(server)
    assert again.decrypt(again.notification()) == "new"
    assert again.hears_nothing()


def test_a_restart_keeps_users_and_messages(server):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    sender.push(subscription, "unacked", ttl=3600)
    unacked = browser.notification()
    server.stop()
    with pytest.raises(ConnectionClosed) as closed:
        browser.receive()
    assert closed.value.rcvd.code == 1001
    server.start()
    again = browser.again(server)
    assert again.notification() == unacked
    assert sender.push(subscription, "afterwards").status_code == 201
    assert again.decrypt(again.notification()) == "afterwards"


@pytest.mark.parametrize("before, after", [("fernet", "short"), ("short", "fernet")])
def test_an_endpoint_url_of_the_other_form_goes_on_working(server, before, after):
    server.restart(f"endpoint.tokens={before}")
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    server.restart(f"endpoint.tokens={after}")
    again = browser.again(server)
    assert sender.push(subscription, "still here").status_code == 201
    assert again.decrypt(again.notification()) == "still here"
    other = again.subscribe(sender.key)
    assert sender.push(other, "here too").status_code == 201
    assert again.decrypt(again.notification()) == "here too"
    forms = [subscription["endpoint"].split("/")[4], other["endpoint"].split("/")[4]]
    assert forms == [{"fernet": "v2", "short": "v3"}[form] for form in [before, after]]


def test_a_crash_keeps_users_and_messages(server):
    browser, sender = Browser(server), AppServer()
    subscription = browser.subscribe(sender.key)
    sender.push(subscription, "unacked", ttl=3600)
    unacked = browser.notification()
    server.kill()
    server.start()
    assert browser.again(server).notification() == unacked


def test_a_malformed_message_closes_only_its_session(server):
    good, bad, sender = Browser(server), Browser(server), AppServer()
    subscription = good.subscribe(sender.key)
    bad.socket.send("{")
    with pytest.raises(ConnectionClosed) as closed:
        bad.receive()
    assert closed.value.rcvd.code == 1011
    assert sender.push(subscription, "unharmed").status_code == 201
    assert good.decrypt(good.notification()) == "unharmed"
