"""A pids cgroup for each plugin runner, where one can be made: the kernel then counts its processes.

Invariant: without permission, or without cgroups, everything here does nothing; the plugin runner then counts
processes by itself.
"""

from __future__ import annotations

import os
from typing import Final

from scale0.monitoring.agent.edge.sandbox import MAX_PROCESSES

GROUP_PREFIX: Final = "scale0-check-"


def find_pids_folder(memberships: str, mounts: str) -> tuple[str, bool] | None:
    """Our cgroup with the pids controller, from /proc/self/cgroup and /proc/self/mountinfo; True: cgroup version 2."""
    paths: dict[str, str] = {}
    for line in memberships.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path_in_tree = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path_in_tree
    path: str | None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, mount_point = fields[3], fields[4]
        version_2 = kind[0] == "cgroup2"
        if kind[0] == "cgroup" and "pids" in kind[2].split(","):
            path = paths.get("pids")
        elif version_2 and "pids" not in paths:
            path = paths.get("")
        else:
            continue
        if path is None or not path.startswith(root):
            continue
        return mount_point + path[len(root.rstrip("/")) :].rstrip("/"), version_2
    return None


class PidsCgroups:
    """Groups below our own cgroup, one for each plugin runner."""

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
            self._remove_stale()
        except OSError:
            self._folder = ""

    def make(self) -> str:
        """The path of a new group; blank: cgroups are not available."""
        if not self._folder:
            return ""
        self._count += 1
        group = f"{self._folder}/{GROUP_PREFIX}{os.getpid()}-{self._count}"
        try:
            os.mkdir(group)
            _write(f"{group}/pids.max", str(MAX_PROCESSES + 1))  # one is the plugin runner
        except OSError:
            self.remove(group)
            self._folder = ""
            return ""
        return group

    def remove(self, group: str) -> bool:
        """Remove an empty group; False: it still has processes."""
        try:
            if group:
                os.rmdir(group)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _remove_stale(self) -> None:
        """Remove the groups of launchers that were killed; a group in use cannot be removed."""
        for name in os.listdir(self._folder):
            owner, _, _ = name.removeprefix(GROUP_PREFIX).partition("-")
            if name.startswith(GROUP_PREFIX) and not os.path.exists(f"/proc/{owner}"):
                self.remove(f"{self._folder}/{name}")


def enter_group(group: str) -> None:
    """Move this process, and with it its future children, into a group, if that is possible."""
    if group:
        try:
            _write(f"{group}/cgroup.procs", "0")
        except OSError:
            pass


class PidsLimitEvents:
    """How often the pids limit of a group stopped a process from starting another."""

    def __init__(self, group: str) -> None:
        self._file = -1
        self._before = 0
        if group:
            try:
                self._file = os.open(f"{group}/pids.events", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                pass  # an old kernel: the plugin runner finds out by counting, only later

    def occurred(self) -> bool:
        """True if there were any since the last call."""
        if self._file < 0:
            return False
        before, self._before = self._before, self._count()
        return self._before > before

    def _count(self) -> int:
        try:
            for line in os.pread(self._file, 256, 0).splitlines():
                event, _, count = line.partition(b" ")
                if event == b"max":
                    return int(count)  # digits that the kernel wrote
        except (OSError, ValueError):
            pass
        return 0


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
