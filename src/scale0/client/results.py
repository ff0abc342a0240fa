"""Tickets as users see them: values, errors and statuses.

Lives here: from a ticket or an answer to what is returned or raised, for threads and coroutines alike. Never here: a
wait. Invariant: a value is decoded when somebody asks for it, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from scale0.client import payload
from scale0.client.argument_checks import check_service
from scale0.errors import (
    BadArguments,
    CallError,
    NotAllSubmitted,
    TaskCancelled,
    TaskTooBig,
    Unknown,
    submit_error,
    task_error,
    task_failed,
)
from scale0.kernel import codes
from scale0.kernel.limits import Limits
from scale0.storage import task_rows
from scale0.storage.task_rows import FINISHED
from scale0.tasks.client import futures
from scale0.tasks.client.futures import REFUSED, UNKNOWN, TaskFuture, TaskQuery
from scale0.tasks.jsonrpc.messages import TOO_BIG
from scale0.transport.core.codec import depth_within

NO_ARGUMENTS: Final = b"[]"
ENVELOPE_BYTES: Final = 256 * 1024
"""More than everything beside the params of one submission."""
MAX_PARAMS_BYTES: Final = Limits().max_message_bytes - ENVELOPE_BYTES


class TaskStatus(msgspec.Struct, frozen=True):
    """What the broker knows of a task. Times are seconds since the epoch."""

    task_id: str
    status: str
    """scheduled, queued, assigned, running, finished, failed or cancelled."""
    code: int
    attempt: int = 0
    node_id: str | None = None
    submitted: float | None = None
    started: float | None = None
    finished: float | None = None
    info: Any = None
    """What the worker said last."""

    @property
    def ended(self) -> bool:
        """True if it will not change any more."""
        return self.code >= FINISHED

    @property
    def progress(self) -> tuple[float | None, str]:
        """How far it is (0 to 1; None: the worker did not say), and the worker's note."""
        info = self.info if isinstance(self.info, dict) else {}
        share, note = info.get("progress"), info.get("note")
        number = float(share) if isinstance(share, int | float) and not isinstance(share, bool) else None
        return number, note if isinstance(note, str) else ""


_status: Final = msgspec.json.Decoder(TaskStatus)
_any: Final = msgspec.json.Decoder()


def params_of(service: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Arguments as the params of a task: the same convention as a call's."""
    params = payload.encode_arguments(args, kwargs) or NO_ARGUMENTS
    if not depth_within(params, payload.MAX_DEPTH):
        raise BadArguments(codes.MALFORMED, f"arguments nest deeper than {payload.MAX_DEPTH}", service)
    if len(params) > MAX_PARAMS_BYTES:
        raise TaskTooBig(TOO_BIG, f"{len(params)} bytes of arguments, more than {MAX_PARAMS_BYTES}", service)
    return params


def params_of_item(service: str, star: bool) -> Callable[[Any], bytes]:
    """The same for an item of many: one argument, or (`star`) a sequence of them."""
    if star:
        return lambda item: params_of(service, tuple(item), {})
    return lambda item: params_of(service, (item,), {})


def chunks(service: str, items: Any, star: bool, size: int) -> Iterator[list[bytes]]:
    """The params of many tasks, `size` at a time, as they are asked for."""
    check_service(service)
    encode = params_of_item(service, star)
    chunk: list[bytes] = []
    for item in items:
        chunk.append(encode(item))
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def value_of(ticket: TaskFuture) -> Any:
    """What an ended task returned; raises if it did not."""
    if ticket.status == FINISHED:
        return payload.decode(ticket.value)
    raise error_from(ticket)


def error_from(ticket: TaskFuture) -> CallError:
    """Why an ended ticket has no value."""
    trouble = ticket.fault
    service, id_ = ticket.service, ticket.id
    if trouble is None:
        code, message, data = codes.FAILED, "it failed, and did not say why", None
    else:
        code, message, data = trouble.code, trouble.message, _any.decode(trouble.data) if trouble.data else None
    match ticket.status:
        case futures.REFUSED:
            return submit_error(code, message, service, id_, data)
        case futures.UNKNOWN:
            return Unknown(code, message, service, id_)
        case futures.MISSING:
            return task_error(code, message, service, id_, data)
        case task_rows.CANCELLED:
            return TaskCancelled(code, message, service, id_, data)
        case _:
            return task_failed(code, message, service, id_, data)


def check_taken(ticket: TaskFuture) -> None:
    """Raise if the broker did not take it."""
    if ticket.status in (REFUSED, UNKNOWN):
        raise error_from(ticket)


def check_all_taken(made: Sequence[Any], held: Sequence[TaskFuture]) -> None:
    """The same for many."""
    refused = {place: error_from(ticket) for place, ticket in enumerate(held) if ticket.status in (REFUSED, UNKNOWN)}
    if refused:
        raise NotAllSubmitted(made, refused)


def answer_to(question: TaskQuery, ticket: TaskFuture) -> bytes:
    """What was answered; raises if it was an error."""
    trouble = question.fault
    if trouble is not None:
        data = _any.decode(trouble.data) if trouble.data else None
        raise task_error(trouble.code, trouble.message, ticket.service, ticket.id, data)
    return question.answer


def status_in(answer: bytes) -> TaskStatus:
    """A status, as it was answered."""
    return _status.decode(answer)
