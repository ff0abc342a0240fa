"""Administrative commands on tasks: list, retry, cancel, and node status requests (PROTOCOL 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from scale0.broker.admin.access import OPERATOR, VIEWER, key_of
from scale0.broker.admin.commands import AdminCall, AdminCommands, AdminResult, Outcome
from scale0.broker.admin.views import MAX_PAGE_ROWS
from scale0.broker.core.connections import Connection
from scale0.history.events.tasks import TaskReopened
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.storage.rows import MAX_INTEGER
from scale0.storage.task_queries import ListTasks, TaskPage
from scale0.storage.task_rows import (
    FINISHED,
    STATUS_CODES,
    STATUS_NAMES,
    EndedTask,
    OpenTask,
    ReopenTask,
    account_name,
    reopened,
)
from scale0.tasks.core.result_reads import intact
from scale0.tasks.core.task import MICRO, QueuedTask, from_store, read_kept
from scale0.tasks.core.tasks import BrokerTasks
from scale0.tasks.jsonrpc.messages import CANCELLED_ERROR, error_object

MAX_LISTS: Final = 16
"""Lists of one administrator on the connections of one key that are being read."""
MAX_SEQ_DIGITS: Final = 19
"""Maximum length of a list position in decimal digits."""

Row = QueuedTask | OpenTask | EndedTask


class TaskCommands:
    def __init__(self, management: AdminCommands, tasks: BrokerTasks) -> None:
        self._management = management
        self._tasks = tasks
        self._reading: Counter[tuple[str | Connection, str]] = Counter()
        """By key and administrator: the lists that are being read."""
        management.table.update(
            {
                "list_tasks": (VIEWER, self._list),
                "show_task": (VIEWER, self._show),
                "retry_task": (OPERATOR, self._retry),
                "cancel_task": (OPERATOR, self._cancel),
                "ask_nodes": (OPERATOR, self._ask_nodes),
            }
        )

    def _list(self, call: AdminCall) -> Outcome:
        request = call.request
        if request.status is not None and request.status not in STATUS_CODES:
            raise Refusal(codes.MALFORMED, f"status is one of {', '.join(STATUS_CODES)}")
        before = None
        if request.after is not None:
            if not (request.after.isascii() and request.after.isdigit() and len(request.after) <= MAX_SEQ_DIGITS):
                raise Refusal(codes.MALFORMED, "after must be the value of next from the previous page")
            before = min(int(request.after), MAX_INTEGER)
        ask = ListTasks(
            limit=max(1, min(request.limit, MAX_PAGE_ROWS)),
            before_seq=before,
            status=None if request.status is None else STATUS_CODES[request.status],
            method=request.method,
            client=request.client,
        )

        sender = (key_of(call.connection), call.admin.name)
        if self._reading[sender] >= MAX_LISTS:
            raise Refusal(codes.TOO_MANY, f"{MAX_LISTS} lists of {call.admin.name} are being read: try again later")
        self._reading[sender] += 1

        def found(page: TaskPage | Refusal, now: Now, effects: Effects) -> None:
            self._reading[sender] -= 1
            if not self._reading[sender]:
                del self._reading[sender]
            self._management.later(call._replace(now=now, effects=effects), lambda _: listed(page))

        def listed(page: TaskPage | Refusal) -> AdminResult:
            if isinstance(page, Refusal):
                raise page
            tasks = self._tasks.backlog.tasks
            items = [task_row(tasks.get(row.id) or row) for row in page.tasks]
            after = None if page.next_seq is None else str(page.next_seq)
            return AdminResult({"items": items, "next": after})

        call.effects.ask(StoreQuery(ask, found, aside=True, sender=sender))
        return None

    def _show(self, call: AdminCall) -> Outcome:
        return self._with_task(call, lambda _, row: AdminResult(task_page(row)))

    def _retry(self, call: AdminCall) -> Outcome:
        return self._with_task(call, self._reopen)

    def _cancel(self, call: AdminCall) -> Outcome:
        return self._with_task(call, self._end)

    def _ask_nodes(self, call: AdminCall) -> Outcome:
        self._tasks.publisher.ask_nodes(call.effects)
        return AdminResult({})

    def _with_task(self, call: AdminCall, act: Callable[[AdminCall, Row], Outcome]) -> Outcome:
        id_ = call.request.task_id
        if not id_:
            raise Refusal(codes.MALFORMED, "task_id is missing")

        def found(rows: tuple[Row | None, ...], now: Now, effects: Effects) -> None:
            later = call._replace(now=now, effects=effects)
            row = rows[0]

            def do(at: AdminCall) -> Outcome:
                if row is None:
                    raise Refusal(codes.NO_SUCH_SERVICE, f"unknown task {id_[:128]}")
                return act(at, row)

            self._management.later(later, do)

        self._tasks.backlog.find((id_,), found, call.effects)
        return None

    def _end(self, call: AdminCall, row: Row) -> Outcome:
        before = STATUS_NAMES[row.status]
        if isinstance(row, EndedTask):
            return AdminResult({"task_id": row.id, "cancelled": False}, before, before)

        def ended(known: bool, now: Now, effects: Effects) -> None:
            self._management.later(call._replace(now=now, effects=effects), lambda _: outcome(known))

        def outcome(known: bool) -> Outcome:
            if not known:
                raise Refusal(codes.NO_ANSWER, f"the broker that holds {row.id} has not answered: try again")
            return AdminResult({"task_id": row.id, "cancelled": True}, before, "cancelled", True)

        error = error_object(CANCELLED_ERROR, f"cancelled by {call.admin.name}")
        self._tasks.client_methods.cancel_row(row, error, ended, call.now, call.effects)
        return None

    def _reopen(self, call: AdminCall, row: Row) -> Outcome:
        if not isinstance(row, EndedTask):
            raise Refusal(codes.IN_USE, f"the task {row.id} has not ended: it is {STATUS_NAMES[row.status]}")
        if self._tasks.queue.is_expired(row, call.now):
            raise Refusal(codes.NO_SUCH_SERVICE, f"the task {row.id} has expired: submit a new one")
        if row.status == FINISHED:
            raise Refusal(codes.IN_USE, f"the task {row.id} has finished: submit a new one")
        account = account_name(row.owner, row.client)
        reason = self._tasks.queue.quotas.why_not(account, len(row.params), False)
        if reason:
            raise Refusal(codes.TOO_MANY, f"the task {row.id} cannot be queued again: {reason}")
        runnable_us = self._tasks.queue.schedule.now_us(call.now)
        call.effects.write(ReopenTask(row.seq, runnable_us))
        self._tasks.take_freed(call.effects)
        call.effects.record(TaskReopened(row.id, row.method, row.client))
        self._tasks.queue.reopened(from_store(reopened(row, runnable_us, followed=False)), call.now, call.effects)
        return AdminResult({"task_id": row.id, "status": "queued"}, STATUS_NAMES[row.status], "queued", True)


def task_row(row: Row) -> dict[str, Any]:
    return {
        "task_id": row.id,
        "client_id": row.client,
        "method": row.method,
        "status": STATUS_NAMES[row.status],
        "priority": row.priority,
        "attempt": row.attempt,
        "starts": row.starts,
        "node_id": row.node or None,
        "submitted": row.submitted_us / MICRO,
        "started": row.started_us / MICRO if row.started_us else None,
        "finished": row.ended_us / MICRO if isinstance(row, EndedTask) else None,
    }


def task_page(row: Row) -> dict[str, Any]:
    """Returns every field of a task except its params and result, which only its client may read."""
    kept = read_kept(row.options)
    end = row if isinstance(row, EndedTask) else None
    failed = end is not None and end.status != FINISHED
    return {
        **task_row(row),
        "key": row.key,
        "timeout": kept.timeout,
        "max_attempts": kept.max_attempts,
        "backoff": kept.backoff,
        "result_ttl": kept.result_ttl,
        "error": msgspec.Raw(intact(end.seq, end.status, end.result, end.result_sum)[1])
        if end and failed and end.result
        else None,
        "info": msgspec.Raw(row.info) if row.info else None,
        "attempts": msgspec.Raw(row.history) if row.history else [],
        "params_bytes": len(row.params) if isinstance(row, EndedTask) else row.size,
        "result_bytes": len(end.result) if end and not failed else None,
        "runnable": None if isinstance(row, EndedTask) else row.runnable_us / MICRO,
        "expires": end.expires_us / MICRO if end else None,
        "owner": row.owner or None,
    }
