"""Heartbeats, certificates, and Helen's start, stop and restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal, StoreError
from scale0.monitoring.helen.core.agent_connection import SignCertificate
from scale0.monitoring.helen.core.evaluation import Evaluation, StoredChecks
from scale0.monitoring.helen.core.handshake import MAX_SIGNING, SIGN_SECONDS
from scale0.monitoring.protocol.messages import Enrol, Enrolled, Error, Ping
from scale0.storage.check_rows import AgentRow, IncidentRow, NoticeRow, SpoolRow
from tests.unit.monitoring.helen_world import HelenWorld, report


# Promise: AGENT-12
def test_a_silent_agent_is_asked_and_then_lost():
    world = HelenWorld(heartbeat_seconds=10)
    connection = world.agent()
    world.pass_time(14)
    assert world.hear(connection) == []
    world.pass_time(2)
    (ping,) = world.hear(connection)
    assert isinstance(ping, Ping)
    world.pass_time(13.9)
    assert connection not in world.closed
    world.pass_time(1.5)
    assert connection in world.closed
    lost = world.events[-1]
    assert lost.kind == "client.lost"
    assert lost.last_heard_wall < world.wall - 30
    assert isinstance(world.hear(connection)[-1], Error)


def test_an_agent_that_keeps_its_heartbeat_is_never_asked():
    world = HelenWorld(heartbeat_seconds=10)
    connection = world.agent()
    for number in range(100):
        world.pass_time(10.2)
        assert [type(word).__name__ for word in world.data(connection, b"ping %d\n" % number)] == ["Pong"]
    assert connection not in world.closed


# Promise: AGENT-12
def test_a_helen_who_slept_judges_nobody_by_it():
    world = HelenWorld(heartbeat_seconds=10)
    connections = [world.agent(f"a{number}") for number in range(20)]
    world.mono += 500
    world.wall += 500
    world.end(Effects())  # the timer rings before the sockets are read
    for connection in connections:
        world.data(connection, b"ping 1\n")
    world.pass_time(5)
    assert not world.closed & set(connections)
    world.pass_time(60)
    assert world.closed >= set(connections)


# Promise: AGENT-12
def test_a_jump_of_the_wall_clock_loses_nobody():
    world = HelenWorld(heartbeat_seconds=10)
    connection = world.agent()
    for jump in (86_400.0, -200_000.0):
        world.wall += jump
        world.pass_time(5)
        world.data(connection, b"ping 1\n")
    assert connection not in world.closed


# Promise: AGENT-12
def test_version_1_is_not_judged_by_silence():
    world = HelenWorld(heartbeat_seconds=1)
    connection = world.agent(version=1)
    world.pass_time(100_000)
    assert connection not in world.closed


def enrol(world: HelenWorld, name: str) -> tuple[bytes, SignCertificate]:
    connection = world.connect(name)
    assert world.say(connection, Enrol(b'{"token":"t","csr":"c"}')) == []
    ask = world.asks[-1]
    assert isinstance(ask, SignCertificate)
    return connection, ask


# Promise: AGENT-18
def test_a_stranger_with_a_good_token_gets_a_certificate_and_the_end():
    world = HelenWorld()
    connection, ask = enrol(world, "")
    assert (ask.body, ask.cn) == (b'{"token":"t","csr":"c"}', None)
    world.tell(ask, b"-----BEGIN")
    assert world.hear(connection) == [Enrolled(b"-----BEGIN")]
    assert connection in world.closed
    assert world.kinds() == []


def test_an_agent_renews_with_the_certificate_that_it_has():
    world = HelenWorld()
    _, ask = enrol(world, "web-1")
    assert (ask.cn, ask.serial) == ("web-1", "a1")


# Promise: AGENT-18
def test_a_refused_enrolment_is_an_error():
    world = HelenWorld()
    connection, ask = enrol(world, "")
    world.tell(ask, Refusal(401, "the token is spent\nor wrong"))
    assert world.hear(connection) == [Error("the token is spent or wrong")]
    assert connection in world.closed


# Promise: AGENT-15
def test_a_stranger_may_say_nothing_else():
    world = HelenWorld()
    for said in (b"hello 1 x\n", b"ping 1\n", b"report 1 a 2\n{}\n", b"result 1 a 2\n{}\n"):
        connection = world.connect("")
        assert [type(word) for word in world.data(connection, said)] == [Error]
        assert connection in world.closed
    connection, ask = enrol(world, "")
    assert [type(word) for word in world.say(connection, Enrol(b"{}"))] == [Error]
    world.tell(ask, b"chain")
    assert world.hear(connection) == []


def test_certificates_in_the_making_are_few_and_do_not_wait_for_ever():
    world = HelenWorld()
    waiting = [enrol(world, "")[0] for _ in range(MAX_SIGNING)]
    asks = list(world.asks)
    late = world.connect("")
    assert [type(word) for word in world.say(late, Enrol(b"{}"))] == [Error]
    world.pass_time(SIGN_SECONDS + 1)
    assert world.closed >= set(waiting)
    for ask in asks:
        world.tell(ask, b"too late")
    enrol(world, "")


def test_a_source_says_once_a_minute_that_it_watches():
    world = HelenWorld()
    world.pass_time(600)
    assert [event.kind for event in world.events].count("source.alive") == 11


def test_a_helen_who_stops_lets_nobody_wait():
    world = HelenWorld()
    connection = world.agent()
    world.request("helen.check", {"agent": "web-1", "check": "load"})
    world.do(world.helen.stop)
    assert world.answers()[0][:2] == [b"error", b"503"]
    assert connection in world.closed
    assert "client.lost" not in world.kinds()  # the session ends with its source


def test_a_door_that_says_gone_is_believed():
    world = HelenWorld()
    connection = world.agent()
    line = world.helen.state.connections[connection]
    world.do(lambda now, effects: world.helen.undelivered(line, (), now, effects))
    assert world.helen.view()["agents"] == 0
    world.do(lambda now, effects: world.helen.undelivered(line, (), now, effects))
    world.gone(connection)
    assert world.kinds() == ["client.joined", "client.lost"]


# Promise: AGENT-14
def test_an_agent_that_does_not_read_is_let_go():
    world = HelenWorld()
    connection = world.agent()
    line = world.helen.state.connections[connection]
    world.do(lambda now, effects: world.helen.overflow(line, now, effects))
    assert connection in world.closed
    assert world.helen.view()["counts"]["connections_overflowed"] == 1


def test_old_spools_are_forgotten_in_passing():
    world = HelenWorld()
    connection = world.agent(version=2)
    world.say(connection, report(1))
    world.gone(connection)
    assert len(world.spool_rows()) == 1
    world.pass_time(31 * 86_400)
    assert world.spool_rows() == []
    assert world.helen.view()["counts"]["spools_forgotten"] == 1


def test_a_settled_turn_says_nothing_twice():
    world = HelenWorld()
    world.say(world.agent(), report(1))
    effects = Effects()
    world.helen.settle(world.now, effects)
    assert [effects.writes, effects.events, effects.promises, effects.sends] == [[], [], {}, {}]


# Promise: CHECK-10
@pytest.mark.parametrize(
    ("rows", "which"),
    [
        (lambda: HelenWorld(agents=[AgentRow("web-1", b"\0")]), "agent web-1"),
        (lambda: HelenWorld(agents=[AgentRow("web-1", b'{"moved":{"to":1}}')]), "migrated agent web-1"),
        (lambda: HelenWorld(spools=[SpoolRow("web-1", "s1", b"\xc1", 0)]), "spool s1 of agent web-1"),
        (lambda: HelenWorld(spools=[SpoolRow("web-1", "s1", b"\x92\x05\x01", 0)]), "spool s1 of agent web-1"),
        (lambda: Evaluation(StoredChecks(notices=(NoticeRow("n-1", b"\xc1"),))), "notification n-1"),
        (lambda: Evaluation(StoredChecks(incidents=(IncidentRow("i-1", "a", "c", 1, None, b"\xc1"),))), "incident i-1"),
    ],
)
def test_a_damaged_row_stops_the_start_and_says_which(rows: Callable[[], object], which: str):
    with pytest.raises(StoreError, match=f"{which} is damaged"):
        rows()
