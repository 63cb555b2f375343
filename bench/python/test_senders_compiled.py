"""Libraries that send and are compiled first, on each kind of port; a Python user agent receives and decrypts."""

from senders import COMPILED, exchanges, place, sends


@exchanges(COMPILED)
def test_messages_of_a_library_arrive_and_decrypt(place, library):
    sends(place, COMPILED[library])
