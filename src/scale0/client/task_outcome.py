"""The outcome of a task: one JSON value, or an error that says whether to retry.

Invariants: there is an outcome, whatever a handler does; a result is valid JSON of limited size and depth, so that it
cannot break the others in its message.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Iterable
from types import GeneratorType
from typing import Any, Final

import msgspec

from scale0.client import payload
from scale0.client.handler import Handler
from scale0.client.task_context import GiveUp, Retry
from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.tasks.jsonrpc.messages import INVALID_PARAMS, METHOD_NOT_FOUND, TOO_BIG
from scale0.tasks.node.assigned_tasks import HANDLER_FAILED, AssignedTask
from scale0.transport.core.backend_session import fit_message
from scale0.transport.core.codec import depth_within

log = logging.getLogger("scale0.worker")

MAX_TRACE_BYTES: Final = 4 * 1024
"""The end of a traceback that is sent, where the cause is."""
MAX_RESULT_BYTES: Final = Limits().max_message_bytes - 64 * 1024
"""A result travels in a message with other fields."""
MAIN: Final = "__main__"
PROCESS_MAIN: Final = "__scale0_child__"
"""The name of a script, in place of `__main__`, while a handler process imports a function from it."""

_is_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_to_json: Final = msgspec.json.Encoder().encode


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why a task failed; a handler process sends it as an array."""

    code: int
    message: str
    kind: str = ""
    """The name of the exception's class."""
    trace: str = ""
    lineage: tuple[str, ...] = ()
    """The names of its class and all base classes, for `retry_on` and `give_up_on`."""
    retry: bool | None = None
    """None: as the handler's `retry_on` and `give_up_on` say."""
    after: float | None = None


Outcome = bytes | Failure
"""A result in JSON, or a failure."""


