"""What a connection that ended leaves in memory, and for how long."""

from __future__ import annotations

import pytest

from scale0.broker.core.members import GONE_SECONDS
from scale0.kernel.effects import Effects
from tests.fakes.broker import FakeBroker

ASKED = {"service": "nobody", "timeout": 86_000.0}


def close(broker: FakeBroker, who: str) -> None:
    effects = Effects()
    broker.machine.closed(who.partition("-")[0], who.encode(), broker.now, effects)
    broker.host.finish(effects)


def ask(broker: FakeBroker, who: str, count: int = 5) -> None:
    for number in range(count):
        broker.send(who, "REQUEST", {**ASKED, "id": number}, b"x" * 1_000)


def waiting(broker: FakeBroker) -> int:
    return broker.machine.requests.memory.used


# Promise: QUOTA-3
def test_requests_of_a_client_without_a_name_end_with_its_connection(broker):
    ask(broker, "frontend-1")
    assert waiting(broker) > 5_000
    close(broker, "frontend-1")
    assert waiting(broker) == 0
    assert len(broker.machine.connections) == 0


# Promise: QUOTA-3
def test_requests_of_a_client_that_never_sent_heartbeats_end_soon_after_its_connection(broker):
    broker.exchange("frontend-1", "CHECKCONFIG", {"identity": "web"})
    ask(broker, "frontend-1")
    close(broker, "frontend-1")
    broker.pass_time(GONE_SECONDS - 1.0)
    assert waiting(broker) > 5_000, "it may be back at once"
    broker.pass_time(2.0)
    assert waiting(broker) == 0
    assert len(broker.machine.connections) == 0
    assert broker.machine.members.by_name == {}
    assert "client.left" in broker.kinds()


# Promise: QUOTA-3
def test_a_client_that_is_back_in_time_keeps_its_requests(broker):
    broker.exchange("frontend-1", "CHECKCONFIG", {"identity": "web"})
    ask(broker, "frontend-1")
    before = waiting(broker)
    close(broker, "frontend-1")
    broker.pass_time(GONE_SECONDS - 1.0)
    broker.exchange("frontend-2", "CHECKCONFIG", {"identity": "web"})
    broker.pass_time(3 * GONE_SECONDS)
    assert waiting(broker) == before
    broker.join("backend-1", "nobody", slots=9)
    assert [command for command, _, _ in broker.received("backend-1")].count("REQUEST") == 5


def test_heartbeats_decide_about_a_client_that_sent_one(broker):
    broker.exchange("frontend-1", "CHECKCONFIG", {"identity": "web"})
    broker.exchange("frontend-1", "HEARTBEAT", {"config_version": 1})
    ask(broker, "frontend-1")
    close(broker, "frontend-1")
    broker.pass_time(1.0)
    assert waiting(broker) > 5_000
    broker.pass_time(GONE_SECONDS - 2.0)
    assert waiting(broker) == 0
    assert "client.lost" in broker.kinds()


def test_a_connection_that_the_broker_does_not_know_changes_nothing(broker):
    ask(broker, "frontend-1")
    before = waiting(broker)
    close(broker, "frontend-9")
    assert waiting(broker) == before


@pytest.mark.parametrize("closes", [1, 2])
def test_bad_input_is_remembered_when_the_connection_ends(broker, closes):
    broker.send_frames("frontend-1", [b"nonsense"])
    for _ in range(closes):
        close(broker, "frontend-1")
    assert len(broker.machine.connections) == 1
