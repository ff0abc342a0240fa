"""The check `log`: new lines of a log that match.

Patterns are plain text or globs, never regular expressions, so that the time for a line is linear in its length.
Invariants: a line is counted once, when it is complete; one run reads a bounded amount, and the next one continues; a
position on disk is never ahead of what was reported, so that after a crash lines may be counted twice but are never
skipped; a file is the same only if device, inode and first bytes are.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scale0.kernel.edge.secret_files import write_secret
from scale0.monitoring.checks.arguments import FullText, Limit, Texts, WrongArgs, checked_glob, limits
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun, Deadline
from scale0.monitoring.checks.metrics import BYTES, Measurements, byte_size, excerpt
from scale0.monitoring.checks.sockets import error_reason
from scale0.monitoring.protocol.results import OK, UNKNOWN, CheckFinding, State

MAX_RUN_BYTES: Final = 33_554_432
"""Read in one run; the rest waits for the next."""
MAX_LINE_BYTES: Final = 65_536
"""A longer line counts as several."""
MAX_GLOB_CHARS: Final = 65_536
"""Of a line, for a glob; the rest is ignored."""
BLOCK_BYTES: Final = 262_144
HEAD_BYTES: Final = 256
"""First bytes of a file, which distinguish a new file from an old one with the same inode."""
MAX_FOLDER_ENTRIES: Final = 10_000
"""Files of a folder among which a rotated log is searched for."""
MAX_POSITION_FILES: Final = 1_000
"""On disk; the oldest are removed first, because nothing reports that a check was deleted."""
FOLDER: Final = "logs"


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    path: FullText
    match: Texts
    ignore: Texts = ()
    glob: bool = False
    ignore_case: bool = False
    from_start: bool = False
    warn: Limit = None
    crit: Limit = 0.0
    missing: State = UNKNOWN


class LogPosition(msgspec.Struct, frozen=True, gc=False):
    """The file was read up to `offset`."""

    device: int
    inode: int
    offset: int
    head_bytes: int
    head: str


NO_FILE: Final = LogPosition(0, 0, 0, 0, "")
"""The file did not exist."""


class LogState(NamedTuple):
    """Where the last run ended, and whether that is on disk."""

    position: LogPosition
    saved: bool


class MatchCount:
    def __init__(self) -> None:
        self.lines = 0
        self.matches = 0
        self.read_bytes = 0
        self.last = b""


class LogMatches(NamedTuple):
    position: LogPosition
    counted: MatchCount
    behind: int
    note: str


def measure(args: Args, run: CheckRun) -> CheckFinding:
    if not args.match:
        raise WrongArgs("arg match is missing: name the text or the glob to search for")
    key = repr(run.key).encode("utf-8", "surrogatepass")
    kept: LogState | None = run.previous()
    if kept is not None and not kept.saved:
        # Only now: the result of the last run is in the spool by this time, so that a crash in between loses nothing.
        save_position(run.data_dir, key, kept.position)
        run.remember(kept._replace(saved=True))
    before = load_position(run.data_dir, key) if kept is None else kept.position
    try:
        log = Log(args, run.deadline, run.log_paths)
        found = run.blocking_calls.call(run.key, lambda: log.read_new(before), run.deadline.left())
    except TimeoutError:
        raise
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        if absent and before is None:
            run.remember(LogState(NO_FILE, True))  # when the file appears, all of its lines are new
        if absent and args.missing == OK:
            return CheckFinding(OK, f"{excerpt(args.path)} is not there")
        raise CheckFailed(args.missing if absent else UNKNOWN, f"{excerpt(args.path)}: {error_reason(error)}") from None
    if before is None:
        save_position(run.data_dir, key, found.position)
    run.remember(LogState(found.position, before is None or found.position == before))
    return finding_of(args, found)


def finding_of(args: Args, found: LogMatches) -> CheckFinding:
    count = found.counted
    metrics = Measurements()
    warn, crit = limits(args)
    message = f"{count.matches} of {count.lines} new lines match"
    if count.matches:
        message += f", the last: {excerpt(count.last.decode('utf-8', 'replace'))}"
    metrics.add("matches", count.matches, warn=warn, crit=crit, low=0.0, message=message)
    metrics.add("lines", count.lines, low=0.0)
    metrics.add("read_bytes", count.read_bytes, BYTES, low=0.0)
    metrics.add("behind_bytes", found.behind, BYTES, low=0.0)
    waits = f"; {byte_size(found.behind)} wait for the next run" if found.behind else ""
    return metrics.finding(message, waits + found.note)


class Log:
    def __init__(self, args: Args, deadline: Deadline, allowed: Sequence[str] | None) -> None:
        self._allowed = allowed
        self._args = args
        self._deadline = deadline
        self._count = MatchCount()
        kind = GlobPatterns if args.glob else TextPatterns
        self._patterns: GlobPatterns | TextPatterns = kind(args.match, args.ignore, args.ignore_case)

    def read_new(self, before: LogPosition | None) -> LogMatches:
        """Read new lines, first the rest of a rotated log."""
        note = ""
        descriptor = open_log(self._args.path, self._allowed)
        try:
            start = 0
            if before is None:
                start = 0 if self._args.from_start else last_line_end(descriptor)
            elif is_same(descriptor, before):
                start = before.offset
            elif before != NO_FILE:
                unfinished, note = self._read_rotated(before)
                if unfinished is not None:
                    return unfinished
            end, finished = self._count_lines(descriptor, start)
            behind = 0 if finished else max(0, os.fstat(descriptor).st_size - end)
            return LogMatches(position_of(descriptor, end), self._count, behind, note)
        finally:
            os.close(descriptor)

    def _read_rotated(self, before: LogPosition) -> tuple[LogMatches | None, str]:
        """Read a rotated log to its end, if it can be found; LogMatches: the run's limit was reached within it."""
        old = find_rotated(self._args.path, before)
        try:
            descriptor = None if old is None else open_log(old, self._allowed)
        except OSError:
            descriptor = None
        if descriptor is None:
            return None, "; the log was replaced, and the rest of the old one is not to be found"
        try:
            if not is_same(descriptor, before):
                return None, "; the log was cut, and began again"
            end, finished = self._count_lines(descriptor, before.offset, closed=True)
            if finished:
                return None, ""
            behind = max(0, os.fstat(descriptor).st_size - end)
            return LogMatches(position_of(descriptor, end), self._count, behind, ""), ""
        finally:
            os.close(descriptor)

    def _count_lines(self, descriptor: int, start: int, closed: bool = False) -> tuple[int, bool]:
        """Count complete lines from `start`: the offset for the next run, and whether the end was reached.

        A file is `closed` if nobody writes to it any more: then its last line needs no line end.
        """
        at, rest, count = start, b"", self._count
        while count.read_bytes < MAX_RUN_BYTES and not self._deadline.passed():
            block = os.pread(descriptor, BLOCK_BYTES, at + len(rest))
            if not block:
                if closed and rest:
                    self._patterns.count(rest, count)
                    at += len(rest)
                return at, True
            count.read_bytes += len(block)
            data = rest + block
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) >= MAX_LINE_BYTES:
                cut = len(data)  # a line that is too long
            if cut:
                self._patterns.count(data[:cut], count)
            at += cut
            rest = data[cut:]
        return at, False


