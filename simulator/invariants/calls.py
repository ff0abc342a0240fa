"""Invariants of calls: each ends once, in time, with its own reply, and runs no more often than allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scale0.transport.core.backend_session import RequestReceived
from scale0.transport.core.calls import GRACE_SECONDS
from simulator.network.calls import HANDLER_ERROR, Call, Calls
from simulator.network.clients import BackendNode, FrontendNode
from simulator.plan import Plan
from simulator.promises import broken
from simulator.virtual_time import Agenda

SLACK_SECONDS: Final = 0.1
"""The resolution of a timer, and a turn."""
LEAST_SHARE: Final = 0.25
"""The share of calls that must succeed in a run with faults."""


class CallChecks:
    def __init__(self, agenda: Agenda, calls: Calls, plan: Plan) -> None:
        self._agenda = agenda
        self._calls = calls
        self._plan = plan
        self.losses: dict[str, float] = {}
        """When each participant last lost a connection, a process or a registration."""
        self.settled_at: float | None = None
        """Since when no fault excuses a failure."""

    def begun(self, node: BackendNode, call: Call, work: RequestReceived) -> None:
        for service, count, slots in (
            ("all services", len(node.handed), node.most()),
            (work.service, node.running(work.service), node.most(work.service)),
        ):
            if count > slots:
                raise broken("slots", f"{node.name} has {count} requests of {service} in hand, and {slots} slots")
        if work.service != call.service:
            raise broken("own-answer", f"call {call.nonce} was for {call.service}, and came to {work.service}")
        if call.executions:
            if not call.retry:
                raise broken("runs-once", f"call {call.nonce} may not be retried, and runs again: {call.executions}")
            parties = [call.frontend, "broker", node.name, *(where for _, where in call.executions)]
            if all(self.losses.get(name, -1.0) < call.asked for name in parties):
                raise broken("runs-once", f"call {call.nonce} runs again, and nobody lost anything")
        call.executions.append((self._agenda.now, node.name))

    def part_arrived(self, call: Call, bodies: Sequence[bytes]) -> None:
        self._own(call, bodies)
        nonce, execution, part = map(int, bodies[0].split())
        if call.ended:
            raise broken("ends-once", f"a part of call {nonce} came after its end")
        if call.parts_seen and execution != call.parts_from:
            raise broken("whole-answer", f"call {nonce}: parts of executions {call.parts_from} and {execution}")
        if part != call.parts_seen:
            raise broken("whole-answer", f"call {nonce}: part {part} came after {call.parts_seen} parts")
        call.parts_seen += 1
        call.parts_from = execution

    def answer_arrived(self, call: Call, bodies: Sequence[bytes]) -> None:
        self._ended(call)
        self._own(call, bodies)
        nonce, execution, parts = map(int, bodies[0].split())
        if parts != call.parts_seen or (parts and execution != call.parts_from):
            seen = f"{call.parts_seen} parts of execution {call.parts_from}"
            raise broken("whole-answer", f"call {nonce} ended with {seen}, of {parts} of {execution}")

    def failed(self, call: Call, code: int, message: str) -> None:
        self._ended(call)
        if code == HANDLER_ERROR and not (call.error and message.startswith(f"{call.nonce} ")):
            raise broken("own-answer", f"call {call.nonce} failed with another's error: {message}")
        expected = code == HANDLER_ERROR or call.service not in self._plan.services
        if self._plan.calm and not expected:
            raise broken("true-failure", f"call {call.nonce} failed in calm: {code} {message}")
        if self.settled_at is not None and call.asked > self.settled_at and not expected:
            raise broken("answered-again", f"call {call.nonce} failed after healing: {code} {message}")

    def overdue(self, frontends: Sequence[FrontendNode]) -> None:
        """Checks that no call is open after its deadline."""
        now = self._agenda.now
        for node in frontends:
            link = node.link
            if link is None or link.ended or link.stalled:
                continue
            for call in node.open_calls.values():
                limit = max(call.asked + call.timeout + GRACE_SECONDS, link.resumed_at) + SLACK_SECONDS
                if now > limit:
                    raise broken("ends-in-time", f"call {call.nonce} of {node.name} is open {now - limit:.3f} s late")

    def at_the_end(self) -> None:
        """Checks that every call has ended and that enough of them succeeded."""
        calls = self._calls.by_nonce.values()
        for call in calls:
            if not call.ended and not call.vanished:
                raise broken("ends-once", f"call {call.nonce} never ended")
        ended = [call for call in calls if call.ended and call.service in self._plan.services and not call.error]
        answered = sum(call.answered for call in ended)
        least = 1.0 if self._plan.calm else LEAST_SHARE
        if answered < least * len(ended):
            raise broken("progress", f"{answered} of {len(ended)} calls were answered, less than {least:.0%}")

    def _own(self, call: Call, bodies: Sequence[bytes]) -> None:
        words = bodies[0].split() if bodies else []
        if len(bodies) != 1 or len(words) != 3 or not all(map(bytes.isdigit, words)) or int(words[0]) != call.nonce:
            raise broken("own-answer", f"call {call.nonce} was answered by {list(bodies)!r}")

    def _ended(self, call: Call) -> None:
        if call.ended != 1:
            raise broken("ends-once", f"call {call.nonce} ended {call.ended} times")
