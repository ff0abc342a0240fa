"""From futures and answers to what users get: results, errors and statuses. Values are decoded on demand."""

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
"""More than a submission needs beside its params."""
MAX_PARAMS_BYTES: Final = Limits().max_message_bytes - ENVELOPE_BYTES


class TaskStatus(msgspec.Struct, frozen=True):
    """The status of a task at the broker. Times are seconds since the epoch."""

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
    """The last report of the worker."""

    @property
    def ended(self) -> bool:
        """True if the task has ended."""
        return self.code >= FINISHED

    @property
    def progress(self) -> tuple[float | None, str]:
        """The handler's last progress (0 to 1; None if it reported none) and note."""
        info = self.info if isinstance(self.info, dict) else {}
        share, note = info.get("progress"), info.get("note")
        number = float(share) if isinstance(share, int | float) and not isinstance(share, bool) else None
        return number, note if isinstance(note, str) else ""


_status: Final = msgspec.json.Decoder(TaskStatus)
_any: Final = msgspec.json.Decoder()


def params_of(service: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Arguments as the params of a task, with the convention of a call."""
    params = payload.encode_arguments(args, kwargs) or NO_ARGUMENTS
    if not depth_within(params, payload.MAX_DEPTH):
        raise BadArguments(codes.MALFORMED, f"arguments nest deeper than {payload.MAX_DEPTH}", service)
    if len(params) > MAX_PARAMS_BYTES:
        raise TaskTooBig(TOO_BIG, f"{len(params)} bytes of arguments, more than {MAX_PARAMS_BYTES}", service)
    return params


def params_of_item(service: str, star: bool) -> Callable[[Any], bytes]:
    if star:
        return lambda item: params_of(service, tuple(item), {})
    return lambda item: params_of(service, (item,), {})


def chunks(service: str, items: Any, star: bool, size: int) -> Iterator[list[bytes]]:
    """The params of many tasks, `size` at a time, on demand."""
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


def value_of(future: TaskFuture) -> Any:
    """The result of an ended task, or its error raised."""
    if future.status == FINISHED:
        return payload.decode(future.value)
    raise error_from(future)


def error_from(future: TaskFuture) -> CallError:
    """Why an ended future has no result."""
    fault = future.fault
    service, id_ = future.service, future.id
    if fault is None:
        code, message, data = codes.FAILED, "the task failed without an error message", None
    else:
        code, message, data = fault.code, fault.message, _any.decode(fault.data) if fault.data else None
    match future.status:
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


def check_accepted(future: TaskFuture) -> None:
    if future.status in (REFUSED, UNKNOWN):
        raise error_from(future)


def check_all_accepted(tasks: Sequence[Any], created: Sequence[TaskFuture]) -> None:
    refused = {index: error_from(future) for index, future in enumerate(created) if future.status in (REFUSED, UNKNOWN)}
    if refused:
        raise NotAllSubmitted(tasks, refused)


def answer_to(query: TaskQuery, future: TaskFuture) -> bytes:
    fault = query.fault
    if fault is not None:
        data = _any.decode(fault.data) if fault.data else None
        raise task_error(fault.code, fault.message, future.service, future.id, data)
    return query.answer


def status_in(answer: bytes) -> TaskStatus:
    return _status.decode(answer)
