"""A defect of the broker, which a test plants: the sender is answered, and nobody else is affected."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from scale0.broker.admin.access import VIEWER
from scale0.broker.admin.commands import AdminResult, ReadHistory
from scale0.kernel.effects import Effects
from scale0.storage.rows import ReadDocument
from tests.fakes.broker import TOKEN, FakeBroker
from tests.fakes.messages import MAGIC, Message


class Defect(Exception):
    """What no code of the broker raises."""


def fails(*_: object) -> Any:
    raise Defect


def receive(broker: FakeBroker, *messages: tuple[str, dict[str, Any]]) -> list[Message]:
    """What a frontend is answered that sends these in one BATCH, of which one meets a defect."""
    effects = Effects()
    packed = msgspec.msgpack.encode([list(message) for message in messages])
    with pytest.raises(Defect):
        broker.machine.receive("frontend", b"frontend-1", [MAGIC, b"BATCH", b"", packed], broker.now, effects)
    broker.host.finish(effects)
    return broker.received("frontend-1")


@pytest.fixture
def broken(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    """A broker that fails for one service only."""
    broker.join("backend-1", "whole")
    submit = broker.machine.requests.submit

    def submit_or_fail(origin: Any, id_: Any, service: str, *more: Any, **named: Any) -> None:
        (fails if service == "broken" else submit)(origin, id_, service, *more, **named)

    monkeypatch.setattr(broker.machine.requests, "submit", submit_or_fail)
    return broker


# Promise: WIRE-2, WIRE-3
@pytest.mark.parametrize("also", [(), (("CHECKCONFIG", {}),)], ids=["hot", "mixed"])
def test_a_request_that_meets_a_defect_is_answered_and_the_rest_of_its_batch_is_handled(broken, also):
    asked = [("REQUEST", {"service": service, "id": service}) for service in ("broken", "whole")]
    answers = receive(broken, *asked, *also)
    errors = [(answer.options["id"], answer.code) for answer in answers if answer.command == "ERROR"]
    assert errors == [("broken", 500)]
    assert [message.command for message in broken.received("backend-1")] == ["REQUEST"]
    assert [answer.command for answer in answers if answer.command != "ERROR"] == ["CONFIG"] * len(also)


# Promise: WIRE-3
def test_each_request_of_a_batch_that_meets_a_defect_is_answered(broken):
    options = {"service": "broken", "id": "r.", "first": 4}
    frames = [MAGIC, b"REQUESTS", json.dumps(options).encode(), msgspec.msgpack.encode([b"x"] * 2)]
    effects = Effects()
    with pytest.raises(Defect):
        broken.machine.receive("frontend", b"frontend-1", frames, broken.now, effects)
    broken.host.finish(effects)
    assert [(one.options["id"], one.code) for one in broken.received("frontend-1")] == [("r.4", 500), ("r.5", 500)]


# Promise: WIRE-3
def test_a_command_that_meets_a_defect_is_answered(broker):
    broker.machine.management.table["status"] = (VIEWER, fails)
    said = {"command": "status", "id": 1, "auth_token": TOKEN}
    answers = receive(broker, ("MANAGEMENTREQ", said), ("MANAGEMENTREQ", {**said, "command": "list_peers", "id": 2}))
    assert [(answer.options["id"], answer.code) for answer in answers] == [(1, 500), (2, 200)]
    assert answers[0].options["message"].startswith("internal error")


# Promise: WIRE-3
@pytest.mark.parametrize("then", [fails, lambda *_: AdminResult({"x": object()})], ids=["raises", "no-json"])
def test_a_command_that_meets_a_defect_after_it_read_the_store_is_answered(broker, then):
    def look(call: Any) -> None:
        call.effects.ask(ReadHistory(ReadDocument(version=1), call, then))

    broker.machine.management.table["status"] = (VIEWER, look)
    effects = Effects()
    said = {"command": "status", "id": 1, "auth_token": TOKEN}
    frames = [MAGIC, b"MANAGEMENTREQ", json.dumps(said).encode()]
    broker.machine.receive("frontend", b"frontend-1", frames, broker.now, effects)
    (ask,) = effects.asks
    later = Effects()
    with pytest.raises((Defect, TypeError)):
        broker.machine.answer(ask, None, broker.now, later)
    broker.host.finish(later)
    assert [(answer.options["id"], answer.code) for answer in broker.received("frontend-1")] == [(1, 500)]
