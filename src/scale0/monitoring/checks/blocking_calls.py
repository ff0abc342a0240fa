"""Calls that the system may never return from: a name server that is silent, a file server that is gone.

Lives here: `BlockingCalls`. Never here: what is called. Invariants: whoever calls waits no longer than he said; one key
has at most one call under way, however often it is asked for; so a dead mount costs one thread and not one per run.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MAX_CALLS: Final = 64
"""Calls under way at once. Beyond that something hangs for good, and another thread would only hang too."""

Value = TypeVar("Value")


class _Call:
    """One call under way."""

    __slots__ = ("done", "error", "value")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None


class BlockingCalls:
    """Runs calls in threads of their own, and waits for each only so long."""

    __slots__ = ("_calls", "_limit", "_lock")

    def __init__(self, limit: int = MAX_CALLS) -> None:
        self._calls: dict[Hashable, _Call] = {}
        self._lock = threading.Lock()
        self._limit = limit

    def call(self, key: Hashable, function: Callable[[], Value], seconds: float) -> Value:
        """What `function` returns or raises; TimeoutError after `seconds`. A call of the same key is joined."""
        with self._lock:
            call = self._calls.get(key)
            if call is None:
                if len(self._calls) >= self._limit:
                    raise TimeoutError(f"{len(self._calls)} calls to the system hang already")
                call = self._calls[key] = _Call()
                threading.Thread(target=self._perform, args=(key, call, function), name="aside", daemon=True).start()
        if not call.done.wait(seconds):
            raise TimeoutError("the system does not answer")
        if call.error is not None:
            raise call.error
        value: Value = call.value
        return value

    def _perform(self, key: Hashable, call: _Call, function: Callable[[], Any]) -> None:
        try:
            call.value = function()
        except BaseException as error:  # whatever it is, it belongs to whoever waits
            call.error = error
        finally:
            with self._lock:
                self._calls.pop(key, None)
            call.done.set()
