"""The check `file_age`: how old the newest or oldest file of a path or pattern is, and how big.

Lives here: finding the file, and its age and size. Never here: reading it. Invariant: a pattern never descends by
itself (`**` is `*`), so that no check walks a whole disk.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from scale0.monitoring.checks.arguments import FullText, Limit, fits, is_literal, limits
from scale0.monitoring.checks.check_run import CheckRun, Deadline
from scale0.monitoring.checks.metrics import BYTES, SECONDS, Measurements, excerpt, size, span
from scale0.monitoring.protocol.results import CRITICAL, OK, CheckFinding, State

MAX_FILES: Final = 100_000
"""Files that one pattern may match."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    path: FullText
    which: Literal["newest", "oldest"] = "newest"
    warn: Limit = None
    crit: Limit = None
    size_warn: Limit = None
    size_crit: Limit = None
    missing: State = CRITICAL


class Aged(NamedTuple):
    """The file that counts."""

    changed: float
    path: str
    size_bytes: int
    files: int


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Age and size of the one file; how many there are."""
    deadline = run.deadline
    found = run.aside.call(run.key, lambda: look(args, deadline), deadline.left())
    gauges = Measurements()
    if found is None:
        if args.missing != OK:
            gauges.blame(args.missing, f"there is no file {excerpt(args.path)}")
        gauges.add("files", 0, low=0.0)
        return gauges.finding(f"there is no file {excerpt(args.path)}")
    age = max(0.0, time.time() - found.changed)
    says = f"{excerpt(found.path)} changed {span(age)} ago"
    warn, crit = limits(args)
    gauges.add("age_seconds", age, SECONDS, warn=warn, crit=crit, low=0.0, says=says)
    warn, crit = limits(args, "size_")
    holds = f"{excerpt(found.path)} has {size(found.size_bytes)}"
    gauges.add("size_bytes", found.size_bytes, BYTES, warn=warn, crit=crit, low=0.0, says=holds)
    gauges.add("files", found.files, low=0.0)
    return gauges.finding(f"{says}, {size(found.size_bytes)}")


def look(args: Args, deadline: Deadline) -> Aged | None:
    """The newest or oldest file; folders count only where one is named outright."""
    literal = is_literal(args.path)
    best: Aged | None = None
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
            best = Aged(found.st_mtime, path, found.st_size, files)
    return None if best is None else best._replace(files=files)


def matching(pattern: str, deadline: Deadline) -> Iterator[str]:
    """The paths that match, each folder looked at once. Ends with its time, also where nothing matches."""
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
        # A name that begins with a dot is hidden from patterns that do not.
        hidden = part.startswith(".")
        names = [name for name in names if (hidden or not name.startswith(".")) and fits(name, part)]
    for name in names:
        if rest:
            yield from _below(f"{folder}{name}/", rest, deadline)
        elif os.path.lexists(folder + name):
            yield folder + name
