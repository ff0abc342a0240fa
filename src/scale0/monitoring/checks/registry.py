"""The built-in checks by name, and how one is run.

Invariants: a run returns a CheckFinding for any args and any error; the module of a check is imported when it first
runs, so that an agent uses memory only for the checks that it runs.
"""

from __future__ import annotations

import hashlib
import importlib
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from scale0.monitoring.agent.core.plugin_command import MAX_ARGS_BYTES
from scale0.monitoring.checks.arguments import ArgumentReader, WrongArgs
from scale0.monitoring.checks.check_run import BlockingCalls, CheckFailed, CheckRun, Deadline, RunState
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from scale0.history.events.columns import EventMetric

MAX_KEY_BYTES: Final = 1_024
"""Of args that identify a check's state; longer ones are replaced by their hash."""


class BuiltIn(NamedTuple):
    name: str
    quick: bool
    """It never blocks: it may run in the agent's event loop."""
    run: Callable[[bytes, float], CheckFinding]
    """`run(args_json, timeout)`; returns within the timeout."""
    about: str
    compares: bool = False
    """It compares counters with its last run; the first run has less information."""


class _Entry(NamedTuple):
    name: str
    about: str
    quick: bool = False
    compares: bool = False


TABLE: Final = (
    _Entry("load", "load averages, by core", quick=True),
    _Entry("cpu", "how busy the processors are", quick=True, compares=True),
    _Entry("memory", "memory in use and available", quick=True),
    _Entry("swap", "swap in use, and how much moves", quick=True, compares=True),
    _Entry("uptime", "time since the machine started", quick=True),
    _Entry("network", "traffic, errors and drops of each interface", quick=True, compares=True),
    _Entry("disk", "space and inodes of each file system"),
    _Entry("process", "processes by name, command line or user: how many, memory, cpu", compares=True),
    _Entry("file_age", "age and size of the newest or oldest file"),
    _Entry("log", "new lines of a log that match"),
    _Entry("ping", "round trips and loss to a host, by ICMP"),
    _Entry("tcp", "connection to a port, and what it answers"),
    _Entry("http", "a page: status, text, time"),
    _Entry("tls", "a certificate: days left, chain, host name"),
    _Entry("dns", "records of a name at a name server"),
    _Entry("ntp", "offset of this machine's clock from a time server"),
)


class _Runner:
    def __init__(
        self,
        name: str,
        states: RunState,
        blocking_calls: BlockingCalls,
        data_dir: Path | None,
        log_paths: Sequence[str] | None,
    ) -> None:
        self._name = name
        self._states = states
        self._blocking_calls = blocking_calls
        self._data_dir = data_dir
        self._log_paths = log_paths
        self._measure: Callable[[Any, CheckRun], CheckFinding] | None = None
        self._reader: ArgumentReader | None = None

    def __call__(self, args: bytes, timeout: float) -> CheckFinding:
        started, began = time.time(), time.perf_counter()
        try:
            found = self._answer(bytes(args), timeout)
        except WrongArgs as error:
            found = CheckFinding(UNKNOWN, f"{self._name}: {error}")
        except CheckFailed as error:
            found = CheckFinding(error.state, error.message)
        except TimeoutError as error:
            found = CheckFinding(UNKNOWN, f"{self._name} did not end within {timeout:g} s: {error}")
        except Exception as error:  # a check that raises still has a result
            found = CheckFinding(UNKNOWN, f"{self._name} failed: {type(error).__name__}: {error}")
        metrics = tuple(map(_named, found.metrics))
        return CheckFinding(found.state, _encodable(found.message), metrics, started, time.perf_counter() - began)

    def _answer(self, args: bytes, timeout: float) -> CheckFinding:
        if len(args) > MAX_ARGS_BYTES:
            raise WrongArgs(f"the args have {len(args)} bytes, more than {MAX_ARGS_BYTES}")
        if self._measure is None or self._reader is None:
            module = importlib.import_module(f"scale0.monitoring.checks.{self._name}")
            self._reader = ArgumentReader(module.Args)
            self._measure = module.measure
        # The state of runs is stored by their args, so the keys must be short.
        key = args if len(args) <= MAX_KEY_BYTES else hashlib.blake2b(args).digest()
        run = CheckRun(
            (self._name, key), Deadline(timeout), self._states, self._blocking_calls, self._data_dir, self._log_paths
        )
        return self._measure(self._reader.read(args), run)


def built_in(data_dir: Path | None = None, log_paths: Sequence[str] | None = None) -> Mapping[str, BuiltIn]:
    """All built-in checks, with new state; with `data_dir`, positions in logs survive a restart.

    `log_paths`: globs of the files that may be read as logs; None: all files.
    """
    states, blocking_calls = RunState(), BlockingCalls()

    def made(entry: _Entry) -> BuiltIn:
        run = _Runner(entry.name, states, blocking_calls, data_dir, log_paths)
        return BuiltIn(entry.name, entry.quick, run, entry.about, entry.compares)

    return MappingProxyType({entry.name: made(entry) for entry in TABLE})


def args_of(name: str) -> type[msgspec.Struct]:
    args: type[msgspec.Struct] = importlib.import_module(f"scale0.monitoring.checks.{name}").Args
    return args


def _encodable(text: str) -> str:
    """Text that can be encoded as UTF-8: file names may be invalid Unicode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _named(metric: EventMetric) -> EventMetric:
    """A metric whose name can be encoded: mount points and interfaces are named by others."""
    if metric.name.isascii():
        return metric
    return msgspec.structs.replace(metric, name=_encodable(metric.name))


BUILT_IN: Final = built_in()
"""The built-in checks of a process that stores nothing on disk."""
