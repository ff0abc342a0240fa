"""What the simulation found in sessions, told in the fewest words that show it."""

from __future__ import annotations

import random
from typing import Any

from scale0.kernel.clock import Now
from scale0.transport.core import messages
from scale0.transport.core.backend_session import BackendSession
from scale0.transport.core.codec import encode
from scale0.transport.core.session import SessionEffects


class Worker:
    """A backend's session and its clock; every step gives what it wants to send."""

    def __init__(self) -> None:
        self.session = BackendSession(["tcp://127.0.0.1:5701"], "w", ["s"], 1, random.Random(1))
        self.mono = 0.0

    def step(self, do: Any, *arguments: Any) -> list[Any]:
        out = SessionEffects()
        do(*arguments, Now(self.mono, 1_700_000_000.0 + self.mono), out)
        return out.sends

    def hear(self, command: str, said: Any, *bodies: bytes) -> list[Any]:
        return self.step(self.session.receive, encode((command, said, *bodies)))

    def come_up(self) -> None:
        self.step(self.session.start)
        self.hear("CONFIGACK", messages.ConfigAck("w", 1, "h"))
        self.hear("READYOK", messages.ReadyOk("w", 1.0, 1_700_000_000.0, 1))


def commands(sends: list[Any]) -> list[str]:
    return [message[0] for message in sends]


def test_an_offer_that_changes_before_ready_is_answered_is_said_too():
    worker = Worker()
    worker.step(worker.session.start)
    assert commands(worker.hear("CONFIGACK", messages.ConfigAck("w", 1, "h"))) == ["READY"]
    sends = worker.step(worker.session.offer, ["s", "t"], 2)
    assert commands(sends) == ["READY"]
    assert sends[0][1].services == ["s", "t"]


def test_a_worker_that_talks_all_the_time_still_asks_for_a_sign_of_life():
    worker = Worker()
    worker.come_up()
    worker.hear("REQUEST", {"service": "s", "id": "1"})
    beats = 0
    for _ in range(20):
        worker.mono += 0.4
        worker.step(worker.session.partial, "1", [b"part"])
        if "HEARTBEAT" in commands(worker.step(worker.session.tick)):
            beats += 1
            worker.hear("HEARTBEAT", {"time": 1_700_000_000.0})
    assert beats >= 4
    assert worker.session.connection.state == "up"


def test_an_acknowledged_version_never_goes_back():
    worker = Worker()
    worker.come_up()
    worker.hear("CONFIGACK", messages.ConfigAck("w", 5, "new"))
    worker.hear("CONFIGACK", messages.ConfigAck("w", 4, "old"))
    assert (worker.session.connection.config_version, worker.session.connection.config_hash) == (5, "new")


def test_an_answer_that_had_begun_on_a_lost_line_is_no_longer_held():
    worker = Worker()
    worker.come_up()
    worker.hear("REQUEST", {"service": "s", "id": "1"})
    worker.hear("REQUEST", {"service": "s", "id": "2"})
    worker.step(worker.session.partial, "1", [b"part"])
    worker.step(worker.session.closed, "the connection broke")
    assert worker.session.in_flight == {"2"}
