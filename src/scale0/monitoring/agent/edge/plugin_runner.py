"""A plugin runner: a process that runs one plugin after another, and leaves none of their processes behind.

Also the messages between it and the agent. Why there is a process between the agent and the plugin: a subreaper
inherits every orphan below it, so the processes of one run are exactly those below this process. It is reused for the
next run because a fork costs as much as a plugin. It imports nothing but the standard library and small kernel modules.
Invariants: one plugin at a time; it answers only when all processes of the run have ended (or reports survivors); when
the agent closes the connection, it kills everything and ends.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from typing import Final

from scale0.monitoring.agent.edge import sandbox
from scale0.monitoring.agent.edge.cgroup import PidsLimitEvents
from scale0.monitoring.agent.edge.sandbox import MAX_PROCESSES, CheckUser

HELLO: Final = struct.Struct("!i")
"""The first message of a plugin runner: its pid."""
REQUEST: Final = struct.Struct("!d")
"""The timeout, then the words of the command, separated by zero bytes."""
ANSWER: Final = struct.Struct("!BidI")
"""Outcome, exit status, seconds, and the length of the output; then the output, then the first bytes of stderr."""

ENDED: Final = 0
TIMED_OUT: Final = 1
TOO_MUCH_OUTPUT: Final = 2
TOO_MANY_PROCESSES: Final = 3
NOT_STARTED: Final = 4
SURVIVORS: Final = 128
"""Added to an outcome: some process of the plugin could not be killed."""

MAX_COMMAND_BYTES: Final = 65_536
MAX_OUTPUT_BYTES: Final = 65_536
"""A plugin that writes more to stdout is killed."""
MAX_STDERR_BYTES: Final = 65_536
"""The same for stderr."""
KEPT_STDERR_BYTES: Final = 4_096
KILL_SECONDS: Final = 2.0
"""How long killed processes may take to end."""
MAX_RUNS: Final = 1_000
"""Runs before the agent replaces a plugin runner: the CPU time of the runner adds to the limit of its plugins."""
COUNT_SECONDS: Final = 0.05
"""How often processes are counted while a plugin runs."""

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/",
}
"""The whole environment of a plugin."""

_DEFAULT_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""Python ignores some of these, and a plugin would inherit that."""


class ParentGoneError(Exception):
    """The agent has closed the connection."""


class PluginRunner:
    def __init__(self, agent: socket.socket, user: CheckUser | None, cgroup: str) -> None:
        self._agent = agent
        self._user = user
        self._limit_events = PidsLimitEvents(cgroup)
        self._dev_null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def serve(self) -> None:
        self._agent.send(HELLO.pack(os.getpid()))
        while True:
            request = self._agent.recv(REQUEST.size + MAX_COMMAND_BYTES)
            if not request:
                return
            (timeout,) = REQUEST.unpack_from(request)
            words = [os.fsdecode(word) for word in request[REQUEST.size :].split(b"\0")]
            answer = self._run(words, timeout)
            self._agent.send(answer)
            if answer[0] & SURVIVORS:  # the launcher inherits and kills them
                return

    def _run(self, words: list[str], timeout: float) -> bytes:
        begun = time.monotonic()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        try:
            # The limit includes this process, which has used CPU time for earlier runs.
            sandbox.limit_cpu(int(time.process_time()) + int(timeout) + 2)
            try:
                pid = self._spawn(words, out_end, err_end)
            except OSError as error:
                reason = f"{words[0]}: {error.strerror}".encode()
                return ANSWER.pack(NOT_STARTED, 0, time.monotonic() - begun, 0) + reason
            finally:
                os.close(out_end)
                os.close(err_end)
            run = _Run(pid, out, err, begun + timeout)
            try:
                outcome = run.watch(self._agent)
            except ParentGoneError:
                sandbox.end_all((pid,), KILL_SECONDS)
                os._exit(0)
            if outcome == ENDED:
                run.read_rest()
                outcome = run.outcome
            status = run.status
            if self._limit_events.occurred() and status != 0:
                outcome = TOO_MANY_PROCESSES
            if not sandbox.end_all((pid,) if status is None else (), KILL_SECONDS):
                outcome |= SURVIVORS
            run.close()
            head = ANSWER.pack(outcome, status or 0, time.monotonic() - begun, len(run.output))
            return head + bytes(run.output) + bytes(run.errors[:KEPT_STDERR_BYTES])
        finally:
            os.close(out)
            os.close(err)

    def _spawn(self, words: list[str], out: int, err: int) -> int:
        actions = [
            (os.POSIX_SPAWN_DUP2, self._dev_null, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, err, 2),
        ]
        with sandbox.acting_as(self._user):
            # By its path in the agent's configuration, or by the fixed PATH; setsid: a process group of its own.
            start = os.posix_spawn if "/" in words[0] else os.posix_spawnp
            return start(words[0], words, ENVIRONMENT, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS)


