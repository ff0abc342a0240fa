"""When an agent runs which check by itself: Helen's schedule, and the next run of each check.

Invariants: the phase of a check in its interval depends only on the agent's and the check's name, so that a fleet
spreads its runs and a restart changes nothing; missed runs are skipped, never made up for in a burst; a check never
runs twice at the same time; a schedule that cannot be decoded changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import msgspec

from scale0.kernel.clock import Now

MAX_SCHEDULED: Final = 10_000
"""Checks of one schedule; the rest is left out, with an error in the log."""
MAX_NAME_CHARS: Final = 128
MIN_INTERVAL_SECONDS: Final = 0.1
MAX_INTERVAL_SECONDS: Final = 366 * 86_400.0
MAX_TIMEOUT_SECONDS: Final = 86_400.0
FIRST_RUN_SECONDS: Final = 60.0
"""A new or changed check runs within this time, however long its interval is."""
LATE_SECONDS: Final = 5.0
"""A run that is later than this waits for the next interval: else all checks would run at once after a suspend."""
ROUNDING: Final = 1e-6
"""Of an interval: far above the rounding error of a monotonic clock in a float, and too small to notice."""
NO_ARGS: Final = b"{}"


class DueCheck(msgspec.Struct, frozen=True, gc=False):
    """A check to run now: `name` is for the report, `check` is what to run, `args` is a JSON object."""

    name: str
    check: str
    args: bytes
    interval: float
    timeout: float


class _Schedule(msgspec.Struct, frozen=True):
    """A schedule on the wire; unknown keys are ignored, and each check is decoded by itself."""

    checks: list[msgspec.Raw]


class _Entry(msgspec.Struct, frozen=True):
    name: str
    interval: float
    timeout: float = 10.0
    check: str = ""
    args: msgspec.Raw = msgspec.Raw(NO_ARGS)


class _ScheduledCheck:
    """One check, its phase in its interval, and the time of its next run."""

    __slots__ = ("due", "next_at", "phase")

    def __init__(self, due: DueCheck, phase: float) -> None:
        self.due = due
        self.phase = phase
        self.next_at = 0.0

    def run_after(self, mono: float) -> float:
        """The first regular run later than this."""
        interval = self.due.interval
        # A run that is a rounding error away is the current one: it must not be repeated.
        number = math.floor((mono - self.phase) / interval + ROUNDING) + 1
        return self.phase + number * interval


_read_schedule: Final = msgspec.json.Decoder(_Schedule).decode
_read_entry: Final = msgspec.json.Decoder(_Entry).decode


class CheckSchedule:
    """The checks that one agent runs by itself, and which of them are due."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._scheduled: dict[str, _ScheduledCheck] = {}
        self._running: set[str] = set()
        self._next: float | None = None
        self._errors: list[str] = []
        self.body = b""
        """The schedule in force, as Helen sent it; empty: there was none yet."""
        self.skipped = 0
        """Runs skipped because the previous one was still running."""
        self.missed = 0
        """Runs missed because the agent was suspended or overloaded."""

    @property
    def checks(self) -> tuple[DueCheck, ...]:
        return tuple(scheduled.due for scheduled in self._scheduled.values())

    def has(self, check: str, args: bytes) -> bool:
        """True if the schedule runs this check with exactly these arguments."""
        return any(due.check == check and due.args == args for due in self.checks)

    def replace(self, body: bytes, now: Now) -> list[str]:
        """Use this schedule from now on; unchanged checks keep their next run. Returns its errors, one line each."""
        if body == self.body and body:
            return list(self._errors)
        try:
            raw = _read_schedule(body).checks
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [f"the schedule cannot be decoded, so the previous one stays in force: {error}"]
        errors: list[str] = []
        accepted: dict[str, _ScheduledCheck] = {}
        for number, text in enumerate(raw[:MAX_SCHEDULED], 1):
            try:
                due = _read_due(text)
                if due.name in accepted:
                    raise ValueError(f"duplicate name {due.name}")
            except ValueError as error:
                errors.append(f"check {number} of the schedule is ignored: {error}")
                continue
            old = self._scheduled.get(due.name)
            accepted[due.name] = old if old is not None and old.due == due else self._new_entry(due, now)
        if len(raw) > MAX_SCHEDULED:
            errors.append(f"{len(raw) - MAX_SCHEDULED} checks over the limit of {MAX_SCHEDULED} are ignored")
        self._scheduled = accepted
        self._errors = errors
        self.body = body
        self._update_deadline()
        return list(errors)

    def due(self, now: Now) -> list[DueCheck]:
        """The checks to run now; each counts as running until `done`."""
        if self._next is None or self._next > now.mono:
            return []
        out = []
        for scheduled in self._scheduled.values():
            if scheduled.next_at > now.mono:
                continue
            gone = math.floor((now.mono - scheduled.next_at) / scheduled.due.interval)
            late = now.mono - (scheduled.next_at + gone * scheduled.due.interval)
            self.missed += gone
            scheduled.next_at = scheduled.run_after(now.mono)
            if late > LATE_SECONDS:
                self.missed += 1
            elif scheduled.due.name in self._running:
                self.skipped += 1
            else:
                self._running.add(scheduled.due.name)
                out.append(scheduled.due)
        self._update_deadline()
        return out

    def done(self, name: str) -> None:
        self._running.discard(name)

    def deadline(self) -> float | None:
        """When the next check is due, on the monotonic clock."""
        return self._next

    def _new_entry(self, due: DueCheck, now: Now) -> _ScheduledCheck:
        """At its phase; if that is far away, also once before, with the same spread."""
        phase = phase_of(self._identity, due.name)
        scheduled = _ScheduledCheck(due, phase * due.interval)
        scheduled.next_at = scheduled.run_after(now.mono)
        if scheduled.next_at > now.mono + FIRST_RUN_SECONDS:
            scheduled.next_at = now.mono + phase * FIRST_RUN_SECONDS
        return scheduled

    def _update_deadline(self) -> None:
        self._next = min((scheduled.next_at for scheduled in self._scheduled.values()), default=None)


def phase_of(identity: str, name: str) -> float:
    """The phase of an agent's check in its interval, from 0 to 1: the same after every restart."""
    text = f"{identity}\n{name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big") / 2**48


def _read_due(text: msgspec.Raw) -> DueCheck:
    """Decode one check of a schedule. ValueError says what is wrong with it."""
    try:
        entry = _read_entry(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deep") from error
    for name in (entry.name, entry.check or entry.name):
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or " " in name:
            raise ValueError(f"{name[:MAX_NAME_CHARS]!r} is not a valid check name")
    if not MIN_INTERVAL_SECONDS <= entry.interval <= MAX_INTERVAL_SECONDS:
        raise ValueError(f"interval of {entry.interval} seconds out of range")
    if not 0 < entry.timeout <= MAX_TIMEOUT_SECONDS:
        raise ValueError(f"timeout of {entry.timeout} seconds out of range")
    args = bytes(entry.args)
    args.decode()  # a raw JSON value is passed on unchanged: its encoding was not validated yet
    if not args.lstrip().startswith(b"{"):
        raise ValueError("args is not an object")
    return DueCheck(entry.name, entry.check or entry.name, args, entry.interval, entry.timeout)
