"""What Helen herself asks of the network: requests to other Helens, tasks for the queue, who is there.

Lives here: a frontend's session on the loop, with futures. Never here: why something is asked. Invariant: every
question ends: with its answer, or with a Refusal that says why there is none.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.errors import Refusal
from scale0.kernel.log_context import about
from scale0.tasks.client import futures
from scale0.tasks.client.futures import FutureChanged, SubmissionReceipt, TaskFuture
from scale0.tasks.client.task_client import TaskClientSession
from scale0.transport.core.calls import CallAnswered, CallFailed
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import SessionEffects, SessionEnded
from scale0.transport.edge.asyncio_socket import AsyncioSocket
from scale0.transport.edge.client_keys import find_keys, identity_with

log = logging.getLogger("scale0.helen")

SUBMIT_SECONDS: Final = 30.0
"""How long the queue may take to say that it has a task."""
LIST_SECONDS: Final = 5.0
MAX_PAGES: Final = 100
"""Of the list of services; more than that is no network of ours."""


class _Page(msgspec.Struct, frozen=True):
    """What is read of `scale0.services`."""

    class Row(msgspec.Struct, frozen=True):
        """One service."""

        service: str
        backends: int = 0

    items: list[Row] = []
    next: str | None = None


_page: Final = msgspec.json.Decoder(_Page).decode
_to_json: Final = msgspec.json.Encoder().encode


class _Submission:
    """A task on its way to the queue."""

    __slots__ = ("future", "receipt", "tickets")

    def __init__(self, future: asyncio.Future[str | Refusal]) -> None:
        self.future = future
        self.receipt: SubmissionReceipt | None = None
        self.tickets: list[TaskFuture] = []


class NetworkClient:
    """A frontend of the network."""

    def __init__(self, identity: str, endpoints: Sequence[str]) -> None:
        chance = random.SystemRandom()
        self.endpoints = tuple(endpoints)
        # As a caller she needs a key for that role: one of her own, or a broker's for programs on its machine. That one
        # has another name than she has, and one identity that does not fit would cost its key its good name.
        keys = find_keys(self.endpoints)
        self.identity = identity_with(identity, keys)
        self._loop = asyncio.get_running_loop()
        self._asker = TaskClientSession(self.identity, chance)
        self._session = FrontendSession(endpoints, self.identity, chance, sub_protocol=self._asker)
        self.ended = False
        """The network will not hear this one any more: there must be another."""
        if keys is not None:
            keys.learned = self._session.connection.addresses.server_key
        self._tether = AsyncioSocket(self._session, self._hear, keys=keys)
        self._tether.run(self._session.start)

    async def request(self, service: str, body: bytes, timeout: float) -> bytes | Refusal:
        """Have a service done."""
        future: asyncio.Future[bytes | Refusal] = self._loop.create_future()
        bodies = (body,) if body else ()
        session = self._session
        self._tether.run(lambda now, out: session.request(service, bodies, timeout, False, future, now, out))
        return await future

    async def submit(self, method: str, params: bytes, options: Mapping[str, Any]) -> str | Refusal:
        """Put a task on the queue; its id, once it is on disk there."""
        submission = _Submission(self._loop.create_future())
        asker = self._asker

        def ask(now: Now) -> None:
            order = asker.template(method, options)
            made = asker.submit(order, (params,), SUBMIT_SECONDS, submission, now)
            submission.receipt, submission.tickets = made

        def say(now: Now, out: SessionEffects) -> None:
            self._session.run_sub_protocol(ask, now, out)

        self._tether.run(say)
        return await submission.future

    async def services(self) -> list[str]:
        """The names of all services that somebody offers now; Refusal: the network does not say."""
        found: list[str] = []
        after: str | None = None
        for _ in range(MAX_PAGES):
            body = b"" if after is None else _to_json({"after": after})
            answer = await self.request("scale0.services", body, LIST_SECONDS)
            if isinstance(answer, Refusal):
                raise answer
            try:
                page = _page(answer)
            except (msgspec.DecodeError, RecursionError, ValueError) as error:
                raise Refusal(codes.MALFORMED, f"the list of services cannot be read: {error}") from error
            found += [row.service for row in page.items if row.backends]
            after = page.next
            if after is None:
                break
        return found

    def close(self) -> None:
        """Leave; what is under way is refused."""
        self._tether.close(self._session.end)

    def _hear(self, news: Any) -> None:
        match news:
            case CallAnswered():
                settle(news.tag, b"".join(news.bodies[:1]))
            case CallFailed():
                settle(news.tag, Refusal(news.code, news.message))
            case FutureChanged(tag=_Submission()):
                settle(news.tag.future, outcome_of(news.tag.tickets[0]))
            case SessionEnded():
                log.error(
                    "the network takes no more requests of ours: %s %s",
                    news.code,
                    news.message,
                    extra=about(client=self.identity),
                )
                self.ended = True
            case _:
                pass


def settle(future: asyncio.Future[Any], value: Any) -> None:
    """Whoever waited may be gone."""
    if not future.done():
        future.set_result(value)


def outcome_of(ticket: TaskFuture) -> str | Refusal:
    """What became of a submission."""
    ticket = ticket.original or ticket
    if ticket.status == futures.REFUSED or ticket.status == futures.UNKNOWN:
        trouble = ticket.fault
        words = "the queue did not take it" if trouble is None else f"{trouble.code} {trouble.message}"
        return Refusal(codes.NOT_SERVING, words)
    return ticket.id
