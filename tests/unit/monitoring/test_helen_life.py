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
from tests.fakes.simulated_helen import SimulatedHelen, report


# Promise: AGENT-12
def test_a_silent_agent_is_asked_and_then_lost():
    helen = SimulatedHelen(heartbeat_seconds=10)
    connection = helen.agent()
    helen.pass_time(14)
    assert helen.sent(connection) == []
    helen.pass_time(2)
    (ping,) = helen.sent(connection)
    assert isinstance(ping, Ping)
    helen.pass_time(13.9)
    assert connection not in helen.closed
    helen.pass_time(1.5)
    assert connection in helen.closed
    lost = helen.events[-1]
    assert lost.kind == "client.lost"
    assert lost.last_received_wall < helen.wall - 30
    assert isinstance(helen.sent(connection)[-1], Error)


def test_an_agent_that_keeps_its_heartbeat_is_never_asked():
    helen = SimulatedHelen(heartbeat_seconds=10)
    connection = helen.agent()
    for number in range(100):
        helen.pass_time(10.2)
        assert [type(message).__name__ for message in helen.receive_bytes(connection, b"ping %d\n" % number)] == [
            "Pong"
        ]
    assert connection not in helen.closed


# Promise: AGENT-12
def test_a_helen_who_slept_judges_nobody_by_it():
    helen = SimulatedHelen(heartbeat_seconds=10)
    connections = [helen.agent(f"a{number}") for number in range(20)]
    helen.mono += 500
    helen.wall += 500
    helen.end(Effects())  # the timer rings before the sockets are read
    for connection in connections:
        helen.receive_bytes(connection, b"ping 1\n")
    helen.pass_time(5)
    assert not helen.closed & set(connections)
    helen.pass_time(60)
    assert helen.closed >= set(connections)


# Promise: AGENT-12
def test_a_jump_of_the_wall_clock_loses_nobody():
    helen = SimulatedHelen(heartbeat_seconds=10)
    connection = helen.agent()
    for jump in (86_400.0, -200_000.0):
        helen.wall += jump
        helen.pass_time(5)
        helen.receive_bytes(connection, b"ping 1\n")
    assert connection not in helen.closed


# Promise: AGENT-12
def test_version_1_is_not_judged_by_silence():
    helen = SimulatedHelen(heartbeat_seconds=1)
    connection = helen.agent(version=1)
    helen.pass_time(100_000)
    assert connection not in helen.closed


def enrol(helen: SimulatedHelen, name: str) -> tuple[bytes, SignCertificate]:
    connection = helen.connect(name)
    assert helen.receive(connection, Enrol(b'{"token":"t","csr":"c"}')) == []
    ask = helen.asks[-1]
    assert isinstance(ask, SignCertificate)
    return connection, ask


# Promise: AGENT-18
def test_a_stranger_with_a_good_token_gets_a_certificate_and_the_end(helen: SimulatedHelen):
    connection, ask = enrol(helen, "")
    assert (ask.body, ask.cn) == (b'{"token":"t","csr":"c"}', None)
    helen.answer(ask, b"-----BEGIN")
    assert helen.sent(connection) == [Enrolled(b"-----BEGIN")]
    assert connection in helen.closed
    assert helen.kinds() == []


def test_an_agent_renews_with_the_certificate_that_it_has(helen: SimulatedHelen):
    _, ask = enrol(helen, "web-1")
    assert (ask.cn, ask.serial) == ("web-1", "a1")


# Promise: AGENT-18
def test_a_refused_enrolment_is_an_error(helen: SimulatedHelen):
    connection, ask = enrol(helen, "")
    helen.answer(ask, Refusal(401, "the token is spent\nor wrong"))
    assert helen.sent(connection) == [Error("the token is spent or wrong")]
    assert connection in helen.closed


# Promise: AGENT-15
def test_a_connection_without_a_certificate_may_send_nothing_else(helen: SimulatedHelen):
    for data in (b"hello 1 x\n", b"ping 1\n", b"report 1 a 2\n{}\n", b"result 1 a 2\n{}\n"):
        connection = helen.connect("")
        assert [type(message) for message in helen.receive_bytes(connection, data)] == [Error]
        assert connection in helen.closed
    connection, ask = enrol(helen, "")
    assert [type(message) for message in helen.receive(connection, Enrol(b"{}"))] == [Error]
    helen.answer(ask, b"chain")
    assert helen.sent(connection) == []


