"""MDP/Worker of RFC 7 and RFC 18: commands, their order, death by silence, and what is refused with DISCONNECT."""

from __future__ import annotations

import pytest

from scale0.compat.majordomo.workers import identity_of
from scale0.kernel.names import is_identity
from scale0.transport.core.sockets import ACTIVE
from tests.fakes.majordomo import (
    DIALECT,
    DISCONNECT_01,
    DISCONNECT_02,
    EMPTY,
    FINAL_02,
    HEARTBEAT_01,
    HEARTBEAT_02,
    INTERVAL,
    NEW,
    OLD,
    PARTIAL_02,
    READY,
    REQUEST,
    W01,
    W02,
    MajordomoBroker,
    address,
    ask,
    every_version,
)


@every_version
def test_ready_has_no_response(broker, version):
    version.ready(broker, "w1")
    assert broker.take("w1") == []
    assert broker.kinds() == ["broker.started", "client.joined"]
    member = broker.member("w1")
    assert member is not None
    assert (member.identity, member.services, member.slots) == (f"mdp-{b'w1'.hex()}", ("echo",), 1)
    assert member.foreign


# Promise: MDP-1
@every_version
def test_a_worker_gets_one_request_at_a_time_and_its_reply_frees_it(broker, version):
    version.ready(broker, "w1")
    ask(broker, 1)
    ask(broker, 2)
    first = address(broker, version, "w1")
    broker.say("w1", *version.frames(version.last, first, EMPTY, b"HELLO"))
    second = address(broker, version, "w1")
    assert first != second
    ((*head, body),) = broker.take("client")
    assert (head[1], body) == (b"REPLY", b"HELLO")


@pytest.mark.parametrize("version", [NEW, DIALECT], ids=repr)
def test_partials_go_before_the_final(broker, version):
    version.ready(broker, "w1")
    ask(broker)
    client = address(broker, version, "w1")
    for command, body in ((PARTIAL_02, b"a"), (PARTIAL_02, b"b"), (FINAL_02, b"c")):
        broker.say("w1", *version.frames(command, client, EMPTY, body))
    assert [(frames[1], frames[3]) for frames in broker.take("client")] == [
        (b"PARTIAL", b"a"),
        (b"PARTIAL", b"b"),
        (b"REPLY", b"c"),
    ]


@every_version
def test_a_request_without_a_body_reaches_a_worker_with_one_empty_frame(broker, version):
    version.ready(broker, "w1")
    broker.send("client", "REQUEST", {"service": "echo", "id": 1})
    ((*_, empty, body),) = broker.take("w1")
    assert (empty, body) == (EMPTY, EMPTY)


@every_version
def test_the_broker_sends_a_heartbeat_every_interval(broker, version):
    version.ready(broker, "w1")
    for _ in range(5):
        broker.pass_time(INTERVAL / 2)
        assert broker.take("w1") == []
        broker.say("w1", *version.frames(version.beat))
        broker.pass_time(INTERVAL / 2)
        assert broker.take("w1") == [version.frames(version.beat)]


def test_the_heartbeat_interval_is_the_configured_one():
    broker = MajordomoBroker(mdp_heartbeat_interval=10.0)
    NEW.ready(broker, "w1")
    broker.pass_time(9.9)
    assert broker.take("w1") == []
    broker.pass_time(0.2)
    assert broker.take("w1") == [[W02, HEARTBEAT_02]]


# Promise: MDP-1
@every_version
def test_three_missed_heartbeats_are_death_and_the_dead_hear_nothing(broker, version):
    version.ready(broker, "w1")
    broker.pass_time(3 * INTERVAL - 0.1)
    assert broker.member("w1") is not None
    broker.take("w1")
    broker.kinds()
    broker.pass_time(0.5)  # silence is judged twice
    assert broker.member("w1") is None
    assert broker.kinds() == ["client.lost"]
    broker.take("w1")  # our own heartbeat was due in the same instant
    broker.pass_time(60)
    assert broker.take("w1") == []


