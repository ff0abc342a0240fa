"""The Lua files of an agent's `checks_dir`, read again when they change.

Invariant: a file that everybody may write to is not run.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Final, NamedTuple

from scale0.kernel.codes import NO_SUCH_SERVICE, NOT_ALLOWED, TOO_BIG
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity

SUFFIX: Final = ".lua"
MAX_SOURCE_BYTES: Final = 131_072
MAX_FILES: Final = 1_000
"""Files of one folder; more are ignored."""
SETTLED_SECONDS: Final = 0.1
"""A folder that changed more recently may change again without a new modification time."""

FileVersion = tuple[int, int, int]
"""Inode, time of change (including permissions), size: a file with another version is read again."""


class LuaSource(NamedTuple):
    """The source of a check, with a new version number when the file changed."""

    version: int
    text: bytes


class LuaFiles:
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self._sources: dict[str, tuple[FileVersion, LuaSource]] = {}
        self._versions = 0
        self._names: tuple[str, ...] = ()
        self._listed = (-1, 0.0)

    @property
    def names(self) -> tuple[str, ...]:
        try:
            changed = os.stat(self._folder).st_mtime_ns
            listed, when = self._listed
            if changed != listed or changed / 1e9 > when - SETTLED_SECONDS:
                self._listed = (changed, time.time())
                found = (name.removesuffix(SUFFIX) for name in os.listdir(self._folder) if name.endswith(SUFFIX))
                self._names = tuple(sorted(name for name in found if is_identity(name)))[:MAX_FILES]
        except OSError:
            self._names, self._listed = (), (-1, 0.0)
        return self._names

    def source(self, name: str) -> LuaSource:
        """The newest source of a check; raises Refusal."""
        path = f"{self._folder}/{name}{SUFFIX}"
        known = self._sources.get(name)
        try:
            if not is_identity(name):
                raise FileNotFoundError(name)
            if known is not None and known[0] == version_of(os.stat(path)):
                return known[1]
            version, text = self._read(path, name)
        except OSError:
            self._sources.pop(name, None)
            raise Refusal(NO_SUCH_SERVICE, f"there is no Lua check {name[:128]!r}") from None
        if len(text) > MAX_SOURCE_BYTES:
            raise Refusal(TOO_BIG, f"{name}{SUFFIX} has more than {MAX_SOURCE_BYTES} bytes")
        self._versions += 1
        source = LuaSource(self._versions, text)
        self._sources[name] = (version, source)
        return source

    def _read(self, path: str, name: str) -> tuple[FileVersion, bytes]:
        """Check the file that was opened, not its path; opening never blocks, as it would for a pipe."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError(name)
            # A user who may write to the folder could replace the file.
            if (found.st_mode | os.stat(self._folder).st_mode) & stat.S_IWOTH:
                raise Refusal(NOT_ALLOWED, f"{name}{SUFFIX} is not run: everybody may write to it, or to its folder")
            return version_of(found), file.read(MAX_SOURCE_BYTES + 1)

    def forget(self) -> None:
        """Read every file again when it is next needed."""
        self._sources.clear()
        self._listed = (-1, 0.0)


def version_of(found: os.stat_result) -> FileVersion:
    return (found.st_ino, found.st_ctime_ns, found.st_size)
