"""The agent's end of a launcher: start it when it is first needed, and ask it for children.

Lives here: the launcher's process and its socket. Never here: what is said to a child. Invariant: an agent that runs
no such checks has no such process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Final

from scale0.monitoring.agent.edge.check_user import CheckUser

SEND_BYTES: Final = 212_992
"""Room for what a child has not read yet: Linux' own default, which may have been lowered; it doubles this."""
END_SECONDS: Final = 3.0
"""How long a launcher may take to end; then it is killed, and its keepers end by themselves."""


class ProcessLauncher:
    """Where children of one role come from."""

    def __init__(self, role: str, user: CheckUser | None) -> None:
        self._role = role
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def child(self) -> socket.socket:
        """A connection to a new child. It ends at once if there is none; raises OSError if not even that works."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        with theirs:
            try:
                try:
                    self._ask(theirs)
                except (BrokenPipeError, ConnectionResetError):  # somebody killed it: a second one
                    self.close()
                    self._ask(theirs)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours

    def close(self) -> None:
        """End the launcher, and with it everything that it made."""
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _ask(self, connection: socket.socket) -> None:
        if self._control is None:
            self._control = self._start()
        socket.send_fds(self._control, [b"+"], [connection.fileno()])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        uid, gid = ("", "") if self._user is None else map(str, self._user)
        arguments = [str(theirs.fileno()), self._role, uid, gid]
        with theirs:
            # Without site: it costs memory in each of them. Our own search path has all that it would find.
            command = [
                sys.executable,
                "-S",
                "-s",
                "-P",
                "-m",
                "scale0.monitoring.agent.edge.launcher_process",
                *arguments,
            ]
            environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            try:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        return ours
