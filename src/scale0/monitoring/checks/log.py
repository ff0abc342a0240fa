"""The check `log`: new lines of a log that match.

Lives here: reading what is new, over rotations. Never here: where it was read to (`log_position`), what matches
(`log_lines`). Invariants: a line is counted once it has its end, and then once; one run reads a bounded amount, and the
next goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from scale0.monitoring.checks.arguments import FullText, Limit, Texts, WrongArgs, limits
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun, Deadline
from scale0.monitoring.checks.log_lines import Globs, MatchCount
from scale0.monitoring.checks.log_lines import Texts as PlainTexts
from scale0.monitoring.checks.log_position import (
    NOT_THERE,
    Position,
    is_same,
    load,
    open_log,
    position_of,
    rotated,
    save,
)
from scale0.monitoring.checks.metrics import BYTES, Measurements, excerpt, size
from scale0.monitoring.checks.sockets import reason
from scale0.monitoring.protocol.results import OK, UNKNOWN, CheckFinding, State

MAX_RUN_BYTES: Final = 33_554_432
"""Read in one run; what is beyond waits for the next."""
MAX_LINE_BYTES: Final = 65_536
"""A longer line counts as several."""
BLOCK_BYTES: Final = 262_144


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    path: FullText
    match: Texts
    ignore: Texts = ()
    glob: bool = False
    ignore_case: bool = False
    from_start: bool = False
    warn: Limit = None
    crit: Limit = 0.0
    missing: State = UNKNOWN


class LogState(NamedTuple):
    """Where the last run ended, and whether the disk knows."""

    position: Position
    saved: bool


class LogMatches(NamedTuple):
    """What a run found, and where it ended."""

    position: Position
    tally: MatchCount
    behind: int
    note: str


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Count the lines that came since the last run."""
    if not args.match:
        raise WrongArgs("arg match: say what to look for")
    key = repr(run.key).encode("utf-8", "surrogatepass")
    kept: LogState | None = run.before()
    if kept is not None and not kept.saved:
        # Only now: what the last run answered is safe by this time, so nothing is lost if the agent dies in between.
        save(run.data_dir, key, kept.position)
        run.leave(kept._replace(saved=True))
    before = load(run.data_dir, key) if kept is None else kept.position
    try:
        news = run.aside.call(run.key, lambda: Log(args, run.deadline, run.log_paths).news(before), run.deadline.left())
    except TimeoutError:
        raise
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        if absent and before is None:
            run.leave(LogState(NOT_THERE, True))  # what it holds when it appears is new, all of it
        if absent and args.missing == OK:
            return CheckFinding(OK, f"{excerpt(args.path)} is not there")
        raise CheckFailed(args.missing if absent else UNKNOWN, f"{excerpt(args.path)}: {reason(error)}") from None
    if before is None:
        save(run.data_dir, key, news.position)
    run.leave(LogState(news.position, before is None or news.position == before))
    return told(args, news)


def told(args: Args, news: LogMatches) -> CheckFinding:
    """Metrics and judgement."""
    tally = news.tally
    gauges = Measurements()
    warn, crit = limits(args)
    says = f"{tally.matches} of {tally.lines} new lines match"
    if tally.matches:
        says += f", the last: {excerpt(tally.last.decode('utf-8', 'replace'))}"
    gauges.add("matches", tally.matches, warn=warn, crit=crit, low=0.0, says=says)
    gauges.add("lines", tally.lines, low=0.0)
    gauges.add("read_bytes", tally.read_bytes, BYTES, low=0.0)
    gauges.add("behind_bytes", news.behind, BYTES, low=0.0)
    waits = f"; {size(news.behind)} wait for the next run" if news.behind else ""
    return gauges.finding(says, waits + news.note)


class Log:
    """One run's reading of one log."""

    __slots__ = ("_allowed", "_args", "_deadline", "_patterns", "_tally")

    def __init__(self, args: Args, deadline: Deadline, allowed: Sequence[str] | None) -> None:
        self._allowed = allowed
        self._args = args
        self._deadline = deadline
        self._tally = MatchCount()
        kind = Globs if args.glob else PlainTexts
        self._patterns: Globs | PlainTexts = kind(args.match, args.ignore, args.ignore_case)

    def news(self, before: Position | None) -> LogMatches:
        """What is new, the rest of a rotated log first."""
        note = ""
        descriptor = open_log(self._args.path, self._allowed)
        try:
            start = 0
            if before is None:
                start = 0 if self._args.from_start else last_line_end(descriptor)
            elif is_same(descriptor, before):
                start = before.offset
            elif before != NOT_THERE:
                unfinished, note = self._rest_of_old(before)
                if unfinished is not None:
                    return unfinished
            end, finished = self._consume(descriptor, start)
            behind = 0 if finished else max(0, os.fstat(descriptor).st_size - end)
            return LogMatches(position_of(descriptor, end), self._tally, behind, note)
        finally:
            os.close(descriptor)

    def _rest_of_old(self, before: Position) -> tuple[LogMatches | None, str]:
        """Read a rotated log to its end, if it can be found. News mean that the run's share was used up within it."""
        old = rotated(self._args.path, before)
        try:
            descriptor = None if old is None else open_log(old, self._allowed)
        except OSError:
            descriptor = None
        if descriptor is None:
            return None, "; the log was replaced, and the rest of the old one is not to be found"
        try:
            if not is_same(descriptor, before):
                return None, "; the log was cut, and began again"
            end, finished = self._consume(descriptor, before.offset, closed=True)
            if finished:
                return None, ""
            behind = max(0, os.fstat(descriptor).st_size - end)
            return LogMatches(position_of(descriptor, end), self._tally, behind, ""), ""
        finally:
            os.close(descriptor)

    def _consume(self, descriptor: int, start: int, closed: bool = False) -> tuple[int, bool]:
        """Count whole lines from `start`: where the next run goes on, and whether the end was reached.

        A file is `closed` if nobody writes to it any more: then its last line needs no end.
        """
        at, rest, tally = start, b"", self._tally
        while tally.read_bytes < MAX_RUN_BYTES and not self._deadline.passed():
            block = os.pread(descriptor, BLOCK_BYTES, at + len(rest))
            if not block:
                if closed and rest:
                    self._patterns.count(rest, tally)
                    at += len(rest)
                return at, True
            tally.read_bytes += len(block)
            data = rest + block
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) >= MAX_LINE_BYTES:
                cut = len(data)  # a line without an end in sight
            if cut:
                self._patterns.count(data[:cut], tally)
            at += cut
            rest = data[cut:]
        return at, False


def last_line_end(descriptor: int) -> int:
    """Where the last whole line ends: a line that is being written is new when it has its end."""
    end = os.fstat(descriptor).st_size
    start = max(0, end - MAX_LINE_BYTES)
    tail = os.pread(descriptor, end - start, start)
    return start + tail.rfind(b"\n") + 1 if b"\n" in tail else end if start else 0
