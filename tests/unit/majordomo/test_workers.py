"""MDP/Worker of RFC 7 and RFC 18: the words, their turns, and death by silence."""

from __future__ import annotations

import pytest

from scale0.compat.majordomo.workers import identity_of
from scale0.kernel.names import is_identity
from scale0.transport.core.sockets import ACTIVE
from tests.wire.majordomo.town import (
    DISCONNECT_01,
    DISCONNECT_02,
    EMPTY,
    FINAL_02,
    HEARTBEAT_01,
    HEARTBEAT_02,
    PARTIAL_02,
    READY,
    REQUEST,
    W01,
    W02,
    Town,
)
from tests.wire.majordomo.worker import DIALECT, INTERVAL, NEW, OLD, address, ask, every_version


@every_version
def test_ready_has_no_response(version):
    town = Town()
    version.ready(town, "w1")
    assert town.hears("w1") == []
    assert town.kinds() == ["broker.started", "client.joined"]
    member = town.member("w1")
    assert member is not None
    assert (member.identity, member.services, member.slots) == (f"mdp-{b'w1'.hex()}", ("echo",), 1)
    assert member.foreign


# Promise: MDP-1
@every_version
def test_a_worker_gets_one_request_at_a_time_and_its_reply_frees_it(version):
    town = Town()
    version.ready(town, "w1")
    ask(town, 1)
    ask(town, 2)
    first = address(town, version, "w1")
    town.says("w1", *version.frames(version.last, first, EMPTY, b"HELLO"))
    second = address(town, version, "w1")
    assert first != second
    ((*head, body),) = town.hears("client")
    assert (head[1], body) == (b"REPLY", b"HELLO")


@pytest.mark.parametrize("version", [NEW, DIALECT], ids=repr)
def test_partials_go_before_the_final(version):
    town = Town()
    version.ready(town, "w1")
    ask(town)
    client = address(town, version, "w1")
    for command, body in ((PARTIAL_02, b"a"), (PARTIAL_02, b"b"), (FINAL_02, b"c")):
        town.says("w1", *version.frames(command, client, EMPTY, body))
    assert [(frames[1], frames[3]) for frames in town.hears("client")] == [
        (b"PARTIAL", b"a"),
        (b"PARTIAL", b"b"),
        (b"REPLY", b"c"),
    ]


@every_version
def test_a_request_without_a_body_reaches_a_worker_with_one_empty_frame(version):
    town = Town()
    version.ready(town, "w1")
    town.scale0("client", "REQUEST", {"service": "echo", "id": 1})
    ((*_, empty, body),) = town.hears("w1")
    assert (empty, body) == (EMPTY, EMPTY)


@every_version
def test_the_broker_sends_a_heartbeat_every_interval(version):
    town = Town()
    version.ready(town, "w1")
    for _ in range(5):
        town.passes(INTERVAL / 2)
        assert town.hears("w1") == []
        town.says("w1", *version.frames(version.beat))
        town.passes(INTERVAL / 2)
        assert town.hears("w1") == [version.frames(version.beat)]


def test_the_heartbeat_interval_is_the_configured_one():
    town = Town(mdp_heartbeat_interval=10.0)
    NEW.ready(town, "w1")
    town.passes(9.9)
    assert town.hears("w1") == []
    town.passes(0.2)
    assert town.hears("w1") == [[W02, HEARTBEAT_02]]


# Promise: MDP-1
@every_version
def test_three_missed_heartbeats_are_death_and_the_dead_hear_nothing(version):
    town = Town()
    version.ready(town, "w1")
    town.passes(3 * INTERVAL - 0.1)
    assert town.member("w1") is not None
    town.hears("w1")
    town.kinds()
    town.passes(0.5)  # silence is judged twice
    assert town.member("w1") is None
    assert town.kinds() == ["client.lost"]
    town.hears("w1")  # our own heartbeat was due in the same instant
    town.passes(60)
    assert town.hears("w1") == []


@every_version
def test_any_command_counts_as_a_heartbeat(version):
    town = Town()
    version.ready(town, "w1")
    for id_ in range(4):
        town.hears("w1")
        ask(town, id_)
        client = address(town, version, "w1")
        town.passes(3 * INTERVAL - 0.5)
        town.says("w1", *version.frames(version.last, client, EMPTY, b"x"))
        assert town.member("w1") is not None


