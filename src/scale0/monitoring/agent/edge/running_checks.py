"""The checks that an agent can run, by name; those that run now, and those that wait, each with its deadline.

Invariants: a name means one check, and a name that is used twice is a configuration error when the agent starts; each
started check ends in exactly one CheckFinding, at its deadline at the latest; a check that hangs occupies one slot
until it ends, and is not started a second time meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import msgspec

from scale0.config.secret_references import PREFIX, secret_name
from scale0.kernel.edge.secret_files import SecretDirectory, SecretUnavailable
from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about
from scale0.monitoring.agent.core.hidden_secrets import HiddenSecrets
from scale0.monitoring.agent.core.plugin_command import MAX_ARGS_BYTES
from scale0.monitoring.checks.registry import BuiltIn
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

log = logging.getLogger("scale0.agent")

MAX_CHECKS: Final = 64
LEAST_CHECKS: Final = 8
"""The lower limit of `max_checks`."""
MAX_WAITING: Final = 1_000
"""Checks that wait for a slot; more fail at once."""
MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
"""Of the arguments of waiting checks."""
KILL_SECONDS: Final = 0.5
"""A check in its own process is killed by its runner at the deadline, with a more precise reason; after this much
longer the runner's answer is no longer awaited."""

NO_SECRETS: Final = HiddenSecrets({})

OnFinding = Callable[[CheckFinding], None]


class CheckCrashed(Exception):
    """In logs, in place of an exception of a check that has secrets: the exception may contain them."""


class Inline(msgspec.Struct, frozen=True):
    """A check so quick that it runs in the event loop."""

    run: Callable[[bytes, float], CheckFinding]


class InThread(msgspec.Struct, frozen=True):
    """A check that blocks, in a thread."""

    run: Callable[[bytes, float], CheckFinding]


class InProcess(msgspec.Struct, frozen=True):
    run: Callable[[bytes, float], Awaitable[CheckFinding]]


Run = Inline | InThread | InProcess


class CheckProcesses(Protocol):
    """Checks that run in processes of their own."""

    @property
    def names(self) -> tuple[str, ...]: ...
    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding: ...
    def close(self) -> None: ...


class NoCheckProcesses:
    """For an agent without plugins."""

    names: tuple[str, ...] = ()

    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding:
        raise KeyError(name)

    def close(self) -> None: ...


class CheckRegistry:
    def __init__(self, plugins: CheckProcesses, built_in: Mapping[str, BuiltIn], lua: CheckProcesses) -> None:
        self._lua = lua
        self._table: dict[str, Run] = {
            name: Inline(one.run) if one.quick else InThread(one.run) for name, one in built_in.items()
        }
        errors = [f"plugins: {name} is a built-in check" for name in plugins.names if name in self._table]
        errors += [f"checks_dir: {name}.lua: {name} is a built-in check" for name in lua.names if name in self._table]
        errors += [f"checks_dir: {name}.lua: {name} is a plugin" for name in lua.names if name in plugins.names]
        if errors:
            raise ConfigError(errors)
        for name in plugins.names:
            self._table[name] = InProcess(_runner_of(plugins, name))

    @property
    def names(self) -> list[str]:
        """The names of all checks; Lua files may come and go."""
        return sorted({*self._table, *self._lua.names})

    def find(self, name: str) -> Run | None:
        """How to run a check; None: there is no such check."""
        run = self._table.get(name)
        if run is None and name in self._lua.names:
            run = InProcess(_runner_of(self._lua, name))
        return run


def _runner_of(processes: CheckProcesses, name: str) -> Callable[[bytes, float], Awaitable[CheckFinding]]:
    return lambda args, timeout: processes.run(name, args, timeout)