@every_version
def test_any_command_counts_as_a_heartbeat(broker, version):
    version.ready(broker, "w1")
    for id_ in range(4):
        broker.take("w1")
        ask(broker, id_)
        client = address(broker, version, "w1")
        broker.pass_time(3 * INTERVAL - 0.5)
        broker.say("w1", *version.frames(version.last, client, EMPTY, b"x"))
        assert broker.member("w1") is not None


@every_version
def test_a_dead_workers_request_goes_to_another_when_it_may(broker, version):
    version.ready(broker, "w1")
    ask(broker, retry=True)
    address(broker, version, "w1")
    version.ready(broker, "w2")
    for _ in range(3):
        broker.pass_time(INTERVAL)
        broker.say("w2", *version.frames(version.beat))
    broker.pass_time(0.2)
    assert [frames[len(version.lead) + 1] for frames in broker.take("w2")].count(REQUEST) == 1
    assert broker.take("client") == []


@every_version
def test_disconnect_takes_a_worker_off_the_list_and_it_hears_nothing_more(broker, version):
    version.ready(broker, "w1")
    ask(broker)
    address(broker, version, "w1")
    broker.say("w1", *version.frames(version.bye))
    ((_, command, _options),) = broker.take("client")
    assert command == b"ERROR"
    assert broker.kinds()[-2:] == ["client.left", "request.failed"]
    # What it had under way when it left is not answered, not even by DISCONNECT.
    broker.say("w1", *version.frames(version.beat))
    ask(broker, 2)
    broker.pass_time(10)
    assert broker.take("w1") == []


@every_version
def test_disconnect_before_ready_is_allowed(broker, version):
    broker.say("w1", *version.frames(version.bye))
    assert broker.take("w1") == []
    assert broker.connection("w1").account.bad.used == 0
    version.ready(broker, "w1")
    ask(broker)
    address(broker, version, "w1")


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
    broker = MajordomoBroker()
    broker.say("w1", *version.frames(*said))
    assert broker.take("w1") == [version.frames(version.bye)]
    assert broker.connection("w1").account.bad.used == 1


@every_version
def test_after_disconnect_there_are_no_further_commands(broker, version):
    for _ in range(3):
        broker.say("w1", *version.frames(version.beat))
    assert broker.take("w1") == [version.frames(version.bye)]
    broker.pass_time(100)
    assert broker.take("w1") == []


@every_version
def test_ready_twice_is_disconnect(broker, version):
    version.ready(broker, "w1")
    ask(broker, retry=True)
    address(broker, version, "w1")
    version.ready(broker, "w1")
    assert broker.take("w1") == [version.frames(version.bye)]
    assert broker.member("w1") is None
    version.ready(broker, "w2")
    address(broker, version, "w2")


# Promise: MDP-5
@every_version
@pytest.mark.parametrize("busy", [False, True])
def test_a_reply_to_nothing_that_was_asked_is_disconnect(broker, version, busy):
    version.ready(broker, "w1")
    if busy:
        ask(broker)
        address(broker, version, "w1")
    broker.say("w1", *version.frames(version.last, b"\xff someone else", EMPTY, b"x"))
    assert broker.take("w1") == [version.frames(version.bye)]
    assert broker.member("w1") is None


@every_version
def test_a_second_reply_to_the_same_request_is_disconnect(broker, version):
    version.ready(broker, "w1")
    ask(broker)
    client = address(broker, version, "w1")
    for _ in range(2):
        broker.say("w1", *version.frames(version.last, client, EMPTY, b"x"))
    assert len(broker.take("client")) == 1
    assert broker.take("w1") == [version.frames(version.bye)]


@every_version
def test_one_worker_cannot_answer_for_another(broker, version):
    version.ready(broker, "w1")
    version.ready(broker, "w2")
    ask(broker)
    client = address(broker, version, "w1")
    broker.say("w2", *version.frames(version.last, client, EMPTY, b"forged"))
    assert broker.take("client") == []
    assert broker.take("w2") == [version.frames(version.bye)]
    broker.say("w1", *version.frames(version.last, client, EMPTY, b"true"))
    assert broker.take("client")[0][-1] == b"true"


