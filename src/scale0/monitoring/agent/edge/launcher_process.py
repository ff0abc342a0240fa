"""The launcher: a small process without threads that starts the processes of checks, so that the agent never forks.

`process_launcher` starts it with `python -m`. It does not import asyncio. Invariants: it ends when the agent has
ended, and no process that it started outlives it; it kills orphans that it inherits because a plugin killed its runner.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from scale0.monitoring.agent.edge.cgroup import PidsCgroups, enter_group
from scale0.monitoring.agent.edge.sandbox import CheckUser, become_subreaper, children_of, end_all

ROLES: Final = {
    "plugins": "scale0.monitoring.agent.edge.plugin_runner",
    "lua": "scale0.monitoring.agent.edge.lua_process",
}
"""Children run the function `serve` of these modules."""
RUNNER_END_SECONDS: Final = 2.5
"""How long plugin runners may take to end their plugins after the agent has ended."""
KILL_SECONDS: Final = 0.4
"""How long processes that are killed after that may take to end."""
POLL_SECONDS: Final = 0.005
"""Between two checks whether plugin runners have ended."""

Serve = Callable[[socket.socket, CheckUser | None, str], None]
"""Connection to the agent, the user of checks, and the path of the process' cgroup."""


class LauncherProcess:
    def __init__(self, agent: socket.socket, serve: Serve, user: CheckUser | None, cgroups: PidsCgroups | None) -> None:
        self._agent = agent
        self._serve = serve
        self._user = user
        self._cgroups = cgroups
        self._children: dict[int, str] = {}
        """Pid and cgroup."""
        self._unused: list[str] = []
        """Cgroups that could not be removed yet."""

    def run(self) -> None:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        poll = select.poll()
        poll.register(self._agent, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    os.read(woken, 4_096)
                    self._reap()
                elif not self._handle_request():
                    return

    def end(self) -> None:
        """Wait for plugin runners, which notice by themselves that the agent has ended; then kill what is left."""
        until = time.monotonic() + (RUNNER_END_SECONDS if self._cgroups is not None else 0.0)
        while self._children and time.monotonic() < until:
            self._reap()
            time.sleep(POLL_SECONDS)
        end_all((), KILL_SECONDS)
        self._unused += self._children.values()
        self._remove_cgroups()

    def _handle_request(self) -> bool:
        """Start a child for the connection that comes with the request; False: the agent has ended."""
        data, descriptors, _, _ = socket.recv_fds(self._agent, 1, 1)
        if not data:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # received descriptors are inheritable: plugins would get it
            # If no process can be started, the agent sees end of file on its connection.
            with socket.socket(fileno=descriptor) as connection, contextlib.suppress(OSError):
                self._fork(connection)
        return True

    def _fork(self, connection: socket.socket) -> None:
        cgroup = self._cgroups.make() if self._cgroups is not None else ""
        try:
            pid = os.fork()
        except OSError:
            if cgroup:
                self._unused.append(cgroup)
            raise
        if pid == 0:
            status = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._agent.close()
                enter_group(cgroup)
                self._serve(connection, self._user, cgroup)
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())  # to the agent's log; no exception may reach the loop of the launcher
            finally:
                os._exit(status)
        self._children[pid] = cgroup

    def _reap(self) -> None:
        """Collect ended children, and kill the orphans that they left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                cgroup = self._children.pop(pid, "")
                if cgroup:
                    self._unused.append(cgroup)
        for pid in children_of(os.getpid()):
            if pid not in self._children:
                # Its end raises SIGCHLD again, and its own children are next.
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._remove_cgroups()

    def _remove_cgroups(self) -> None:
        if self._cgroups is not None:
            self._unused = [cgroup for cgroup in self._unused if not self._cgroups.remove(cgroup)]


def main(arguments: Sequence[str]) -> None:
    """`DESCRIPTOR ROLE UID GID`: serve on the inherited socket; blank ids keep the user."""
    descriptor, role, uid, gid = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the agent ends the launcher
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(int(descriptor), False)
    os.chdir("/")
    become_subreaper()
    user = CheckUser(int(uid), int(gid)) if uid else None
    serve: Serve = importlib.import_module(ROLES[role]).serve
    # Children share our memory pages until one is written to; the garbage collector would write to all of them.
    gc.disable()
    gc.freeze()
    cgroups = PidsCgroups() if role == "plugins" else None
    launcher = LauncherProcess(socket.socket(fileno=int(descriptor)), serve, user, cgroups)
    launcher.run()
    launcher.end()


if __name__ == "__main__":
    main(sys.argv[1:])
