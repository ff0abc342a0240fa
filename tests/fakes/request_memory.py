"""What the requests of a broker need by its own rules, counted anew."""

from __future__ import annotations

from typing import Any

from scale0.broker.core.broker import Broker
from scale0.broker.core.request_queues import QUEUE_BYTES


def assert_charged(machine: Broker) -> None:
    """The account has what clients wait for, and nothing else."""
    counted: dict[Any, int] = {}

    def count(owner: Any, size: int) -> None:
        counted[owner] = counted.get(owner, 0) + size

    for connection in machine.connections:
        for request in connection.outstanding.values():
            assert not request.ended
            count(request.payer, request.charge)
        for batch in connection.batches:
            count(batch.account, batch.charge)
    for queue in machine.requests.queues.values():
        for owner in queue._of:
            count(owner, QUEUE_BYTES)
    memory = machine.requests.memory
    assert memory.of == counted
    assert memory.used == sum(counted.values())
