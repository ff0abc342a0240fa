"""Notices: who is told of a hard state, through the queue of tasks, and kept on disk until the queue has them.

Lives here: `Notification`, `SubmitNotification`, and `Outbox`: the notices that must go out, their rows, their
attempts, and the limit of each handler. Never here: whether one is due (`watch`), or telling anybody (that is a task).
Invariants: a notice is submitted after the commit that holds it, and forgotten after the queue has answered; its id is
its idempotency key, so that one submitted twice is one task; of each handler at most `limit` notices leave in a period,
and the rest is told in one.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from scale0.config.monitoring import Reaction
from scale0.history.events.checks import NoticeDropped, NoticeSent
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import StoreError
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.protocol.results import OK
from scale0.storage.check_rows import DropNotice, NoticeRow, PutNotice, ReadNotices

NOTIFY_METHOD: Final = "helen.notify"
"""The task that performs webhooks, commands and e-mails."""
RECHECK_METHOD: Final = "helen.recheck"
"""The task that runs a check again."""
RECHECK: Final = ":recheck"
"""What the key of a recheck has behind its notice's id."""

MAX_NOTICES: Final = 10_000
"""Notices that wait; more are dropped, and counted."""
MAX_SUBMITS: Final = 100
"""Submissions that are not answered yet."""
FIRST_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 60.0
GIVE_UP_SECONDS: Final = 86_400.0
"""A notice that the queue did not take for a day tells nobody anything new; after a restart it gets another one."""
MAX_EXAMPLES: Final = 20
"""Checks that a summary names."""
MAX_QUEUE_SECONDS: Final = 366 * 86_400.0
"""The longest timeout and backoff that the queue takes."""
LIMIT: Final = "limit"
"""Why a notice was dropped: its handler was told enough."""
SUMMARY: Final = "summary"
"""The kind of a notice that counts others."""
QUIET_STATES: Final = ("critical", "unknown", "warning")
ALL_STATES: Final = (*QUIET_STATES, "ok")


class SubmitNotification:
    """An Ask: put a task on the queue. The answer is its id (str), or a Refusal; `then` is told either."""

    __slots__ = ("id", "method", "options", "params", "then")

    def __init__(
        self,
        id: str,
        method: str,
        params: bytes,
        options: Mapping[str, Any],
        then: Callable[[Any, Now, Effects], None],
    ) -> None:
        self.id = id
        """The notice's."""
        self.method = method
        self.params = params
        """JSON: a list or an object."""
        self.options = options
        """As PROTOCOL has them: key, max_attempts, backoff, timeout, after."""
        self.then = then


class Notification(msgspec.Struct, kw_only=True):
    """What must be told to one handler. The row of the store holds it."""

    id: str
    handler: str
    agent: str = ""
    check: str = ""
    state: str = ""
    made: float
    """Wall time."""
    due: float = 0.0
    """Not to be sent before this wall time: a summary grows until its period ends."""
    task: str = ""
    """The task that tells it, once the queue has it; what is left then is to check again."""
    said: dict[str, Any] = {}
    """What is told, in plain values."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Notification).decode
_to_json: Final = msgspec.json.Encoder().encode


def notice_id(*parts: str) -> str:
    """An id that the same notice always gets."""
    return "n-" + hashlib.blake2s("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def notice_of(
    handler: str, key: tuple[str, str], state: CheckState, labels: dict[str, str], incident: str, wall: float
) -> Notification:
    """What a handler is told of the state of a check: that it has a problem, or has none any more."""
    agent, check = key
    id_ = notice_id(handler, agent, check, state.state, str(state.at), state.ref)
    said = {
        "id": id_,
        "kind": "recovery" if state.state == OK else "problem",
        "handler": handler,
        "agent": agent,
        "check": check,
        "state": state.state,
        "previous": state.told,
        "message": state.message,
        "at": state.at,
        "since": state.since,
        "flapping": state.flapping,
        "incident": incident,
        "labels": labels,
    }
    return Notification(id=id_, handler=handler, agent=agent, check=check, state=state.state, made=wall, said=said)


def wants(handler: Reaction, state: str) -> bool:
    """True if this handler is told of this state."""
    states = handler.states or (QUIET_STATES if handler.type == "task" else ALL_STATES)
    return state in states


class _Period:
    """How much a handler was told in the period that runs."""

    __slots__ = ("count", "ends_mono", "ends_wall", "over")

    def __init__(self, handler: Reaction, now: Now) -> None:
        self.count = 0
        self.ends_mono = now.mono + handler.period
        self.ends_wall = now.wall + handler.period
        self.over: Notification | None = None


class _Waiting:
    """A notice's attempts."""

    __slots__ = ("busy", "notice", "pause", "since")

    def __init__(self, notice: Notification) -> None:
        self.notice = notice
        self.since: float | None = None
        """When it was first tried, by the monotonic clock: a wall clock that jumps gives nothing up."""
        self.pause = FIRST_RETRY_SECONDS
        self.busy = False


