"""Requests of several accounts at a service with many slots: what a worker was sent is not the broker's to order.

Promise: FAIR-7
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scale0.broker.core.slot_shares import ACTIVE_SECONDS, LEAST, START, UNLIMITED, SlotShares
from scale0.kernel.effects import Effects
from tests.fakes.broker import FakeBroker
from tests.fakes.examples import examples

SLOTS = 1_000
FLOOD = 1_200


def asked(broker: FakeBroker, who: str, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        broker.send(who, "REQUEST", {"service": "echo", "id": f"{who}/{number}", "timeout": 600}, who.encode())


def handed(broker: FakeBroker, worker: str = "backend-1") -> list[Any]:
    return list(broker.received(worker, "REQUEST"))


def joined(*workers: str, slots: int = SLOTS, **config: Any) -> FakeBroker:
    broker = FakeBroker(max_outstanding=10_000, **config)
    for worker in workers:
        broker.join(worker, "echo", slots=slots)
    return broker


def in_flight(broker: FakeBroker) -> Counter[str]:
    held = broker.machine.requests.under_way.values()
    return Counter(request.origin.routing_id.decode() for request in held)


def test_a_client_alone_gets_every_slot() -> None:
    broker = joined("backend-1")
    asked(broker, "frontend-flood", FLOOD)
    assert len(handed(broker)) == SLOTS


def test_a_flood_beside_another_client_has_few_requests_at_the_worker() -> None:
    broker = joined("backend-1")
    asked(broker, "frontend-honest", 1)
    asked(broker, "frontend-flood", FLOOD)
    assert in_flight(broker) == {"frontend-honest": 1, "frontend-flood": max(START, SLOTS // 8) - 1}
    asked(broker, "frontend-honest", 1, start=1)
    assert in_flight(broker)["frontend-honest"] == 2


def test_a_flood_that_was_alone_gives_way_until_it_has_its_part() -> None:
    broker = joined("backend-1")
    asked(broker, "frontend-flood", 2 * FLOOD)
    sent = deque(handed(broker))
    asked(broker, "frontend-honest", 1)
    while len(sent) > 1:
        broker.send("backend-1", "REPLY", {"id": sent.popleft()[1]["id"]}, b"")
        sent.extend(handed(broker))
        if in_flight(broker)["frontend-honest"] and in_flight(broker).total() < SLOTS // 4:
            return
    raise AssertionError("the flood was never limited")


def test_a_client_that_is_alone_again_gets_every_slot_again() -> None:
    broker = joined("backend-1")
    asked(broker, "frontend-honest", 1)
    broker.send("backend-1", "REPLY", {"id": handed(broker)[0][1]["id"]}, b"")
    asked(broker, "frontend-flood", FLOOD)
    assert len(handed(broker)) < SLOTS
    for _ in range(2 * int(ACTIVE_SECONDS) + 1):
        for who in ("backend-1", "frontend-flood", "frontend-honest"):
            broker.send(who, "HEARTBEAT")
        broker.pass_time(1.0)
    assert in_flight(broker)["frontend-flood"] == SLOTS


def test_a_client_that_is_gone_limits_nobody() -> None:
    broker = joined("backend-1")
    asked(broker, "frontend-before", 1)
    broker.send("backend-1", "REPLY", {"id": handed(broker)[0][1]["id"]}, b"")
    effects = Effects()
    broker.machine.closed("frontend", b"frontend-before", broker.now, effects)
    broker.host.finish(effects)
    asked(broker, "frontend-flood", FLOOD)
    assert len(handed(broker)) == SLOTS


def test_when_a_worker_dies_the_free_slots_of_another_are_used_within_a_second() -> None:
    broker = joined("backend-1", slots=100)
    asked(broker, "frontend-honest", 1)
    asked(broker, "frontend-flood", 1_000)
    broker.join("backend-2", "echo", slots=100)
    broker.send("backend-1", "DISCONNECT")
    broker.pass_time(1.1)
    assert len(handed(broker, "backend-2")) == START


def lived(slots: int, at_once: int, period: float, rng: random.Random) -> list[int]:
    """Two accounts, of which one always has more requests, and a worker that answers `at_once` in each period: the
    limit after each period."""
    shares, mono, limits, busy = SlotShares(), 0.0, list[int](), Counter[str]()
    line: deque[str] = deque()
    while mono < 10.0:
        for account in ("honest", "flood"):
            while (
                shares.in_flight < slots and shares.has_room(account) and busy[account] < (1, slots)[account == "flood"]
            ):
                shares.take(account, 1, slots, mono)
                busy[account] += 1
                line.append(account)
        mono += period * rng.uniform(0.9, 1.1)
        for _ in range(min(at_once, len(line))):
            account = line.popleft()
            busy[account] -= 1
            shares.give(account, mono)
        limits.append(shares.most)
    return limits


@examples(10)
@given(st.integers(0, 2**32 - 1))
def test_a_worker_that_runs_one_after_the_other_gets_few_at_once(seed: int) -> None:
    limits = lived(SLOTS, 20, 0.005, random.Random(seed))
    assert sorted(limits)[len(limits) // 2] <= START, Counter(limits)


@examples(10)
@given(st.integers(0, 2**32 - 1))
def test_a_worker_that_runs_all_its_slots_at_once_is_not_slowed_down(seed: int) -> None:
    limits = lived(SLOTS, SLOTS, 0.02, random.Random(seed))
    late = limits[len(limits) // 2 :]
    assert sum(limit >= SLOTS for limit in late) > 0.9 * len(late), Counter(late)


@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_whatever_comes_and_goes_the_books_are_right(seed: int, slots: int) -> None:
    rng = random.Random(seed)
    shares, naive, last, mono = SlotShares(), Counter[int](), dict[int, float](), 0.0
    for _ in range(400):
        mono += rng.choice((0.0, 0.001, 0.1))
        account = rng.randrange(4)
        match rng.randrange(8):
            case 0:
                shares.review(1, slots, mono)
            case 1:
                mono += rng.choice((1.0, ACTIVE_SECONDS))
            case 2 | 3 | 4 if naive.total() < slots:
                active = {one for one in range(4) if naive[one] or mono - last.get(one, -9.0) < ACTIVE_SECONDS}
                shares.review(1, slots, mono)
                if active <= {account}:
                    assert shares.has_room(account)
                if not naive[account]:
                    assert shares.has_room(account)
                if shares.has_room(account):
                    shares.take(account, 1, slots, mono)
                    naive[account] += 1
                    assert shares.in_flight <= max(shares.most, len(naive)) or naive[account] <= max(
                        1, shares.most // len(active)
                    )
                else:
                    assert naive.total() >= shares.most >= min(LEAST, slots)
            case _ if naive[account]:
                naive[account] -= 1
                last[account] = mono
                shares.give(account, mono)
        assert shares.in_flight == naive.total()
        busy = {shares.alone: naive[shares.alone]} if shares.alone is not None else shares.busy
        assert {one: count for one, count in busy.items() if count} == {one: n for one, n in naive.items() if n}
        assert shares.most == UNLIMITED or len(shares.busy) + len(shares.idle) > 1
