"""Every accepted request ends exactly once, and no slot is ever lost: a state machine, and the cases it is about."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scale0.broker.admin.check_commands import GRACE_SECONDS
from scale0.broker.core.requests import ABANDONED_SLOT_SECONDS
from scale0.kernel.effects import Effects
from tests.fakes.broker import TOKEN, FakeBroker
from tests.fakes.examples import examples
from tests.fakes.request_memory import assert_charged

FRONTENDS = ("frontend-1", "frontend-2", "frontend-3")
BACKENDS = ("backend-1", "backend-2", "backend-3")
SERVICES = ("a", "b", "helen.check")
LONGEST_SECONDS = 50.0

frontends = st.sampled_from(FRONTENDS)
backends = st.sampled_from(BACKENDS)


# Promise: REQ-1, REQ-4, MGMT-6
class Exchange(RuleBasedStateMachine):
    """Frontends, backends and time do what they like; the broker must keep its books."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = FakeBroker(default_heartbeat_interval=100_000.0, request_queue_limit=4, frontend_idle=100_000.0)
        self.open: dict[str, set[int]] = {name: set() for name in FRONTENDS}
        self.commands: dict[str, set[int]] = {name: set() for name in FRONTENDS}
        """Those that became requests."""
        self.given = 0
        self.held: dict[str, dict[str, bool]] = {name: {} for name in BACKENDS}
        """What each backend was asked and has not answered; True if it may not be asked again."""

    def listen(self) -> None:
        for name in FRONTENDS:
            for command, options, _ in self.broker.received(name):
                if command in ("REPLY", "ERROR"):
                    assert options["id"] in self.open[name], f"{name} was answered twice: {options}"
                    self.open[name].discard(options["id"])
                elif command == "PARTIAL":
                    assert options["id"] in self.open[name], f"{name} got a part after the end"
                elif command == "MANAGEMENTREP":
                    assert options["id"] in self.commands[name], f"{name} was answered twice: {options}"
                    self.commands[name].discard(options["id"])
        for name in BACKENDS:
            for command, options, _ in self.broker.received(name):
                if command == "REQUEST":
                    assert options["id"] not in self.held[name], "handed out twice"
                    self.held[name][options["id"]] = True

    @rule(who=frontends, service=st.sampled_from(SERVICES), id_=st.integers(1, 4), retry=st.booleans(), data=st.data())
    def request(self, who: str, service: str, id_: int, retry: bool, data: st.DataObject) -> None:
        timeout = data.draw(st.sampled_from([0.5, 5.0, LONGEST_SECONDS]))
        options = {"service": service, "id": id_, "timeout": timeout, "retry": retry}
        self.broker.send(who, "REQUEST", options, b"x")
        self.open[who].add(id_)
        self.listen()

    @rule(who=frontends, recheck=st.sampled_from([None, True, False]), seconds=st.sampled_from([0.5, 45.0]))
    def command(self, who: str, recheck: bool | None, seconds: float) -> None:
        self.given += 1
        assert seconds + GRACE_SECONDS <= LONGEST_SECONDS
        said = {"command": "run_check", "id": self.given, "auth_token": TOKEN, "agent": "x", "check": "y"}
        self.commands[who].add(self.given)
        self.broker.send(who, "MANAGEMENTREQ", {**said, "timeout": seconds, "recheck": recheck})
        self.listen()

    @rule(who=backends, names=st.sets(st.sampled_from(SERVICES)), slots=st.integers(1, 3))
    def ready(self, who: str, names: set[str], slots: int) -> None:
        self.broker.join(who, *names, slots=slots)
        self.listen()

    @precondition(lambda self: any(self.held.values()))
    @rule(how=st.sampled_from(["REPLY", "PARTIAL", "ERROR"]), code=st.sampled_from([404, 500]), data=st.data())
    def answer(self, how: str, code: int, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from([name for name in BACKENDS if self.held[name]]))
        id_ = data.draw(st.sampled_from(sorted(self.held[who])))
        if how != "PARTIAL":
            del self.held[who][id_]
        self.broker.send(who, how, {"id": id_, "code": code}, b"1")
        self.listen()

    @rule(who=backends)
    def leave(self, who: str) -> None:
        self.broker.exchange(who, "DISCONNECT")
        self.held[who].clear()
        self.listen()

    @rule(who=frontends)
    def frontend_leaves(self, who: str) -> None:
        if self.broker.machine.connections.find("frontend", who.encode()) is not None:
            self.broker.exchange(who, "CHECKCONFIG", {"identity": who})
        self.broker.exchange(who, "DISCONNECT")
        self.open[who].clear()
        self.commands[who].clear()
        self.listen()

    @rule(who=st.sampled_from(FRONTENDS + BACKENDS))
    def does_not_read(self, who: str) -> None:
        connection = self.broker.machine.connections.find(who.partition("-")[0], who.encode())
        if connection is not None:
            effects = Effects()
            self.broker.machine.overflow(connection, self.broker.now, effects)
            self.broker.host.finish(effects)
            self.open.get(who, set()).clear()
            self.commands.get(who, set()).clear()
            self.held.get(who, {}).clear()
            self.listen()

    @rule(who=backends)
    def connection_breaks(self, who: str) -> None:
        """The socket could not deliver; the backend comes back by itself, without what it held."""
        connection = self.broker.machine.connections.find("backend", who.encode())
        if connection is not None and connection.member is not None and connection.member.backend is not None:
            self.broker.break_connection(who)
            self.listen()
            self.held[who].clear()
            self.broker.join(who, "a", slots=1)
            self.listen()

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, LONGEST_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.broker.pass_time(seconds)
        self.listen()

    @invariant()
    def the_books_are_right(self) -> None:
        machine = self.broker.machine
        assert_charged(machine)
        for backend in machine.scheduler.backends:
            assert backend.busy == len(backend.held) >= 0
        assert set(machine.requests.under_way) == {id_ for b in machine.scheduler.backends for id_ in b.held}
        for name in FRONTENDS:
            connection = machine.connections.find("frontend", name.encode())
            outstanding = set(connection.outstanding if connection else ())
            commands = {id_ for id_ in outstanding if isinstance(id_, tuple)}
            assert self.open[name] == outstanding - commands
            assert len(self.commands[name]) == len(commands)
        for service in SERVICES:
            assert (
                len(machine.requests.queues.get(service, ()))
                <= 4 + sum(len(b.held) for b in machine.scheduler.backends) + 12
            )

    def teardown(self) -> None:
        """Whatever happened: in the end everybody was answered, and every slot is free."""
        self.broker.pass_time(LONGEST_SECONDS + 1)
        self.listen()
        assert not any(self.open.values()), self.open
        assert not any(self.commands.values()), self.commands
        self.broker.pass_time(ABANDONED_SLOT_SECONDS + 1)
        machine = self.broker.machine
        assert not machine.requests.under_way
        assert all(backend.busy == 0 for backend in machine.scheduler.backends)
        assert machine.requests.deadline() is None
        assert not machine.requests.queues


