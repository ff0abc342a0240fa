"""The agent's side of a launcher process: start it when it is first needed, and request child processes.

Invariant: an agent that runs no such checks has no such process.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from typing import Final

from scale0.kernel.errors import ConfigError

MODULE: Final = "scale0.monitoring.agent.edge.launcher_process"
DEFAULT_USER: Final = "nobody"
DEFAULT_IDS: Final = (65_534, 65_534)
"""If there is no user of that name."""
SEND_BYTES: Final = 212_992
"""Buffer for data that a child has not read yet: Linux' default, which may have been lowered; the kernel doubles it."""
END_SECONDS: Final = 3.0
"""How long a launcher may take to end before it is killed; its plugin runners then end by themselves."""


def check_user_ids(name: str) -> tuple[int, int] | None:
    """uid and gid for checks; blank is nobody. None: the agent's own, because it is not root, or `root` was configured.

    ConfigError: there is no such user.
    """
    if os.geteuid() != 0 or name == "root":
        return None
    try:
        found = pwd.getpwnam(name or DEFAULT_USER)
    except KeyError:
        if not name:
            return DEFAULT_IDS
        raise ConfigError([f"plugin_user: user {name} does not exist"]) from None
    return found.pw_uid, found.pw_gid


class ProcessLauncher:
    """Starts the child processes of one role (see `launcher_process`), as the user `user`. Raises ConfigError."""

    def __init__(self, role: str, user: str) -> None:
        self._role = role
        self._ids = check_user_ids(user)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start_child(self) -> socket.socket:
        """A connection to a new child; it reports end of file if the child cannot be started. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        with theirs:
            try:
                try:
                    self._request(theirs)
                except (BrokenPipeError, ConnectionResetError):  # the launcher was killed: start another
                    self.close()
                    self._request(theirs)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours

    def close(self) -> None:
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

    def _request(self, connection: socket.socket) -> None:
        if self._control is None:
            self._control = self._start()
        socket.send_fds(self._control, [b"+"], [connection.fileno()])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ids = ("", "") if self._ids is None else tuple(map(str, self._ids))
        with theirs:
            # -S: `site` costs memory in each of them, and our own search path has all that it would find.
            flags = ("-S", "-s", "-P", "-m", MODULE)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *flags, str(theirs.fileno()), self._role, *ids],
                    env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        return ours