def test_certificates_in_the_making_are_few_and_do_not_wait_for_ever(helen: SimulatedHelen):
    waiting = [enrol(helen, "")[0] for _ in range(MAX_SIGNING)]
    asks = list(helen.asks)
    late = helen.connect("")
    assert [type(message) for message in helen.receive(late, Enrol(b"{}"))] == [Error]
    helen.pass_time(SIGN_SECONDS + 1)
    assert helen.closed >= set(waiting)
    for ask in asks:
        helen.answer(ask, b"too late")
    enrol(helen, "")


def test_a_source_records_once_a_minute_that_it_is_alive(helen: SimulatedHelen):
    helen.pass_time(600)
    assert [event.kind for event in helen.events].count("source.alive") == 11


def test_a_helen_who_stops_lets_nobody_wait(helen: SimulatedHelen, connection: bytes):
    helen.request("helen.check", {"agent": "web-1", "check": "load"})
    helen.do(helen.machine.stop)
    assert helen.error_code() == 503
    assert connection in helen.closed
    assert "client.lost" not in helen.kinds()  # the session ends with its source


def test_a_peer_that_is_gone_is_removed_once(helen: SimulatedHelen, connection: bytes):
    peer = helen.machine.state.connections[connection]
    helen.do(lambda now, effects: helen.machine.undelivered(peer, (), now, effects))
    assert helen.machine.view()["agents"] == 0
    helen.do(lambda now, effects: helen.machine.undelivered(peer, (), now, effects))
    helen.disconnect_agent(connection)
    assert helen.kinds() == ["client.joined", "client.lost"]


# Promise: AGENT-14
def test_an_agent_that_does_not_read_is_disconnected(helen: SimulatedHelen, connection: bytes):
    peer = helen.machine.state.connections[connection]
    helen.do(lambda now, effects: helen.machine.overflow(peer, now, effects))
    assert connection in helen.closed
    assert helen.machine.view()["counts"]["connections_overflowed"] == 1


def test_old_spools_are_forgotten_in_passing(helen: SimulatedHelen):
    connection = helen.agent(version=2)
    helen.receive(connection, report(1))
    helen.disconnect_agent(connection)
    assert len(helen.spool_rows()) == 1
    helen.pass_time(31 * 86_400)
    assert helen.spool_rows() == []
    assert helen.machine.view()["counts"]["spools_forgotten"] == 1


def test_a_settled_turn_has_no_effects_twice(helen: SimulatedHelen):
    helen.receive(helen.agent(), report(1))
    effects = Effects()
    helen.machine.settle(helen.now, effects)
    assert [effects.writes, effects.events, effects.promises, effects.sends] == [[], [], {}, {}]


# Promise: CHECK-10
@pytest.mark.parametrize(
    ("rows", "which"),
    [
        (lambda: SimulatedHelen(agents=[AgentRow("web-1", b"\0")]), "agent web-1"),
        (lambda: SimulatedHelen(agents=[AgentRow("web-1", b'{"moved":{"to":1}}')]), "migrated agent web-1"),
        (lambda: SimulatedHelen(spools=[SpoolRow("web-1", "s1", b"\xc1", 0)]), "spool s1 of agent web-1"),
        (lambda: SimulatedHelen(spools=[SpoolRow("web-1", "s1", b"\x92\x05\x01", 0)]), "spool s1 of agent web-1"),
        (lambda: Evaluation(StoredChecks(notices=(NoticeRow("n-1", b"\xc1"),))), "notification n-1"),
        (lambda: Evaluation(StoredChecks(incidents=(IncidentRow("i-1", "a", "c", 1, None, b"\xc1"),))), "incident i-1"),
    ],
)
def test_a_damaged_row_stops_the_start_and_says_which(rows: Callable[[], object], which: str):
    with pytest.raises(StoreError, match=f"{which} is damaged"):
        rows()
