"""Virtual time: the queue of future events, and the trace of past ones with its running checksum. Invariant: events run
in the order of their time, and those of one time in insertion order; so the same seed gives the same trace in every
process."""

from __future__ import annotations

import heapq
import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

TAIL_LINES: Final = 60
"""Lines that are kept unless all are requested: enough to see how an invariant was violated."""

_time: Final = struct.Struct("<d").pack
_names: Final = msgspec.msgpack.Decoder(list[Any])


class Agenda:
    __slots__ = ("_heap", "_serial", "now")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self.now = 0.0

    def at(self, when: float, act: Callable[..., None], *subjects: Any) -> None:
        """Schedules `act` for `when`, or for now if that is past."""
        self._serial += 1
        heapq.heappush(self._heap, (max(when, self.now), self._serial, act, subjects))

    def after(self, seconds: float, act: Callable[..., None], *subjects: Any) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (self.now + seconds, self._serial, act, subjects))

    def run(self, until: float) -> None:
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, act, subjects = pop(heap)
            act(*subjects)
        self.now = max(self.now, until)

    def __len__(self) -> int:
        return len(self._heap)


class Diary:
    """The trace: every message counts in the checksum; lines are kept for people."""

    def __init__(self, agenda: Agenda, keep_all: bool) -> None:
        self._agenda = agenda
        self._all = keep_all
        self._lines: deque[tuple[float, str]] = deque(maxlen=None if keep_all else TAIL_LINES)
        self.check_sum = 0
        self.messages = 0

    def message(self, source: str, target: str, frames: Sequence[bytes]) -> None:
        self.messages += 1
        self.check_sum = zlib.crc32(b"\0".join(frames), zlib.crc32(_time(self._agenda.now), self.check_sum))
        if self._all:
            self._lines.append((self._agenda.now, f"{source} -> {target}  {shown(frames)}"))

    def note(self, text: str) -> None:
        self.check_sum = zlib.crc32(text.encode(), zlib.crc32(_time(self._agenda.now), self.check_sum))
        self._lines.append((self._agenda.now, text))

    def lines(self) -> list[str]:
        return [f"{when:11.6f}  {text}" for when, text in self._lines]


def shown(frames: Sequence[bytes]) -> str:
    if frames and len(frames) < 3 and frames[-1][:1] in (b"{", b"["):
        return frames[-1][:400].decode("utf-8", "replace")
    if len(frames) == 1:
        return repr(frames[0][:240])
    if len(frames) < 3:
        return f"{len(frames)} odd frames"
    if frames[1] == b"BATCH" and len(frames) == 4:
        try:
            return "BATCH " + "; ".join(" ".join(map(str, part))[:300] for part in _names.decode(frames[3]))
        except (msgspec.DecodeError, ValueError, TypeError, LookupError, RecursionError):
            return "BATCH of something"
    bodies = b" ".join(frames[3:])[:240]
    return f"{frames[1][:24]!r} {frames[2][:160]!r} {bodies!r}" if bodies else f"{frames[1][:24]!r} {frames[2][:160]!r}"