@every_version
def test_a_dead_workers_request_goes_to_another_when_it_may(version):
    town = Town()
    version.ready(town, "w1")
    ask(town, retry=True)
    address(town, version, "w1")
    version.ready(town, "w2")
    for _ in range(3):
        town.passes(INTERVAL)
        town.says("w2", *version.frames(version.beat))
    town.passes(0.2)
    assert [frames[len(version.lead) + 1] for frames in town.hears("w2")].count(REQUEST) == 1
    assert town.hears("client") == []


@every_version
def test_disconnect_takes_a_worker_off_the_list_and_it_hears_nothing_more(version):
    town = Town()
    version.ready(town, "w1")
    ask(town)
    address(town, version, "w1")
    town.says("w1", *version.frames(version.bye))
    ((_, command, _options),) = town.hears("client")
    assert command == b"ERROR"
    assert town.kinds()[-2:] == ["client.left", "request.failed"]
    # What it had under way when it left is not answered, not even by DISCONNECT.
    town.says("w1", *version.frames(version.beat))
    ask(town, 2)
    town.passes(10)
    assert town.hears("w1") == []


@every_version
def test_disconnect_before_ready_is_allowed(version):
    town = Town()
    town.says("w1", *version.frames(version.bye))
    assert town.hears("w1") == []
    assert town.connection("w1").account.bad.used == 0
    version.ready(town, "w1")
    ask(town)
    address(town, version, "w1")


@every_version
@pytest.mark.parametrize("word", ["heartbeat", "reply", "partial"])
def test_a_worker_that_the_broker_does_not_know_gets_disconnect(version, word):
    if word == "partial" and version is OLD:
        word = "reply"  # 0.1 has no PARTIAL
    said = {
        "heartbeat": [version.beat],
        "reply": [version.last, b"someone", EMPTY, b"x"],
        "partial": [PARTIAL_02, b"someone", EMPTY, b"x"],
    }[word]
    town = Town()
    town.says("w1", *version.frames(*said))
    assert town.hears("w1") == [version.frames(version.bye)]
    assert town.connection("w1").account.bad.used == 1


@every_version
def test_after_disconnect_there_are_no_further_commands(version):
    town = Town()
    for _ in range(3):
        town.says("w1", *version.frames(version.beat))
    assert town.hears("w1") == [version.frames(version.bye)]
    town.passes(100)
    assert town.hears("w1") == []


@every_version
def test_ready_twice_is_disconnect(version):
    town = Town()
    version.ready(town, "w1")
    ask(town, retry=True)
    address(town, version, "w1")
    version.ready(town, "w1")
    assert town.hears("w1") == [version.frames(version.bye)]
    assert town.member("w1") is None
    version.ready(town, "w2")
    address(town, version, "w2")


# Promise: MDP-5
@every_version
@pytest.mark.parametrize("busy", [False, True])
def test_a_reply_to_nothing_that_was_asked_is_disconnect(version, busy):
    town = Town()
    version.ready(town, "w1")
    if busy:
        ask(town)
        address(town, version, "w1")
    town.says("w1", *version.frames(version.last, b"\xff someone else", EMPTY, b"x"))
    assert town.hears("w1") == [version.frames(version.bye)]
    assert town.member("w1") is None


@every_version
def test_a_second_reply_to_the_same_request_is_disconnect(version):
    town = Town()
    version.ready(town, "w1")
    ask(town)
    client = address(town, version, "w1")
    for _ in range(2):
        town.says("w1", *version.frames(version.last, client, EMPTY, b"x"))
    assert len(town.hears("client")) == 1
    assert town.hears("w1") == [version.frames(version.bye)]


@every_version
def test_one_worker_cannot_answer_for_another(version):
    town = Town()
    version.ready(town, "w1")
    version.ready(town, "w2")
    ask(town)
    client = address(town, version, "w1")
    town.says("w2", *version.frames(version.last, client, EMPTY, b"forged"))
    assert town.hears("client") == []
    assert town.hears("w2") == [version.frames(version.bye)]
    town.says("w1", *version.frames(version.last, client, EMPTY, b"true"))
    assert town.hears("client")[0][-1] == b"true"


@every_version
def test_a_reply_after_its_time_is_no_fault(version):
    town = Town()
    version.ready(town, "w1")
    ask(town, timeout=1)
    client = address(town, version, "w1")
    town.passes(1.5)
    assert [frames[1] for frames in town.hears("client")] == [b"ERROR"]
    town.says("w1", *version.frames(version.last, client, EMPTY, b"late"))
    assert (town.hears("client"), town.hears("w1")) == ([], [])
    ask(town, 2)
    address(town, version, "w1")


