"""When an agent runs which check by itself.

Lives here: Helen's schedule as values, and the next time of each check. Never here: running one, or storing the
schedule. Invariants: each check has a place of its own in its interval, which follows from the agent's and the check's
name alone, so that a fleet spreads and a restart changes nothing; runs that were missed are left out, never made up for
in a bunch; a check never runs twice at once; a schedule that is not understood changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import msgspec

from scale0.kernel.clock import Now

MAX_SCHEDULED: Final = 10_000
"""Checks of one schedule; the rest is left out, and told."""
MAX_NAME_CHARS: Final = 128
MIN_INTERVAL_SECONDS: Final = 0.1
MAX_INTERVAL_SECONDS: Final = 366 * 86_400.0
MAX_TIMEOUT_SECONDS: Final = 86_400.0
FIRST_RUN_SECONDS: Final = 60.0
"""A check that is new or changed runs within so long, however long its interval is."""
LATE_SECONDS: Final = 5.0
"""A run that is later than this waits for its next place: else all checks would run at once after a sleep."""
ROUNDING: Final = 1e-6
"""Of an interval: far above the error of a monotonic clock in a float, far below what anybody sees."""
NO_ARGS: Final = b"{}"


class DueCheck(msgspec.Struct, frozen=True, gc=False):
    """A check to be run now: `name` is what it is reported as, `check` what is run; `args` is a JSON object."""

    name: str
    check: str
    args: bytes
    interval: float
    timeout: float


class _Schedule(msgspec.Struct, frozen=True):
    """A schedule as it travels; unknown keys are ignored, and each check is read by itself."""

    checks: list[msgspec.Raw]


class _Entry(msgspec.Struct, frozen=True):
    """One check of a schedule as it travels."""

    name: str
    interval: float
    timeout: float = 10.0
    check: str = ""
    args: msgspec.Raw = msgspec.Raw(NO_ARGS)


class _Turn:
    """One check, its place in its interval, and when its turn comes."""

    __slots__ = ("due", "next_at", "phase")

    def __init__(self, due: DueCheck, phase: float) -> None:
        self.due = due
        self.phase = phase
        self.next_at = 0.0

    def place_after(self, mono: float) -> float:
        """The first of its places that is later than this."""
        interval = self.due.interval
        # A place that is a rounding error away is the one where we are: it must not come a second time.
        number = math.floor((mono - self.phase) / interval + ROUNDING) + 1
        return self.phase + number * interval


_read_schedule: Final = msgspec.json.Decoder(_Schedule).decode
_read_entry: Final = msgspec.json.Decoder(_Entry).decode


class CheckSchedule:
    """The checks that one agent runs by itself, and whose turn it is."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._turns: dict[str, _Turn] = {}
        self._running: set[str] = set()
        self._next: float | None = None
        self._faults: list[str] = []
        self.body = b""
        """The schedule that is in force, as Helen sent it; empty: there was none yet."""
        self.skipped = 0
        """Runs left out because the one before was not done."""
        self.missed = 0
        """Runs left out because nobody asked in time whose turn it is: the agent slept, or was too busy."""

    @property
    def checks(self) -> tuple[DueCheck, ...]:
        """All checks of the schedule."""
        return tuple(turn.due for turn in self._turns.values())

    def take(self, body: bytes, now: Now) -> list[str]:
        """Run these from now on; what is the same as before keeps its turn. What was wrong with it, one line each."""
        if body == self.body and body:
            return list(self._faults)
        try:
            raw = _read_schedule(body).checks
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [f"the schedule is not understood, and the old one stays: {error}"]
        faults: list[str] = []
        turns: dict[str, _Turn] = {}
        for number, text in enumerate(raw[:MAX_SCHEDULED], 1):
            try:
                due = _read_due(text)
                if due.name in turns:
                    raise ValueError(f"{due.name} is there twice")
            except ValueError as error:
                faults.append(f"check {number} of the schedule is left out: {error}")
                continue
            old = self._turns.get(due.name)
            turns[due.name] = old if old is not None and old.due == due else self._new_turn(due, now)
        if len(raw) > MAX_SCHEDULED:
            faults.append(f"{len(raw) - MAX_SCHEDULED} checks over {MAX_SCHEDULED} are left out")
        self._turns = turns
        self._faults = faults
        self.body = body
        self._look()
        return list(faults)

    def due(self, now: Now) -> list[DueCheck]:
        """Whose turn it is; each of them counts as running until it is `done`."""
        if self._next is None or self._next > now.mono:
            return []
        out = []
        for turn in self._turns.values():
            if turn.next_at > now.mono:
                continue
            gone = math.floor((now.mono - turn.next_at) / turn.due.interval)
            late = now.mono - (turn.next_at + gone * turn.due.interval)
            self.missed += gone
            turn.next_at = turn.place_after(now.mono)
            if late > LATE_SECONDS:
                self.missed += 1
            elif turn.due.name in self._running:
                self.skipped += 1
            else:
                self._running.add(turn.due.name)
                out.append(turn.due)
        self._look()
        return out

    def done(self, name: str) -> None:
        """This check does not run any more, whatever came of it."""
        self._running.discard(name)

    def deadline(self) -> float | None:
        """When somebody's turn comes, by the monotonic clock."""
        return self._next

    def _new_turn(self, due: DueCheck, now: Now) -> _Turn:
        """At its place; where that is far away, once before it, spread in the same way."""
        share = place_of(self._identity, due.name)
        turn = _Turn(due, share * due.interval)
        turn.next_at = turn.place_after(now.mono)
        if turn.next_at > now.mono + FIRST_RUN_SECONDS:
            turn.next_at = now.mono + share * FIRST_RUN_SECONDS
        return turn

    def _look(self) -> None:
        self._next = min((turn.next_at for turn in self._turns.values()), default=None)


def place_of(identity: str, name: str) -> float:
    """Where in its interval a check of this agent has its place, from 0 to 1: the same after every restart."""
    text = f"{identity}\n{name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big") / 2**48


def _read_due(text: msgspec.Raw) -> DueCheck:
    """One check of a schedule. ValueError: what is wrong with it."""
    try:
        entry = _read_entry(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    for name in (entry.name, entry.check or entry.name):
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or " " in name:
            raise ValueError(f"{name[:MAX_NAME_CHARS]!r} is no name of a check")
    if not MIN_INTERVAL_SECONDS <= entry.interval <= MAX_INTERVAL_SECONDS:
        raise ValueError(f"an interval of {entry.interval} seconds")
    if not 0 < entry.timeout <= MAX_TIMEOUT_SECONDS:
        raise ValueError(f"a timeout of {entry.timeout} seconds")
    args = bytes(entry.args)
    args.decode()  # a raw value is passed on as it came, and nobody has looked at its characters yet
    if not args.lstrip().startswith(b"{"):
        raise ValueError("args that are no object")
    return DueCheck(entry.name, entry.check or entry.name, args, entry.interval, entry.timeout)
