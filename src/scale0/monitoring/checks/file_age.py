"""The check `file_age`: age and size of the newest or oldest file of a path or glob.

Invariant: a glob never recurses by itself (`**` means `*`), so that no check walks a whole disk.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from scale0.monitoring.checks.arguments import FullText, Limit, is_literal, limits, matches
from scale0.monitoring.checks.check_run import CheckRun, Deadline
from scale0.monitoring.checks.metrics import BYTES, SECONDS, Measurements, byte_size, duration, excerpt
from scale0.monitoring.protocol.results import CRITICAL, OK, CheckFinding, State

MAX_FILES: Final = 100_000
"""Files that one glob may match."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    path: FullText
    which: Literal["newest", "oldest"] = "newest"
    warn: Limit = None
    crit: Limit = None
    size_warn: Limit = None
    size_crit: Limit = None
    missing: State = CRITICAL


class FoundFile(NamedTuple):
    """The newest or oldest file, and how many files match."""

    changed: float
    path: str
    size_bytes: int
    files: int


def measure(args: Args, run: CheckRun) -> CheckFinding:
    deadline = run.deadline
    found = run.blocking_calls.call(run.key, lambda: find_file(args, deadline), deadline.left())
    metrics = Measurements()
    if found is None:
        if args.missing != OK:
            metrics.add_problem(args.missing, f"there is no file {excerpt(args.path)}")
        metrics.add("files", 0, low=0.0)
        return metrics.finding(f"there is no file {excerpt(args.path)}")
    age = max(0.0, time.time() - found.changed)
    message = f"{excerpt(found.path)} changed {duration(age)} ago"
    warn, crit = limits(args)
    metrics.add("age_seconds", age, SECONDS, warn=warn, crit=crit, low=0.0, message=message)
    warn, crit = limits(args, "size_")
    size_message = f"{excerpt(found.path)} has {byte_size(found.size_bytes)}"
    metrics.add("size_bytes", found.size_bytes, BYTES, warn=warn, crit=crit, low=0.0, message=size_message)
    metrics.add("files", found.files, low=0.0)
    return metrics.finding(f"{message}, {byte_size(found.size_bytes)}")


def find_file(args: Args, deadline: Deadline) -> FoundFile | None:
    """The newest or oldest file; a folder counts only if the path names it."""
    literal = is_literal(args.path)
    best: FoundFile | None = None
    files = 0
    for path in [args.path] if literal else matching(args.path, deadline):
        deadline.left()
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not literal and not stat.S_ISREG(found.st_mode):
            continue
        files += 1
        if files > MAX_FILES:
            raise TimeoutError(f"more than {MAX_FILES} files match")
        newer = best is None or (found.st_mtime > best.changed) == (args.which == "newest")
        if newer:
            best = FoundFile(found.st_mtime, path, found.st_size, files)
    return None if best is None else best._replace(files=files)


def matching(pattern: str, deadline: Deadline) -> Iterator[str]:
    """The paths that match; lists each folder once. TimeoutError at the deadline, even if nothing matches."""
    parts = [part for part in pattern.split("/") if part]
    return _below("/" if pattern.startswith("/") else "", parts, deadline)


def _below(folder: str, parts: list[str], deadline: Deadline) -> Iterator[str]:
    """What matches the parts below a folder, which ends in a slash or is blank."""
    deadline.left()
    part, rest = parts[0], parts[1:]
    if is_literal(part):
        names = [part]
    else:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            return
        # A glob without a leading dot does not match hidden files.
        hidden = part.startswith(".")
        names = [name for name in names if (hidden or not name.startswith(".")) and matches(name, part)]
    for name in names:
        if rest:
            yield from _below(f"{folder}{name}/", rest, deadline)
        elif os.path.lexists(folder + name):
            yield folder + name
