"""Tries one input on one target: only the declared errors, within the limits of time and memory."""

from __future__ import annotations

import gc
import hashlib
import signal
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fuzz.targets import TARGETS, Target

CORPORA: Final = Path(__file__).parent / "corpora"
MAX_SECONDS: Final = 1.0
"""Of one input, in processor time: a parser of at most 64 KiB needs milliseconds."""
TRACING: Final = 5
"""How much longer an input may take while its memory is measured."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of memory that one input may have allocated at once."""
MAX_INPUT_BYTES: Final = 65_536


class TooSlow(BaseException):
    """A target did not end. Not an Exception: no parser may swallow it."""


def fault_of(target: Target, data: bytes, memory: bool = False) -> str | None:
    """What is wrong, in one line; None if the target keeps its promise. `memory`: measure it too, which is slow."""
    limit = MAX_SECONDS * (TRACING if memory else 1)
    if memory:
        tracemalloc.start()
    collects = gc.isenabled()
    gc.disable()  # what other work left behind is not this target's
    began = time.process_time()
    try:
        with _deadline(limit):
            target.run(data)
    except target.errors:
        pass
    except (Exception, TooSlow) as error:
        return f"{target.name}: {type(error).__name__}: {error}"
    finally:
        took = time.process_time() - began
        if collects:
            gc.enable()
        peak = tracemalloc.get_traced_memory()[1] if memory else 0
        if memory:
            tracemalloc.stop()
    if took > limit:
        return f"{target.name}: took {took:.1f} s, more than {limit:g}"
    if peak > MAX_BYTES:
        return f"{target.name}: allocated {peak:,} bytes, more than {MAX_BYTES:,}"
    return None


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the block after this much processor time."""

    def end(*_: object) -> None:
        raise TooSlow(f"did not end within {seconds:g} s")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def corpus_of(name: str) -> list[Path]:
    """The kept inputs of a target, in order."""
    return sorted(path for path in (CORPORA / name).glob("*") if path.is_file())


def keep(name: str, data: bytes, kind: str) -> Path:
    """Write an input into the corpus of a target; its name has the digest of the input."""
    folder = CORPORA / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


def chosen(names: list[str]) -> list[Target]:
    """The named targets, or all of them."""
    return [TARGETS[name] for name in names] if names else list(TARGETS.values())