@every_version
def test_a_reply_after_its_time_is_no_fault(broker, version):
    version.ready(broker, "w1")
    ask(broker, timeout=1)
    client = address(broker, version, "w1")
    broker.pass_time(1.5)
    assert [frames[1] for frames in broker.take("client")] == [b"ERROR"]
    broker.say("w1", *version.frames(version.last, client, EMPTY, b"late"))
    assert (broker.take("client"), broker.take("w1")) == ([], [])
    ask(broker, 2)
    address(broker, version, "w1")


@pytest.mark.parametrize("state", ["joining", "disabled"])
def test_a_broker_that_does_not_serve_is_silent(state):
    broker = MajordomoBroker(state=state, peers=("tcp://127.0.0.1:1",))
    assert broker.machine.state.state == state
    for frames in ([READY, b"echo"], [HEARTBEAT_02], [b"\x99"], [FINAL_02, b"a", EMPTY, b"x"]):
        broker.say("w1", W02, *frames)
    broker.pass_time(20)
    assert broker.take("w1") == []


def test_a_worker_that_was_there_before_the_broker_was_disabled_must_start_again(broker):
    NEW.ready(broker, "w1")
    broker.disable()
    broker.say("w1", W02, HEARTBEAT_02)
    broker.pass_time(5)
    assert broker.take("w1") == []
    broker.machine.state.state = ACTIVE
    broker.say("w1", W02, HEARTBEAT_02)
    assert broker.take("w1") == [[W02, DISCONNECT_02]]
    NEW.ready(broker, "w1")
    assert broker.member("w1") is not None


def test_a_worker_whose_connection_broke_gets_nothing_until_it_says_ready_again(broker):
    NEW.ready(broker, "w1")
    ask(broker)
    (request,) = broker.take("w1")
    broker.break_connection("w1", ("REQUEST", {"service": "echo", "id": request[2].decode(), "timeout": 30}, b"hello"))
    broker.pass_time(5)
    assert broker.take("w1") == []
    NEW.ready(broker, "w1")  # a routing id of its own choice comes back
    assert len(broker.take("w1")) == 1
    broker.pass_time(INTERVAL + 0.1)
    assert broker.take("w1") == [[W02, HEARTBEAT_02]]


def test_leaving_and_coming_back_never_doubles_the_heartbeats(broker):
    for _ in range(5):
        NEW.ready(broker, "w1")
        broker.pass_time(0.1)
        broker.say("w1", W02, DISCONNECT_02)
    NEW.ready(broker, "w1")
    broker.pass_time(INTERVAL + 0.1)
    assert broker.take("w1") == [[W02, HEARTBEAT_02]]


def test_one_turn_may_hold_a_whole_conversation(broker):
    ask(broker, retry=True)
    broker.send_frames("w1", [W02, READY, b"echo"], [W02, READY, b"echo"], [W02, HEARTBEAT_02])
    request, goodbye = broker.take("w1")
    assert request[:2] == [W02, REQUEST]
    assert goodbye == [W02, DISCONNECT_02]


def test_a_connection_that_is_a_scale0_backend_cannot_be_a_worker_too(broker):
    broker.scale0_backend("w1", "echo")
    NEW.ready(broker, "w1", b"other")
    assert broker.take("w1") == [[W02, DISCONNECT_02]]
    assert not broker.machine.scheduler.offered("other")
    assert broker.machine.scheduler.offered("echo")


def test_words_of_one_version_do_not_count_for_the_other(broker):
    NEW.ready(broker, "w1")
    broker.say("w1", EMPTY, W01, HEARTBEAT_01)
    assert broker.take("w1") == [[EMPTY, W01, DISCONNECT_01]]
    assert broker.member("w1") is None


def test_whoever_takes_a_workers_name_has_it_told_to_start_again(broker):
    NEW.ready(broker, "w1")
    broker.send("w2", "CHECKCONFIG", {"config_type": "json", "identity": f"mdp-{b'w1'.hex()}"})
    assert broker.take("w1") == [[W02, DISCONNECT_02]]


def test_a_long_routing_id_still_makes_an_identity():
    names = {identity_of(length * b"\xff") for length in range(1, 256)}
    assert len(names) == 255
    assert all(map(is_identity, names))


