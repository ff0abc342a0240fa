"""Nagios plugins of the agent's configuration, run by plugin runners.

This is the agent's side: which plugin runner runs what, and what its answer means. Invariants: a plugin runner has one
plugin at a time; a run ends in one CheckFinding, shortly after its timeout at the latest; a cancelled run is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable
from typing import Final

from scale0.config.schema import Plugin
from scale0.kernel.errors import Refusal
from scale0.monitoring.agent.core.plugin_command import PluginCommand
from scale0.monitoring.agent.edge import plugin_runner
from scale0.monitoring.agent.edge.plugin_runner import ANSWER, KILL_SECONDS, SURVIVORS
from scale0.monitoring.agent.edge.process_launcher import ProcessLauncher
from scale0.monitoring.agent.edge.sandbox import MAX_PROCESSES
from scale0.monitoring.checks.perfdata import read_plugin
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

MAX_RUNNERS: Final = 64
"""Plugins that run at once; more wait."""
IDLE_SECONDS: Final = 60.0
"""A plugin runner that was idle for this long is ended."""
MAX_TRIES: Final = 3
"""Plugin runners that may die during their start before a run fails."""
SPARE_SECONDS: Final = 1.0
"""How much longer than its maximum a plugin runner's answer is awaited."""


class _Runner:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.runs = 0
        self.ready = False
        """It has sent its hello: it starts every plugin that it receives from now on."""
        self.pidfd = -1
        """A signal sent by it never hits another process."""
        self.gone = False
        self.idle_since = 0.0
        self.answer: asyncio.Future[bytes | None] | None = None
        """None: it is idle."""

    def receive(self) -> None:
        try:
            data = self.connection.recv(ANSWER.size + plugin_runner.MAX_OUTPUT_BYTES + plugin_runner.KEPT_STDERR_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.gone = True
            asyncio.get_running_loop().remove_reader(self.connection)
        elif not self.ready:
            self.ready = True
            with contextlib.suppress(OSError):  # it has died since: end of file follows
                self.pidfd = os.pidfd_open(plugin_runner.HELLO.unpack(data)[0])
            return
        self.resolve(data)

    def kill(self) -> None:
        """Kill it, in whatever state it is; the launcher inherits and kills its processes."""
        with contextlib.suppress(OSError):  # it has ended by itself
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.close_pidfd()

    def close_pidfd(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def resolve(self, data: bytes | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(data)


class Plugins:
    def __init__(self, plugins: Iterable[Plugin], user: str = "", most: int = MAX_RUNNERS) -> None:
        """`user`: runs the plugins if the agent is root; blank is nobody. `most`: runs at once. Raises ConfigError."""
        self._commands = {one.name: PluginCommand(one.name, one.command) for one in plugins}
        self._launcher = ProcessLauncher("plugins", user)
        self._idle: list[_Runner] = []
        self._busy: set[_Runner] = set()
        self._slots = asyncio.Semaphore(most)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._commands)

    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding:
        started, begun = time.time(), time.monotonic()
        try:
            words = self._commands[name].fill(args)
        except KeyError:
            return CheckFinding(UNKNOWN, f"there is no plugin {name}", (), started, 0.0)
        except Refusal as refusal:
            return CheckFinding(UNKNOWN, refusal.message, (), started, 0.0)
        async with self._slots:
            left = begun + timeout - time.monotonic()
            if left <= 0:
                return CheckFinding(UNKNOWN, f"not started within {timeout:g} s", (), started, timeout)
            request = plugin_runner.REQUEST.pack(left) + b"\0".join(map(os.fsencode, words))
            try:
                answer = await self._request(request, left + KILL_SECONDS + SPARE_SECONDS)
            except OSError as error:
                return CheckFinding(UNKNOWN, f"cannot run it: {error.strerror or error}", (), started, 0.0)
        seconds = time.monotonic() - begun
        if not answer:
            why = "no answer from the plugin runner" if answer is None else "the plugin runner was killed"
            return CheckFinding(UNKNOWN, why, (), started, seconds)
        return finding_of(answer, timeout, started, seconds)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._idle or self._busy:
            loop = asyncio.get_running_loop()
            for runner in self._idle:
                self._end(runner, loop)
            self._idle.clear()
            for runner in self._busy:  # `_request` ends it
                with contextlib.suppress(OSError):  # it may have ended already
                    runner.connection.shutdown(socket.SHUT_RDWR)
                runner.resolve(b"")
        self._launcher.close()

    async def _request(self, request: bytes, seconds: float) -> bytes | None:
        """The answer to one run; blank: the plugin runner was killed. None: it did not answer in time."""
        loop = asyncio.get_running_loop()
        for _ in range(MAX_TRIES):
            runner = self._send(request, loop)
            runner.answer = loop.create_future()
            self._busy.add(runner)
            timer = loop.call_later(seconds, runner.resolve, None)
            reusable = False
            try:
                answer = await runner.answer
                reusable = bool(answer and not answer[0] & SURVIVORS) and runner.runs < plugin_runner.MAX_RUNS
            finally:
                timer.cancel()
                runner.answer = None
                self._busy.discard(runner)
                if reusable:
                    self._keep_idle(runner, loop)
                else:
                    self._end(runner, loop)
            if answer != b"" or runner.ready or self._closed:
                return answer
        return b""

    def _end(self, runner: _Runner, loop: asyncio.AbstractEventLoop) -> None:
        """Close its connection: a plugin runner then kills all its processes, and ends.

        One that does not end is killed: while it starts a plugin it has the user of plugins, so a plugin may stop it.
        """
        loop.remove_reader(runner.connection)
        runner.connection.close()
        if runner.gone or self._closed:  # the launcher ends the rest
            runner.close_pidfd()
        else:
            loop.call_later(KILL_SECONDS + SPARE_SECONDS, runner.kill)

    def _send(self, request: bytes, loop: asyncio.AbstractEventLoop) -> _Runner:
        """Send a request to the plugin runner that was used last, so that surplus ones become idle for long."""
        while self._idle:
            runner = self._idle.pop()
            try:
                if not runner.gone:  # it may have died while it was idle
                    runner.connection.send(request)
                    break
            except OSError:
                pass
            self._end(runner, loop)
        else:
            runner = _Runner(self._launcher.start_child())
            try:
                runner.connection.send(request)
            except OSError:
                runner.connection.close()
                raise
            loop.add_reader(runner.connection, runner.receive)
        runner.runs += 1
        return runner

    def _keep_idle(self, runner: _Runner, loop: asyncio.AbstractEventLoop) -> None:
        runner.idle_since = loop.time()
        self._idle.append(runner)
        if self._timer is None:
            self._timer = loop.call_later(IDLE_SECONDS, self._end_idle, loop)

    def _end_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """End those that were idle for long; the first in the list was idle longest."""
        old = loop.time() - IDLE_SECONDS
        while self._idle and self._idle[0].idle_since <= old:
            self._end(self._idle.pop(0), loop)
        self._timer = None
        if self._idle:
            self._timer = loop.call_at(self._idle[0].idle_since + IDLE_SECONDS, self._end_idle, loop)


def finding_of(answer: bytes, timeout: float, started: float, seconds: float) -> CheckFinding:
    outcome, status, ran, length = ANSWER.unpack_from(answer)
    output = answer[ANSWER.size : ANSWER.size + length]
    errors = answer[ANSWER.size + length :]
    reason = {
        plugin_runner.TIMED_OUT: f"killed: it took longer than {timeout:g} s",
        plugin_runner.TOO_MUCH_OUTPUT: f"killed: too much output, more than {plugin_runner.MAX_OUTPUT_BYTES} bytes",
        plugin_runner.TOO_MANY_PROCESSES: f"killed: too many processes, more than {MAX_PROCESSES}",
        plugin_runner.NOT_STARTED: f"it could not be started: {errors.decode('utf-8', 'replace')}",
    }.get(outcome & ~SURVIVORS)
    if reason is None:
        found = read_plugin(status, output, errors)
        state, message, metrics = found.state, found.message, found.metrics
    else:
        state, message, metrics = UNKNOWN, reason, ()
    if outcome & SURVIVORS:
        message = f"{message} (some process that it started could not be killed)"
    return CheckFinding(state, message, metrics, started, ran if ran > 0 else seconds)
