"""Notifications: sent to handlers through the task queue, or directly while there is no queue.

A notification stays in the store until the queue has it, Helen has delivered it, or it is given up. Its id is the
idempotency key, so a repeated submission makes one task. If the queue does not accept it for `DIRECT_AFTER_SECONDS`,
Helen stores that it is direct and delivers it herself; from then on it is never submitted. A notification that may be
on a queue (`offered`) is submitted again only there (`owner`), because no other queue knows its key; it is direct only
if that queue did not answer for `GIVE_UP_SECONDS`, and then says that it may be a repetition. Each handler gets at most
`limit` notifications per period; the rest is counted in one summary.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from scale0.config.monitoring import NotificationHandler
from scale0.history.events.checks import NoticeDropped, NoticeSent
from scale0.kernel import codes
from scale0.kernel.backoff import Backoff, pause
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal, StoreError
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.protocol.results import OK
from scale0.storage.check_rows import DropNotice, NoticeRow, PutNotice

NOTIFY_METHOD: Final = "helen.notify"
"""The task that delivers webhooks, commands and e-mails."""
RECHECK_METHOD: Final = "helen.recheck"
"""The task that runs a check again."""
RECHECK: Final = ":recheck"
"""Appended to a notification's id for the key of its recheck."""

MAX_NOTIFICATIONS: Final = 10_000
"""Waiting notifications; beyond it, they are dropped and counted."""
MAX_SUBMITS: Final = 100
"""Submissions in flight."""
DIRECT_AFTER_SECONDS: Final = 10.0
"""A notification that the queue did not accept for this long is delivered directly."""
MAX_DELIVERIES: Final = 8
"""Direct deliveries in progress; the notifier has a thread for each."""
FIRST_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 60.0
GIVE_UP_SECONDS: Final = 86_400.0
"""If the queue that may have a notification did not answer for a day, its broker is taken as lost: the notification is
delivered directly and marked as a possible repetition, or dropped if only a queue can deliver it. After a restart it
gets another day."""
REPEATED: Final = "possibly_repeated"
"""The field of a notification that a lost queue may have delivered already."""
MAX_EXAMPLES: Final = 20
"""Checks that a summary names."""
MAX_QUEUE_SECONDS: Final = 366 * 86_400.0
"""The longest timeout and backoff that the queue accepts."""
LIMIT: Final = "limit"
"""Why a notification was dropped: its handler is over its limit."""
SUMMARY: Final = "summary"
"""The kind of a notification that counts others."""
QUIET_STATES: Final = ("critical", "unknown", "warning")
ALL_STATES: Final = (*QUIET_STATES, "ok")


QUEUE: Final = "queue"
DIRECT: Final = "direct"
"""How a notification was sent: as a task, or by Helen herself."""


class SubmitNotification:
    """An ask: submit a task. The answer is its id (str), OtherQueue, or a Refusal: NOT_SERVING if this submission
    certainly did not reach the queue, any other code if the queue may have the task."""

    __slots__ = ("bound", "id", "method", "options", "owner", "params", "then")

    def __init__(
        self,
        id: str,
        owner: str,
        bound: bool,
        method: str,
        params: bytes,
        options: Mapping[str, Any],
        then: Callable[[Any, Now, Effects], None],
    ) -> None:
        self.id = id
        """The notification's id."""
        self.owner = owner
        """The only queue that it may be submitted to; empty: none yet."""
        self.bound = bound
        """That queue may have it, or has the task before it: it is worth a connection of its own."""
        self.method = method
        self.params = params
        """JSON: a list or an object."""
        self.options = options
        """The options of SUBMIT: key, max_attempts, backoff, timeout, after."""
        self.then = then


class OtherQueue(NamedTuple):
    """The answer to a submission for another queue than the one that Helen is connected to: nothing was submitted."""

    owner: str
    """The queue that she is connected to: the identity of a broker, or of a group that shares a store."""


