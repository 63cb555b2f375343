"""The habits of the clients of docs/CLIENTS.md, replayed with the bytes that each of them sends: one test a habit."""

import pathlib
import re
import time

import pytest

from conftest import REPOSITORY, Server
from replays.player import Player, clients

CLIENTS = clients()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server with the default settings for all habits that need no other."""
    server = Server(tmp_path_factory.mktemp("shared"))
    with server.running():
        yield server


def play(server, client, *scripts, names=None):
    """Plays scripts of one client in their order."""
    player = Player(server, CLIENTS[client], names)
    try:
        for script in scripts:
            player.play(script)
    finally:
        player.leave()
    return player


def test_firefox_gets_its_sub_protocol_and_no_extension(shared):
    play(shared, "firefox", "sub_protocol")


def test_firefox_says_hello_with_broadcasts_null(shared):
    play(shared, "firefox", "broadcasts_null")


def test_firefox_names_broadcasts_in_its_hello(shared):
    play(shared, "firefox", "broadcasts")


def test_firefox_registers_with_a_padded_key(shared):
    play(shared, "firefox", "padded_key")


def test_firefox_pings_with_an_empty_object(shared):
    play(shared, "firefox", "idle")


def test_firefox_is_answered_within_its_10_seconds(shared):
    play(shared, "firefox", "requests")


def test_sunup_says_hello_with_a_null_uaid_and_nothing_else(shared):
    play(shared, "sunup", "first_hello")


def test_sunup_gets_a_pong_for_each_ping(shared):
    play(shared, "sunup", "pings")


def test_sunup_acks_and_unregisters_without_a_code(shared):
    play(shared, "sunup", "without_code")


def test_sunup_registers_a_channel_again(shared):
    play(shared, "sunup", "registers_again")


def test_sunup_changes_the_key_of_a_channel(shared):
    play(shared, "sunup", "key_change")


def test_sunup_registers_over_a_backlog(shared):
    play(shared, "sunup", "registers_over_a_backlog")


def test_sunup_never_acks_a_message_without_body(tmp_path):
    with Server(tmp_path, settings=["delivery.attempts_max=3"]).running() as server:
        play(server, "sunup", "empty_messages", "empty_messages_end")


def test_sunup_reads_the_endpoint_and_no_status(shared):
    player = play(shared, "sunup", "refused_key")
    # It hands to its app what stands there, which must be no URL.
    assert ":" not in player.names["$endpoint"], player.names


def test_sunup_comes_back_at_once_after_a_clean_close(shared):
    play(shared, "sunup", "restart")


def test_sunup_pings_too_soon_and_comes_back(shared):
    play(shared, "sunup", "hasty_pings")


def test_kunifiedpush_asks_for_nothing_and_gets_content(shared):
    play(shared, "kunifiedpush", "bare_hello")


def test_kunifiedpush_reads_its_own_spelling_of_a_channel(shared):
    play(shared, "kunifiedpush", "channel_spelling")


def test_kunifiedpush_keeps_its_uaid(shared):
    play(shared, "kunifiedpush", "uaid_stays")


def test_kunifiedpush_gets_a_pong_for_each_ping(shared):
    play(shared, "kunifiedpush", "pings")


def test_bitwarden_says_hello_with_an_empty_uaid(shared):
    play(shared, "bitwarden", "empty_uaid")


def test_bitwarden_names_channels_that_the_server_does_not_know(shared):
    play(shared, "bitwarden", "channels")


def test_bitwarden_acks_128_notifications_at_once(shared):
    play(shared, "bitwarden", "collected_acks")


def test_bitwarden_pings_by_name(shared):
    play(shared, "bitwarden", "ping")


def test_bitwarden_reconnects_after_every_kind_of_end(shared):
    play(shared, "bitwarden", "reconnects")


def test_bitwarden_keeps_its_acks_over_restarts_of_the_server(shared):
    play(shared, "bitwarden", "kept_acks_restart")


def test_a_geckoview_browser_hears_all_before_it_leaves(shared):
    play(shared, "geckoview", "without_acks")


def test_a_geckoview_browser_fills_its_queue_and_loses_nothing(shared):
    play(shared, "geckoview", "full_queue")


def test_a_geckoview_browser_repeats_an_unregister(shared):
    play(shared, "geckoview", "unregister")


def test_bots_name_the_origin_of_a_web_site(shared):
    play(shared, "bots", "origin")


def test_bots_read_broadcasts_as_texts(shared):
    play(shared, "bots", "broadcasts_are_texts")


def test_bots_go_on_using_the_first_url(shared):
    play(shared, "bots", "first_url_stays")


def test_bots_unregister_with_a_status(shared):
    play(shared, "bots", "status_for_code")


def test_traffic_of_a_bot_postpones_the_ping_of_the_server(tmp_path):
    settings = ["websocket.auto_ping_interval=4", "websocket.auto_ping_timeout=3"]
    with Server(tmp_path, settings=settings).running() as server:
        assert play(server, "bots", "awaits_pings").pings == 0


def test_bots_hear_a_ping_in_each_gap_that_is_longer_than_the_interval(tmp_path):
    settings = ["websocket.auto_ping_interval=2", "websocket.auto_ping_timeout=1"]
    with Server(tmp_path, settings=settings).running() as server:
        assert play(server, "bots", "hears_pings_in_gaps").pings >= 2


def test_bots_register_on_one_connection_and_listen_on_another(shared):
    play(shared, "bots", "register_and_listen")


# The rules of docs/PROTOCOL.md 14.


@pytest.mark.parametrize("client", CLIENTS)
def test_the_hello_reply_is_the_first_text_and_carries_all_fields(shared, client):
    play(shared, client, "known")


def test_stored_messages_follow_the_hello_reply_at_once(shared):
    play(shared, "geckoview", "short_session")


def test_no_text_comes_between_a_request_and_its_reply(shared):
    play(shared, "bots", "reply_comes_next")


def test_acks_of_an_earlier_connection_count(shared):
    play(shared, "bitwarden", "kept_acks")


def test_a_uaid_is_never_changed_because_of_a_limit(tmp_path):
    with Server(tmp_path, settings=["strangers.registers=3"]).running() as server:
        play(server, "kunifiedpush", "beyond_the_registers")


def test_nothing_is_sent_again_on_a_live_connection_within_60_seconds(tmp_path):
    # The default, in the table that is generated from the settings.
    assert "| `delivery.retry_after` |  | `60` |" in (REPOSITORY / "docs/OPERATIONS.md").read_text()
    with Server(tmp_path, settings=["delivery.spill_after=0.1"]).running() as server:
        player = Player(server, CLIENTS["bitwarden"])
        try:
            player.play("unacked")
            server.wait_for_number("spills_total", 3)
            player.play("unacked_goes_on")
            player.leave()
            server.restart("delivery.retry_after=1")
            came = time.monotonic()
            player.play("unacked_comes_again")
            player.play("unacked_comes_again_here")
            assert time.monotonic() - came >= 0.9
        finally:
            player.leave()


# The scripts themselves.


def test_each_script_names_its_public_sources_and_is_played():
    played = pathlib.Path(__file__).read_text()
    for name, client in CLIENTS.items():
        for source in client["sources"].values():
            assert re.fullmatch(r"[\w.-]+/[\w.-]+", source["repository"]) and source["file"], (name, source)
            assert re.fullmatch(r"[0-9a-f]{40}", source["revision"]), (name, source)
        assert client["head"]["source"] in client["sources"], name
        for script, content in client["scripts"].items():
            assert set(content["sources"]) <= set(client["sources"]) and content["sources"], (name, script)
            assert f'"{script}"' in played, f"no test plays {script} of {name}"


def test_the_matrix_names_each_source_and_each_test():
    matrix, tests = (REPOSITORY / "docs/CLIENTS.md").read_text(), pathlib.Path(__file__).read_text()
    over_https = (REPOSITORY / "bench/python/test_registration.py").read_text()
    for name, client in CLIENTS.items():
        for source in client["sources"].values():
            missing = [text for text in source.values() if f"`{text}`" not in matrix]
            assert not missing, f"docs/CLIENTS.md does not name {missing} of {name}"
    named = set(re.findall(r"`(test_\w+)`", matrix))
    there = set(re.findall(r"^def (test_\w+)", tests + over_https, re.MULTILINE))
    assert named <= there, named - there
    missing = [test for test in re.findall(r"^def (test_\w+)", over_https, re.MULTILINE) if test not in named]
    assert not missing, missing
    rows = matrix + (REPOSITORY / "docs/PROTOCOL.md").read_text()
    replays = re.findall(r"^def (test_\w+)", tests[: tests.index("# The scripts themselves.")], re.MULTILINE)
    missing = [test for test in replays if f"`{test}`" not in rows]
    assert not missing, missing