class _Run:
    def __init__(self, pid: int, out: int, err: int, deadline: float) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.status: int | None = None
        """None: it did not end by itself."""
        self.outcome = ENDED
        self._pid = pid
        self._out = out
        self._err = err
        self._deadline = deadline
        self._pidfd = os.pidfd_open(pid)
        os.set_blocking(out, False)
        os.set_blocking(err, False)

    def watch(self, agent: socket.socket) -> int:
        """Read its output until it ends, or must be killed.

        At first only its end is awaited: most plugins end soon, and their output waits in the pipes.
        """
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.register(agent, 0)  # reports only that it is closed
        count_at = time.monotonic() + COUNT_SECONDS
        reading = False
        while True:
            now = time.monotonic()
            if now >= self._deadline:
                return TIMED_OUT
            for descriptor, _ in poll.poll(max(0.0, min(self._deadline, count_at) - now) * 1_000 + 1):
                if descriptor == self._pidfd:
                    self.status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
                    return ENDED
                if descriptor == agent.fileno():
                    raise ParentGoneError
                if not self._read(descriptor):
                    poll.unregister(descriptor)
                if self.outcome != ENDED:
                    return self.outcome
            if time.monotonic() < count_at:
                continue
            count_at = time.monotonic() + COUNT_SECONDS
            if len(sandbox.descendants(MAX_PROCESSES)) > MAX_PROCESSES:
                return TOO_MANY_PROCESSES
            if not reading:
                reading = True
                poll.register(self._out, select.POLLIN)
                poll.register(self._err, select.POLLIN)

    def read_rest(self) -> None:
        """Read what it wrote before it ended, without a wait for processes that inherited the pipes."""
        for descriptor in (self._out, self._err):
            while self.outcome == ENDED and self._read(descriptor):
                pass

    def close(self) -> None:
        os.close(self._pidfd)

    def _read(self, descriptor: int) -> bool:
        """Read from a pipe; False: it is empty now, or closed."""
        try:
            data = os.read(descriptor, MAX_OUTPUT_BYTES)
        except BlockingIOError:
            return False
        kept, most = (self.output, MAX_OUTPUT_BYTES) if descriptor == self._out else (self.errors, MAX_STDERR_BYTES)
        if len(kept) + len(data) > most:
            self.outcome = TOO_MUCH_OUTPUT
            data = data[: most - len(kept)]
        kept += data
        return bool(data)


def serve(agent: socket.socket, user: CheckUser | None, cgroup: str) -> None:
    """The main function of a plugin runner, in a process that the launcher has just started."""
    os.chdir("/")
    if user is not None:
        os.setgroups([])
    sandbox.become_subreaper()
    # The number of processes is limited only for the user of checks: it is unknown how many another user needs.
    sandbox.apply_limits(sandbox.PLUGIN_LIMITS if user is not None else sandbox.PLUGIN_LIMITS._replace(processes=None))
    PluginRunner(agent, user, cgroup).serve()
