"""Libraries that send, on each kind of port; a Python user agent receives and decrypts."""

from browser import Browser
from senders import LIBRARIES, AppServer, each_place, exchanges, place, sends


@exchanges(LIBRARIES)
def test_messages_of_a_library_arrive_and_decrypt(place, library):
    sends(place, LIBRARIES[library])


@each_place
def test_web_push_php_sends_without_a_payload_and_with_its_options(place):
    app, browser, sender = AppServer(), Browser(place), LIBRARIES["web-push-php"].start(place)
    subscription = browser.subscribe(app.key)
    assert sender.ask(app.message(subscription, "", encoding="aesgcm", request="empty")) == {"status": 201}
    empty = browser.notification()
    assert {"data", "headers"}.isdisjoint(empty)
    browser.ack(empty)
    browser.close()
    for text in ["old", "new"]:
        message = app.message(subscription, text, encoding="aes128gcm", request="options")
        assert sender.ask(message) == {"status": 201}
    again = browser.again(place)
    assert again.decrypt(again.notification()) == "new"
    assert again.hears_nothing()
    again.close()
