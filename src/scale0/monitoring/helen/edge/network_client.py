"""Helen's own requests to the network: to other Helens, tasks for the queue, and the list of services.

It is a frontend session on the event loop, with futures. Each call ends with its answer or with a Refusal.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.errors import Refusal
from scale0.kernel.log_context import about
from scale0.monitoring.helen.core.notifications import OtherQueue
from scale0.tasks.client import futures
from scale0.tasks.client.futures import FutureChanged, SubmissionReceipt, TaskFuture
from scale0.tasks.client.task_client import TaskClientSession
from scale0.tasks.jsonrpc.messages import KEY_CONFLICT
from scale0.transport.core.calls import CallAnswered, CallFailed
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import SessionEffects, SessionEnded
from scale0.transport.edge.asyncio_socket import AsyncioSocket
from scale0.transport.edge.client_keys import ClientKeys, find_keys, identity_with

log = logging.getLogger("scale0.helen")

SUBMIT_SECONDS: Final = 30.0
"""How long the queue may take to acknowledge a task."""
LIST_SECONDS: Final = 5.0
MAX_PAGES: Final = 100
"""Maximum pages of the list of services."""


class _Page(msgspec.Struct, frozen=True):
    """The fields of `scale0.services` that are used."""

    class Row(msgspec.Struct, frozen=True):
        service: str
        backends: int = 0

    items: list[Row] = []
    next: str | None = None


_page: Final = msgspec.json.Decoder(_Page).decode
_to_json: Final = msgspec.json.Encoder().encode


class _Submission:
    """A task that the queue has not acknowledged."""

    __slots__ = ("future", "futures", "receipt")

    def __init__(self, future: asyncio.Future[str | Refusal | OtherQueue]) -> None:
        self.future = future
        self.receipt: SubmissionReceipt | None = None
        self.futures: list[TaskFuture] = []


class NetworkClient:
    def __init__(
        self, identity: str, server_keys: Mapping[str, str], keys: ClientKeys | None, suffix: str = ""
    ) -> None:
        """`server_keys`: by endpoint; blank: not known. `keys`: her own pair, if it is stored in both roles. `suffix`:
        of the session's identity, for a second session; the tasks belong to `identity` all the same."""
        rng = random.SystemRandom()
        self.server_keys = server_keys
        endpoints = tuple(server_keys)
        # As a client she needs a key for that role: one of her own, or a broker's key for programs on its host. The
        # latter has another name than she has, and an identity that does not match would count against that key.
        keys = keys or find_keys(endpoints)
        self.identity = identity_with(identity, keys)
        self._loop = asyncio.get_running_loop()
        self._task_client = TaskClientSession(self.identity, rng)
        self._session = FrontendSession(endpoints, self.identity + suffix, rng, sub_protocol=self._task_client)
        self.users = 0
        """Calls of the owner in progress, if it counts them."""
        self.ended = False
        """The session has ended for good: the owner must make another client."""
        if keys is not None:
            addresses = self._session.connection.addresses
            for place, server_key in server_keys.items():
                addresses.set_server_key(place, server_key)
            keys.learned, addresses.on_server_key = addresses.server_key, keys.learn
        self._socket = AsyncioSocket(self._session, self._on_event, keys=keys)
        self._socket.run(self._session.start)

    async def request(self, service: str, body: bytes, timeout: float) -> bytes | Refusal:
        future: asyncio.Future[bytes | Refusal] = self._loop.create_future()
        bodies = (body,) if body else ()
        session = self._session
        self._socket.run(lambda now, out: session.request(service, bodies, timeout, False, future, now, out))
        return await future

    async def submit(
        self, owner: str, method: str, params: bytes, options: Mapping[str, Any]
    ) -> str | Refusal | OtherQueue:
        """Submit a task to the queue of `owner`, and to no other; returns its id once the queue has stored it. A
        Refusal with NOT_SERVING: it was not stored."""
        submission = _Submission(self._loop.create_future())
        task_client = self._task_client

        def ask(now: Now) -> None:
            order = task_client.template(method, options)
            made = task_client.submit(order, (params,), SUBMIT_SECONDS, submission, now)
            submission.receipt, submission.futures = made
            submission.futures[0].bind(owner)

        def say(now: Now, out: SessionEffects) -> None:
            here = self._session.owner
            if not here:
                resolve(submission.future, Refusal(codes.NOT_SERVING, "Helen is not connected to a broker"))
            elif here != owner:
                resolve(submission.future, OtherQueue(here))
            else:
                self._session.run_sub_protocol(ask, now, out)

        self._socket.run(say)
        return await submission.future

    async def services(self) -> list[str]:
        """The names of all services that have a backend; raises Refusal if the network does not answer."""
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
        """Close the session; open calls are refused."""
        self._socket.close(self._session.end)

    def _on_event(self, event: Any) -> None:
        match event:
            case CallAnswered():
                resolve(event.tag, b"".join(event.bodies[:1]))
            case CallFailed():
                resolve(event.tag, Refusal(event.code, event.message))
            case FutureChanged(tag=_Submission()):
                resolve(event.tag.future, outcome_of(event.tag.futures[0]))
            case SessionEnded():
                log.error(
                    "the network refuses further requests of this Helen: %s %s",
                    event.code,
                    event.message,
                    extra=about(client=self.identity),
                )
                self.ended = True
            case _:
                pass


def resolve(future: asyncio.Future[Any], value: Any) -> None:
    """Resolve a future, unless its caller has given up."""
    if not future.done():
        future.set_result(value)


def outcome_of(future: TaskFuture) -> str | Refusal:
    """The task's id, or why the queue did not accept it."""
    future = future.original or future
    if future.status == futures.REFUSED or future.status == futures.UNKNOWN:
        error = future.fault
        if error is not None and error.code == KEY_CONFLICT:
            # Its handler was changed since the first submission, whose answer was lost: that task delivers it.
            existing: str = msgspec.json.decode(error.data)["task_id"]
            return existing
        reason = "the queue did not accept it" if error is None else f"{error.code} {error.message}"
        return Refusal(codes.NOT_SERVING if future.status == futures.REFUSED else codes.NO_ANSWER, reason)
    return future.id
