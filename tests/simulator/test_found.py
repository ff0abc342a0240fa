"""What the simulation found, each as a short test."""

from __future__ import annotations

import random
from typing import Any

from scale0.config import CheckDefinition, NotificationHandler
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.deduplication import Spools
from scale0.monitoring.helen.core.evaluation import IncomingResult
from scale0.monitoring.helen.core.notifications import GIVE_UP_SECONDS
from scale0.monitoring.protocol.results import CheckFinding, State
from scale0.transport.core import messages
from scale0.transport.core.backend_session import BackendSession
from scale0.transport.core.codec import encode
from scale0.transport.core.session import SessionEffects
from tests.fakes.simulated_helen import configured_helen


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


CHECK = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",))
PAGER = NotificationHandler(name="pager", type="webhook", url="http://pager.example/")


def test_two_changes_of_one_moment_are_two_notices():
    # A Helen who slept finds all that came meanwhile in one turn, and dates it alike.
    helen = configured_helen(checks=(CHECK,), handlers=(PAGER,))
    effects = Effects()
    states: tuple[State, ...] = ("critical", "warning", "critical")
    for number, state in enumerate(states, start=1):
        answered = IncomingResult("disk", CheckFinding(state), f"s:{number}", helen.wall, True)
        helen.evaluation.process_result("web-1", {}, answered, helen.now, effects)
    helen.end(effects)
    assert [state for _, state in helen.queue.sent()] == ["critical", "warning", "critical"]


def test_a_wall_clock_that_jumps_by_a_day_gives_up_no_notice():
    helen = configured_helen(checks=(CHECK,), handlers=(PAGER,))
    helen.queue.is_up = False
    helen.result("critical")
    helen.pass_time(5.0, wall=5.0 + 2 * GIVE_UP_SECONDS)
    helen.queue.is_up = True
    helen.pass_time(60.0)
    assert helen.queue.sent() == [("pager", "critical")]
    assert not helen.recorded("notice.dropped")


def test_an_agent_that_started_often_while_nobody_heard_it_is_heard_once():
    # Twenty runs of it left a result each; they come together, and again because the acknowledgement was lost.
    spools, now = Spools(), Now(1.0, 1_000_000_000.0)
    names = [f"run-{number}" for number in range(20)]
    assert all(spools.add("web-1", name, 1, now) for name in names)
    assert not any(spools.add("web-1", name, 1, now) for name in names)
