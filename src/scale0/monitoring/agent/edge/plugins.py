"""Nagios plugins of the agent's own file, run by keepers.

Lives here: which keeper runs what, and what its answer means. Never here: starting or killing a plugin (`keeper`), or
reading its output (`equus/perfdata`). Invariants: a keeper has one plugin at a time; a run ends in one Finding, shortly
after its timeout at the latest; a run that nobody waits for any more is ended.
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
from scale0.monitoring.agent.edge.check_user import user_of
from scale0.monitoring.agent.edge.plugin_runner_messages import (
    ANSWERED,
    ASKED,
    KEPT_STDERR_BYTES,
    KILL_SECONDS,
    LEFT,
    MAX_OUTPUT_BYTES,
    MAX_PROCESSES,
    MAX_RUNS,
    NOT_STARTED,
    READY,
    TIMED_OUT,
    TOO_MANY_PROCESSES,
    TOO_MUCH_OUTPUT,
)
from scale0.monitoring.agent.edge.process_launcher import ProcessLauncher
from scale0.monitoring.checks.perfdata import read_plugin
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

MAX_KEEPERS: Final = 64
"""Plugins that run at once; more wait."""
IDLE_SECONDS: Final = 60.0
"""A keeper that had nothing to do for so long ends."""
MAX_TRIES: Final = 3
"""Keepers that may die before they begin to serve."""
SPARE_SECONDS: Final = 1.0
"""How much longer than it may take at most a keeper's answer is waited for."""