class OutcomeError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error in TASKSDONE."""

    code: int
    message: str
    data: dict[str, Any] = {}
    retry: bool = False
    after: float | None = None


def names_of(kinds: Iterable[type[BaseException]]) -> frozenset[str]:
    """Names, because a handler process has classes of its own."""
    return frozenset(name_of(kind) for kind in kinds)


def name_of(kind: type) -> str:
    """The name of a class; a handler process names a script differently."""
    module = MAIN if kind.__module__ == PROCESS_MAIN else kind.__module__
    return f"{module}.{kind.__qualname__}"


def retried(handler: Handler, failure: Failure) -> bool:
    """Whether to retry: as the failure itself says, else by the nearest class in `retry_on` or `give_up_on`."""
    if failure.retry is not None:
        return failure.retry
    for name in failure.lineage:
        if name in handler.give_up_on:
            return False
        if handler.retry_on is not None and name in handler.retry_on:
            return True
    if not failure.lineage:
        # No exception, but a dead process or a timeout: retried unless `retry_on` is empty.
        return handler.retry_on is None or bool(handler.retry_on)
    return handler.retry_on is None


def error_object(handler: Handler | None, failure: Failure) -> bytes:
    data = {"type": failure.kind} if failure.kind else {}
    if failure.trace:
        data["traceback"] = failure.trace
    retry = retried(handler, failure) if handler is not None else bool(failure.retry)
    return _to_json(OutcomeError(failure.code, failure.message, data, retry, failure.after if retry else None))


def perform_task(handler: Handler, task: AssignedTask) -> Outcome:
    """Run a plain function or a generator."""
    try:
        signature = handler.signature
        if signature is None:
            value = handler.function(task.params)
        else:
            args, kwargs = signature.bind(task.params)
            value = handler.function(*args, **kwargs)
        if type(value) is GeneratorType:
            return gathered(handler, task, value)
        return checked(encoded(handler, value))
    except Refusal as refusal:
        return refused(refusal)
    except BaseException as error:  # also sys.exit() and a cancellation: the task needs an outcome
        return failure_of(handler.name, error, task.id)


async def perform_task_async(handler: Handler, task: AssignedTask) -> Outcome:
    """Run a coroutine or an asynchronous generator."""
    try:
        args, kwargs = ((task.params,), {}) if handler.signature is None else handler.signature.bind(task.params)
        value = handler.function(*args, **kwargs)
        if inspect.isasyncgen(value):
            items = JsonItems(handler)
            async for one in value:
                items.add(one)
            return checked(items.joined())
        return checked(encoded(handler, await value))
    except Refusal as refusal:
        return refused(refusal)
    except BaseException as error:
        return failure_of(handler.name, error, task.id)


def gathered(handler: Handler, task: AssignedTask, values: Any) -> bytes:
    """The values of a generator as one list; its return value is the last, as in a stream."""
    items = JsonItems(handler)
    while True:
        if task.stop:
            values.close()
            break
        try:
            items.add(next(values))
        except StopIteration as stop:
            if stop.value is not None:
                items.add(stop.value)
            break
    return checked(items.joined())


class JsonItems:
    """The values of a generator, each in JSON, within the size of a result."""

    def __init__(self, handler: Handler) -> None:
        self._offer = handler
        self._items: list[bytes] = []
        self._size = 2

    def add(self, value: Any) -> None:
        item = encoded(self._offer, value)
        self._items.append(item)
        self._size += len(item) + 1
        if self._size > MAX_RESULT_BYTES:
            raise Refusal(codes.TOO_BIG, f"a result has at most {MAX_RESULT_BYTES} bytes")

    def joined(self) -> bytes:
        return b"[%b]" % b",".join(self._items)


def encoded(handler: Handler, value: Any) -> bytes:
    """A value in JSON. A raw handler returns JSON already; None is null."""
    if not handler.raw:
        return payload.encode(value)
    if value is None:
        return b"null"
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a raw handler of a task returns one JSON value as bytes, not {type(value).__name__}")
    return bytes(value)


def checked(result: bytes) -> bytes:
    """Check that a result can be sent with others."""
    if len(result) > MAX_RESULT_BYTES:
        raise Refusal(codes.TOO_BIG, f"a result has at most {MAX_RESULT_BYTES} bytes, not {len(result)}")
    try:
        _is_json(result)
        if not result.isascii():
            result.decode()
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"the result is not JSON: {error}") from error
    if len(result) > payload.MAX_DEPTH and not depth_within(result, payload.MAX_DEPTH):
        raise ValueError(f"the result nests deeper than {payload.MAX_DEPTH}")
    return result


def refused(refusal: Refusal) -> Failure:
    """Invalid arguments or results: a retry would not help. Any other refusal is the handler's own."""
    message = fit_message(refusal.message)
    match refusal.code:
        case codes.MALFORMED:
            return Failure(INVALID_PARAMS, message, "Refusal", retry=False)
        case codes.TOO_BIG:
            return Failure(TOO_BIG, message, "Refusal", retry=False)
        case _:
            return Failure(HANDLER_FAILED, message, "Refusal", lineage=lineage_of(refusal))


def failure_of(name: str, error: BaseException, task: str = "") -> Failure:
    trace = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
    kind = type(error).__name__
    try:
        message = f"{kind}: {error}"
    except Exception:
        message = kind
    if not isinstance(error, Retry | GiveUp):
        log.error("%s failed:\n%s", name, trace.decode(), extra=about(task=task, method=name))
    return Failure(
        HANDLER_FAILED,
        fit_message(message),
        kind,
        trace[-MAX_TRACE_BYTES:].decode("utf-8", "replace"),
        lineage_of(error),
        True if isinstance(error, Retry) else False if isinstance(error, GiveUp) else None,
        error.after if isinstance(error, Retry) else None,
    )


def lineage_of(error: BaseException) -> tuple[str, ...]:
    return tuple(name_of(kind) for kind in type(error).__mro__)


def timed_out(task: AssignedTask, message: str = "") -> Failure:
    return Failure(HANDLER_FAILED, f"{task.method} took longer than {task.timeout:g} s{message}", "TimeLimit")


def process_died(how: str) -> Failure:
    return Failure(HANDLER_FAILED, f"the handler's process died ({how})", "ProcessDied")


def not_offered(method: str) -> Failure:
    return Failure(METHOD_NOT_FOUND, f"{method} is not offered here", retry=True)


def not_started(why: str) -> Failure:
    return Failure(HANDLER_FAILED, fit_message(why), "ProcessNotStarted")
