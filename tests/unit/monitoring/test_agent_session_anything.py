"""Whatever Helen and the network do to an agent's session, it keeps its promises at every step."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.agent.core.effects import Address, Delivered, HelenLost, RunCheck, SessionAccepted, Undelivered
from scale0.monitoring.agent.core.session import ACCEPTED, DOWN, GREETED, MAX_BACKOFF_SECONDS, OPENING, REPORT_WINDOW
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.messages import MAX_INT, AgentMessage
from tests.fakes.examples import examples, seeds
from tests.fakes.simulated_agent import HELEN, OTHER_HELEN, SimulatedAgent

pytestmark = pytest.mark.slow

messages_of_helen = st.one_of(
    st.builds(messages.Check, st.sampled_from(["load", "disk", "é"]), st.integers(0, 5), st.binary(max_size=5)),
    st.just(messages.Reload()),
    st.builds(messages.Error, st.sampled_from(["", "no"])),
    st.builds(messages.Accepted, st.sampled_from([0, 1, 30, MAX_INT])),
    st.builds(messages.Accepted, st.just(30)),
    st.builds(messages.Redirect, st.sampled_from(["a:1", "b:2", "x", "[::1]:5"])),
    st.builds(messages.Ping, st.integers(0, 3)),
    st.builds(messages.Schedule, st.integers(0, 3), st.binary(max_size=5)),
    st.builds(messages.Ack, st.integers(0, 12)),
    st.builds(messages.Ack, st.integers(0, 3)),
    st.builds(messages.File, st.just(1), st.just("a"), st.just(b"")),
)
inputs = st.one_of(
    st.tuples(st.just("says"), st.lists(messages_of_helen, max_size=4)),
    st.tuples(st.just("bytes"), st.binary(max_size=10)),
    st.tuples(st.just("bytes"), st.sampled_from([b"check a 1 5\nab", b"dance\n", b"ack 99\n"])),
    st.tuples(st.just("opened"), st.none()),
    st.tuples(st.just("opened"), st.none()),
    st.tuples(st.just("lost"), st.none()),
    st.tuples(st.just("offer"), st.integers(1, 6)),
    st.tuples(st.just("finish"), st.integers(1, 9)),
    st.tuples(st.just("passes"), st.sampled_from([0.01, 1.0, 29.0, 100.0])),
    st.tuples(st.just("sleeps"), st.sampled_from([1.0, 31.0, 1_000.0])),
    st.tuples(st.just("accepted"), st.none()),
    st.tuples(st.just("accepted"), st.none()),
    st.tuples(st.just("accepted"), st.none()),
    st.tuples(st.just("ack"), st.integers(0, 8)),
    st.tuples(st.just("ack"), st.integers(0, 8)),
    st.tuples(st.just("check"), st.integers(1, 9)),
)
VERSION_1 = (messages.Hello, messages.Result)


class Promises(SimulatedAgent):
    """A story in which every promise is checked at every step."""

    def __init__(self, *places: Address, seed: int) -> None:
        self.owed: set[int] = set()
        self.offered = 0
        self.may_speak_2 = False
        self.asked: set[int] = set()
        self.answers = 0
        super().__init__(*places, seed=seed)

    def step(self, what: str, *values: Any) -> list[Any]:
        known = len(self.sent)
        opens, begin = len(self.opens), self.mono
        updates = super().step(what, *values)
        self.look(updates)
        if len(self.opens) > opens:
            known = 0
            self.may_speak_2 = False
            assert self.mono == begin
        for message in self.sent[known:]:
            assert isinstance(message, VERSION_1) or self.may_speak_2
            if isinstance(message, messages.Result):
                assert message.message_id in self.asked
                self.asked.remove(message.message_id)
                self.answers += 1
        return updates

    def look(self, updates: list[Any]) -> None:
        session = self.session
        for one in updates:
            if isinstance(one, Delivered | Undelivered):
                for token in one.tokens:
                    self.owed.remove(token)  # a KeyError: it was told twice, or never offered
            elif isinstance(one, HelenLost):
                assert self.mono <= one.retry_at <= self.mono + MAX_BACKOFF_SECONDS
            elif isinstance(one, SessionAccepted):
                self.may_speak_2 = True
        unacked = len(self.owed)
        assert unacked == len(session._unacked) <= REPORT_WINDOW
        assert session.room == (REPORT_WINDOW - unacked if session.state == ACCEPTED else 0)
        deadline = session.deadline()
        if session.state in (DOWN, OPENING):
            assert deadline is not None
            assert deadline <= self.mono + MAX_BACKOFF_SECONDS

    def offer(self) -> None:
        self.offered += 1
        self.owed.add(self.offered)
        self.step("offer", "load", b"{}", self.offered)

    def is_lost(self, reason: str = "gone") -> list[Any]:
        updates = super().lose_connection(reason)
        self.look(updates)
        return updates

    def receive(self, *received: AgentMessage) -> list[Any]:
        """Word by message, so that what was asked is known before it is answered."""
        for message in received:
            connected = self.session.state in (GREETED, ACCEPTED)
            for one in super().receive(message):
                if isinstance(one, RunCheck):
                    assert connected
                    assert isinstance(message, messages.Check)
                    self.asked.add(message.message_id)
            if self.session.state not in (GREETED, ACCEPTED):
                self.asked.clear()
        return []


def perform(agent: Promises, what: str, value: Any) -> None:
    match what:
        case "says":
            agent.receive(*value)
        case "bytes":
            agent.step("received", value)
            # After half a message Helen's next words could not be told apart any more.
            if agent.is_open:
                agent.lose_connection()
        case "lost":
            if agent.is_open:
                agent.lose_connection()
        case "offer":
            for _ in range(value):
                agent.offer()
        case "finish":
            # Tickets go up from 1 over all connections: some of these are of old ones, or of none.
            agent.step("finished", max(agent.session._last_run_id - value + 1, 0), b"{}")
        case "passes":
            agent.pass_time(value)
        case "sleeps":
            agent.mono += value
            agent.step("tick")
        case "accepted":
            if agent.session.state == DOWN:
                agent.open_next()
            agent.step("opened")
            agent.receive(messages.Accepted(30))
        case "ack":
            agent.receive(messages.Ack(min(value, agent.session._sequence)))
        case "check":
            agent.receive(messages.Check("load", value, b"{}"))
        case _:
            agent.step("opened")
    if not agent.is_open:
        agent.asked.clear()


def ends_well(agent: Promises) -> None:
    """Everything that was offered was told, and once."""
    agent.step("end")
    assert not agent.owed


@examples(300)
@given(st.lists(inputs, min_size=5, max_size=60), st.integers(0, 5), st.integers(1, 3))
def test_whatever_happens_every_promise_is_kept(plan, seed, places):
    agent = Promises(*[(f"helen-{number}", 1) for number in range(places)], seed=seed)
    for what, value in plan:
        perform(agent, what, value)
    ends_well(agent)


@pytest.mark.parametrize("seed", seeds(20))
def test_a_long_life_keeps_every_promise(seed):
    chance = random.Random(seed)
    agent = Promises(HELEN, OTHER_HELEN, seed=seed)
    counts: Counter[str] = Counter()
    checks = 0
    for _ in range(1_000):
        what = chance.choices(
            ["offer", "ack", "check", "finish", "passes", "accepted", "lost", "bytes", "says"],
            [30, 20, 15, 15, 10, 5, 1, 1, 1],
        )[0]
        checks += what == "check"
        value: Any = {
            "offer": chance.randrange(1, 100),
            "ack": agent.session._sequence - chance.randrange(100) if agent.session._sequence > 100 else 0,
            "check": checks,
            "finish": chance.randrange(1, 20),
            "passes": chance.random() * 20,
            "bytes": chance.choice([b"ack 99999\n", b"check a 1 5\nab", b"\xff\n"]),
            "says": [
                chance.choice(
                    [messages.Error("no"), messages.Redirect("c:3"), messages.Ping(1), messages.Schedule(1, b"")]
                )
            ],
        }.get(what)
        before = len(agent.updates)
        perform(agent, what, value)
        counts.update(type(one).__name__ for one in agent.updates[before:])
    ends_well(agent)
    assert min(counts[name] for name in ("Delivered", "Undelivered", "RunCheck", "HelenLost", "SessionAccepted")) > 5
    assert agent.answers > 5
