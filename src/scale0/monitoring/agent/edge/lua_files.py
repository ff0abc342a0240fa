"""The Lua files of an agent's `checks_dir`, as they are now.

Lives here: their names and their text, read again when they change. Never here: running them. Invariant: a file that
anybody may write is not run.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Final, NamedTuple

from scale0.kernel.codes import NO_SUCH_SERVICE, NOT_ALLOWED, TOO_BIG
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity

ENDING: Final = ".lua"
MAX_SOURCE_BYTES: Final = 131_072
"""Of one file."""
MAX_FILES: Final = 1_000
"""Files that are seen in one folder."""
SETTLED_SECONDS: Final = 0.1
"""A folder that changed less long ago may change again without a new date."""

Mark = tuple[int, int, int]
"""When a file is another one: inode, time of change (of its rights as well), size."""


class LuaSource(NamedTuple):
    """The text of a check; a new version when the file changed."""

    version: int
    text: bytes


class LuaFiles:
    """One folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self._sources: dict[str, tuple[Mark, LuaSource]] = {}
        self._versions = 0
        self._names: tuple[str, ...] = ()
        self._listed = (-1, 0.0)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the checks that are there now."""
        try:
            changed = os.stat(self._folder).st_mtime_ns
            listed, when = self._listed
            if changed != listed or changed / 1e9 > when - SETTLED_SECONDS:
                self._listed = (changed, time.time())
                found = (name.removesuffix(ENDING) for name in os.listdir(self._folder) if name.endswith(ENDING))
                self._names = tuple(sorted(name for name in found if is_identity(name)))[:MAX_FILES]
        except OSError:
            self._names, self._listed = (), (-1, 0.0)
        return self._names

    def source(self, name: str) -> LuaSource:
        """The newest text of a check; raises Refusal."""
        path = f"{self._folder}/{name}{ENDING}"
        known = self._sources.get(name)
        try:
            if not is_identity(name):
                raise FileNotFoundError(name)
            if known is not None and known[0] == mark_of(os.stat(path)):
                return known[1]
            mark, text = self._read(path, name)
        except OSError:
            self._sources.pop(name, None)
            raise Refusal(NO_SUCH_SERVICE, f"there is no Lua check {name[:128]!r}") from None
        if len(text) > MAX_SOURCE_BYTES:
            raise Refusal(TOO_BIG, f"{name}{ENDING} has more than {MAX_SOURCE_BYTES} bytes")
        self._versions += 1
        source = LuaSource(self._versions, text)
        self._sources[name] = (mark, source)
        return source

    def _read(self, path: str, name: str) -> tuple[Mark, bytes]:
        """The file that is opened is the one that is judged, and opening it never waits, as that of a pipe would."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError(name)
            # Who may write the folder may put a file of his own in the place of ours.
            if (found.st_mode | os.stat(self._folder).st_mode) & stat.S_IWOTH:
                raise Refusal(NOT_ALLOWED, f"{name}{ENDING} is not run: anybody may write it, or its folder")
            return mark_of(found), file.read(MAX_SOURCE_BYTES + 1)

    def forget(self) -> None:
        """Read everything again when it is next needed."""
        self._sources.clear()
        self._listed = (-1, 0.0)


def mark_of(found: os.stat_result) -> Mark:
    """By what a file is known again."""
    return (found.st_ino, found.st_ctime_ns, found.st_size)