def last_line_end(descriptor: int) -> int:
    """Where the last complete line ends: a line that is being written is new once it is complete."""
    end = os.fstat(descriptor).st_size
    start = max(0, end - MAX_LINE_BYTES)
    tail = os.pread(descriptor, end - start, start)
    return start + tail.rfind(b"\n") + 1 if b"\n" in tail else end if start else 0


# ---- patterns


class TextPatterns:
    """Lines that contain a text of `match` and none of `ignore`. A block without a match is not split into lines."""

    def __init__(self, match: Sequence[str], ignore: Sequence[str], fold: bool) -> None:
        self._fold = fold
        self._match = tuple(self._folded(text.encode("utf-8", "surrogatepass")) for text in match)
        self._ignore = tuple(self._folded(text.encode("utf-8", "surrogatepass")) for text in ignore)

    def _folded(self, data: bytes) -> bytes:
        return data.lower() if self._fold else data  # ASCII letters only

    def count(self, data: bytes, count: MatchCount) -> None:
        folded = self._folded(data)
        if not any(text in folded for text in self._match):
            count.lines += data.count(b"\n") + (not data.endswith(b"\n"))
            return
        for line, compared in zip(_lines(data), _lines(folded), strict=True):
            count.lines += 1
            if any(text in compared for text in self._match) and not any(text in compared for text in self._ignore):
                count.matches += 1
                count.last = line