@pytest.mark.parametrize("state", ["joining", "disabled"])
def test_a_broker_that_does_not_serve_is_silent(state):
    town = Town(state=state, peers=("tcp://127.0.0.1:1",))
    assert town.broker.state.state == state
    for frames in ([READY, b"echo"], [HEARTBEAT_02], [b"\x99"], [FINAL_02, b"a", EMPTY, b"x"]):
        town.says("w1", W02, *frames)
    town.passes(20)
    assert town.hears("w1") == []


def test_a_worker_that_was_there_before_the_broker_was_disabled_must_start_again():
    town = Town()
    NEW.ready(town, "w1")
    town.disables()
    town.says("w1", W02, HEARTBEAT_02)
    town.passes(5)
    assert town.hears("w1") == []
    town.broker.state.state = ACTIVE
    town.says("w1", W02, HEARTBEAT_02)
    assert town.hears("w1") == [[W02, DISCONNECT_02]]
    NEW.ready(town, "w1")
    assert town.member("w1") is not None


def test_a_worker_whose_connection_broke_gets_nothing_until_it_says_ready_again():
    town = Town()
    NEW.ready(town, "w1")
    ask(town)
    (request,) = town.hears("w1")
    town.gone("w1", ("REQUEST", {"service": "echo", "id": request[2].decode(), "timeout": 30}, b"hello"))
    town.passes(5)
    assert town.hears("w1") == []
    NEW.ready(town, "w1")  # a routing id of its own choice comes back
    assert len(town.hears("w1")) == 1
    town.passes(INTERVAL + 0.1)
    assert town.hears("w1") == [[W02, HEARTBEAT_02]]


def test_leaving_and_coming_back_never_doubles_the_heartbeats():
    town = Town()
    for _ in range(5):
        NEW.ready(town, "w1")
        town.passes(0.1)
        town.says("w1", W02, DISCONNECT_02)
    NEW.ready(town, "w1")
    town.passes(INTERVAL + 0.1)
    assert town.hears("w1") == [[W02, HEARTBEAT_02]]


def test_one_turn_may_hold_a_whole_conversation():
    town = Town()
    ask(town, retry=True)
    town.together("w1", [W02, READY, b"echo"], [W02, READY, b"echo"], [W02, HEARTBEAT_02])
    request, goodbye = town.hears("w1")
    assert request[:2] == [W02, REQUEST]
    assert goodbye == [W02, DISCONNECT_02]


def test_a_connection_that_is_a_scale0_backend_cannot_be_a_worker_too():
    town = Town()
    town.scale0_backend("w1", "echo")
    NEW.ready(town, "w1", b"other")
    assert town.hears("w1") == [[W02, DISCONNECT_02]]
    assert not town.broker.scheduler.offered("other")
    assert town.broker.scheduler.offered("echo")


def test_words_of_one_version_do_not_count_for_the_other():
    town = Town()
    NEW.ready(town, "w1")
    town.says("w1", EMPTY, W01, HEARTBEAT_01)
    assert town.hears("w1") == [[EMPTY, W01, DISCONNECT_01]]
    assert town.member("w1") is None


def test_whoever_takes_a_workers_name_has_it_told_to_start_again():
    town = Town()
    NEW.ready(town, "w1")
    town.scale0("w2", "CHECKCONFIG", {"config_type": "json", "identity": f"mdp-{b'w1'.hex()}"})
    assert town.hears("w1") == [[W02, DISCONNECT_02]]


def test_a_long_routing_id_still_makes_an_identity():
    names = {identity_of(length * b"\xff") for length in range(1, 256)}
    assert len(names) == 255
    assert all(map(is_identity, names))


def test_the_least_recently_used_worker_is_next():
    town = Town()
    NEW.ready(town, "w1")
    OLD.ready(town, "w2")
    town.scale0_backend("w3", "echo")
    order = []
    for id_ in range(6):
        ask(town, id_)
        for who, version in (("w1", NEW), ("w2", OLD)):
            for frames in town.hears(who):
                order.append(who)
                town.says(who, *version.frames(version.last, frames[len(version.lead) + 2], EMPTY, b"x"))
        for frames in town.hears("w3"):
            order.append("w3")
            town.says("w3", b"SCALE0/1", b"REPLY", frames[2], b"x")
    assert order == ["w1", "w2", "w3"] * 2
