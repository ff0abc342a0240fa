"""What confines a check's process: resource limits, another user, and the end of everything that it started.

These are system calls for the processes that the launcher starts. This module imports nothing but the standard
library and small kernel modules: launchers must stay small. Invariant: after `end_all` returned True, this process has
no descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

MAX_PROCESSES: Final = 128
"""Processes that one plugin may have at once."""
MAX_USER_PROCESSES: Final = 1_024
"""Processes and threads that the user of plugins may have at once on this machine."""
POLL_SECONDS: Final = 0.002
"""Between two checks whether killed processes have ended."""

_prctl: Final = ctypes.CDLL(None, use_errno=True).prctl


class CheckUser(NamedTuple):
    uid: int
    gid: int


class ProcessLimits(NamedTuple):
    """Resource limits of one process, which its children inherit (setrlimit(2)); core dumps are always off."""

    address_bytes: int
    file_bytes: int
    """The largest file that it may write."""
    open_files: int
    processes: int | None
    """Of its user; None: no limit."""


PLUGIN_LIMITS: Final = ProcessLimits(2**30, 64 * 2**20, 256, MAX_USER_PROCESSES)
LUA_LIMITS: Final = ProcessLimits(2**29, 0, 32, 0)
"""A Lua process reads and computes, and does nothing else. Its address space includes Python."""


def become_subreaper() -> None:
    """Adopt orphaned descendants in place of init: they cannot escape by `setsid` and double forks."""
    _control(PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """Ignore set-user-ID programs, where the kernel supports it."""
    with contextlib.suppress(OSError):
        _control(PR_SET_NO_NEW_PRIVS, 1)


def _control(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def apply_limits(limits: ProcessLimits) -> None:
    """Limit this process and its future children; only root can raise these limits again."""
    _lower(resource.RLIMIT_AS, limits.address_bytes)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_CORE, 0)
    if limits.processes is not None:
        _lower(resource.RLIMIT_NPROC, limits.processes)


def _lower(which: int, value: int) -> None:
    """Set the soft and the hard limit, but never raise the hard one."""
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def limit_cpu(seconds: int) -> None:
    """Limit the CPU time of this process and of each future child: the kernel's deadline, should ours fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY:
        seconds = min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))


def become(user: CheckUser) -> None:
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


@contextlib.contextmanager
def acting_as(user: CheckUser | None) -> Iterator[None]:
    """Start processes as this user, and change back afterwards.

    Only the saved ids stay ours, and exec overwrites those: a process started here cannot change back. The alternative,
    a fork that changes its user before exec, would cost as much as the plugin itself.
    """
    if user is None:
        yield
        return
    uid, gid = os.getuid(), os.getgid()
    os.setresgid(user.gid, user.gid, gid)
    try:
        os.setresuid(user.uid, user.uid, uid)
        try:
            yield
        finally:
            os.setresuid(uid, uid, uid)
    finally:
        os.setresgid(gid, gid, gid)


def children_of(pid: int) -> list[int]:
    """The children of a process, from /proc; none for a process that has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())  # digits that the kernel wrote
    except OSError:
        pass
    return found


def descendants(most: int) -> list[int]:
    """All processes below this one; the search stops soon after `most`."""
    found = children_of(os.getpid())
    for pid in found:  # the list grows during the loop
        if len(found) > most:
            break
        found += children_of(pid)
    return found


def reap() -> bool:
    """Collect ended children; True: no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return True
    return False


def end_all(groups: tuple[int, ...], seconds: float) -> bool:
    """Kill everything below this process. False: some process did not end in time.

    One call kills a whole process group, and no fork can outrun it. Processes that left the group are found by
    descent; each round takes less time than the one before, so that forking cannot win.
    """
    until = time.monotonic() + seconds
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    while not reap():
        for pid in descendants(1 << 20):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if reap():
            return True
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True
