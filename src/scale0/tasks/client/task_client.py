"""A task client's session, riding on a frontend's line: submissions, questions, and news of tasks that ended.

Lives here: what an answer means, and when a task is asked for because nobody would tell. Never here: what is unanswered
and sent again (`open_calls`), the line, the socket, or how anybody waits. Invariants: every submission ends in
accepted, refused or unknown, at the latest with its deadline; a task that somebody watches is told or asked for, over
every reconnect.

All calls may be sent again: a submission carries its own id, so that a second one of the same is refused and not run.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.limits import Limits
from scale0.tasks.client import futures, responses
from scale0.tasks.client.futures import (
    OWN_QUESTIONS,
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
from scale0.tasks.client.subscriptions import Call, FutureSubscriptions, OutgoingCalls, Why
from scale0.tasks.jsonrpc.messages import BAD_CLIENT, BAD_TASK, NOT_SERVING

if TYPE_CHECKING:
    import random

SERIES_BITS: Final = 80
"""Of the random part of our task ids: no two clients ever share one."""
WAIT_SECONDS: Final = 30.0
WAIT_PAUSE_SECONDS: Final = 0.05
"""Between a wait's answer and the next one, so that many ends come in one answer."""
AGAIN_SECONDS: Final = 0.5
"""Until we say again what the broker could not take just now: our old connection may still count as alive."""
GRACE_SECONDS: Final = 5.0
"""How much later than promised an answer to our own questions may come."""

NOT_NOW: Final = frozenset({BAD_CLIENT, NOT_SERVING})
"""Errors that may be over in a moment: our id still counts as taken, or the broker does not serve yet."""