TestExchange = Exchange.TestCase
TestExchange.settings = examples(120, stateful_step_count=30)


def test_a_slot_that_nobody_waits_for_is_free_when_the_backend_answers(broker):
    broker.join("backend-1", "a")
    broker.exchange("frontend-1", "REQUEST", {"service": "a", "id": 1, "timeout": 1})
    id_ = broker.received("backend-1")[0][1]["id"]
    broker.exchange("frontend-1", "CHECKCONFIG")
    broker.exchange("frontend-1", "DISCONNECT")
    (backend,) = broker.machine.scheduler.backends
    assert backend.busy == 1
    broker.exchange("backend-1", "REPLY", {"id": id_})
    assert backend.busy == 0


# Promise: REQ-4
def test_a_slot_that_nobody_waits_for_is_not_lost_for_ever():
    broker = FakeBroker(default_heartbeat_interval=10_000.0)
    broker.join("backend-1", "a")
    broker.exchange("frontend-1", "REQUEST", {"service": "a", "id": 1, "timeout": 1})
    broker.pass_time(2)
    assert broker.received("frontend-1")[0][1]["code"] == 504
    (backend,) = broker.machine.scheduler.backends
    assert backend.busy == 1
    broker.pass_time(ABANDONED_SLOT_SECONDS + 1)
    assert backend.busy == 0