def test_the_least_recently_used_worker_is_next(broker):
    NEW.ready(broker, "w1")
    OLD.ready(broker, "w2")
    broker.scale0_backend("w3", "echo")
    order = []
    for id_ in range(6):
        ask(broker, id_)
        for who, version in (("w1", NEW), ("w2", OLD)):
            for frames in broker.take(who):
                order.append(who)
                broker.say(who, *version.frames(version.last, frames[len(version.lead) + 2], EMPTY, b"x"))
        for frames in broker.take("w3"):
            order.append("w3")
            broker.say("w3", b"SCALE0/1", b"REPLY", frames[2], b"x")
    assert order == ["w1", "w2", "w3"] * 2


@every_version
@pytest.mark.parametrize("service", [b"mmi.service", b"mmi.anything", b"scale0.ping", b"scale0."])
def test_reserved_names_cannot_be_registered(broker, version, service):
    version.ready(broker, "w1", service)
    version.ready(broker, "w1", service)
    assert broker.take("w1") == 2 * [version.frames(version.bye)]
    assert broker.member("w1") is None


def test_a_service_that_this_broker_does_not_serve_is_disconnect():
    broker = MajordomoBroker(services=("echo",))
    NEW.ready(broker, "w1", b"other")
    assert broker.take("w1") == [[W02, DISCONNECT_02]]
    NEW.ready(broker, "w2", b"echo")
    assert broker.take("w2") == []


MALFORMED: dict[str, list[bytes | str]] = {
    "no command": [],
    "no service": [READY],
    "empty service": [READY, b""],
    "service not printable": [READY, b"a\nb"],
    "service not text": [READY, b"\xff\xfe"],
    "service too long": [READY, 256 * b"x"],
    "two services": [READY, b"a", b"b"],
    "unknown command": [b"\x07"],
    "long command": [b"\x01\x01", b"echo"],
    "a broker's command": [REQUEST, b"client", EMPTY, b"x"],
    "heartbeat with more": ["heartbeat", b"x"],
    "disconnect with more": ["disconnect", b"x"],
    "reply without address": ["reply"],
    "reply without delimiter": ["reply", b"client", b"x", b"y"],
    "reply cut short": ["reply", b"client"],
}


@every_version
@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_words_are_counted_and_answered_by_disconnect(version, case):
    names = {"heartbeat": version.beat, "disconnect": version.bye, "reply": version.last}
    said = [names[part] if isinstance(part, str) else part for part in MALFORMED[case]]
    broker = MajordomoBroker()
    broker.say("w1", *version.frames(*said))
    assert broker.take("w1") == [version.frames(version.bye)]
    assert broker.connection("w1").account.bad.used == 1
    assert broker.member("w1") is None


def test_a_reply_has_a_body_by_the_letter_and_may_lack_it_in_the_dialect():
    for version in (OLD, NEW, DIALECT):
        broker = MajordomoBroker()
        version.ready(broker, "w1")
        ask(broker)
        client = address(broker, version, "w1")
        broker.say("w1", *version.frames(version.last, client, EMPTY))
        said = [frames[1] for frames in broker.take("client")]
        assert said == ([b"REPLY"] if version is DIALECT else [b"ERROR"])


def test_what_is_malformed_from_a_worker_on_the_list_ends_its_registration(broker):
    NEW.ready(broker, "w1")
    broker.say("w1", W02, b"\x99")
    assert broker.take("w1") == [[W02, DISCONNECT_02]]
    assert broker.member("w1") is None


def test_ten_faults_are_borne_and_more_make_an_error_client(broker):
    for _ in range(11):
        broker.say("w1", W02, b"\x99")
    assert broker.connection("w1").account.banned_until is not None
    NEW.ready(broker, "w1")
    assert broker.member("w1") is None
    assert "client.refused" in broker.kinds()


@every_version
@pytest.mark.parametrize("socket", ["frontend", "peer"])
def test_workers_are_refused_on_the_other_doors(broker, version, socket):
    broker.say("w1", *version.frames(READY, b"echo"), socket=socket)
    assert broker.take("w1") == [version.frames(version.bye)]
    assert not broker.machine.scheduler.offered("echo")
    found = broker.machine.connections.find(socket, b"w1")
    assert found is not None
    assert found.account.bad.used == 1
