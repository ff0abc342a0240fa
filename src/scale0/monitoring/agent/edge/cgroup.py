"""A pids cgroup for each keeper of plugins, where one can be made: the kernel itself then counts processes.

Lives here: finding our cgroup, making and removing rooms in it. Never here: who goes in. Invariant: without the rights,
or without cgroups, everything here does nothing: limits are then kept by looking.
"""

from __future__ import annotations

import os
from typing import Final

from scale0.monitoring.agent.edge.plugin_runner_messages import MAX_PROCESSES

ROOM_PREFIX: Final = "scale0-check-"


def find_pids_folder(memberships: str, mounts: str) -> tuple[str, bool] | None:
    """Our own cgroup that has the pids controller, from /proc/self/cgroup and /proc/self/mountinfo; True: version 2."""
    paths: dict[str, str] = {}
    for line in memberships.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = place
    path: str | None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, point = fields[3], fields[4]
        version_2 = kind[0] == "cgroup2"
        if kind[0] == "cgroup" and "pids" in kind[2].split(","):
            path = paths.get("pids")
        elif version_2 and "pids" not in paths:
            path = paths.get("")
        else:
            continue
        if path is None or not path.startswith(root):
            continue
        return point + path[len(root.rstrip("/")) :].rstrip("/"), version_2
    return None


class PidsCgroups:
    """Rooms below our own cgroup, one for each keeper."""

    def __init__(self) -> None:
        self._folder = ""
        self._count = 0
        try:
            found = find_pids_folder(_read("/proc/self/cgroup"), _read("/proc/self/mountinfo"))
            if found is None:
                return
            folder, version_2 = found
            if version_2 and "pids" not in _read(f"{folder}/cgroup.subtree_control").split():
                _write(f"{folder}/cgroup.subtree_control", "+pids")
            self._folder = folder
            self._sweep()
        except OSError:
            self._folder = ""

    def make(self) -> str:
        """A new room; blank: there are none here."""
        if not self._folder:
            return ""
        self._count += 1
        room = f"{self._folder}/{ROOM_PREFIX}{os.getpid()}-{self._count}"
        try:
            os.mkdir(room)
            _write(f"{room}/pids.max", str(MAX_PROCESSES + 1))  # one is the keeper
        except OSError:
            self.remove(room)
            self._folder = ""
            return ""
        return room

    def remove(self, room: str) -> bool:
        """After its last process; False: it is not empty yet."""
        try:
            if room:
                os.rmdir(room)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _sweep(self) -> None:
        """Rooms of launchers that were killed; one that is in use cannot be removed."""
        for name in os.listdir(self._folder):
            owner, _, _ = name.removeprefix(ROOM_PREFIX).partition("-")
            if name.startswith(ROOM_PREFIX) and not os.path.exists(f"/proc/{owner}"):
                self.remove(f"{self._folder}/{name}")


def enter(room: str) -> None:
    """Put this process, and all that it will start, into a room; where it cannot be, it goes on without."""
    if room:
        try:
            _write(f"{room}/cgroup.procs", "0")
        except OSError:
            pass


class Refusals:
    """How often a process in a room was not allowed to start another."""

    def __init__(self, room: str) -> None:
        self._file = -1
        self._before = 0
        if room:
            try:
                self._file = os.open(f"{room}/pids.events", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                pass  # an old kernel: the same is seen by looking, only later

    def happened(self) -> bool:
        """Since this was last asked."""
        if self._file < 0:
            return False
        before, self._before = self._before, self._count()
        return self._before > before

    def _count(self) -> int:
        try:
            for line in os.pread(self._file, 256, 0).splitlines():
                word, _, count = line.partition(b" ")
                if word == b"max":
                    return int(count)  # the kernel's own digits
        except (OSError, ValueError):
            pass
        return 0


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
