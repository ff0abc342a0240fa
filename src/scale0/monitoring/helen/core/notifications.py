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

MAX_NOTIFICATIONS: Final = 10_000
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


class Notification(msgspec.Struct, kw_only=True, rename={"created": "made", "payload": "said"}):
    """What must be told to one handler. The row of the store holds it."""

    id: str
    handler: str
    agent: str = ""
    check: str = ""
    state: str = ""
    created: float
    """Wall time."""
    due: float = 0.0
    """Not to be sent before this wall time: a summary grows until its period ends."""
    task: str = ""
    """The task that tells it, once the queue has it; what is left then is to check again."""
    payload: dict[str, Any] = {}
    """What is told, in plain values."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Notification).decode
_to_json: Final = msgspec.json.Encoder().encode


def notification_id(*parts: str) -> str:
    """An id that the same notice always gets."""
    return "n-" + hashlib.blake2s("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def notification_for(
    handler: str, key: tuple[str, str], state: CheckState, labels: dict[str, str], incident: str, wall: float
) -> Notification:
    """What a handler is told of the state of a check: that it has a problem, or has none any more."""
    agent, check = key
    id_ = notification_id(handler, agent, check, state.state, str(state.at), state.ref)
    payload = {
        "id": id_,
        "kind": "recovery" if state.state == OK else "problem",
        "handler": handler,
        "agent": agent,
        "check": check,
        "state": state.state,
        "previous": state.notified,
        "message": state.message,
        "at": state.at,
        "since": state.since,
        "flapping": state.flapping,
        "incident": incident,
        "labels": labels,
    }
    return Notification(
        id=id_, handler=handler, agent=agent, check=check, state=state.state, created=wall, payload=payload
    )


def wants(handler: Reaction, state: str) -> bool:
    """True if this handler is told of this state."""
    states = handler.states or (QUIET_STATES if handler.type == "task" else ALL_STATES)
    return state in states


class _Period:
    """How much a handler was told in the period that runs."""

    __slots__ = ("count", "ends_mono", "ends_wall", "summary")

    def __init__(self, handler: Reaction, now: Now) -> None:
        self.count = 0
        self.ends_mono = now.mono + handler.period
        self.ends_wall = now.wall + handler.period
        self.summary: Notification | None = None


class _Waiting:
    """A notice's attempts."""

    __slots__ = ("in_flight", "notification", "pause", "since")

    def __init__(self, notification: Notification) -> None:
        self.notification = notification
        self.since: float | None = None
        """When it was first tried, by the monotonic clock: a wall clock that jumps gives nothing up."""
        self.pause = FIRST_RETRY_SECONDS
        self.in_flight = False


