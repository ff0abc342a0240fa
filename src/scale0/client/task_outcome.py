"""A task's outcome: one JSON value, or an error that says whether to try again.

Lives here: running a handler for a task, its result as JSON, and its exception as an error object. Never here: threads,
or the protocol. Invariants: whatever a handler does, there is an outcome; a result is whole JSON of bounded size and
depth, so that it cannot spoil the others that travel with it.
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
"""Of a traceback that travels: its end, where the cause is."""
MAX_RESULT_BYTES: Final = Limits().max_message_bytes - 64 * 1024
"""A result travels in a message, and there must be room for what is said about it."""
MAIN: Final = "__main__"
CHILD_NAME: Final = "__scale0_child__"
"""What a script is called in place of `__main__` when a child looks for a function in it."""

_is_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_to_json: Final = msgspec.json.Encoder().encode


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why a task failed; it travels from a child as an array."""

    code: int
    message: str
    kind: str = ""
    """The name of the exception's class."""
    trace: str = ""
    lineage: tuple[str, ...] = ()
    """Its class and all that it inherits from, by name: what `retry_on` is held against."""
    retry: bool | None = None
    """None: as the handler's `retry_on` and `give_up_on` say."""
    after: float | None = None


Outcome = bytes | Failure
"""A result as JSON, or why there is none."""


class OutcomeError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error in TASKSDONE."""

    code: int
    message: str
    data: dict[str, Any] = {}
    retry: bool = False
    after: float | None = None


def names_of(kinds: Iterable[type[BaseException]]) -> frozenset[str]:
    """Classes of exceptions as `lineage` names them: a child's own classes are not ours, but their names are."""
    return frozenset(name_of(kind) for kind in kinds)


def name_of(kind: type) -> str:
    """One class by name; a child calls a script otherwise than its parent does."""
    module = MAIN if kind.__module__ == CHILD_NAME else kind.__module__
    return f"{module}.{kind.__qualname__}"


def retried(offer: Handler, failure: Failure) -> bool:
    """Whether to try again: as it says itself, else as the nearest class that the handler's author named."""
    if failure.retry is not None:
        return failure.retry
    for name in failure.lineage:
        if name in offer.give_up_on:
            return False
        if offer.retry_on is not None and name in offer.retry_on:
            return True
    if not failure.lineage:
        # No exception, but a death or a lost time: only who wants nothing tried again gets none.
        return offer.retry_on is None or bool(offer.retry_on)
    return offer.retry_on is None


def error_object(offer: Handler | None, failure: Failure) -> bytes:
    """A failure as TASKSDONE says it."""
    data = {"type": failure.kind} if failure.kind else {}
    if failure.trace:
        data["traceback"] = failure.trace
    retry = retried(offer, failure) if offer is not None else bool(failure.retry)
    return _to_json(OutcomeError(failure.code, failure.message, data, retry, failure.after if retry else None))


def perform_task(offer: Handler, job: AssignedTask) -> Outcome:
    """Run a plain function or a generator."""
    try:
        signature = offer.signature
        if signature is None:
            value = offer.function(job.params)
        else:
            args, kwargs = signature.bind(job.params)
            value = offer.function(*args, **kwargs)
        if type(value) is GeneratorType:
            return gathered(offer, job, value)
        return checked(encoded(offer, value))
    except Refusal as refusal:
        return refused(refusal)
    except BaseException as error:  # also sys.exit() and a cancellation: somebody waits for an outcome
        return failure_of(offer.name, error, job.id)


async def perform_task_async(offer: Handler, job: AssignedTask) -> Outcome:
    """Run a coroutine or an asynchronous generator."""
    try:
        args, kwargs = ((job.params,), {}) if offer.signature is None else offer.signature.bind(job.params)
        value = offer.function(*args, **kwargs)
        if inspect.isasyncgen(value):
            pieces = Pieces(offer)
            async for one in value:
                pieces.add(one)
            return checked(pieces.joined())
        return checked(encoded(offer, await value))
    except Refusal as refusal:
        return refused(refusal)
    except BaseException as error:
        return failure_of(offer.name, error, job.id)


def gathered(offer: Handler, job: AssignedTask, values: Any) -> bytes:
    """The values of a generator as one list; what it returns is the last, as in a stream."""
    pieces = Pieces(offer)
    while True:
        if job.stop:
            values.close()
            break
        try:
            pieces.add(next(values))
        except StopIteration as stop:
            if stop.value is not None:
                pieces.add(stop.value)
            break
    return checked(pieces.joined())


class Pieces:
    """The values of a generator, each as JSON, within the size of a result."""

    def __init__(self, offer: Handler) -> None:
        self._offer = offer
        self._pieces: list[bytes] = []
        self._size = 2

    def add(self, value: Any) -> None:
        """One more."""
        piece = encoded(self._offer, value)
        self._pieces.append(piece)
        self._size += len(piece) + 1
        if self._size > MAX_RESULT_BYTES:
            raise Refusal(codes.TOO_BIG, f"a result has at most {MAX_RESULT_BYTES} bytes")

    def joined(self) -> bytes:
        """All of them, as an array."""
        return b"[%b]" % b",".join(self._pieces)


def encoded(offer: Handler, value: Any) -> bytes:
    """A value as JSON. A raw handler returns JSON already; nothing is null."""
    if not offer.raw:
        return payload.encode(value)
    if value is None:
        return b"null"
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a raw handler of a task returns one JSON value as bytes, not {type(value).__name__}")
    return bytes(value)


def checked(result: bytes) -> bytes:
    """The same, if it can travel with others."""
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
    """Arguments or a result that cannot be: the same again would not help. Any other refusal is the handler's own."""
    message = fit_message(refusal.message)
    match refusal.code:
        case codes.MALFORMED:
            return Failure(INVALID_PARAMS, message, "Refusal", retry=False)
        case codes.TOO_BIG:
            return Failure(TOO_BIG, message, "Refusal", retry=False)
        case _:
            return Failure(HANDLER_FAILED, message, "Refusal", lineage=lineage_of(refusal))


def failure_of(name: str, error: BaseException, task: str = "") -> Failure:
    """What a handler raised."""
    trace = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
    kind = type(error).__name__
    try:
        words = f"{kind}: {error}"
    except Exception:
        words = kind
    if not isinstance(error, Retry | GiveUp):
        log.error("%s failed:\n%s", name, trace.decode(), extra=about(task=task, method=name))
    return Failure(
        HANDLER_FAILED,
        fit_message(words),
        kind,
        trace[-MAX_TRACE_BYTES:].decode("utf-8", "replace"),
        lineage_of(error),
        True if isinstance(error, Retry) else False if isinstance(error, GiveUp) else None,
        error.after if isinstance(error, Retry) else None,
    )


def lineage_of(error: BaseException) -> tuple[str, ...]:
    """The names of an exception's class and its ancestors, the nearest first."""
    return tuple(name_of(kind) for kind in type(error).__mro__)


def late(job: AssignedTask, words: str = "") -> Failure:
    """It took longer than it may."""
    return Failure(HANDLER_FAILED, f"{job.method} took longer than {job.timeout:g} s{words}", "TimeLimit")


def died(how: str) -> Failure:
    """Its process ended in the middle of it."""
    return Failure(HANDLER_FAILED, f"the handler's process died ({how})", "ProcessDied")


def not_offered(method: str) -> Failure:
    """Somebody else may offer it."""
    return Failure(METHOD_NOT_FOUND, f"{method} is not offered here", retry=True)


def not_started(why: str) -> Failure:
    """No process could be started for it."""
    return Failure(HANDLER_FAILED, fit_message(why), "ProcessNotStarted")