class GlobPatterns:
    """The same with globs over the whole line. A glob never backtracks over what one of its `*` matched."""

    def __init__(self, match: Sequence[str], ignore: Sequence[str], fold: bool) -> None:
        self._match = [_compiled(glob, fold) for glob in match]
        self._ignore = [_compiled(glob, fold) for glob in ignore]

    def count(self, data: bytes, count: MatchCount) -> None:
        for line in _lines(data):
            count.lines += 1
            text = line[:MAX_GLOB_CHARS].decode("utf-8", "replace")
            if any(match(text) for match in self._match) and not any(match(text) for match in self._ignore):
                count.matches += 1
                count.last = line


def _compiled(glob: str, fold: bool) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(checked_glob(glob)), re.IGNORECASE if fold else 0).match


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


# ---- files and positions


def position_of(descriptor: int, offset: int) -> LogPosition:
    found = os.fstat(descriptor)
    head = os.pread(descriptor, min(HEAD_BYTES, offset), 0)
    return LogPosition(found.st_dev, found.st_ino, offset, len(head), _digest(head))


def is_same(descriptor: int, position: LogPosition) -> bool:
    """True if this is the file that was read up to `position`, and it was not truncated since."""
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) != (position.device, position.inode) or found.st_size < position.offset:
        return False
    return _digest(os.pread(descriptor, position.head_bytes, 0)) == position.head


def find_rotated(path: str, position: LogPosition) -> str | None:
    """The path of the old file in the same folder; None: it was deleted or compressed."""
    folder = os.path.dirname(path) or "."
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MAX_FOLDER_ENTRIES), entries, strict=False):
                if entry.inode() == position.inode and entry.is_file(follow_symlinks=False):
                    return entry.path
    except OSError:
        return None
    return None


def open_log(path: str, allowed: Sequence[str] | None = None) -> int:
    """A descriptor of a regular file; OSError for anything else. Never blocks, as opening a pipe would.

    `allowed`: globs of the files that may be read; None: all. They apply to the opened file, after symbolic links.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if allowed is not None and not any(fnmatch.fnmatchcase(real, glob) for glob in allowed):
            raise PermissionError("log_paths in the agent's file does not have it")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def load_position(data_dir: Path | None, key: bytes) -> LogPosition | None:
    """The position that an earlier agent saved; an unreadable file counts as none."""
    if data_dir is None:
        return None
    try:
        return msgspec.json.decode(_file(data_dir, key).read_bytes(), type=LogPosition)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def save_position(data_dir: Path | None, key: bytes, position: LogPosition) -> None:
    """Write a position to disk atomically; on a disk error the position is only kept in memory."""
    if data_dir is None:
        return
    file = _file(data_dir, key)
    with contextlib.suppress(OSError):
        if not file.exists():
            _remove_oldest(file.parent)
        write_secret(file, msgspec.json.encode(position))


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[: max(0, len(files) - MAX_POSITION_FILES + 1)]:
        file.unlink(missing_ok=True)


def _file(data_dir: Path, key: bytes) -> Path:
    return data_dir / FOLDER / f"{_digest(key)}.json"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
