"""A keeper: a process that runs one plugin after another, and lets nothing of them survive.

Lives here: a plugin from its start to its last descendant. Never here: what its output means, asyncio, or an import
beyond the standard library. Invariants: one plugin at a time; an answer goes out only when all that it started is dead
(or said to be left); whoever asks is gone: so is everything here.

Why a process between the agent and the plugin: a subreaper inherits every orphan below it, so that what belongs to
this one run is exactly what is below this process. It is used again for the next run, because a fork costs as much as
a plugin.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Final

from scale0.monitoring.agent.edge.cgroup import Refusals
from scale0.monitoring.agent.edge.check_user import CheckUser
from scale0.monitoring.agent.edge.plugin_runner_messages import (
    ANSWERED,
    ASKED,
    ENDED,
    KEPT_STDERR_BYTES,
    KILL_SECONDS,
    LEFT,
    MAX_OUTPUT_BYTES,
    MAX_PROCESSES,
    MAX_STDERR_BYTES,
    MAX_WORDS_BYTES,
    NOT_STARTED,
    READY,
    TIMED_OUT,
    TOO_MANY_PROCESSES,
    TOO_MUCH_OUTPUT,
)
from scale0.monitoring.agent.edge.sandbox import (
    acting_as,
    become_subreaper,
    descendants,
    end_all,
    limit_cpu,
    limit_plugins,
)

LOOK_SECONDS: Final = 0.05
"""How often processes are counted while a plugin runs."""

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/",
}
"""All that a plugin sees of ours."""

_TO_DEFAULT: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""Python ignores some of these; a plugin would inherit that."""


class ParentGoneError(Exception):
    """Whoever asked has closed the connection."""


class PluginRunner:
    """One connection's plugins."""

    def __init__(self, asker: socket.socket, user: CheckUser | None, room: str) -> None:
        self._asker = asker
        self._user = user
        self._refusals = Refusals(room)
        self._nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def serve(self) -> None:
        """Until the asker is gone."""
        self._asker.send(READY.pack(os.getpid()))
        while True:
            asked = self._asker.recv(ASKED.size + MAX_WORDS_BYTES)
            if not asked:
                return
            (timeout,) = ASKED.unpack_from(asked)
            words = [os.fsdecode(word) for word in asked[ASKED.size :].split(b"\0")]
            answer = self._run(words, timeout)
            self._asker.send(answer)
            if answer[0] & LEFT:  # who is left is the launcher's now
                return

    def _run(self, words: list[str], timeout: float) -> bytes:
        begun = time.monotonic()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        try:
            # It holds for us as well, who have spent some on the runs before.
            limit_cpu(int(time.process_time()) + int(timeout) + 2)
            try:
                pid = self._spawn(words, out_end, err_end)
            except OSError as error:
                reason = f"{words[0]}: {error.strerror}".encode()
                return ANSWERED.pack(NOT_STARTED, 0, time.monotonic() - begun, 0) + reason
            finally:
                os.close(out_end)
                os.close(err_end)
            run = _Run(pid, out, err, begun + timeout)
            try:
                how = run.watch(self._asker)
            except ParentGoneError:
                end_all((pid,), KILL_SECONDS)
                os._exit(0)
            if how == ENDED:
                run.read_rest()
                how = run.how
            status = run.status
            if self._refusals.happened() and status != 0:
                how = TOO_MANY_PROCESSES
            if not end_all((pid,) if status is None else (), KILL_SECONDS):
                how |= LEFT
            run.close()
            head = ANSWERED.pack(how, status or 0, time.monotonic() - begun, len(run.output))
            return head + bytes(run.output) + bytes(run.errors[:KEPT_STDERR_BYTES])
        finally:
            os.close(out)
            os.close(err)

    def _spawn(self, words: list[str], out: int, err: int) -> int:
        actions = [
            (os.POSIX_SPAWN_DUP2, self._nothing, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, err, 2),
        ]
        with acting_as(self._user):
            # By path as it stands in the agent's file, or found on our own fixed PATH; setsid: a group of its own.
            start = os.posix_spawn if "/" in words[0] else os.posix_spawnp
            return start(words[0], words, ENVIRONMENT, file_actions=actions, setsid=True, setsigdef=_TO_DEFAULT)


class _Run:
    """A plugin that runs."""

    def __init__(self, pid: int, out: int, err: int, deadline: float) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.status: int | None = None
        """None: it did not end by itself."""
        self.how = ENDED
        self._pid = pid
        self._out = out
        self._err = err
        self._deadline = deadline
        self._handle = os.pidfd_open(pid)
        os.set_blocking(out, False)
        os.set_blocking(err, False)

    def watch(self, asker: socket.socket) -> int:
        """Read what it says until it ends, or must be ended.

        At first only for its end: most end soon, and what they say waits in the pipes.
        """
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        poll.register(asker, 0)  # only that it is gone
        look = time.monotonic() + LOOK_SECONDS
        reading = False
        while True:
            now = time.monotonic()
            if now >= self._deadline:
                return TIMED_OUT
            for descriptor, _ in poll.poll(max(0.0, min(self._deadline, look) - now) * 1_000 + 1):
                if descriptor == self._handle:
                    self.status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
                    return ENDED
                if descriptor == asker.fileno():
                    raise ParentGoneError
                if not self._read(descriptor):
                    poll.unregister(descriptor)
                if self.how != ENDED:
                    return self.how
            if time.monotonic() < look:
                continue
            look = time.monotonic() + LOOK_SECONDS
            if len(descendants(MAX_PROCESSES)) > MAX_PROCESSES:
                return TOO_MANY_PROCESSES
            if not reading:
                reading = True
                poll.register(self._out, select.POLLIN)
                poll.register(self._err, select.POLLIN)

    def read_rest(self) -> None:
        """What it wrote before it ended; who has inherited the pipe is not waited for."""
        for descriptor in (self._out, self._err):
            while self.how == ENDED and self._read(descriptor):
                pass

    def close(self) -> None:
        """Forget it."""
        os.close(self._handle)

    def _read(self, descriptor: int) -> bool:
        """Some of a pipe; False: there is nothing now, or ever again."""
        try:
            data = os.read(descriptor, MAX_OUTPUT_BYTES)
        except BlockingIOError:
            return False
        kept, most = (self.output, MAX_OUTPUT_BYTES) if descriptor == self._out else (self.errors, MAX_STDERR_BYTES)
        if len(kept) + len(data) > most:
            self.how = TOO_MUCH_OUTPUT
            data = data[: most - len(kept)]
        kept += data
        return bool(data)


def serve(asker: socket.socket, user: CheckUser | None, room: str) -> None:
    """A keeper's life, in a process that the launcher has just made, and put into a cgroup if it could."""
    os.chdir("/")
    if user is not None:
        os.setgroups([])
    become_subreaper()
    limit_plugins(user)
    PluginRunner(asker, user, room).serve()
