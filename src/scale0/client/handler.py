"""One handler: arguments in, an answer out, whatever happens in between.

Lives here: what is offered, running it, and its result or exception as an answer. Never here: threads, or the protocol.
Invariant: no answer costs its worker the connection; what would becomes an error.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Any, Final

import msgspec

from scale0.client import payload
from scale0.client.payload import Signature
from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.transport.core.backend_session import RequestReceived, fit_message
from scale0.transport.core.calls import HEAD_PARTS

log = logging.getLogger("scale0.worker")

CUT_BYTES: Final = 2 * Limits().max_message_bytes
"""Up to this the broker itself says that an answer is too big; libzmq takes no larger frame, and hangs up."""
MAX_BODIES: Final = Limits().max_parts - HEAD_PARTS
"""Bodies of one answer."""

Answer = tuple[str, str, Any]
"""How (`reply`, `partial`, `error`), the request's id, and its bodies or (code, message)."""
Part = Callable[[str, Sequence[bytes]], None]


class Handler(msgspec.Struct, frozen=True):
    """One function that is offered."""

    name: str
    function: Callable[..., Any]
    slots: int
    is_async: bool
    is_process: bool
    raw: bool
    signature: Signature | None
    retry_on: frozenset[str] | None = None
    """Names of exceptions for which a task is tried again; None: for all but `give_up_on`."""
    give_up_on: frozenset[str] = frozenset()


def bound(handler: Handler, work: RequestReceived) -> tuple[Sequence[Any], Any]:
    """The arguments for a handler."""
    if handler.signature is None:
        return work.bodies, {}
    return handler.signature.bind(work.bodies[0] if work.bodies else b"")


def packed(handler: Handler, value: Any) -> Sequence[bytes]:
    """A result as bodies."""
    if not handler.raw:
        frames: tuple[Any, ...] = (payload.encode(value),)
    elif type(value) is bytes:
        frames = (value,)
    elif value is None:
        return ()
    else:
        frames = (value,) if isinstance(value, bytearray | memoryview) else tuple(value)
        frames = tuple(map(as_bytes, frames))
    if len(frames) > MAX_BODIES:
        raise Refusal(codes.TOO_BIG, f"an answer has at most {MAX_BODIES} bodies, not {len(frames)}")
    for frame in frames:
        if len(frame) > CUT_BYTES:
            raise Refusal(codes.TOO_BIG, f"an answer of {len(frame)} bytes would cut the connection")
    return frames


def as_bytes(frame: Any) -> bytes:
    """One frame of a raw answer."""
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise TypeError(f"a raw handler returns bytes, or several of them, not {type(frame).__name__}")
    return bytes(frame)


def perform(handler: Handler, work: RequestReceived, part: Part) -> Answer:
    """Run a plain function, or a generator: whatever happens, there is an answer."""
    try:
        args, kwargs = bound(handler, work)
        value = handler.function(*args, **kwargs)
        if type(value) is GeneratorType:
            value = exhaust(handler, work, value, part)
        return "reply", work.id, packed(handler, value)
    except Refusal as refusal:
        return "error", work.id, (refusal.code, fit_message(refusal.message))
    except BaseException as error:  # also sys.exit() and a cancellation: somebody waits for an answer
        return failed(work, error)


def exhaust(handler: Handler, work: RequestReceived, values: Any, part: Part) -> Any:
    """Each value of a generator is a part; what it returns is the last."""
    while True:
        try:
            value = next(values)
        except StopIteration as stop:
            return stop.value
        part(work.id, packed(handler, value))


async def perform_async(handler: Handler, work: RequestReceived, part: Part) -> Answer:
    """Run a coroutine, or an asynchronous generator."""
    try:
        args, kwargs = bound(handler, work)
        value = handler.function(*args, **kwargs)
        if inspect.isasyncgen(value):
            async for one in value:
                part(work.id, packed(handler, one))
            value = None
        else:
            value = await value
        return "reply", work.id, packed(handler, value)
    except Refusal as refusal:
        return "error", work.id, (refusal.code, fit_message(refusal.message))
    except BaseException as error:  # also sys.exit() and a cancellation: somebody waits for an answer
        return failed(work, error)


def failed(work: RequestReceived, error: BaseException) -> Answer:
    """The caller gets the exception's name and words; the traceback stays in our log."""
    # Neither a log nor a wire can hold a lone surrogate: it would take the other answers with it.
    trace = "".join(traceback.format_exception(error))
    log.error(
        "%s failed:\n%s",
        work.service,
        trace.encode("utf-8", "backslashreplace").decode(),
        extra=about(request=work.id, service=work.service),
    )
    code = getattr(error, "code", codes.FAILED)
    if not isinstance(code, int) or not 400 <= code <= 599:
        code = codes.FAILED
    try:
        words = f"{type(error).__name__}: {error}"
    except Exception:
        words = type(error).__name__
    return "error", work.id, (code, fit_message(words))