def test_answers_move_with_a_client_and_each_id_is_answered_once(broker):
    broker.join("backend-1", "a", slots=5)
    broker.exchange("frontend-old", "CHECKCONFIG", {"identity": "me"})
    for id_ in (1, 2):
        broker.exchange("frontend-old", "REQUEST", {"service": "a", "id": id_}, b"old")
    broker.exchange("frontend-new", "REQUEST", {"service": "a", "id": 2}, b"new")
    broker.exchange("frontend-new", "CHECKCONFIG", {"identity": "me"})
    broker.received("frontend-new")
    for _, options, bodies in broker.received("backend-1"):
        broker.exchange("backend-1", "REPLY", {"id": options["id"]}, *bodies)
    told = [(options["id"], bodies) for _, options, bodies in broker.received("frontend-new")]
    assert sorted(told) == [(1, [b"old"]), (2, [b"new"])]
    (backend,) = broker.machine.scheduler.backends
    assert backend.busy == 0
    broker.pass_time(60)
    assert broker.received("frontend-new") == []


def test_parts_kept_for_a_req_socket_are_forgotten_with_their_request(broker):
    broker.join("backend-1", "a")
    broker.send_frames("frontend-1", [b"", b"SCALE0/1", b"REQUEST", b'{"service":"a","id":1,"timeout":1}'])
    id_ = broker.received("backend-1")[0][1]["id"]
    broker.exchange("backend-1", "PARTIAL", {"id": id_}, b"x" * 1_000)
    broker.pass_time(2)
    assert not broker.connection("frontend-1").outstanding
    assert broker.machine.requests.memory.used == 0


@pytest.mark.parametrize("busy", [False, True])
def test_retried_work_goes_before_work_that_came_later(broker, busy):
    broker.join("backend-1", "a")
    broker.exchange("frontend-1", "REQUEST", {"service": "a", "id": 1, "retry": True}, b"first")
    if busy:
        broker.exchange("frontend-1", "REQUEST", {"service": "a", "id": 2}, b"second")
    broker.exchange("backend-1", "DISCONNECT")
    broker.join("backend-2", "a")
    assert broker.received("backend-2")[0][2] == [b"first"]


# Promise: REQ-7
def test_the_timeout_of_a_policy_may_be_longer_than_a_request_may_have_because_it_is_also_that_of_tasks(broker):
    broker.manage("patch_config", set={"services": [{"name": "echo", "timeout": 20 * 86_400.0}]})
    broker.join("backend-1", "echo", heartbeat_interval=86_400)
    broker.send("frontend-1", "REQUEST", {"service": "echo", "id": 1})
    assert [message.command for message in broker.received("backend-1")] == ["REQUEST"]
    (request,) = broker.connection("frontend-1").outstanding.values()
    assert request.deadline == broker.mono + 86_400.0


def test_a_policy_of_the_network_document_gives_timeout_retry_and_limit(broker):
    policy = {"name": "a", "timeout": 0.5, "retry": True, "request_queue_limit": 1}
    broker.manage("patch_config", set={"services": [policy]})
    broker.exchange("frontend-1", "REQUEST", {"service": "a", "id": 1})
    assert broker.exchange("frontend-1", "REQUEST", {"service": "a", "id": 2})[0][1]["code"] == 429
    broker.pass_time(0.6)
    assert broker.received("frontend-1")[0][1]["code"] == 404
    broker.join("backend-1", "a")
    broker.exchange("frontend-1", "REQUEST", {"service": "a", "id": 3})
    broker.exchange("backend-1", "DISCONNECT")
    broker.join("backend-2", "a")
    assert broker.received("backend-2")[0][0] == "REQUEST"


# Promise: REQ-2
def test_a_repeated_id_at_a_draining_broker_is_a_repetition():
    broker = FakeBroker()
    broker.join("backend-w", "s")
    said = {"service": "s", "id": "r1", "timeout": 30}
    broker.send("frontend-f", "REQUEST", said, "hello")
    [request] = broker.received("backend-w", "REQUEST")
    assert broker.manage("drain").code == 200
    broker.send("frontend-f", "REQUEST", said, "hello")
    assert [one.command for one in broker.received("frontend-f") if one.command == "ERROR"] == []
    broker.send("frontend-f", "REQUEST", {**said, "id": "r2"}, "hello")
    [refused] = broker.received("frontend-f", "ERROR")
    assert (refused.options["id"], refused.options["code"]) == ("r2", 503)
    broker.send("backend-w", "REPLY", {"id": request.options["id"]}, "done")
    assert [one.options["id"] for one in broker.received("frontend-f", "REPLY")] == ["r1"]