class TaskClientSession:
    """One client id, its open calls and its tickets."""

    def __init__(self, client_id: str, chance: random.Random, limits: Limits | None = None) -> None:
        self.client_id = client_id
        self.complaint = ""
        """What the broker last said about a frame that it could not read."""
        self._series = f"{chance.getrandbits(SERIES_BITS):0{SERIES_BITS // 4}x}"
        self._open = PendingCalls(limits or Limits())
        self._watching = FutureSubscriptions()
        self._hello_at: float | None = 0.0
        """When to say who we are; None: it was said."""

    # What the owner asks for.

    def order(self, service: str, options: Mapping[str, Any]) -> SubmissionTemplate:
        """What tasks of this service and these options have in common."""
        return responses.order_of(self.client_id, service, options)

    def submit(
        self,
        order: SubmissionTemplate,
        bodies: Iterable[bytes],
        timeout: float,
        tag: Any,
        now: Now,
        watch: FutureWait | None = None,
        id_: str | None = None,
    ) -> tuple[SubmissionReceipt, list[TaskFuture]]:
        """One ticket for each of `bodies` (params as JSON); the receipt is told when all are answered."""
        receipt = SubmissionReceipt(tag, now.mono + timeout)
        made: list[TaskFuture] = []
        opened, known = self._open, self._watching.known
        calls, number = opened.by_number, opened.last
        head, tail, series = order.head, order.tail, self._series
        for params in bodies:
            number += 1
            name = id_ or f"{series}.{number:012x}"
            ticket = TaskFuture(name, order, receipt, b'%b%b,"%b%b%d}' % (head, params, name.encode(), tail, number))
            calls[number] = ticket
            if id_ is None:
                known[name] = weakref.ref(ticket)
            else:
                self._watching.enter(ticket)
            made.append(ticket)
        opened.last = number
        opened.queue += made
        receipt.left = len(made)
        opened.timers.add(receipt, now.mono)
        if watch is not None:
            self._watching.watch(watch, made, now.mono)
        self._watching.sweep()
        return receipt, made

    def adopt(self, id_: str) -> TaskFuture:
        """The ticket of a task that was submitted before, here or elsewhere."""
        ticket = self._watching.find(id_)
        if ticket is None:
            ticket = TaskFuture(id_, None, None, b"")
            self._watching.enter(ticket)
        return ticket

    def ask(self, kind: str, id_: str, timeout: float, tag: Any, now: Now) -> TaskQuery:
        """STATUS or CANCEL; the question is told when it has its answer, or trouble."""
        if kind not in (futures.STATUS, futures.CANCEL):
            raise ValueError(f"nobody asks {kind!r}")
        question = self._open.ask(kind, kind, [self.client_id, id_], timeout, now, tag)
        question.at = self._watching.place_of(id_)
        return question

    def watch(self, watch: FutureWait, of: Iterable[TaskFuture], now: Now) -> None:
        """Let `watch` be told when these end; those that have ended are there at once."""
        self._watching.watch(watch, of, now.mono)

    def unwatch(self, watch: FutureWait, of: Iterable[TaskFuture] | None = None) -> None:
        """It waits for these no more; None: for nothing any more."""
        self._watching.unwatch(watch, tuple(self._watching.watched.values()) if of is None else of)

    def tells(self, ticket: TaskFuture) -> bool:
        """True if its end will be told, or its acknowledgement, without asking."""
        return ticket.status == futures.NEW or ticket.told_by == self._open.connection

    @property
    def unanswered(self) -> int:
        """Calls under way."""
        return len(self._open.by_number)

    # What the line asks for.

    @property
    def waiting(self) -> bool:
        """True while an answer or an end is expected."""
        return bool(self._open.by_number) or bool(self._watching.watched)

    @property
    def bound(self) -> bool:
        """True while something is expected that only the broker which has our tasks can tell."""
        return self._watching.is_bound(self._open.by_number.values())

    def meet(self, owner: str, shared: bool) -> None:
        """The broker says whose tasks it tells of: its own, or those of a group that shares a store."""
        self._open.again += self._watching.meet(owner, shared, self._open.by_number.values())

    def deadline(self, live: bool) -> float | None:
        """When `tick` or (`live`: there is a connection) `flush` has something to do."""
        due = self._open.timers.deadline()
        times = [] if due is None else [due]
        if live:
            watching = self._watching
            if self._open.again:
                times.append(self._open.again_at)
            if watching.to_ask:
                times.append(watching.ask_at)
            if watching.watched:
                times.append(watching.look_at)
            if self._hello_at is not None and self.waiting:
                times.append(self._hello_at)
        return min(times, default=None)

    def resume(self, broker: str, now: Now, out: OutgoingCalls) -> None:
        """A new connection: say who we are, and again all that was not answered, except what is another broker's."""
        self._hello_at = now.mono
        self._open.resume()
        self._watching.reconnected(self._open.connection, broker, now.mono)
        self.flush(now, out)

    def unsent(self, frame: bytes) -> None:
        """This never left; it goes with the next connection."""
        self._open.unsent(frame)

    def never_connected(self) -> None:
        """The last connection never came to be: nothing has left on it."""
        self._open.never_connected()

    def flush(self, now: Now, out: OutgoingCalls) -> None:
        """Send what is to be sent; only while there is a connection."""
        opened, watching = self._open, self._watching
        queue = watching.here(opened.take(now))
        for some in watching.take_waits(now.mono):
            self._wait_for(futures.WAIT, some, WAIT_SECONDS, now)
        waits = opened.take(now)
        if self._hello_at is not None and now.mono >= self._hello_at and (queue or waits or self.waiting):
            self._hello_at = None
            opened.ask(futures.HELLO, futures.HELLO, [self.client_id], GRACE_SECONDS, now)
            queue = [*opened.take(now), *queue]
        opened.send(queue, waits, watching.broker, out)

    def tick(self, why: Why, now: Now, out: OutgoingCalls) -> None:
        """Give up what is over, and look for ends that nobody told."""
        late = self._open.timers.expire(now.mono)
        receipts = {one for one in late if isinstance(one, SubmissionReceipt) and not one.ended}
        if receipts:
            code, message = why()
            self._lose(receipts, TaskFault(code, f"{message}; {self.complaint}" if self.complaint else message), out)
        for one in late:
            if isinstance(one, TaskQuery) and not one.ended:
                self._give_up(one, why, now, out)
        for some in self._watching.take_looks(now.mono):
            self._wait_for(futures.LOOK, some, 0, now)
        self._watching.tell(out)

    def fail(self, code: int, message: str, out: OutgoingCalls) -> None:
        """There will be no answers for now: whoever waits is told why."""
        trouble = TaskFault(code, message)
        self._lose(None, trouble, out)
        for one in self._open.by_number.values():
            if isinstance(one, TaskQuery):
                one.trouble = trouble
                self._answered(one, out)
        self._open.clear()
        self._watching.fail(trouble)
        self._watching.tell(out)

    def receive(self, frame: bytes, now: Now, out: OutgoingCalls) -> None:
        """One frame from the broker: answers and notifications."""
        calls, watching = self._open.by_number, self._watching
        for said in responses.read_answers(frame):
            if said.params is not None:
                if said.method == COMPLETE:
                    watching.complete(said.params)
                continue
            if said.id is None:
                if said.error is not None:
                    self.complaint = f"{said.error.code} {said.error.message}"
                continue
            one = calls.pop(said.id, None)
            if one is None:
                continue
            if isinstance(one, TaskQuery):
                self._heed(one, said, now, out)
            elif said.error is not None:
                self._decline(one, said.id, said.error, now, out)
            else:
                self._accept(one, said, now, out)
        watching.tell(out)

    # Submissions.

    def _accept(self, ticket: TaskFuture, said: RpcResponse, now: Now, out: OutgoingCalls) -> None:
        order = ticket.order
        if order is not None and order.notify:
            ticket.told_by = self._open.connection
        if order is not None and order.keyed:
            self._watching.rename(ticket, responses.read_text(said.result) or ticket.id, now.mono)
        if not ticket.ended:  # its end may have been told first
            self._watching.accept(ticket, now.mono)
        self._settle(ticket, out)

    def _decline(self, ticket: TaskFuture, number: int, error: RpcErrorBody, now: Now, out: OutgoingCalls) -> None:
        trouble = error.trouble()
        if ticket.ended:
            # Its end was told already, so it was taken: this is about a second try.
            self._settle(ticket, out)
        elif error.code in NOT_NOW:
            ticket.trouble = trouble
            self._hold(number, ticket, error.code, now)
        elif error.code == BAD_TASK and ticket.tries > 1:
            # Our own earlier try may have taken the id, though its answer got lost.
            ticket.trouble = trouble
            self._check(ticket, now)
        else:
            self._watching.end(ticket, futures.REFUSED, b"", trouble)
            self._settle(ticket, out)

    def _lose(self, receipts: set[SubmissionReceipt] | None, trouble: TaskFault, out: OutgoingCalls) -> None:
        """Their time is over (None: everybody's)."""
        for number, one in tuple(self._open.by_number.items()):
            if not isinstance(one, TaskQuery):
                ticket = one
            elif one.kind == futures.CHECK:
                ticket = one.tickets[0]
            else:
                continue
            if ticket.receipt is None or (receipts is not None and ticket.receipt not in receipts):
                continue
            del self._open.by_number[number]
            if isinstance(one, TaskQuery):
                self._open.close(one)
            if ticket.tries:
                self._watching.end(ticket, futures.UNKNOWN, b"", trouble)
            else:
                self._watching.end(ticket, futures.REFUSED, b"", ticket.trouble or trouble)
            self._settle(ticket, out)
        self._open.drop_ended()

    def _settle(self, ticket: TaskFuture, out: OutgoingCalls) -> None:
        receipt, ticket.receipt = ticket.receipt, None
        ticket.part = b""
        if receipt is not None:
            receipt.left -= 1
            if not receipt.left:
                receipt.ended = True
                self._open.timers.remove(receipt)
                if receipt.tag is not None:
                    out.news.append(FutureChanged(receipt.tag))

    def _hold(self, number: int, one: Call, code: int, now: Now) -> None:
        """The broker did not take it just now: say it again in a moment."""
        self._open.hold(number, one, now.mono + AGAIN_SECONDS)
        if code == BAD_CLIENT and self._hello_at is None:
            self._hello_at = now.mono + AGAIN_SECONDS

    # Questions.

    def _wait_for(self, kind: str, some: Sequence[TaskFuture], seconds: float, now: Now) -> None:
        params = [self.client_id, [ticket.id for ticket in some], seconds]
        self._open.ask(kind, futures.WAIT, params, seconds + GRACE_SECONDS, now, None, some)

    def _check(self, ticket: TaskFuture, now: Now) -> None:
        """Is it there at all?"""
        receipt = ticket.receipt
        seconds = GRACE_SECONDS if receipt is None else max(0.0, receipt.deadline - now.mono) + GRACE_SECONDS
        self._open.ask(futures.CHECK, futures.STATUS, [self.client_id, ticket.id], seconds, now, None, (ticket,))

    def _heed(self, question: TaskQuery, said: RpcResponse, now: Now, out: OutgoingCalls) -> None:
        """A question has its answer."""
        error = said.error
        if error is not None and error.code in NOT_NOW and question.kind not in OWN_QUESTIONS:
            question.trouble = error.trouble()
            self._hold(question.number, question, error.code, now)
            return
        question.trouble = error.trouble() if error is not None else None
        match question.kind:
            case futures.HELLO if error is not None:
                self._hello_at = now.mono + AGAIN_SECONDS
            case futures.HELLO:
                self._open.again_at = now.mono
            case futures.WAIT | futures.LOOK:
                self._waited(question, said, now)
            case futures.CHECK:
                self._checked(question.tickets[0], error, now, out)
            case _:
                question.answer = bytes(said.result)
        self._answered(question, out)

    def _waited(self, question: TaskQuery, said: RpcResponse, now: Now) -> None:
        if said.error is None:
            for row in responses.read_rows(said.result):
                self._watching.complete(row)
            if question.kind == futures.WAIT:
                self._watching.put_back(question.tickets, now.mono + WAIT_PAUSE_SECONDS)
        elif said.error.code == BAD_TASK and len(question.tickets) == 1:
            self._watching.end(question.tickets[0], futures.MISSING, b"", question.trouble)
        elif said.error.code == BAD_TASK:
            for ticket in question.tickets:
                self._check(ticket, now)
        else:
            if said.error.code == BAD_CLIENT and self._hello_at is None:
                self._hello_at = now.mono + AGAIN_SECONDS
            self._watching.put_back(question.tickets, now.mono + AGAIN_SECONDS)

    def _checked(self, ticket: TaskFuture, error: RpcErrorBody | None, now: Now, out: OutgoingCalls) -> None:
        """Is it there at all? Asked after a submission that was sent twice, or a wait of which one was unknown."""
        ours = ticket.receipt is not None
        if ticket.ended:
            pass  # its end was told meanwhile: nothing that we hear now says more
        elif error is None:
            ticket.trouble = None
            self._watching.accept(ticket, now.mono + WAIT_PAUSE_SECONDS)
        elif ours:
            self._watching.end(ticket, futures.REFUSED, b"", ticket.trouble or error.trouble())
        elif error.code == BAD_TASK:
            self._watching.end(ticket, futures.MISSING, b"", error.trouble())
        else:
            self._watching.put_back((ticket,), now.mono + AGAIN_SECONDS)
        if ours:
            self._settle(ticket, out)

    def _give_up(self, question: TaskQuery, why: Why, now: Now, out: OutgoingCalls) -> None:
        """No answer came in time."""
        self._open.by_number.pop(question.number, None)
        match question.kind:
            case futures.HELLO:
                self._hello_at = now.mono
            case futures.WAIT | futures.CHECK:
                self._watching.put_back(question.tickets, now.mono)
            case futures.LOOK:
                pass  # the next one is due soon
            case _:
                question.trouble = question.trouble or TaskFault(*why())
        self._answered(question, out)

    def _answered(self, question: TaskQuery, out: OutgoingCalls) -> None:
        self._open.close(question)
        if question.tag is not None:
            out.news.append(FutureChanged(question.tag))