class DeliverNotification:
    """An ask: deliver a notification without the queue. The answer is a text, or a Refusal: MALFORMED if another
    attempt would fail, too."""

    __slots__ = ("handler", "notice", "then")

    def __init__(
        self, handler: NotificationHandler, notice: dict[str, Any], then: Callable[[Any, Now, Effects], None]
    ) -> None:
        self.handler = handler
        self.notice = notice
        self.then = then


class Notification(msgspec.Struct, kw_only=True, rename={"created": "made", "payload": "said"}):
    """A notification for one handler, as the store keeps it."""

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
    """The task that delivers it, once the queue has it; then only the recheck is left."""
    payload: dict[str, Any] = {}
    """What the handler gets."""
    offered: bool = True
    """It may be on the queue of `owner`: it was submitted, and the queue has not refused it."""
    owner: str = ""
    """The queue that it is offered to, stored before it is submitted; empty: none (or a row of an older version)."""
    direct: bool = False
    """Helen delivers it herself; it is never submitted."""
    failures: int = 0
    """Failed direct deliveries."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Notification).decode
_to_json: Final = msgspec.json.Encoder().encode


def notification_id(*parts: str) -> str:
    """Equal notifications get equal ids."""
    return "n-" + hashlib.blake2s("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def notification_for(
    handler: str, key: tuple[str, str], state: CheckState, labels: dict[str, str], incident: str, wall: float
) -> Notification:
    """The notification of a problem or a recovery.

    The last notification is part of its id: when another Helen has sent one about an older result meanwhile, the same
    result is notified again, and the queue must not discard that as a repetition.
    """
    agent, check = key
    last = (state.notified, str(state.notified_at))
    id_ = notification_id(handler, agent, check, state.state, str(state.at), state.ref, *last)
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


def wants(handler: NotificationHandler, state: str) -> bool:
    """True if this handler is notified of this state."""
    states = handler.states or (QUIET_STATES if handler.type == "task" else ALL_STATES)
    return state in states


class _Period:
    """The current period of a handler."""

    __slots__ = ("count", "ends_mono", "ends_wall", "summary")

    def __init__(self, handler: NotificationHandler, now: Now) -> None:
        self.count = 0
        self.ends_mono = now.mono + handler.period
        self.ends_wall = now.wall + handler.period
        self.summary: Notification | None = None


class _Waiting:
    """A notification and its submissions."""

    __slots__ = ("backoff", "in_flight", "notification", "since", "uncertain")

    def __init__(self, notification: Notification, uncertain: bool = False) -> None:
        self.notification = notification
        self.uncertain = uncertain
        """The answer to an earlier submission is unknown: only that queue can accept it."""
        self.since: float | None = None
        """When it was first submitted, monotonic time: setting the wall clock must drop nothing."""
        self.backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        self.in_flight = False

    @property
    def is_bound(self) -> bool:
        """True if no other queue may get it: this one may have it, or has the task that it follows."""
        return self.notification.owner != "" and (self.uncertain or self.notification.task != "")


class Outbox:
    """The notifications that are neither on the queue nor delivered."""

    def __init__(self, rows: Iterable[NoticeRow]) -> None:
        self.handlers: Mapping[str, NotificationHandler] = {}
        self.sent = 0
        self.dropped = 0
        self._waiting: dict[str, _Waiting] = {}
        self._due: list[tuple[float, str]] = []
        """When to submit which notification, monotonic time; a heap."""
        self._fresh: list[str] = []
        """Added in this turn: to be submitted once they are stored."""
        self._changed: dict[str, Notification] = {}
        """To be written with this turn."""
        self._periods: dict[str, _Period] = {}
        self._in_flight = 0
        self._deliveries = 0
        self._owner = ""
        """The queue that Helen was last connected to."""
        for row in rows:
            try:
                notification = _decode(row.body)
                self._waiting[row.id] = _Waiting(notification, notification.offered)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreError(f"the row of notification {row.id} is damaged: {error}") from error

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, now: Now) -> None:
        """After a restart: submit everything again, each at its time."""
        for name, waiting in self._waiting.items():
            heapq.heappush(self._due, (now.mono + max(0.0, waiting.notification.due - now.wall), name))

    def configure(self, handlers: Mapping[str, NotificationHandler]) -> None:
        self.handlers = handlers
        self._periods = {name: period for name, period in self._periods.items() if name in handlers}

    def put(self, notification: Notification, now: Now, effects: Effects) -> None:
        """Send a notification, or count it if its handler is over its limit."""
        handler = self.handlers.get(notification.handler)
        if handler is None:
            self._drop(notification, "unknown handler", effects)
            return
        if notification.id in self._waiting:
            return
        period = self._periods.get(handler.name)
        if period is None or period.ends_mono <= now.mono:
            self._periods[handler.name] = period = _Period(handler, now)
        if period.count >= handler.limit:
            self._summarize(handler, period, notification, now, effects)
        elif len(self._waiting) >= MAX_NOTIFICATIONS:
            self._drop(notification, "too many notifications are waiting", effects)
        else:
            period.count += 1
            notification.owner = self._owner
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
        self, handler: NotificationHandler, period: _Period, notification: Notification, now: Now, effects: Effects
    ) -> None:
        """Count a notification over the limit in the summary that is sent when the period ends."""
        if handler.type == "task":
            # A task handler repairs one check: a summary is of no use to it.
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
        """Write what this turn changed, and submit it once it is stored."""
        if self._changed:
            for notification in self._changed.values():
                effects.write(PutNotice(notification.id, _encode(notification)))
            self._changed = {}
        if self._fresh:
            names, self._fresh = self._fresh, []
            effects.after_commit(partial(self._submit, names))

    def _submit(self, names: Iterable[str], now: Now, effects: Effects) -> None:
        for name in names:
            waiting = self._waiting.get(name)
            if waiting is None or waiting.in_flight:
                continue
            direct = waiting.notification.direct
            if self._deliveries >= MAX_DELIVERIES if direct else self._in_flight >= MAX_SUBMITS:
                heapq.heappush(self._due, (now.mono + FIRST_RETRY_SECONDS, name))
            else:
                self._start(waiting, now, effects)

    def _start(self, waiting: _Waiting, now: Now, effects: Effects) -> None:
        notification = waiting.notification
        handler = self.handlers.get(notification.handler)
        if waiting.since is None:
            waiting.since = now.mono
        seconds = now.mono - waiting.since
        if handler is None:
            self._give_up(notification, "unknown handler", effects)
        elif notification.direct:
            waiting.in_flight = True
            self._deliveries += 1
            then = partial(self._delivered, waiting, handler)
            effects.ask(DeliverNotification(handler, notification.payload, then))
        elif seconds > GIVE_UP_SECONDS:
            self._queue_lost(waiting, handler, effects)
        elif notification.offered:
            waiting.in_flight = True
            self._in_flight += 1
            method, params, options = _task_of(notification, handler)
            then = partial(self._answered, waiting)
            owner, bound = notification.owner, waiting.is_bound
            effects.ask(SubmitNotification(notification.id, owner, bound, method, params, options, then))
        else:
            # The queue refused it. What comes next is stored first: a direct delivery, or another submission.
            self._choose(notification, handler.type != "task" and seconds >= DIRECT_AFTER_SECONDS)

    def _choose(self, notification: Notification, direct: bool) -> None:
        """Store how it is sent next, and send it then."""
        notification.direct, notification.offered = direct, not direct
        if not notification.task or not notification.owner:  # a recheck follows a task of its owner
            notification.owner = "" if direct else self._owner
        self._keep(notification)
        self._fresh.append(notification.id)

    def _queue_lost(self, waiting: _Waiting, handler: NotificationHandler, effects: Effects) -> None:
        """The queue did not accept it for a day. A late or repeated page is better than none; a repair is not."""
        notification = waiting.notification
        if handler.type == "task":
            of = f" of {notification.owner}" if notification.owner else ""
            self._give_up(notification, f"the queue{of} did not accept it", effects)
            return
        if waiting.uncertain:
            notification.payload[REPEATED] = True
        self._choose(notification, True)

    def _give_up(self, notification: Notification, reason: str, effects: Effects) -> None:
        self._drop(notification, reason, effects)
        self._forget(notification, effects)

    def _answered(self, waiting: _Waiting, value: Any, now: Now, effects: Effects) -> None:
        waiting.in_flight = False
        self._in_flight -= 1
        notification = waiting.notification
        if notification.id not in self._waiting:
            return
        if isinstance(value, OtherQueue):
            self._moved(waiting, value.owner, now)
            return
        if not isinstance(value, str):
            self._refused(waiting, value, now)
            return
        handler = self.handlers.get(notification.handler)
        if not notification.task:
            self._record_sent(notification, value, QUEUE, effects)
            if handler is not None and handler.type == "task" and handler.check_again and notification.check:
                notification.task = value
                waiting.backoff.reset()
                self._keep(notification)
                self._fresh.append(notification.id)
                return
        self._forget(notification, effects)

    def _moved(self, waiting: _Waiting, owner: str, now: Now) -> None:
        """Helen is connected to another queue: offer it there, unless the old one may have it or the task before it."""
        self._owner = owner
        notification = waiting.notification
        if waiting.is_bound:
            heapq.heappush(self._due, (now.mono + waiting.backoff.next(), notification.id))
        else:
            self._choose(notification, False)

    def _refused(self, waiting: _Waiting, refusal: Any, now: Now) -> None:
        """Submit it again later. If the queue certainly does not have it, that is stored: it may become direct."""
        notification = waiting.notification
        if not isinstance(refusal, Refusal) or refusal.code != codes.NOT_SERVING:
            waiting.uncertain = True
        when = now.mono + waiting.backoff.next()
        if not waiting.uncertain:
            notification.offered = False
            self._keep(notification)
            direct_at = (now.mono if waiting.since is None else waiting.since) + DIRECT_AFTER_SECONDS
            if now.mono < direct_at < when:
                when = direct_at
        heapq.heappush(self._due, (when, notification.id))

    def _delivered(
        self, waiting: _Waiting, handler: NotificationHandler, value: Any, now: Now, effects: Effects
    ) -> None:
        """A direct delivery ended. One that Helen's death interrupts is repeated; one that failed counts."""
        waiting.in_flight = False
        self._deliveries -= 1
        notification = waiting.notification
        if not isinstance(value, Refusal):
            self._record_sent(notification, "", DIRECT, effects)
            self._forget(notification, effects)
            return
        notification.failures += 1
        if value.code == codes.MALFORMED:
            self._give_up(notification, "it cannot be delivered", effects)
        elif notification.failures >= handler.max_attempts:
            self._give_up(notification, f"all {notification.failures} direct deliveries failed", effects)
        else:
            self._keep(notification)
            seconds = pause(handler.backoff, MAX_QUEUE_SECONDS, notification.failures - 1)
            heapq.heappush(self._due, (now.mono + seconds, notification.id))

    def _record_sent(self, notification: Notification, task: str, via: str, effects: Effects) -> None:
        self.sent += 1
        effects.record(
            NoticeSent(
                notification.id,
                notification.agent,
                notification.check,
                notification.handler,
                notification.state,
                task,
                via,
            )
        )
        if notification.payload.get("kind") == SUMMARY:
            effects.record(NoticeDropped(notification.handler, notification.payload["dropped"], LIMIT))

    def _forget(self, notification: Notification, effects: Effects) -> None:
        del self._waiting[notification.id]
        self._changed.pop(notification.id, None)
        effects.write(DropNotice(notification.id))

    def tick(self, now: Now, effects: Effects) -> None:
        names: list[str] = []
        while self._due and self._due[0][0] <= now.mono and len(names) < MAX_SUBMITS:
            names.append(heapq.heappop(self._due)[1])
        if names:
            self._submit(names, now, effects)

    def deadline(self) -> float | None:
        return self._due[0][0] if self._due else None


def _task_of(notification: Notification, handler: NotificationHandler) -> tuple[str, bytes, dict[str, Any]]:
    """The task that delivers a notification or, once that is on the queue, the recheck."""
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
