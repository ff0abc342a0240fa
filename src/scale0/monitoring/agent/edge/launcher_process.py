"""The launcher: a small process without threads that makes other processes, so that the agent never forks itself.

Lives here: its loop; it is started by `nursery` with `python -m`. Never here: asyncio, or what a child does (`keeper`,
`lua_child`). Invariants: it ends when the agent is gone, and nothing that it made outlives it; an orphan that comes to
it, because a plugin has killed its keeper, is killed.
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

from scale0.monitoring.agent.edge.cgroup import PidsCgroups, enter
from scale0.monitoring.agent.edge.check_user import CheckUser
from scale0.monitoring.agent.edge.sandbox import become_subreaper, children_of, end_all

ROLES: Final = {
    "plugins": "scale0.monitoring.agent.edge.plugin_runner",
    "lua": "scale0.monitoring.agent.edge.lua_process",
}
"""What children do: the `serve` of these modules."""
KEEPER_SECONDS: Final = 2.5
"""How long keepers may take to end what they run, once the agent is gone."""
END_SECONDS: Final = 0.4
"""The same for whoever was killed then."""
LOOK_SECONDS: Final = 0.005
"""Between two looks at keepers that end."""

Serve = Callable[[socket.socket, CheckUser | None, str], None]


class LauncherProcess:
    """One role's children."""

    def __init__(self, agent: socket.socket, serve: Serve, user: CheckUser | None, rooms: PidsCgroups | None) -> None:
        self._agent = agent
        self._serve = serve
        self._user = user
        self._rooms = rooms
        self._children: dict[int, str] = {}
        """Pid and cgroup."""
        self._empty: list[str] = []
        """Cgroups that could not be removed yet."""

    def work(self) -> None:
        """Until the agent is gone."""
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
                    self._bury()
                elif not self._take():
                    return

    def end(self) -> None:
        """Keepers see by themselves that the agent is gone, and end what they run; then whoever is left is killed."""
        until = time.monotonic() + (KEEPER_SECONDS if self._rooms is not None else 0.0)
        while self._children and time.monotonic() < until:
            self._bury()
            time.sleep(LOOK_SECONDS)
        end_all((), END_SECONDS)
        self._empty += self._children.values()
        self._sweep()

    def _take(self) -> bool:
        """One wish of the agent: a child for the connection that comes with it."""
        data, descriptors, _, _ = socket.recv_fds(self._agent, 1, 1)
        if not data:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # it came as one that plugins would get
            # No process to be had: the asker sees the end of its connection.
            with socket.socket(fileno=descriptor) as asker, contextlib.suppress(OSError):
                self._fork(asker)
        return True

    def _fork(self, asker: socket.socket) -> None:
        room = self._rooms.make() if self._rooms is not None else ""
        try:
            pid = os.fork()
        except OSError:
            if room:
                self._empty.append(room)
            raise
        if pid == 0:
            status = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._agent.close()
                enter(room)
                self._serve(asker, self._user, room)
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())  # to the agent's log; nothing of it may reach the loop below
            finally:
                os._exit(status)
        self._children[pid] = room

    def _bury(self) -> None:
        """The dead, and whoever they left to us."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                room = self._children.pop(pid, "")
                if room:
                    self._empty.append(room)
        for pid in children_of(os.getpid()):
            if pid not in self._children:
                # Its death is told to us again, and its own children come next.
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._sweep()

    def _sweep(self) -> None:
        if self._rooms is not None:
            self._empty = [room for room in self._empty if not self._rooms.remove(room)]


def main(arguments: Sequence[str]) -> None:
    """Serve on the inherited socket."""
    descriptor, role, uid, gid = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a stop is the agent's business
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(int(descriptor), False)
    os.chdir("/")
    become_subreaper()
    user = CheckUser(int(uid), int(gid)) if uid else None
    serve: Serve = importlib.import_module(ROLES[role]).serve
    # Children share our pages until somebody writes to them: the collector would.
    gc.disable()
    gc.freeze()
    launcher = LauncherProcess(
        socket.socket(fileno=int(descriptor)), serve, user, PidsCgroups() if role == "plugins" else None
    )
    launcher.work()
    launcher.end()


if __name__ == "__main__":
    main(sys.argv[1:])
