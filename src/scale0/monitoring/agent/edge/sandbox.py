"""What keeps a check within bounds: limits, another user, and the end of everything that it started.

Lives here: calls to the kernel, for processes that the launcher makes. Never here: asyncio, or an import beyond the
standard library: launchers are small. Invariant: after `end_all` said True, this process has no descendant left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterator
from typing import Final

from scale0.monitoring.agent.edge.check_user import CheckUser

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

MAX_USER_PROCESSES: Final = 1_024
"""Processes (and threads) that the plugins' own user may have at once, on this machine."""
PLUGIN_ADDRESS_BYTES: Final = 2**30
"""Address space of each process of a plugin."""
PLUGIN_FILE_BYTES: Final = 64 * 2**20
"""The largest file that a plugin may write."""
PLUGIN_FILES: Final = 256
"""Files that a process of a plugin may have open."""
LUA_ADDRESS_BYTES: Final = 2**29
"""Address space of a Lua child, Python included."""
LUA_FILES: Final = 32
LOOK_AGAIN_SECONDS: Final = 0.002
"""Between two looks at processes that have been killed and are not gone yet."""

_prctl: Final = ctypes.CDLL(None, use_errno=True).prctl


def become_subreaper() -> None:
    """Orphans among our descendants become our children, not init's: `setsid` and double forks lead nowhere."""
    _control(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill us when the parent dies; it may be dead already."""
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _control(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def limit_plugins(user: CheckUser | None) -> None:
    """Limits that plugins inherit from us; nobody can raise them again but root."""
    lower(resource.RLIMIT_AS, PLUGIN_ADDRESS_BYTES)
    lower(resource.RLIMIT_FSIZE, PLUGIN_FILE_BYTES)
    lower(resource.RLIMIT_NOFILE, PLUGIN_FILES)
    lower(resource.RLIMIT_CORE, 0)
    if user is not None:  # of any other user we cannot say how many processes it needs
        lower(resource.RLIMIT_NPROC, MAX_USER_PROCESSES)


def limit_lua() -> None:
    """A Lua child reads a little, computes, and does nothing else."""
    lower(resource.RLIMIT_AS, LUA_ADDRESS_BYTES)
    lower(resource.RLIMIT_FSIZE, 0)
    lower(resource.RLIMIT_NOFILE, LUA_FILES)
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_NPROC, 0)
    with contextlib.suppress(OSError):
        _control(PR_SET_NO_NEW_PRIVS, 1)


def lower(which: int, value: int) -> None:
    """Both limits, down to `value`; one that is lower already stays."""
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def limit_cpu(seconds: int) -> None:
    """Our own CPU time, and that of each process that we start: the kernel's own stop, should ours fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY:
        seconds = min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))


def become(user: CheckUser) -> None:
    """Be this user from now on."""
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


@contextlib.contextmanager
def acting_as(user: CheckUser | None) -> Iterator[None]:
    """Start processes as this user, and be ourselves again.

    Only the saved ids stay ours, and exec overwrites those: what is started within has no way back. It is so, and not
    by a fork that changes its user before exec, because copying this process costs as much as the plugin itself.
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
    """Its children, as the kernel lists them; none for a process that is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())  # the kernel's own digits
    except OSError:
        pass
    return found


def descendants(most: int) -> list[int]:
    """Everything below this process; no more than `most`, and a few."""
    found = children_of(os.getpid())
    for pid in found:  # it grows as we go
        if len(found) > most:
            break
        found += children_of(pid)
    return found


def reap() -> bool:
    """Bury who is dead; True: nobody is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return True
    return False


def end_all(groups: tuple[int, ...], seconds: float) -> bool:
    """Kill everything below this process. False: something could not be killed in time.

    A process group dies in one call, which no fork can outrun. Whoever left the group is found by descent; each look
    takes less time than the one before, so that forking does not win.
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
        time.sleep(LOOK_AGAIN_SECONDS)
    return True