class _Keeper:
    """A connection to a keeper."""

    __slots__ = ("answered", "connection", "gone", "handle", "idle_since", "ready", "runs")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.runs = 0
        self.ready = False
        """It has begun to serve: what it is given from now on, it starts."""
        self.handle = -1
        """A pidfd: a signal by it never hits somebody else."""
        self.gone = False
        self.idle_since = 0.0
        self.answered: asyncio.Future[bytes | None] | None = None
        """None: it has nothing to do."""

    def receive(self) -> None:
        """Its answer; blank: it is gone."""
        try:
            data = self.connection.recv(ANSWERED.size + MAX_OUTPUT_BYTES + KEPT_STDERR_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.gone = True
            asyncio.get_running_loop().remove_reader(self.connection)
        elif not self.ready:
            self.ready = True
            with contextlib.suppress(OSError):  # it died meanwhile, which is told next
                self.handle = os.pidfd_open(READY.unpack(data)[0])
            return
        self.tell(data)

    def kill(self) -> None:
        """Whatever it does; what it leaves is the launcher's, who kills that too."""
        with contextlib.suppress(OSError):  # it has ended by itself, as it should
            if self.handle >= 0:
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        self.forget()

    def forget(self) -> None:
        """Let it live or die as it will."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def tell(self, data: bytes | None) -> None:
        """Wake whoever waits for its answer."""
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(data)


class Plugins:
    """The plugins that this agent may run."""

    def __init__(self, plugins: Iterable[Plugin], user: str = "", most: int = MAX_KEEPERS) -> None:
        """`user`: whom they run as where the agent is root; blank is nobody. `most`: at once. Raises ConfigError."""
        self._commands = {one.name: PluginCommand(one.name, one.command) for one in plugins}
        self._nursery = ProcessLauncher("plugins", user_of(user))
        self._idle: list[_Keeper] = []
        self._busy: set[_Keeper] = set()
        self._places = asyncio.Semaphore(most)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._commands)

    async def start(self) -> None:
        """Nothing yet: the launcher is started by the first run."""

    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding:
        """Run it once."""
        started, begun = time.time(), time.monotonic()
        try:
            words = self._commands[name].fill(args)
        except KeyError:
            return CheckFinding(UNKNOWN, f"there is no plugin {name}", (), started, 0.0)
        except Refusal as refusal:
            return CheckFinding(UNKNOWN, refusal.message, (), started, 0.0)
        async with self._places:
            left = begun + timeout - time.monotonic()
            if left <= 0:
                return CheckFinding(UNKNOWN, f"no place to run in {timeout:g} s", (), started, timeout)
            asked = ASKED.pack(left) + b"\0".join(map(os.fsencode, words))
            try:
                answer = await self._ask(asked, left + KILL_SECONDS + SPARE_SECONDS)
            except OSError as error:
                return CheckFinding(UNKNOWN, f"cannot run it: {error.strerror or error}", (), started, 0.0)
        seconds = time.monotonic() - begun
        if not answer:
            why = "no answer of the process that ran it" if answer is None else "the process that ran it was killed"
            return CheckFinding(UNKNOWN, why, (), started, seconds)
        return understand(answer, timeout, started, seconds)

    def close(self) -> None:
        """End every plugin that runs, and the launcher."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._idle or self._busy:
            loop = asyncio.get_running_loop()
            for keeper in self._idle:
                self._end(keeper, loop)
            self._idle.clear()
            for keeper in self._busy:  # whoever waits lets go of it
                with contextlib.suppress(OSError):  # it may be gone already
                    keeper.connection.shutdown(socket.SHUT_RDWR)
                keeper.tell(b"")
        self._nursery.close()

    async def _ask(self, asked: bytes, seconds: float) -> bytes | None:
        """One run; blank: the keeper was killed. None: it was given up."""
        loop = asyncio.get_running_loop()
        for _ in range(MAX_TRIES):
            keeper = self._give(asked, loop)
            keeper.answered = loop.create_future()
            self._busy.add(keeper)
            timer = loop.call_later(seconds, keeper.tell, None)
            kept = False
            try:
                answer = await keeper.answered
                kept = answer is not None and answer != b"" and not answer[0] & LEFT and keeper.runs < MAX_RUNS
            finally:
                timer.cancel()
                keeper.answered = None
                self._busy.discard(keeper)
                if kept:
                    self._rest(keeper, loop)
                else:
                    self._end(keeper, loop)
            if answer != b"" or keeper.ready or self._closed:
                return answer
        return b""

    def _end(self, keeper: _Keeper, loop: asyncio.AbstractEventLoop) -> None:
        """Let go of it: a keeper whose asker is gone kills all that it has, and ends.

        One that cannot is killed: while it starts a plugin it has the user of plugins, and may be stopped by another.
        """
        loop.remove_reader(keeper.connection)
        keeper.connection.close()
        if keeper.gone or self._closed:  # then the launcher sees to it
            keeper.forget()
        else:
            loop.call_later(KILL_SECONDS + SPARE_SECONDS, keeper.kill)

    def _give(self, asked: bytes, loop: asyncio.AbstractEventLoop) -> _Keeper:
        """Hand it to a keeper: the one that rested last, so that those too many grow old."""
        while self._idle:
            keeper = self._idle.pop()
            try:
                if not keeper.gone:  # it may have died while it had nothing to do
                    keeper.connection.send(asked)
                    break
            except OSError:
                pass
            self._end(keeper, loop)
        else:
            keeper = _Keeper(self._nursery.child())
            try:
                keeper.connection.send(asked)
            except OSError:
                keeper.connection.close()
                raise
            loop.add_reader(keeper.connection, keeper.receive)
        keeper.runs += 1
        return keeper

    def _rest(self, keeper: _Keeper, loop: asyncio.AbstractEventLoop) -> None:
        keeper.idle_since = loop.time()
        self._idle.append(keeper)
        if self._timer is None:
            self._timer = loop.call_later(IDLE_SECONDS, self._retire, loop)

    def _retire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let go who has rested long; the first in the list has rested longest."""
        old = loop.time() - IDLE_SECONDS
        while self._idle and self._idle[0].idle_since <= old:
            self._end(self._idle.pop(0), loop)
        self._timer = None
        if self._idle:
            self._timer = loop.call_at(self._idle[0].idle_since + IDLE_SECONDS, self._retire, loop)


def understand(answer: bytes, timeout: float, started: float, seconds: float) -> CheckFinding:
    """What a keeper's answer says."""
    how, status, ran, length = ANSWERED.unpack_from(answer)
    output = answer[ANSWERED.size : ANSWERED.size + length]
    errors = answer[ANSWERED.size + length :]
    ending = how & ~LEFT
    reason = {
        TIMED_OUT: f"killed: it took longer than {timeout:g} s",
        TOO_MUCH_OUTPUT: f"killed: too much output, more than {MAX_OUTPUT_BYTES} bytes",
        TOO_MANY_PROCESSES: f"killed: too many processes, more than {MAX_PROCESSES}",
        NOT_STARTED: f"it could not be started: {errors.decode('utf-8', 'replace')}",
    }.get(ending)
    if reason is None:
        found = read_plugin(status, output, errors)
        state, message, metrics = found.state, found.message, found.metrics
    else:
        state, message, metrics = UNKNOWN, reason, ()
    if how & LEFT:
        message = f"{message} (something that it started could not be killed)"
    return CheckFinding(state, message, metrics, started, ran if ran > 0 else seconds)
