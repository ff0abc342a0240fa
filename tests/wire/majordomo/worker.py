"""A worker of each version, by the letter of its RFC, for stories in the town.

Lives here: how workers frame what they say. Never here: an expectation of the broker's rules.
"""

from __future__ import annotations

import pytest

from tests.wire.majordomo.town import (
    DISCONNECT_01,
    DISCONNECT_02,
    EMPTY,
    FINAL_02,
    HEARTBEAT_01,
    HEARTBEAT_02,
    READY,
    REPLY_01,
    REQUEST,
    W01,
    W02,
    Town,
)

INTERVAL = 2.5
"""The broker's own default."""


class Worker:
    """A worker of one version, by the letter of its RFC."""

    def __init__(self, version: str, lead: tuple[bytes, ...], header: bytes, last: bytes, beat: bytes, bye: bytes):
        self.version = version
        self.lead, self.header, self.last, self.beat, self.bye = lead, header, last, beat, bye

    def __repr__(self) -> str:
        return self.version

    def frames(self, *rest: bytes) -> list[bytes]:
        return [*self.lead, self.header, *rest]

    def ready(self, town: Town, who: str, service: bytes = b"echo") -> None:
        town.says(who, *self.frames(READY, service))


OLD = Worker("0.1", (EMPTY,), W01, REPLY_01, HEARTBEAT_01, DISCONNECT_01)
NEW = Worker("0.2", (), W02, FINAL_02, HEARTBEAT_02, DISCONNECT_02)
DIALECT = Worker("dialect", (EMPTY,), W02, FINAL_02, HEARTBEAT_02, DISCONNECT_02)

every_version = pytest.mark.parametrize("version", [OLD, NEW, DIALECT], ids=repr)


def ask(town: Town, id_: int = 1, who: str = "client", **options: object) -> None:
    town.scale0(who, "REQUEST", {"service": "echo", "id": id_, **options}, b"hello")


def address(town: Town, worker: Worker, who: str) -> bytes:
    """The client address of the one request that this worker was given."""
    (frames,) = town.hears(who)
    lead = len(worker.lead)
    assert frames[: lead + 2] == worker.frames(REQUEST)
    assert frames[lead + 3 :] == [EMPTY, b"hello"]
    return frames[lead + 2]