class Outbox:
    """The notices of one Helen that are not on the queue yet."""

    __slots__ = ("_changed", "_due", "_fresh", "_in_flight", "_periods", "_waiting", "dropped", "handlers", "sent")

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
        self._in_flight = 0
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
            heapq.heappush(self._due, (now.mono + max(0.0, waiting.notification.due - now.wall), name))

    def configure(self, handlers: Mapping[str, Reaction]) -> None:
        """These are the handlers from now on."""
        self.handlers = handlers
        self._periods = {name: period for name, period in self._periods.items() if name in handlers}

    def put(self, notification: Notification, now: Now, effects: Effects) -> None:
        """Have it told, or counted where its handler was told too much already."""
        handler = self.handlers.get(notification.handler)
        if handler is None:
            self._drop(notification, "there is no such handler", effects)
            return
        if notification.id in self._waiting:
            return
        period = self._periods.get(handler.name)
        if period is None or period.ends_mono <= now.mono:
            self._periods[handler.name] = period = _Period(handler, now)
        if period.count >= handler.limit:
            self._summarize(handler, period, notification, now, effects)
        elif len(self._waiting) >= MAX_NOTIFICATIONS:
            self._drop(notification, "too many notices wait", effects)
        else:
            period.count += 1
            self._keep(notification)
            self._fresh.append(notification.id)

    def _keep(self, notification: Notification) -> None:
        if notification.id not in self._waiting:
            self._waiting[notification.id] = _Waiting(notification)
        self._changed[notification.id] = notification

    def _drop(self, notification: Notification, reason: str, effects: Effects) -> None:
        self.dropped += 1
        effects.record(NoticeDropped(notification.handler, 1, reason, notification.agent, notification.check))

    def _summarize(
        self, handler: Reaction, period: _Period, notification: Notification, now: Now, effects: Effects
    ) -> None:
        """One notice more than the limit: it is counted in the one that is sent when the period ends."""
        if handler.type == "task":
            # What heals cannot heal a sum.
            self._drop(notification, LIMIT, effects)
            return
        self.dropped += 1
        summary = period.summary
        if summary is None:
            summary = Notification(
                id=notification_id(SUMMARY, notification.handler, str(now.wall)),
                handler=notification.handler,
                created=now.wall,
                due=period.ends_wall,
                payload={"kind": SUMMARY, "handler": notification.handler, "dropped": 0, "states": {}, "checks": []},
            )
            summary.payload["id"] = summary.id
            period.summary = summary
            heapq.heappush(self._due, (period.ends_mono, summary.id))
        payload = summary.payload
        payload["dropped"] += 1
        payload["states"][notification.state] = payload["states"].get(notification.state, 0) + 1
        if len(payload["checks"]) < MAX_EXAMPLES:
            payload["checks"].append(f"{notification.agent}/{notification.check}")
        self._keep(summary)

    def settle(self, effects: Effects) -> None:
        """The end of a turn: what was put in it is written, and submitted once it is stored."""
        if self._changed:
            for notification in self._changed.values():
                effects.write(PutNotice(notification.id, _encode(notification)))
            self._changed = {}
        if self._fresh:
            names, self._fresh = self._fresh, []
            # The answer comes behind this turn's writes: then they are on disk, and only then the queue may hear.
            effects.ask(StoreQuery(ReadNotices("", 1), lambda _rows, now, later: self._submit(names, now, later)))

    def _submit(self, names: Iterable[str], now: Now, effects: Effects) -> None:
        for name in names:
            waiting = self._waiting.get(name)
            if waiting is None or waiting.in_flight:
                continue
            if self._in_flight >= MAX_SUBMITS:
                heapq.heappush(self._due, (now.mono + FIRST_RETRY_SECONDS, name))
            else:
                self._start(waiting, now, effects)

    def _start(self, waiting: _Waiting, now: Now, effects: Effects) -> None:
        notification = waiting.notification
        handler = self.handlers.get(notification.handler)
        if waiting.since is None:
            waiting.since = now.mono
        if handler is None or now.mono - waiting.since > GIVE_UP_SECONDS:
            self._drop(
                notification, "there is no such handler" if handler is None else "the queue did not take it", effects
            )
            self._forget(notification, effects)
            return
        waiting.in_flight = True
        self._in_flight += 1
        method, params, options = _task_of(notification, handler)

        def then(value: Any, later: Now, out: Effects) -> None:
            self._answered(waiting, value, later, out)

        effects.ask(SubmitNotification(notification.id, method, params, options, then))

    def _answered(self, waiting: _Waiting, value: Any, now: Now, effects: Effects) -> None:
        waiting.in_flight = False
        self._in_flight -= 1
        notification = waiting.notification
        if notification.id not in self._waiting:
            return
        if not isinstance(value, str):
            heapq.heappush(self._due, (now.mono + waiting.pause, notification.id))
            waiting.pause = min(2 * waiting.pause, MAX_RETRY_SECONDS)
            return
        handler = self.handlers.get(notification.handler)
        if not notification.task:
            self.sent += 1
            effects.record(
                NoticeSent(
                    notification.id,
                    notification.agent,
                    notification.check,
                    notification.handler,
                    notification.state,
                    value,
                )
            )
            if notification.payload.get("kind") == SUMMARY:
                effects.record(NoticeDropped(notification.handler, notification.payload["dropped"], LIMIT))
            if handler is not None and handler.type == "task" and handler.check_again and notification.check:
                notification.task = value
                waiting.pause = FIRST_RETRY_SECONDS
                self._keep(notification)
                self._fresh.append(notification.id)
                return
        self._forget(notification, effects)

    def _forget(self, notification: Notification, effects: Effects) -> None:
        del self._waiting[notification.id]
        self._changed.pop(notification.id, None)
        effects.write(DropNotice(notification.id))

    def tick(self, now: Now, effects: Effects) -> None:
        """Try what is due."""
        names: list[str] = []
        while self._due and self._due[0][0] <= now.mono and len(names) < MAX_SUBMITS:
            names.append(heapq.heappop(self._due)[1])
        if names:
            self._submit(names, now, effects)

    def deadline(self) -> float | None:
        """When something is due, by the monotonic clock."""
        return self._due[0][0] if self._due else None


def _task_of(notification: Notification, handler: Reaction) -> tuple[str, bytes, dict[str, Any]]:
    """The task that tells a notice, or, once that is on the queue, the one that checks again."""
    if notification.task:
        params: Any = {"agent": notification.agent, "check": notification.check}
        return RECHECK_METHOD, _to_json(params), {"key": notification.id + RECHECK, "after": [notification.task]}
    options = {
        "key": notification.id,
        "max_attempts": handler.max_attempts,
        "backoff": min(handler.backoff, MAX_QUEUE_SECONDS),
        "timeout": min(handler.timeout, MAX_QUEUE_SECONDS),
    }
    if handler.type == "task":
        return handler.method, _to_json(handler.params or [notification.payload]), options
    return NOTIFY_METHOD, _to_json({"handler": handler.name, "notice": notification.payload}), options
