"""Batches of requests mean what their requests mean one by one: the same broker with and without them, side by side."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scale0.broker.core.request_batches import MAX_BATCHES
from scale0.broker.core.requests import ABANDONED_SLOT_SECONDS
from scale0.broker.core.scheduler import Scheduler
from scale0.kernel.effects import Effects, Message
from scale0.kernel.limits import Limits
from scale0.kernel.rate_window import RateWindow
from scale0.transport.core import codec
from scale0.transport.core.codec import Codec, encode_all
from scale0.transport.core.command_table import COMMANDS, RULES, TO_CLIENTS, TO_CLIENTS_HOT
from scale0.transport.core.messages import ManyReplies
from scale0.transport.core.request_batches import (
    LEAST_MESSAGE_BYTES,
    MAX_JOINED_BYTES,
    MAX_REQUESTS,
    joined,
    number_of,
    separated,
)
from scale0.transport.core.sockets import JOINING
from tests.fakes.broker import FakeBroker
from tests.fakes.examples import examples
from tests.fakes.request_memory import assert_charged

LIMITS = Limits()
FRONTENDS = ("frontend-1", "frontend-2")
BACKENDS = ("backend-1", "backend-2", "backend-3")
SERVICES = ("a", "b")
CLIENT = Codec(TO_CLIENTS, TO_CLIENTS_HOT, COMMANDS, LIMITS)
BROKER = Codec(
    {rule.command: rule.schema for rule in RULES if "frontend" in rule.sockets},
    {rule.command for rule in RULES if rule.hot},
    COMMANDS,
    LIMITS,
    {rule.command for rule in RULES if rule.alone},
)

frontends = st.sampled_from(FRONTENDS)
backends = st.sampled_from(BACKENDS)
pack = msgspec.msgpack.encode


class Side:
    """One broker and its clients, which use batches or do not."""

    def __init__(self, with_batches: bool, **config: Any) -> None:
        self.with_batches = with_batches
        self.broker = FakeBroker(default_heartbeat_interval=100_000.0, frontend_idle=100_000.0, **config)
        self.held: dict[str, list[tuple[str, str]]] = {name: [] for name in BACKENDS}
        """By backend: our ids that it has not answered, and the service, in the order of arrival."""
        self.news: list[Any] = []
        """What happened since it was last compared, without the ids of requests."""

    def negotiate(self, who: str) -> None:
        options = {"identity": who, "batch": True, "request_batches": self.with_batches}
        answers = self.broker.exchange(who, "CHECKCONFIG", options)
        assert any(one.options.get("request_batches") for one in answers)

    def join(self, who: str, slots: dict[str, int], total: int) -> None:
        self.negotiate(who)
        names = sorted(slots)
        ready = {"services": names, "config_version": 0, "time": self.broker.now.wall, "slots": total}
        ready["service_slots"] = [slots[name] for name in names]
        ready["holds"] = [(id_, 0) for id_, _ in self.held[who]]
        version = self.broker.connection(who).member.config_version  # type: ignore[union-attr]
        self.broker.send(who, "READY", {**ready, "config_version": version})

    def request(self, who: str, first: int, count: int, **options: Any) -> None:
        bodies = [b"%04d" % number for number in range(first, first + count)]
        if self.with_batches:
            self.broker.send(who, "REQUESTS", {"id": "r.", "first": first, **options}, pack(bodies))
            return
        frames = [
            [codec.MAGIC, b"REQUEST", msgspec.json.encode({"id": f"r.{first + index}", **options}), body]
            for index, body in enumerate(bodies)
        ]
        self.broker.send_frames(who, *frames)

    def reply(self, who: str, count: int) -> None:
        """The backend answers the oldest requests."""
        answered, self.held[who] = self.held[who][:count], self.held[who][count:]
        messages: list[Message] = [("REPLY", {"id": id_}, b"done") for id_, _ in answered]
        frames = [frames for frames, _ in encode_all(messages, LIMITS, self.with_batches)]
        self.broker.send_frames(who, *frames)

    def answer(self, who: str, index: int, command: str) -> None:
        """It says something about one of them alone."""
        id_, _ = self.held[who][index]
        if command != "PARTIAL":
            del self.held[who][index]
        self.broker.send(who, command, {"id": id_, "code": 500}, b"alone")

    def listen(self) -> None:
        """Note what the clients received."""
        counts: Counter[Any] = Counter()
        for name in BACKENDS:
            for message in self.broker.received(name):
                if message.command not in ("REQUEST", "REQUESTS"):
                    continue
                ids = ids_of(message)
                self.held[name] += [(id_, message.options["service"]) for id_ in ids]
                counts[name, message.options["service"], round(message.options["timeout"], 6)] += len(ids)
        for name in FRONTENDS:
            for message in self.broker.received(name):
                if message.command in ("REPLY", "REPLIES", "ERROR", "PARTIAL"):
                    command = "REPLY" if message.command == "REPLIES" else message.command
                    counts[name, command, message.code, message.options.get("service")] += len(ids_of(message))
        self.news.append(counts)

    def books(self) -> Any:
        machine = self.broker.machine
        slots = {
            one.identity: (one.busy, {k: v.busy for k, v in one.offerings.items()})
            for one in machine.scheduler.backends
        }
        rows = {name: total.row(name) for name, total in machine.requests.stats.totals().items()}
        accounts = [(c.name, c.waiting_count, c.account.requests.used, c.waiting_bytes) for c in machine.connections]
        waiting = {name: len(queue) for name, queue in machine.requests.queues.items()}
        shares = {name: (s.shares.in_flight, s.shares.most) for name, s in machine.scheduler.services.items()}
        for row in rows.values():
            row["seconds"] = round(row["seconds"], 6)
        assert_charged(machine)
        return slots, rows, sorted(accounts), waiting, machine.requests.in_flight, shares


def ids_of(message: Any) -> list[str]:
    if message.command not in ("REQUESTS", "REPLIES"):
        return [message.options["id"]]
    first = message.options["first"]
    return [
        f"{message.options['id']}{first + index}" for index in range(len(msgspec.msgpack.decode(message.bodies[0])))
    ]


# Promise: REQ-1, REQ-3, REQ-4
class BatchesAndModel(RuleBasedStateMachine):
    """Everything is done to both brokers; what each client receives, and all books, must be the same."""

    def __init__(self) -> None:
        super().__init__()
        config = {"request_queue_limit": 9, "max_outstanding": 12, "max_requests_per_second": 40}
        self.sides = [Side(with_batches, **config) for with_batches in (True, False)]
        self.next = 0
        for side in self.sides:
            for name in FRONTENDS:
                side.negotiate(name)
            side.join("backend-1", {"a": 6, "b": 4}, 8)
            side.join("backend-2", {"a": 5}, 5)

    def compare(self) -> None:
        for side in self.sides:
            side.listen()
        with_batches, model = self.sides
        assert with_batches.news[-1] == model.news[-1]

    @rule(
        who=backends,
        slots=st.dictionaries(st.sampled_from(SERVICES), st.integers(1, 6), min_size=1),
        total=st.integers(1, 8),
    )
    def join(self, who: str, slots: dict[str, int], total: int) -> None:
        for side in self.sides:
            side.join(who, slots, total)
        self.compare()

    @rule(
        who=frontends,
        count=st.integers(1, 12),
        service=st.sampled_from(SERVICES),
        retry=st.booleans(),
        timeout=st.sampled_from([0.5, 5.0, 50.0]),
    )
    def request(self, who: str, count: int, service: str, retry: bool, timeout: float) -> None:
        for side in self.sides:
            side.request(who, self.next, count, service=service, retry=retry, timeout=timeout)
        self.next += count
        self.compare()

    @precondition(lambda self: any(self.sides[1].held.values()))
    @rule(data=st.data(), count=st.integers(1, 8))
    def reply(self, data: st.DataObject, count: int) -> None:
        who = data.draw(st.sampled_from([name for name in BACKENDS if self.sides[1].held[name]]))
        for side in self.sides:
            side.reply(who, count)
        self.compare()

    @precondition(lambda self: any(self.sides[1].held.values()))
    @rule(data=st.data(), command=st.sampled_from(["REPLY", "ERROR", "PARTIAL"]))
    def answer_one(self, data: st.DataObject, command: str) -> None:
        who = data.draw(st.sampled_from([name for name in BACKENDS if self.sides[1].held[name]]))
        for side in self.sides:
            side.answer(who, 0, command)
        self.compare()

    @rule(who=backends)
    def leave(self, who: str) -> None:
        for side in self.sides:
            side.broker.exchange(who, "DISCONNECT")
            side.held[who].clear()
        self.compare()

    @rule(who=backends)
    def lose(self, who: str) -> None:
        """Its connection breaks, and it comes back without its work."""
        connection = self.sides[0].broker.machine.connections.find("backend", who.encode())
        if connection is None or connection.member is None or connection.member.backend is None:
            return
        for side in self.sides:
            side.broker.break_connection(who)
            side.held[who].clear()
            side.listen()
            side.join(who, {"a": 3}, 3)
        self.compare()

    @rule(who=frontends)
    def go(self, who: str) -> None:
        for side in self.sides:
            side.broker.exchange(who, "DISCONNECT")
            side.negotiate(who)
        self.compare()

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 60.0]))
    def wait(self, seconds: float) -> None:
        for side in self.sides:
            side.broker.pass_time(seconds)
        self.compare()

    @invariant()
    def the_books_are_the_same(self) -> None:
        with_batches, model = self.sides
        assert with_batches.books() == model.books()

    def teardown(self) -> None:
        for side in self.sides:
            side.broker.pass_time(60.0)
            side.broker.pass_time(ABANDONED_SLOT_SECONDS + 1)
            machine = side.broker.machine
            assert not machine.requests.in_flight
            assert not any(connection.awaits for connection in machine.connections)
            assert machine.requests.deadline() is None
            assert machine.requests.memory.used == 0


TestBatchesAndModel = BatchesAndModel.TestCase
TestBatchesAndModel.settings = examples(60, stateful_step_count=40, deadline=None)


def network(**config: Any) -> Side:
    side = Side(True, **config)
    side.negotiate("frontend-1")
    side.join("backend-1", {"a": 50}, 50)
    side.broker.received("backend-1")
    return side


def test_a_batch_that_one_backend_can_serve_passes_as_one_message_there_and_back() -> None:
    side = network()
    side.request("frontend-1", 7, 20, service="a")
    given = side.broker.received("backend-1")
    assert [one.command for one in given] == ["REQUESTS"]
    assert msgspec.msgpack.decode(given[0].bodies[0]) == [b"%04d" % number for number in range(7, 27)]
    assert side.broker.machine.requests.in_flight == 20
    answer = {"id": given[0].options["id"], "first": given[0].options["first"]}
    side.broker.send("backend-1", "REPLIES", answer, pack([b"x"] * 20))
    received = side.broker.received("frontend-1")
    assert [(one.command, one.options["id"], one.options["first"]) for one in received] == [("REPLIES", "r.", 7)]
    assert side.broker.machine.requests.in_flight == 0


def test_parts_of_a_batch_are_answered_in_any_order_and_once() -> None:
    side = network()
    side.request("frontend-1", 0, 10, service="a")
    (given,) = side.broker.received("backend-1")
    text, first = given.options["id"], given.options["first"]
    for index, count in ((6, 4), (0, 3), (6, 4), (2, 2), (3, 3)):
        answer = {"id": text, "first": first + index}
        side.broker.send("backend-1", "REPLIES", answer, pack([b"%d" % (index + n) for n in range(count)]))
    answers = []
    for one in side.broker.received("frontend-1"):
        bodies = msgspec.msgpack.decode(one.bodies[0]) if one.command == "REPLIES" else one.bodies
        answers += list(zip(ids_of(one), bodies, strict=True))
    assert sorted(answers) == [(f"r.{number}", b"%d" % number) for number in range(10)]
    assert side.broker.machine.requests.in_flight == 0


def test_replies_to_two_batches_in_one_message_stay_batches() -> None:
    side = network()
    side.request("frontend-1", 0, 4, service="a")
    side.request("frontend-1", 10, 6, service="a")
    first = side.broker.received("backend-1")[0].options
    answer = {"id": first["id"], "first": first["first"] + 1}
    side.broker.send("backend-1", "REPLIES", answer, pack([b"%d" % number for number in range(7)]))
    one, other = side.broker.received("frontend-1")
    assert (one.options["first"], other.options["first"]) == (1, 10)
    assert msgspec.msgpack.decode(one.bodies[0]) == [b"0", b"1", b"2"]
    assert msgspec.msgpack.decode(other.bodies[0]) == [b"3", b"4", b"5", b"6"]
    assert side.broker.machine.requests.in_flight == 3


def test_requests_that_may_run_twice_are_given_to_another_backend_when_theirs_dies() -> None:
    side = network()
    side.request("frontend-1", 0, 4, service="a", retry=True, timeout=30)
    side.request("frontend-1", 4, 3, service="a", timeout=30)
    side.join("backend-2", {"a": 9}, 9)
    side.broker.received("backend-2")
    side.broker.exchange("backend-1", "DISCONNECT")
    given = side.broker.received("backend-2")
    assert sum(len(ids_of(one)) for one in given if one.command in ("REQUEST", "REQUESTS")) == 4
    assert [one.code for one in side.broker.received("frontend-1", "ERROR")] == [502] * 3


# Promise: REQ-2
def test_an_id_that_could_be_divided_in_two_ways_is_refused() -> None:
    side = network()
    for options in ({"id": "r1", "first": 0}, {"id": "7", "first": 1}, {"id": "r.", "first": 10**15 - 2}):
        side.broker.send("frontend-1", "REQUESTS", {**options, "service": "a"}, pack([b"1", b"2"]))
        assert side.broker.received("frontend-1")[-1].code == 400
    side.broker.send("frontend-1", "REQUESTS", {"id": "", "first": 1, "service": "a"}, pack([b"1", b"2"]))
    assert [one.command for one in side.broker.received("backend-1")] == ["REQUESTS"]
    for options in ({"id": "r1", "first": 0}, {"id": "r.", "first": 10**15 - 2}):
        side.broker.send("backend-1", "REPLIES", options, pack([b"1", b"2"]))
        assert side.broker.received("backend-1", "DISCONNECTERROR")[-1].code == 400


# Promise: WIRE-5
def test_an_array_of_replies_is_refused_by_its_header() -> None:
    side = network()
    many = b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\xc4\x00" * 1_000_000
    tracemalloc.start()
    side.broker.send("backend-1", "REPLIES", {"id": "x.", "first": 1}, many)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [one.code for one in side.broker.received("backend-1")] == [413]
    assert most < 10_000_000
    assert separated(ManyReplies("x.", 1), [many]) == []


# Promise: FAIR-1
def test_a_client_has_a_limited_number_of_batches() -> None:
    side = network()
    side.join("backend-2", {"a": 5_000}, 5_000)
    for number in range(MAX_BATCHES + 50):
        side.request("frontend-1", 10 * number, 3, service="a", timeout=50)
    connection = side.broker.connection("frontend-1")
    assert len(connection.batches) <= MAX_BATCHES
    assert connection.waiting_count == 3 * (MAX_BATCHES + 50)
    assert all(len(backend.batches) <= MAX_BATCHES + 1 for backend in side.broker.machine.scheduler.backends)


def test_retried_requests_keep_their_order() -> None:
    side = network()
    side.request("frontend-1", 0, 4, service="a", retry=True, timeout=30)
    side.broker.received("backend-1")
    side.broker.exchange("backend-1", "DISCONNECT")
    side.join("backend-2", {"a": 9}, 9)
    given = side.broker.received("backend-2")
    bodies = [one.bodies[0] for one in given if one.command == "REQUEST"]
    assert bodies == [b"0000", b"0001", b"0002", b"0003"]


# Promise: LIVE-4
def test_a_backend_names_more_work_than_fits_into_the_options() -> None:
    side = network()
    side.join("backend-1", {"a": 5_000}, 5_000)
    for number in range(40):
        side.request("frontend-1", 100 * number, 100, service="a", timeout=50)
    side.listen()
    holds = [(id_, 0) for id_, _ in side.held["backend-1"]]
    assert len(holds) == 4_000
    side.broker.break_connection("backend-1")
    side.broker.exchange("backend-1", "CHECKCONFIG", {"identity": "backend-1", "request_batches": True})
    version = side.broker.connection("backend-1").member.config_version  # type: ignore[union-attr]
    ready = {"services": ["a"], "config_version": version, "slots": 5_000}
    side.broker.send("backend-1", "READY", ready, pack(holds[:3_990]))
    assert side.broker.received("backend-1", "READYOK")
    assert side.broker.machine.requests.in_flight == 3_990
    assert [one.code for one in side.broker.received("frontend-1", "ERROR")] == [502] * 10


@pytest.mark.parametrize(("body", "code"), [(b"\xc0", 400), (b"\x91\x01", 400), (b"\xdd" * 1_100_000, 413)])
def test_a_malformed_list_of_work_is_refused(body: bytes, code: int) -> None:
    side = network()
    version = side.broker.connection("backend-1").member.config_version  # type: ignore[union-attr]
    side.broker.send("backend-1", "READY", {"services": ["a"], "config_version": version}, body)
    assert [one.code for one in side.broker.received("backend-1", "DISCONNECTERROR")] == [code]


def test_nobody_else_answers_a_batch() -> None:
    side = network()
    side.join("backend-2", {"b": 5}, 5)
    side.request("frontend-1", 0, 5, service="a")
    given = side.broker.received("backend-1")[-1]
    answer = {"id": given.options["id"], "first": given.options["first"]}
    side.broker.send("backend-2", "REPLIES", answer, pack([b"x"] * 5))
    side.broker.send("backend-1", "REPLIES", {**answer, "id": "other."}, pack([b"x"] * 5))
    side.broker.send("backend-1", "REPLIES", {**answer, "first": answer["first"] + 5}, pack([b"x"] * 5))
    assert not side.broker.received("frontend-1", "REPLY", "REPLIES")
    assert side.broker.machine.requests.in_flight == 5


def test_a_backend_that_knows_no_batches_gets_requests() -> None:
    side = network()
    side.with_batches = False
    side.join("backend-2", {"b": 20}, 20)
    side.broker.received("backend-2")
    side.with_batches = True
    side.request("frontend-1", 0, 5, service="b")
    assert [one.command for one in side.broker.received("backend-2")] == ["REQUEST"] * 5


def test_a_client_that_negotiated_no_batches_gets_replies_one_by_one() -> None:
    side = network()
    side.broker.send("frontend-2", "REQUESTS", {"id": "r.", "first": 0, "service": "a"}, pack([b"1", b"2"]))
    given = side.broker.received("backend-1")
    assert [one.command for one in given] == ["REQUEST"] * 2
    for one in given:
        side.broker.send("backend-1", "REPLY", {"id": one.options["id"]}, b"x")
    assert [one.command for one in side.broker.received("frontend-2")] == ["REPLY"] * 2


def test_a_batch_that_was_never_sent_goes_to_another_backend() -> None:
    side = network()
    side.broker.disconnected.add("backend-1")
    side.request("frontend-1", 0, 5, service="a", timeout=30)
    side.join("backend-2", {"a": 9}, 9)
    given = side.broker.received("backend-2")
    assert sum(len(ids_of(one)) for one in given if one.command in ("REQUEST", "REQUESTS")) == 5


def test_repeated_ids_are_ignored_as_for_single_requests() -> None:
    side = network()
    side.request("frontend-1", 0, 5, service="a")
    side.request("frontend-1", 3, 4, service="a")
    side.broker.send("frontend-1", "REQUEST", {"id": "r.2", "service": "a"}, b"again")
    given = side.broker.received("backend-1")
    assert sum(len(ids_of(one)) for one in given) == 7
    assert side.broker.machine.state.counters["requests_repeated"] == 3


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc0", pack([]), pack(["text"]), pack([1, 2]), pack([b"x"])[:-1], pack([b"x"]) + b"\0", pack({"a": 1})],
)
def test_a_malformed_batch_is_refused_and_costs_nothing(body: bytes) -> None:
    side = network()
    side.broker.send("frontend-1", "REQUESTS", {"id": "r.", "first": 0, "service": "a"}, body)
    assert [one.command for one in side.broker.received("frontend-1")] == ["DISCONNECTERROR"]
    assert side.broker.machine.requests.in_flight == 0
    side.request("frontend-1", 0, 2, service="a")
    (given,) = side.broker.received("backend-1")
    answer = {"id": given.options["id"], "first": given.options["first"]}
    side.broker.send("backend-1", "REPLIES", answer, body)
    assert [one.command for one in side.broker.received("backend-1")][-1:] in ([], ["DISCONNECTERROR"])


# Promise: CURVE-18
@pytest.mark.parametrize(
    ("who", "command"), [("frontend-1", "REQUESTS"), ("backend-1", "REPLIES")], ids=["requests", "replies"]
)
def test_a_batch_is_not_allowed_in_a_batch_nor_over_the_limit(who: str, command: str) -> None:
    side = network()
    options = {"id": "r.", "first": 0, "service": "a"}
    packed = pack([["HEARTBEAT", {}], [command, options, pack([b"x"])]])
    side.broker.send_frames(who, [codec.MAGIC, b"BATCH", b"", packed])
    told = side.broker.received(who)
    assert [(one.command, one.code) for one in told] == [("HEARTBEAT", None), ("DISCONNECTERROR", 403)]
    assert "replies_unknown" not in side.broker.machine.state.counters
    side.broker.send(who, command, options, pack([b"x"] * (MAX_REQUESTS + 1)))
    assert side.broker.received(who)[0].code == 413
    assert not side.broker.received("backend-1", "REQUEST", "REQUESTS")


def python_calls(do: Callable[[], None]) -> int:
    """How many functions of Python this calls: a cost that is the same on every machine."""
    calls = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
    return calls


# Promise: CURVE-18
@pytest.mark.parametrize("text", ["prefix", "other."])
@pytest.mark.parametrize("where", ["above", "between"])
def test_replies_to_unknown_requests_cost_about_as_much_as_one(text: str, where: str) -> None:
    side = network()
    side.join("backend-1", {"a": 5_000}, 5_000)
    for number in range(MAX_BATCHES):
        side.request("frontend-1", 2 * number, 2, service="a", timeout=50)
    requests, first = side.broker.machine.requests, 10**9
    if where == "between":
        first = requests.take_numbers(MAX_REQUESTS)
        side.negotiate("frontend-2")
        side.request("frontend-2", 0, 2, service="a", timeout=50)
    options = {"id": requests.prefix if text == "prefix" else text, "first": first}
    one = python_calls(lambda: side.broker.send("backend-1", "REPLY", {"id": f"{options['id']}999999999"}, b""))
    many = python_calls(lambda: side.broker.send("backend-1", "REPLIES", options, pack([b""] * MAX_REQUESTS)))
    assert many < one + 15
    assert side.broker.machine.state.counters["replies_unknown"] == 1 + MAX_REQUESTS
    assert not side.broker.received("backend-1", "DISCONNECTERROR")


def test_replies_to_requests_in_batches_alone_and_unknown_in_one_message() -> None:
    side = network()
    side.request("frontend-1", 0, 6, service="a")
    side.broker.send("frontend-1", "REQUEST", {"service": "a", "id": "alone"}, b"x")
    side.broker.send("frontend-1", "REQUEST", {"service": "gone", "id": "waits", "timeout": 9}, b"x")
    side.request("frontend-1", 10, 5, service="a")
    given = side.broker.received("backend-1")[0].options
    answer = {"id": given["id"], "first": given["first"] + 2}
    side.broker.send("backend-1", "REPLIES", answer, pack([b"early"] * 2))
    side.broker.send("backend-1", "REPLIES", {**answer, "first": 0}, pack([b"%d" % index for index in range(20)]))
    found: list[tuple[str, bytes]] = []
    for one in side.broker.received("frontend-1"):
        bodies = msgspec.msgpack.decode(one.bodies[0]) if one.command == "REPLIES" else one.bodies
        found += zip(ids_of(one), bodies, strict=True)
    early = [("r.2", b"early"), ("r.3", b"early")]
    first = [("r.0", b"1"), ("r.1", b"2"), ("r.4", b"5"), ("r.5", b"6"), ("alone", b"7")]
    assert found == [*early, *first, *((f"r.{10 + index}", b"%d" % (9 + index)) for index in range(5))]
    assert side.broker.machine.requests.in_flight == 0
    assert side.broker.machine.state.counters["replies_unknown"] == 20 - 10


# Promise: REQ-1
def test_each_request_of_a_batch_that_is_too_big_is_answered() -> None:
    side = network(max_message_bytes=LEAST_MESSAGE_BYTES)
    bad = side.broker.connection("frontend-1").account.bad
    options = {"id": "r.", "first": 7, "service": "a"}
    side.broker.send("frontend-1", "REQUESTS", options, pack([b"x" * 150_000] * 3))
    told = side.broker.received("frontend-1")
    assert [(one.command, one.options["id"], one.code) for one in told] == [("ERROR", f"r.{n}", 413) for n in (7, 8, 9)]
    side.request("frontend-1", 0, 4, service="a")
    given = side.broker.received("backend-1")[0].options
    side.broker.send("backend-1", "REPLIES", {"id": given["id"], "first": given["first"]}, pack([b"x" * 150_000] * 3))
    told = side.broker.received("frontend-1")
    assert [(one.command, one.options["id"], one.code) for one in told] == [("ERROR", f"r.{n}", 413) for n in (0, 1, 2)]
    assert side.broker.machine.requests.in_flight == 1
    assert not side.broker.received("backend-1")
    assert not bad.used


# Promise: WIRE-5
@pytest.mark.parametrize("many", [pack([]), b"\xdd\xff\xff\xff\xff", b"\xc0"])
def test_a_batch_that_is_too_big_and_no_array_of_requests_is_refused_as_one(many: bytes) -> None:
    side = network(max_message_bytes=LEAST_MESSAGE_BYTES)
    for who, command in (("frontend-1", "REQUESTS"), ("backend-1", "REPLIES")):
        side.broker.send(who, command, {"id": "r.", "first": 7, "service": "a"}, many + b"x" * LEAST_MESSAGE_BYTES)
        told = side.broker.received(who)
        assert [(one.command, one.code) for one in told] == [("DISCONNECTERROR", 413)]


# Promise: REQ-1
def test_each_request_of_a_batch_is_answered_by_a_broker_that_does_not_serve() -> None:
    side = network()
    side.broker.machine.state.state = JOINING
    side.request("frontend-1", 7, 3, service="a")
    told = side.broker.received("frontend-1")
    assert [(one.options["id"], one.code, one.options["unrun"]) for one in told] == [
        (f"r.{number}", 503, True) for number in (7, 8, 9)
    ]
    side.broker.send("frontend-1", "REQUESTS", {"id": "r.", "first": 0, "service": "a"}, b"\xc0")
    assert [(one.command, one.code) for one in side.broker.received("frontend-1")] == [("DISCONNECTERROR", 503)]


@pytest.mark.parametrize("room", [-1, 0])
def test_a_broker_whose_messages_hold_less_than_clients_join_accepts_no_batches(room: int) -> None:
    broker = FakeBroker(max_message_bytes=LEAST_MESSAGE_BYTES + room)
    for who in ("frontend-1", "frontend-2"):
        (config,) = broker.exchange(who, "CHECKCONFIG", {"identity": who, "request_batches": True})
        known = {"config_version": config.options["config_version"], "config_hash": config.options["config_hash"]}
        (ack,) = broker.exchange(who, "CHECKCONFIG", {"identity": who, "request_batches": True, **known})
        assert [one.options.get("request_batches", False) for one in (config, ack)] == [room == 0] * 2


def test_the_largest_message_that_is_joined_fits() -> None:
    service = "\0" * 255
    body = b"x" * (MAX_JOINED_BYTES // MAX_REQUESTS)
    many: list[Any] = [("REQUEST", {"service": service, "id": f"{'r' * 110}{n}"}, body) for n in range(100, 200)]
    ((frames, count),) = encode_all(many, LIMITS, request_batches=True)
    assert count == MAX_REQUESTS
    assert MAX_JOINED_BYTES < sum(map(len, frames)) < LEAST_MESSAGE_BYTES


def test_a_client_that_does_not_read_leaves_no_batch_behind() -> None:
    side = network()
    side.request("frontend-1", 0, 5, service="a")
    effects = Effects()
    side.broker.machine.overflow(side.broker.connection("frontend-1"), side.broker.now, effects)
    side.broker.host.finish(effects)
    assert not any(backend.batches for backend in side.broker.machine.scheduler.backends)


# The scheduler, the rate window and the codec.


@given(offers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5), data=st.data())
def test_taking_many_slots_is_taking_them_one_by_one(offers: list[tuple[int, int]], data: st.DataObject) -> None:
    one, other = Scheduler(), Scheduler()
    for scheduler in (one, other):
        for number, (slots, total) in enumerate(offers):
            peer: Any = object()
            scheduler.change(
                scheduler.enter(f"b{number}", peer), {"a": slots, "b": 2} if slots else {"b": 2}, total, 0.0
            )
    for _ in range(4):
        count = data.draw(st.integers(1, 9))
        many = {backend.identity: number for backend, number in one.take_many("a", count)}
        each = Counter(backend.identity for _ in range(count) if (backend := other.take("a")) is not None)
        assert many == each
        first, second = one.take("b"), other.take("b")
        assert (first and first.identity) == (second and second.identity)
        for backend in sorted(one.backends, key=lambda found: found.serial):
            twin = next(found for found in other.backends if found.serial == backend.serial)
            busy = backend.offerings["a"].busy if "a" in backend.offerings else 0
            freed = data.draw(st.integers(0, busy))
            if freed:
                one.give_back(backend, "a", freed)
                for _each in range(freed):
                    other.give_back(twin, "a")
            assert (backend.busy, backend.stamp > 0) == (twin.busy, twin.stamp > 0)


@given(steps=st.lists(st.tuples(st.integers(1, 9), st.floats(0, 3)), max_size=20))
def test_several_uses_of_a_rate_window_count_as_one_by_one(steps: list[tuple[int, float]]) -> None:
    one, other = RateWindow(), RateWindow()
    now = 0.0
    for count, seconds in steps:
        now += seconds
        allowed = one.spend_each(count, 10, 1.0, now) or sum(one.spend(1, 10, 1.0, now) for _ in range(count))
        assert (count if allowed is True else allowed) == sum(other.spend(1, 10, 1.0, now) for _ in range(count))
        assert one.used == other.used


ids = st.one_of(
    st.builds(lambda text, number: f"{text}{number}", st.sampled_from(["", "r.", "x7.", "0"]), st.integers(0, 12)),
    st.sampled_from(["r.007", "r.", "", "r.-1", "\u0661"]),
    st.integers(0, 5),
)
requests = st.builds(
    lambda id_, service, timeout, bodies: ("REQUEST", {"service": service, "id": id_, "timeout": timeout}, *bodies),
    *(ids, st.sampled_from("ab"), st.sampled_from([1.0, 2.0]), st.lists(st.binary(max_size=3), max_size=2)),
)
replies = st.builds(
    lambda id_, bodies: ("REPLY", {"id": id_}, *bodies), ids, st.lists(st.binary(max_size=3), max_size=2)
)


@examples(300)
@given(st.lists(st.one_of(requests, replies, st.just(("HEARTBEAT", {})), st.just([b"{}"])), max_size=30))
def test_what_is_joined_is_separated_into_the_same_messages(messages: list[Any]) -> None:
    assert sum(count for _, count in joined(messages)) == len(messages)
    read: list[Any] = []
    for frames, count in encode_all(messages, LIMITS, request_batches=True):
        if frames == [b"{}"]:
            read.append(frames)
            continue
        found: list[Any] = []
        for command, settings, bodies in CLIENT.messages(frames):
            if command in ("REQUESTS", "REPLIES"):
                name = "REQUEST" if command == "REQUESTS" else "REPLY"
                found += [(name, SimpleNamespace(id=id_), (body,)) for id_, body in separated(settings, bodies)]
            else:
                found.append((command, settings, bodies))
        assert len(found) == count
        read += found
    expected = [message if isinstance(message, list) else tuple(message) for message in messages]
    assert [one if isinstance(one, list) else (one[0], *one[2]) for one in read] == [
        one if isinstance(one, list) else (one[0], *one[2:]) for one in expected
    ]
    known = [one[1].id for one in read if not isinstance(one, list) and one[0] in ("REQUEST", "REPLY")]
    assert known == [one[1]["id"] for one in expected if not isinstance(one, list) and one[0] in ("REQUEST", "REPLY")]


def test_consecutive_requests_and_replies_leave_as_one_message() -> None:
    many: list[Any] = [("REPLY", {"id": f"r.{number}"}, b"x") for number in range(5, 5 + MAX_REQUESTS + 3)]
    assert [count for _, count in joined(many)] == [MAX_REQUESTS, 3]
    gap = many[:4] + many[5:9]
    assert [count for _, count in joined(gap)] == [4, 4]
    assert [count for _, count in joined([*itertools.islice(many, 2), ("HEARTBEAT", {}), *many[2:4]])] == [2, 1, 2]


# Promise: CURVE-18
@pytest.mark.parametrize(("request_batches", "commands"), [(True, ["REPLIES", "BATCH", "REPLIES"]), (False, ["BATCH"])])
def test_joined_replies_leave_alone(request_batches: bool, commands: list[str]) -> None:
    replies: list[Any] = [("REPLY", {"id": f"r.{number}"}, b"x") for number in range(10)]
    beats: list[Any] = [("HEARTBEAT", {}), ("HEARTBEAT", {})]
    sent = list(encode_all([*replies[:5], *beats, *replies[5:]], LIMITS, request_batches))
    assert [frames[1].decode() for frames, _ in sent] == commands
    assert sum(count for _, count in sent) == 12


def test_ready_frames_are_never_packed_and_keep_their_place() -> None:
    one: Message = ("REQUEST", {"id": "1"})
    two: Message = ("HEARTBEAT", {})
    frames = [frames for frames, _ in encode_all([one, [b"[]"], [b"{}"], two, one], LIMITS, request_batches=True)]
    assert frames[1:3] == [[b"[]"], [b"{}"]]
    assert [len(frames), frames[0][1], frames[3][1]] == [4, b"REQUEST", b"BATCH"]


@pytest.mark.parametrize(
    ("id_", "place"),
    [
        ("r.7", ("r.", 7)),
        ("17", ("", 17)),
        ("r.0", ("r.", 0)),
        ("r.07", None),
        ("r.", None),
        (7, None),
        ("r" * 114 + "1", None),
    ],
)
def test_the_number_of_an_id(id_: Any, place: Any) -> None:
    assert number_of(id_) == place
