"""Lists of services, clients and brokers: each page is built at most once in a second, whoever requests it.

Promise: FAIR-2
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.broker.core.discovery import MAX_KEPT_BYTES, MAX_PAGES, PAGE_SECONDS
from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.permissions import KeyRules
from scale0.kernel.codes import FAILED, MALFORMED, TOO_MANY
from scale0.kernel.effects import Effects
from scale0.kernel.names import MAX_IDENTITY_CHARS
from tests.fakes.broker import FakeBroker
from tests.fakes.messages import MAGIC

DISCOVERING = KeyRules(allow=("discover:a*",))


def built(broker: FakeBroker) -> list[str]:
    """Notes each page of services that is built from now on."""
    views: Any = broker.machine.management._views
    calls: list[str] = []
    build = views.services

    def counted(limit: int, after: str | None) -> Any:
        calls.append(f"{limit} {after}")
        return build(limit, after)

    views.services = counted
    return calls


def listed(broker: FakeBroker, who: str, **paging: Any) -> Any:
    """The names of a page, or the code of the error."""
    (answer,) = broker.exchange(who, "REQUEST", {"service": "scale0.services", "id": 1}, paging or b"")
    return [row["service"] for row in answer.body["items"]] if answer.command == "REPLY" else answer.options["code"]


def test_a_page_is_built_once_in_a_second_for_everybody() -> None:
    broker = FakeBroker()
    broker.join("backend-1", "a", "b")
    calls = built(broker)
    for number in range(50):
        assert listed(broker, f"frontend-{number}") == ["a", "b"]
        broker.pass_time(PAGE_SECONDS / 60)
    assert len(calls) == 1
    broker.pass_time(PAGE_SECONDS)
    assert listed(broker, "frontend-1") == ["a", "b"]
    assert len(calls) == 2
    broker.join("backend-2", "c")
    assert listed(broker, "frontend-1") == ["a", "b", "c"], "a new member is listed at once"
    assert len(calls) == 3


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


def test_each_permission_set_has_its_own_page_and_only_its_services() -> None:
    stored = KeyTable(
        [
            *(Key("", "frontend", name, rules=DISCOVERING) for name in ("one", "two")),
            *(Key("", "frontend", name) for name in ("all", "some")),
            Key("", "backend", "worker"),
        ]
    )
    broker = FakeBroker(keys=Keys(user_of, stored))
    broker.join("backend-worker", "a", "ab", "b", identity="worker")
    encoded = broker.machine.scale0._discovery._kept
    for _ in range(3):
        assert listed(broker, "frontend-one") == listed(broker, "frontend-two") == ["a", "ab"]
        assert listed(broker, "frontend-all") == listed(broker, "frontend-some") == ["a", "ab", "b"]
    assert len(encoded) == 2


def test_one_that_requests_many_pages_is_refused_and_others_are_not() -> None:
    broker = FakeBroker()
    broker.join("backend-1", "a", "b")
    calls = built(broker)
    heard = [listed(broker, "frontend-flood", after=f"x{number}") for number in range(3 * MAX_PAGES)]
    assert heard == [[]] * MAX_PAGES + [429] * 2 * MAX_PAGES
    assert len(calls) == MAX_PAGES
    assert listed(broker, "frontend-honest") == ["a", "b"]
    broker.pass_time(PAGE_SECONDS)
    assert listed(broker, "frontend-flood", after="a") == ["b"]


# Promise: WIRE-3
def test_an_internal_error_in_a_reserved_service_is_answered_and_logged() -> None:
    broker = FakeBroker()
    broker.join("backend-1", "a")

    def fail(*_: Any) -> Any:
        raise RecursionError("too deep")

    views: Any = broker.machine.management._views
    views.services = fail
    request = [MAGIC, b"REQUEST", json.dumps({"service": "scale0.services", "id": 1}).encode()]
    effects = Effects()
    with pytest.raises(RecursionError):  # the runner logs it
        broker.machine.receive("frontend", b"frontend-1", request, broker.now, effects)
    broker.host.finish(effects)
    (answer,) = broker.received("frontend-1")
    assert (answer.command, answer.options["code"], answer.options["id"]) == ("ERROR", FAILED, 1)


# Promise: WIRE-5
def test_a_position_that_no_name_can_have_is_refused() -> None:
    broker = FakeBroker()
    broker.join("backend-1", "a" * 255)
    assert listed(broker, "frontend-1", after="a" * 254) == ["a" * 255]
    (row,) = broker.exchange("frontend-1", "REQUEST", {"service": "scale0.clients", "id": 1})[0].body["items"]
    assert listed(broker, "frontend-1", after=f"{'x' * MAX_IDENTITY_CHARS} {row['role']}") == []
    assert listed(broker, "frontend-1", after="a" * 1_000) == MALFORMED
    (answer,) = broker.exchange("frontend-1", "REQUEST", {"service": "scale0.ping", "id": 1}, {"after": "a" * 1_000})
    assert answer.command == "REPLY", "other services ignore what they do not use"


# Promise: WIRE-5
def test_the_pages_that_are_kept_are_bounded_by_bytes_and_by_age() -> None:
    broker = FakeBroker()
    for number in range(20):
        broker.join(f"backend-{number}", *(f"{number:02}.{at:03}.{'x' * 240}" for at in range(200)))
    discovery = broker.machine.scale0._discovery
    for number in range(30):
        assert listed(broker, f"frontend-{number}", limit=1_000 - number) != TOO_MANY
        kept = sum(len(one.page) for one in discovery._kept.values())
        assert kept == discovery._kept_bytes <= MAX_KEPT_BYTES
    assert len(discovery._kept) > 1
    broker.pass_time(PAGE_SECONDS)
    listed(broker, "frontend-1", after="99")
    assert len(discovery._kept) == 1


# Promise: FAIR-2
def test_limits_that_select_the_same_rows_share_a_page() -> None:
    broker = FakeBroker()
    broker.join("backend-1", "a", "b")
    calls = built(broker)
    for limit in (1_000, 1_001, 10**4_000):
        assert listed(broker, "frontend-1", limit=limit) == ["a", "b"]
    assert len(calls) == 1
