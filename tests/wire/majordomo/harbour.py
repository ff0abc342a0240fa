"""A broker with a store and without sockets: for stories about requests that are kept.

Lives here: turns as the runner makes them (settle, commit, answer, send), a crash, and what Titanic's clients say.
Never here: an expectation. What a peer hears is exactly what would lie on the wire for it, its routing id taken off;
what was promised is heard only once it is committed, so a crash before the commit is a crash before the answer.
"""

from __future__ import annotations

from tests.wire.majordomo.town import (
    C02,
    CLIENT_FINAL_02,
    CLIENT_REQUEST_02,
    EMPTY,
    FINAL_02,
    READY,
    REQUEST,
    W02,
    Town,
)

SOCKETS = {"frontend", "backend", "peer"}


class Harbour(Town):
    """A town whose broker stores, and is told what is stored."""

    def asks(self, service: bytes, *frames: bytes, who: str = "client") -> list[bytes]:
        """A call of one of the three, and its answer."""
        self.says(who, C02, CLIENT_REQUEST_02, service, *frames)
        (answer,) = self.hears(who)
        assert answer[:3] == [C02, CLIENT_FINAL_02, service]
        return answer[3:]

    def stores(self, service: bytes, *frames: bytes) -> bytes:
        """A request that is taken; its UUID."""
        status, uuid = self.asks(b"titanic.request", service, *frames)
        assert status == b"200"
        return uuid

    def worker(self, who: str, service: bytes = b"echo") -> None:
        """A worker is on the list."""
        self.says(who, W02, READY, service)

    def work_of(self, who: str) -> list[tuple[bytes, list[bytes]]]:
        """The requests that a worker was given: addresses and bodies."""
        heard = [frames for frames in self.hears(who) if frames[1] == REQUEST]
        return [(frames[2], frames[4:]) for frames in heard]

    def answers(self, who: str, address: bytes, *frames: bytes) -> None:
        """A worker's FINAL."""
        self.says(who, W02, FINAL_02, address, EMPTY, *frames)

    def under_way(self) -> int:
        """How many leases there are."""
        leased: int = self.broker.tasks.leases.leased
        return leased