class Outbox:
    """The notices of one Helen that are not on the queue yet."""

    __slots__ = ("_busy", "_changed", "_due", "_fresh", "_periods", "_waiting", "dropped", "handlers", "sent")

    def __init__(self, rows: Iterable[NoticeRow]) -> None:
        self.handlers: Mapping[str, Reaction] = {}
        """Those of the current configuration."""
        self.sent = 0
        self.dropped = 0
        self._waiting: dict[str, _Waiting] = {}
        self._due: list[tuple[float, str]] = []
        """When to try which, by the monotonic clock; a heap."""
        self._fresh: list[str] = []
        """Put in this turn: to be submitted once they are stored."""
        self._changed: dict[str, Notification] = {}
        """To be written with this turn."""
        self._periods: dict[str, _Period] = {}
        self._busy = 0
        for row in rows:
            try:
                self._waiting[row.id] = _Waiting(_decode(row.body))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreError(f"the row of notice {row.id} is damaged: {error}") from error

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, now: Now) -> None:
        """After a restart: everything that waits is tried again, each at its time."""
        for name, waiting in self._waiting.items():
            heapq.heappush(self._due, (now.mono + max(0.0, waiting.notice.due - now.wall), name))

    def configure(self, handlers: Mapping[str, Reaction]) -> None:
        """These are the handlers from now on."""
        self.handlers = handlers
        self._periods = {name: period for name, period in self._periods.items() if name in handlers}

    def put(self, notice: Notification, now: Now, step: Effects) -> None:
        """Have it told, or counted where its handler was told too much already."""
        handler = self.handlers.get(notice.handler)
        if handler is None:
            self._drop(notice, "there is no such handler", step)
            return
        if notice.id in self._waiting:
            return
        period = self._periods.get(handler.name)
        if period is None or period.ends_mono <= now.mono:
            self._periods[handler.name] = period = _Period(handler, now)
        if period.count >= handler.limit:
            self._sum_up(handler, period, notice, now, step)
        elif len(self._waiting) >= MAX_NOTICES:
            self._drop(notice, "too many notices wait", step)
        else:
            period.count += 1
            self._keep(notice)
            self._fresh.append(notice.id)

    def _keep(self, notice: Notification) -> None:
        if notice.id not in self._waiting:
            self._waiting[notice.id] = _Waiting(notice)
        self._changed[notice.id] = notice

    def _drop(self, notice: Notification, reason: str, step: Effects) -> None:
        self.dropped += 1
        step.record(NoticeDropped(notice.handler, 1, reason, notice.agent, notice.check))

    def _sum_up(self, handler: Reaction, period: _Period, notice: Notification, now: Now, step: Effects) -> None:
        """One notice more than the limit: it is counted in the one that is sent when the period ends."""
        if handler.type == "task":
            # What heals cannot heal a sum.
            self._drop(notice, LIMIT, step)
            return
        self.dropped += 1
        over = period.over
        if over is None:
            over = Notification(
                id=notice_id(SUMMARY, notice.handler, str(now.wall)),
                handler=notice.handler,
                made=now.wall,
                due=period.ends_wall,
                said={"kind": SUMMARY, "handler": notice.handler, "dropped": 0, "states": {}, "checks": []},
            )
            over.said["id"] = over.id
            period.over = over
            heapq.heappush(self._due, (period.ends_mono, over.id))
        said = over.said
        said["dropped"] += 1
        said["states"][notice.state] = said["states"].get(notice.state, 0) + 1
        if len(said["checks"]) < MAX_EXAMPLES:
            said["checks"].append(f"{notice.agent}/{notice.check}")
        self._keep(over)

    def settle(self, step: Effects) -> None:
        """The end of a turn: what was put in it is written, and submitted once it is stored."""
        if self._changed:
            for notice in self._changed.values():
                step.write(PutNotice(notice.id, _encode(notice)))
            self._changed = {}
        if self._fresh:
            names, self._fresh = self._fresh, []
            # The answer comes behind this turn's writes: then they are on disk, and only then the queue may hear.
            step.ask(StoreQuery(ReadNotices("", 1), lambda _rows, now, later: self._submit(names, now, later)))

    def _submit(self, names: Iterable[str], now: Now, step: Effects) -> None:
        for name in names:
            waiting = self._waiting.get(name)
            if waiting is None or waiting.busy:
                continue
            if self._busy >= MAX_SUBMITS:
                heapq.heappush(self._due, (now.mono + FIRST_RETRY_SECONDS, name))
            else:
                self._start(waiting, now, step)

    def _start(self, waiting: _Waiting, now: Now, step: Effects) -> None:
        notice = waiting.notice
        handler = self.handlers.get(notice.handler)
        if waiting.since is None:
            waiting.since = now.mono
        if handler is None or now.mono - waiting.since > GIVE_UP_SECONDS:
            self._drop(notice, "there is no such handler" if handler is None else "the queue did not take it", step)
            self._forget(notice, step)
            return
        waiting.busy = True
        self._busy += 1
        method, params, options = _task_of(notice, handler)

        def then(value: Any, later: Now, out: Effects) -> None:
            self._answered(waiting, value, later, out)

        step.ask(SubmitNotification(notice.id, method, params, options, then))

    def _answered(self, waiting: _Waiting, value: Any, now: Now, step: Effects) -> None:
        waiting.busy = False
        self._busy -= 1
        notice = waiting.notice
        if notice.id not in self._waiting:
            return
        if not isinstance(value, str):
            heapq.heappush(self._due, (now.mono + waiting.pause, notice.id))
            waiting.pause = min(2 * waiting.pause, MAX_RETRY_SECONDS)
            return
        handler = self.handlers.get(notice.handler)
        if not notice.task:
            self.sent += 1
            step.record(NoticeSent(notice.id, notice.agent, notice.check, notice.handler, notice.state, value))
            if notice.said.get("kind") == SUMMARY:
                step.record(NoticeDropped(notice.handler, notice.said["dropped"], LIMIT))
            if handler is not None and handler.type == "task" and handler.check_again and notice.check:
                notice.task = value
                waiting.pause = FIRST_RETRY_SECONDS
                self._keep(notice)
                self._fresh.append(notice.id)
                return
        self._forget(notice, step)

    def _forget(self, notice: Notification, step: Effects) -> None:
        del self._waiting[notice.id]
        self._changed.pop(notice.id, None)
        step.write(DropNotice(notice.id))

    def tick(self, now: Now, step: Effects) -> None:
        """Try what is due."""
        names: list[str] = []
        while self._due and self._due[0][0] <= now.mono and len(names) < MAX_SUBMITS:
            names.append(heapq.heappop(self._due)[1])
        if names:
            self._submit(names, now, step)

    def deadline(self) -> float | None:
        """When something is due, by the monotonic clock."""
        return self._due[0][0] if self._due else None


def _task_of(notice: Notification, handler: Reaction) -> tuple[str, bytes, dict[str, Any]]:
    """The task that tells a notice, or, once that is on the queue, the one that checks again."""
    if notice.task:
        params: Any = {"agent": notice.agent, "check": notice.check}
        return RECHECK_METHOD, _to_json(params), {"key": notice.id + RECHECK, "after": [notice.task]}
    options = {
        "key": notice.id,
        "max_attempts": handler.max_attempts,
        "backoff": min(handler.backoff, MAX_QUEUE_SECONDS),
        "timeout": min(handler.timeout, MAX_QUEUE_SECONDS),
    }
    if handler.type == "task":
        return handler.method, _to_json(handler.params or [notice.said]), options
    return NOTIFY_METHOD, _to_json({"handler": handler.name, "notice": notice.said}), options