class _PendingCheck:
    __slots__ = ("args", "begun", "name", "run", "secrets", "started", "task", "then", "timeout", "timer")

    def __init__(
        self,
        name: str,
        args: bytes,
        timeout: float,
        run: InThread | InProcess,
        then: OnFinding,
        secrets: HiddenSecrets,
    ) -> None:
        self.name = name
        self.secrets = secrets
        self.args = args
        self.timeout = timeout
        self.run = run
        self.then: OnFinding | None = then
        """None: its finding was reported."""
        self.begun = time.monotonic()
        self.started = time.time()
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class RunningChecks:
    def __init__(
        self,
        find: Callable[[str], Run | None],
        loop: asyncio.AbstractEventLoop,
        limit: int,
        secrets: SecretDirectory | None = None,
    ) -> None:
        self._find = find
        self._secrets = secrets
        self._loop = loop
        self._limit = max(LEAST_CHECKS, limit)
        self._threads = ThreadPool(self._limit, loop)
        self._running = 0
        self._waiting: deque[_PendingCheck] = deque()
        self._waiting_bytes = 0
        self._hanging: set[tuple[str, bytes]] = set()
        """Checks that exceeded their deadline, and still occupy a thread."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, args: bytes, timeout: float, then: OnFinding, scheduled: bool = False) -> None:
        """Run a check; `then` is called once with its finding, now or later. Only arguments of a scheduled check may
        refer to secrets: every client of the network may request others."""
        if PREFIX.encode() in args and (used := secrets_in(args)):
            try:
                if not scheduled or self._secrets is None:
                    raise SecretUnavailable("only a check of the schedule may use a secret")
                values = {key: self._secrets.read(secret) for key, secret in used.items()}
            except SecretUnavailable as error:
                then(not_run(str(error)))
                return
            args = msgspec.json.encode({**msgspec.json.decode(args), **values})
            hidden = HiddenSecrets({values[key]: PREFIX + secret for key, secret in used.items()})
            # The metrics of built-in checks are named by the program, never by arguments.
            with_metrics = isinstance(self._find(name), InProcess)
            self._start(name, args, timeout, lambda found: then(hidden.in_finding(found, with_metrics)), hidden)
        else:
            self._start(name, args, timeout, then, NO_SECRETS)

    def _start(self, name: str, args: bytes, timeout: float, then: OnFinding, secrets: HiddenSecrets) -> None:
        run = self._find(name)
        if run is None:
            then(not_run(f"this agent has no check {name}"))
        elif isinstance(run, Inline):
            then(self._run_inline(name, run, args, timeout, secrets))
        elif (name, args) in self._hanging:
            then(not_run("its last run has not ended yet: it hangs"))
        elif len(args) > MAX_ARGS_BYTES:
            then(not_run(f"the arguments have {len(args)} bytes, more than {MAX_ARGS_BYTES}"))
        elif len(self._waiting) >= MAX_WAITING or self._waiting_bytes + len(args) > MAX_WAITING_BYTES:
            then(not_run(f"too many checks are waiting: {len(self._waiting)}"))
        else:
            pending = _PendingCheck(name, args, timeout, run, then, secrets)
            pending.timer = self._loop.call_later(timeout, self._expire, pending)
            self._waiting.append(pending)
            self._waiting_bytes += len(args)
            self._start_waiting()

    def close(self) -> None:
        for pending in self._waiting:
            if pending.timer is not None:
                pending.timer.cancel()
        self._waiting.clear()
        self._waiting_bytes = 0
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """After `close`: wait until everything but threads has ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run_inline(self, name: str, run: Inline, args: bytes, timeout: float, secrets: HiddenSecrets) -> CheckFinding:
        started, begun = time.time(), time.monotonic()
        try:
            finding = run.run(args, timeout)
        except Exception as error:
            finding = crashed(name, error, secrets)
        return dated(finding, started, time.monotonic() - begun)

    def _start_waiting(self) -> None:
        while self._waiting and self._running < self._limit:
            pending = self._waiting.popleft()
            self._waiting_bytes -= len(pending.args)
            if pending.then is None:
                continue
            self._running += 1
            left = max(0.0, pending.begun + pending.timeout - time.monotonic())
            pending.started = time.time()
            if isinstance(pending.run, InThread):
                self._run_in_thread(pending, pending.run, left)
            else:
                pending.task = self._loop.create_task(self._run_in_process(pending, pending.run, left))
                self._tasks.add(pending.task)
                pending.task.add_done_callback(self._tasks.discard)

    def _run_in_thread(self, pending: _PendingCheck, run: InThread, left: float) -> None:
        def done(value: CheckFinding, error: BaseException | None) -> None:
            self._hanging.discard((pending.name, pending.args))
            self._end(pending, value if error is None else crashed(pending.name, error, pending.secrets))
            self._free_slot()

        self._threads.do(lambda: run.run(pending.args, left), done)

    async def _run_in_process(self, pending: _PendingCheck, run: InProcess, left: float) -> None:
        try:
            finding = await run.run(pending.args, left)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            finding = crashed(pending.name, error, pending.secrets)
        finally:
            self._free_slot()
        self._end(pending, finding)

    def _free_slot(self) -> None:
        self._running -= 1
        self._start_waiting()

    def _end(self, pending: _PendingCheck, finding: CheckFinding) -> None:
        if pending.timer is not None:
            pending.timer.cancel()
            pending.timer = None
        then, pending.then = pending.then, None
        if then is not None:
            then(dated(finding, pending.started, time.monotonic() - pending.begun))

    def _expire(self, pending: _PendingCheck) -> None:
        """The deadline has passed: report that, in whatever state the check is."""
        if pending in self._waiting:
            self._waiting.remove(pending)
            self._waiting_bytes -= len(pending.args)
            self._end(
                pending, CheckFinding(UNKNOWN, f"not started within {pending.timeout:g} s: too many checks at once")
            )
        elif pending.task is None:
            self._hanging.add((pending.name, pending.args))
            self._end(pending, timed_out(pending.timeout))
        elif pending.then is not None:
            # Its runner kills it now, and may know a more precise reason; that is awaited for a short time.
            pending.timer = self._loop.call_later(KILL_SECONDS, self._give_up, pending)

    def _give_up(self, pending: _PendingCheck) -> None:
        self._end(pending, timed_out(pending.timeout))
        if pending.task is not None:
            pending.task.cancel()


def secrets_in(args: bytes) -> dict[str, str]:
    """The secrets that arguments refer to, by argument."""
    try:
        given = msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    found = {key: secret_name(value) for key, value in given.items()} if isinstance(given, dict) else {}
    return {key: name for key, name in found.items() if name is not None}


def timed_out(timeout: float) -> CheckFinding:
    return CheckFinding(UNKNOWN, f"no answer within {timeout:g} s")


def crashed(name: str, error: BaseException, secrets: HiddenSecrets) -> CheckFinding:
    """A check raised an exception: that is our defect, so it is also logged."""
    reason = f"{type(error).__name__}: {error}"
    shown = CheckCrashed(secrets.in_message(reason)).with_traceback(error.__traceback__) if secrets else error
    log.error("internal error in the check %s", name, exc_info=shown, extra=about(check=name))
    return CheckFinding(UNKNOWN, f"the check failed: {reason}")


def not_run(reason: str) -> CheckFinding:
    return dated(CheckFinding(UNKNOWN, reason), time.time(), 0.0)


def dated(finding: CheckFinding, started: float, seconds: float) -> CheckFinding:
    """The finding with its times, unless the check has set them."""
    if finding.started is not None and finding.seconds is not None:
        return finding
    return msgspec.structs.replace(finding, started=round(started, 6), seconds=round(seconds, 6))
