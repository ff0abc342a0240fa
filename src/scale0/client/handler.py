"""One handler: from the arguments of a request to its answer.

Invariant: no answer can break the connection; what would becomes an error.
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

MAX_FRAME_BYTES: Final = 2 * Limits().max_message_bytes
"""Up to this size the broker itself answers TOO_BIG; a larger frame ends the connection."""
MAX_BODIES: Final = Limits().max_parts - HEAD_PARTS
"""Bodies of one answer."""

Answer = tuple[str, str, Any]
"""Kind (`reply`, `partial` or `error`), request id, and bodies or (code, message)."""
SendPart = Callable[[str, Sequence[bytes]], None]


class Handler(msgspec.Struct, frozen=True):
    """A function that a worker exposes as a service."""

    name: str
    function: Callable[..., Any]
    slots: int
    is_async: bool
    is_process: bool
    raw: bool
    signature: Signature | None
    retry_on: frozenset[str] | None = None
    """Names of exceptions after which a task is retried; None for all but `give_up_on`."""
    give_up_on: frozenset[str] = frozenset()


def bound(handler: Handler, request: RequestReceived) -> tuple[Sequence[Any], Any]:
    if handler.signature is None:
        return request.bodies, {}
    return handler.signature.bind(request.bodies[0] if request.bodies else b"")


def packed(handler: Handler, value: Any) -> Sequence[bytes]:
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
        if len(frame) > MAX_FRAME_BYTES:
            raise Refusal(codes.TOO_BIG, f"an answer has at most {MAX_FRAME_BYTES} bytes, not {len(frame)}")
    return frames


def as_bytes(frame: Any) -> bytes:
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise TypeError(f"a raw handler returns bytes, or several of them, not {type(frame).__name__}")
    return bytes(frame)


def perform(handler: Handler, request: RequestReceived, send_part: SendPart) -> Answer:
    """Run a plain function or a generator; there is an answer, whatever happens."""
    try:
        args, kwargs = bound(handler, request)
        value = handler.function(*args, **kwargs)
        if type(value) is GeneratorType:
            value = exhaust(handler, request, value, send_part)
        return "reply", request.id, packed(handler, value)
    except Refusal as refusal:
        return "error", request.id, (refusal.code, fit_message(refusal.message))
    except BaseException as error:  # also sys.exit() and a cancellation: the caller waits for an answer
        return failed(request, error)


def exhaust(handler: Handler, request: RequestReceived, values: Any, send_part: SendPart) -> Any:
    """Each value of a generator is a partial answer; its return value is the last one."""
    while True:
        try:
            value = next(values)
        except StopIteration as stop:
            return stop.value
        send_part(request.id, packed(handler, value))


async def perform_async(handler: Handler, request: RequestReceived, send_part: SendPart) -> Answer:
    """Run a coroutine or an asynchronous generator."""
    try:
        args, kwargs = bound(handler, request)
        value = handler.function(*args, **kwargs)
        if inspect.isasyncgen(value):
            async for one in value:
                send_part(request.id, packed(handler, one))
            value = None
        else:
            value = await value
        return "reply", request.id, packed(handler, value)
    except Refusal as refusal:
        return "error", request.id, (refusal.code, fit_message(refusal.message))
    except BaseException as error:  # also sys.exit() and a cancellation: the caller waits for an answer
        return failed(request, error)


def failed(request: RequestReceived, error: BaseException) -> Answer:
    """The caller gets the exception's class and message; the traceback stays in the log."""
    # A lone surrogate can be neither logged nor sent: it would break the other answers of the message.
    trace = "".join(traceback.format_exception(error))
    log.error(
        "%s failed:\n%s",
        request.service,
        trace.encode("utf-8", "backslashreplace").decode(),
        extra=about(request=request.id, service=request.service),
    )
    code = getattr(error, "code", codes.FAILED)
    if not isinstance(code, int) or not 400 <= code <= 599:
        code = codes.FAILED
    try:
        message = f"{type(error).__name__}: {error}"
    except Exception:
        message = type(error).__name__
    return "error", request.id, (code, fit_message(message))
