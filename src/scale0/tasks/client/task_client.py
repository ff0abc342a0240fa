"""A task client's session, as a sub-protocol of a frontend session: submissions, queries, and the ends of tasks.

Invariants: every submission ends as accepted, refused or unknown, at the latest at its deadline; the end of a task that
is waited for is pushed or asked for, over every reconnect. All calls may be sent again: a submission carries its own
id, so that a repeated one is rejected and does not run.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.limits import Limits
from scale0.tasks.client import futures, responses
from scale0.tasks.client.futures import (
    OWN_QUERIES,
    Call,
    FutureChanged,
    FutureWait,
    SubmissionReceipt,
    SubmissionTemplate,
    TaskFault,
    TaskFuture,
    TaskQuery,
)
from scale0.tasks.client.pending_calls import PendingCalls
from scale0.tasks.client.responses import COMPLETE, RpcErrorBody, RpcResponse
from scale0.tasks.client.subscriptions import FutureSubscriptions, Why
from scale0.tasks.jsonrpc.messages import BAD_CLIENT, BAD_TASK, NO_ROOM, NOT_SERVING, NOT_STORED, RATE_LIMITED
from scale0.transport.core.session import SessionEffects

if TYPE_CHECKING:
    import random

SERIES_BITS: Final = 80
"""Random bits in our task ids: no two clients share a series."""
WAIT_SECONDS: Final = 30.0
WAIT_PAUSE_SECONDS: Final = 0.05
"""Between two waits, so that many ends come in one response."""
RETRY_SECONDS: Final = 0.5
"""Delay before a call is sent again that the broker could not accept: our old connection may still count as alive."""
GRACE_SECONDS: Final = 5.0
"""How much later than promised a response to our own queries may come."""

TEMPORARY: Final = frozenset({BAD_CLIENT, NOT_SERVING, NO_ROOM, RATE_LIMITED})
"""Errors that may be temporary: our id still counts as taken, the broker does not serve yet, the answer did not fit
into that of its array, or this second has had too many calls."""


class TaskClientSession:
    """One client id, its pending calls and its futures."""

    def __init__(self, client_id: str, rng: random.Random, limits: Limits | None = None) -> None:
        self.client_id = client_id
        self.last_error = ""
        """The broker's last error about a frame that it could not read."""
        self._series = f"{rng.getrandbits(SERIES_BITS):0{SERIES_BITS // 4}x}"
        self._calls = PendingCalls(limits or Limits())
        self._subscriptions = FutureSubscriptions()
        self._connect_at: float | None = 0.0
        """When to send `client_connect`; None once it was sent."""

    # Operations of the owner.

    def template(self, service: str, options: Mapping[str, Any]) -> SubmissionTemplate:
        return responses.template_of(self.client_id, service, options)

    def submit(
        self,
        template: SubmissionTemplate,
        bodies: Iterable[bytes],
        timeout: float,
        tag: Any,
        now: Now,
        wait: FutureWait | None = None,
        id_: str | None = None,
    ) -> tuple[SubmissionReceipt, list[TaskFuture]]:
        """Submit one task for each of `bodies` (params as JSON); the receipt is notified when all are acknowledged."""
        receipt = SubmissionReceipt(tag, now.mono + timeout)
        created: list[TaskFuture] = []
        pending, known = self._calls, self._subscriptions.known
        calls, number = pending.by_number, pending.last
        head, tail, series = template.head, template.tail, self._series
        for params in bodies:
            number += 1
            name = id_ or f"{series}.{number:012x}"
            future = TaskFuture(name, template, receipt, b'%b%b,"%b%b%d}' % (head, params, name.encode(), tail, number))
            calls[number] = future
            if id_ is None:
                known[name] = weakref.ref(future)
            else:
                self._subscriptions.register(future)
            created.append(future)
        pending.last = number
        pending.queue += created
        receipt.remaining = len(created)
        pending.timers.add(receipt, now.mono)
        if wait is not None:
            self._subscriptions.add_wait(wait, created, now.mono)
        self._subscriptions.sweep()
        return receipt, created

    def future_of(self, id_: str) -> TaskFuture:
        """The future of a task that was submitted before, here or elsewhere."""
        future = self._subscriptions.find(id_)
        if future is None:
            future = TaskFuture(id_, None, None, b"")
            self._subscriptions.register(future)
        return future

    def query(self, kind: str, id_: str, timeout: float, tag: Any, now: Now) -> TaskQuery:
        """Query STATUS or CANCEL; the query is notified when it has a response or a fault."""
        if kind not in (futures.STATUS, futures.CANCEL):
            raise ValueError(f"{kind!r} is not a query of a client")
        query = self._calls.query(kind, kind, [self.client_id, id_], timeout, now, tag)
        query.broker = self._subscriptions.broker_of(id_)
        return query

    def add_wait(self, wait: FutureWait, futures: Iterable[TaskFuture], now: Now) -> None:
        """Report the end of these futures to `wait`; those that have ended are reported at once."""
        self._subscriptions.add_wait(wait, futures, now.mono)

    def remove_wait(self, wait: FutureWait, futures: Iterable[TaskFuture] | None = None) -> None:
        """Stop waiting for these futures; None for all of them."""
        self._subscriptions.remove_wait(
            wait, tuple(self._subscriptions.waited_for.values()) if futures is None else futures
        )

    def is_pushed(self, future: TaskFuture) -> bool:
        """True if its acknowledgement or its end will be pushed."""
        return future.status == futures.NEW or future.pushed_on == self._calls.connection

    @property
    def unanswered(self) -> int:
        return len(self._calls.by_number)

    # The SubProtocol of a frontend session.

    @property
    def waiting(self) -> bool:
        return bool(self._calls.by_number) or bool(self._subscriptions.waited_for)

    @property
    def is_bound(self) -> bool:
        return self._subscriptions.is_bound(self._calls.by_number.values())

    def set_owner(self, owner: str, shared: bool) -> None:
        self._calls.delayed += self._subscriptions.set_broker(owner, shared, self._calls.by_number.values())

    def deadline(self, live: bool) -> float | None:
        due = self._calls.timers.deadline()
        times = [] if due is None else [due]
        if live:
            subscriptions = self._subscriptions
            if self._calls.delayed:
                times.append(self._calls.delayed_until)
            if subscriptions.to_ask:
                times.append(subscriptions.ask_at)
            if subscriptions.waited_for:
                times.append(subscriptions.poll_at)
            if self._connect_at is not None and self.waiting:
                times.append(self._connect_at)
        return min(times, default=None)

    def resume(self, broker: str, now: Now, effects: SessionEffects) -> None:
        self._connect_at = now.mono
        self._calls.resume()
        self._subscriptions.reconnected(self._calls.connection, broker, now.mono)
        self.flush(now, effects)

    def unsent(self, frame: bytes) -> None:
        self._calls.unsent(frame)

    def never_connected(self) -> None:
        self._calls.never_connected()

    def flush(self, now: Now, effects: SessionEffects) -> None:
        pending, subscriptions = self._calls, self._subscriptions
        queue = subscriptions.current_calls(pending.take(now))
        for chunk in subscriptions.take_waits(now.mono):
            self._send_wait(futures.WAIT, chunk, WAIT_SECONDS, now)
        waits = pending.take(now)
        if self._connect_at is not None and now.mono >= self._connect_at and (queue or waits or self.waiting):
            self._connect_at = None
            pending.query(futures.CONNECT, futures.CONNECT, [self.client_id], GRACE_SECONDS, now)
            queue = [*pending.take(now), *queue]
        pending.send(queue, waits, subscriptions.broker, effects)

    def tick(self, why: Why, now: Now, effects: SessionEffects) -> None:
        """Time out calls, and ask for ends whose notification is overdue."""
        expired = self._calls.timers.expire(now.mono)
        receipts = {call for call in expired if isinstance(call, SubmissionReceipt) and not call.ended}
        if receipts:
            code, message = why()
            self._fail_submissions(
                receipts, TaskFault(code, f"{message}; {self.last_error}" if self.last_error else message), effects
            )
        for call in expired:
            if isinstance(call, TaskQuery) and not call.ended:
                self._time_out(call, why, now, effects)
        for chunk in self._subscriptions.take_overdue(now.mono):
            self._send_wait(futures.POLL, chunk, 0, now)
        self._subscriptions.notify(effects)

    def fail(self, code: int, message: str, effects: SessionEffects) -> None:
        fault = TaskFault(code, message)
        self._fail_submissions(None, fault, effects)
        for call in self._calls.by_number.values():
            if isinstance(call, TaskQuery):
                call.fault = fault
                self._answered(call, effects)
        self._calls.clear()
        self._subscriptions.fail(fault)
        self._subscriptions.notify(effects)

    def receive(self, frame: bytes, now: Now, effects: SessionEffects) -> None:
        calls, subscriptions = self._calls.by_number, self._subscriptions
        for response in responses.read_responses(frame):
            if response.params is not None:
                if response.method == COMPLETE:
                    subscriptions.complete(response.params)
                continue
            if response.id is None:
                if response.error is not None:
                    self.last_error = f"{response.error.code} {response.error.message}"
                continue
            call = calls.pop(response.id, None)
            if call is None:
                continue
            if isinstance(call, TaskQuery):
                self._receive_response(call, response, now, effects)
            elif response.error is not None:
                self._reject(call, response.id, response.error, now, effects)
            else:
                self._accept(call, response, now, effects)
        subscriptions.notify(effects)

    # Submissions.

    def _accept(self, future: TaskFuture, response: RpcResponse, now: Now, effects: SessionEffects) -> None:
        template = future.template
        if template is not None and template.notify:
            future.pushed_on = self._calls.connection
        if template is not None and template.keyed:
            self._subscriptions.rename(future, responses.read_text(response.result) or future.id, now.mono)
        if not future.ended:  # its end may have arrived first
            self._subscriptions.accept(future, now.mono)
        self._settle(future, effects)

    def _reject(self, future: TaskFuture, number: int, error: RpcErrorBody, now: Now, effects: SessionEffects) -> None:
        fault = error.fault()
        if future.status != futures.NEW:
            # Its end arrived, or its id as that of another submission's key, so it was accepted: this response is for
            # a second try.
            self._settle(future, effects)
        elif error.code in TEMPORARY:
            future.fault = fault
            self._delay(number, future, error.code, now)
        elif error.code in (BAD_TASK, NOT_STORED) and future.tries > 1:
            # Our own earlier try may have taken the id or be stored, if its response was lost.
            future.fault = fault
            self._check(future, now)
        else:
            self._subscriptions.end(future, futures.REFUSED, b"", fault)
            self._settle(future, effects)

    def _fail_submissions(
        self, receipts: set[SubmissionReceipt] | None, fault: TaskFault, effects: SessionEffects
    ) -> None:
        """Fail the submissions of these receipts; None for all."""
        for number, call in tuple(self._calls.by_number.items()):
            if not isinstance(call, TaskQuery):
                future = call
            elif call.kind == futures.CHECK:
                future = call.futures[0]
            else:
                continue
            if future.receipt is None or (receipts is not None and future.receipt not in receipts):
                continue
            del self._calls.by_number[number]
            if isinstance(call, TaskQuery):
                self._calls.close(call)
            if future.status != futures.NEW:
                pass  # stored: the id of another submission's key
            elif future.tries:
                self._subscriptions.end(future, futures.UNKNOWN, b"", fault)
            else:
                self._subscriptions.end(future, futures.REFUSED, b"", future.fault or fault)
            self._settle(future, effects)
        self._calls.drop_ended()

    def _settle(self, future: TaskFuture, effects: SessionEffects) -> None:
        receipt, future.receipt = future.receipt, None
        future.part = b""
        if receipt is not None:
            receipt.remaining -= 1
            if not receipt.remaining:
                receipt.ended = True
                self._calls.timers.remove(receipt)
                if receipt.tag is not None:
                    effects.notifications.append(FutureChanged(receipt.tag))

    def _delay(self, number: int, call: Call, code: int, now: Now) -> None:
        """The broker could not accept it for the moment: send it again soon."""
        self._calls.delay(number, call, now.mono + RETRY_SECONDS)
        if code == BAD_CLIENT and self._connect_at is None:
            self._connect_at = now.mono + RETRY_SECONDS

    # Queries.

    def _send_wait(self, kind: str, chunk: Sequence[TaskFuture], seconds: float, now: Now) -> None:
        params = [self.client_id, [future.id for future in chunk], seconds]
        self._calls.query(kind, futures.WAIT, params, seconds + GRACE_SECONDS, now, None, chunk)

    def _check(self, future: TaskFuture, now: Now) -> None:
        receipt = future.receipt
        seconds = GRACE_SECONDS if receipt is None else max(0.0, receipt.deadline - now.mono) + GRACE_SECONDS
        self._calls.query(futures.CHECK, futures.STATUS, [self.client_id, future.id], seconds, now, None, (future,))

    def _receive_response(self, query: TaskQuery, response: RpcResponse, now: Now, effects: SessionEffects) -> None:
        error = response.error
        if error is not None and is_repeated(query, error.code):
            query.fault = error.fault()
            self._delay(query.number, query, error.code, now)
            return
        query.fault = error.fault() if error is not None else None
        match query.kind:
            case futures.CONNECT if error is not None:
                self._connect_at = now.mono + RETRY_SECONDS
            case futures.CONNECT:
                self._calls.delayed_until = now.mono
            case futures.WAIT | futures.POLL:
                self._receive_wait(query, response, now)
            case futures.CHECK:
                self._receive_check(query.futures[0], error, now, effects)
            case _:
                query.answer = bytes(response.result)
        self._answered(query, effects)

    def _receive_wait(self, query: TaskQuery, response: RpcResponse, now: Now) -> None:
        if response.error is None:
            for row in responses.read_rows(response.result):
                self._subscriptions.complete(row)
            if response.more:
                self._subscriptions.ask_now(query.futures, now.mono)
            elif query.kind == futures.WAIT:
                self._subscriptions.ask_later(query.futures, now.mono + WAIT_PAUSE_SECONDS)
        elif response.error.code == BAD_TASK and len(query.futures) == 1:
            self._subscriptions.end(query.futures[0], futures.MISSING, b"", query.fault)
        elif response.error.code == BAD_TASK:
            for future in query.futures:
                self._check(future, now)
        else:
            if response.error.code == BAD_CLIENT and self._connect_at is None:
                self._connect_at = now.mono + RETRY_SECONDS
            self._subscriptions.ask_later(query.futures, now.mono + RETRY_SECONDS)

    def _receive_check(self, future: TaskFuture, error: RpcErrorBody | None, now: Now, effects: SessionEffects) -> None:
        """Handle the answer to CHECK, made after a submission that was sent twice, or a wait with an unknown task."""
        ours = future.receipt is not None
        if future.ended:
            pass  # its end arrived meanwhile
        elif error is None:
            future.fault = None
            self._subscriptions.accept(future, now.mono + WAIT_PAUSE_SECONDS)
        elif ours:
            self._subscriptions.end(future, futures.REFUSED, b"", future.fault or error.fault())
        elif error.code == BAD_TASK:
            self._subscriptions.end(future, futures.MISSING, b"", error.fault())
        else:
            self._subscriptions.ask_later((future,), now.mono + RETRY_SECONDS)
        if ours:
            self._settle(future, effects)

    def _time_out(self, query: TaskQuery, why: Why, now: Now, effects: SessionEffects) -> None:
        self._calls.by_number.pop(query.number, None)
        match query.kind:
            case futures.CONNECT:
                self._connect_at = now.mono
            case futures.WAIT | futures.CHECK:
                self._subscriptions.ask_later(query.futures, now.mono)
            case futures.POLL:
                pass  # the next one is due soon
            case _:
                query.fault = query.fault or TaskFault(*why())
        self._answered(query, effects)

    def _answered(self, query: TaskQuery, effects: SessionEffects) -> None:
        self._calls.close(query)
        if query.tag is not None:
            effects.notifications.append(FutureChanged(query.tag))


def is_repeated(query: TaskQuery, code: int) -> bool:
    """True if this query is sent again after such an error. A CHECK waits until the store can be read: only then is it
    known whether the submission is stored."""
    return query.kind not in OWN_QUERIES and (code in TEMPORARY or (code == NOT_STORED and query.kind == futures.CHECK))
