"""Generates task events.

A task is submitted and ended at one broker. What ends while that is down is recorded when it is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scale0.history.events.tasks import TaskSubmitted
from scale0.kernel import codes
from scale0.pipeline.time_ranges import SECOND_US
from simulator.history import randomness, vocabulary
from simulator.history.rows import NULL, NULL_CODE, TASK_REF, Array, Lexicon, Rows, join, make

if TYPE_CHECKING:
    from simulator.history.script import Release, Script, SourceUptimes

FAILED_SHARE: Final = 0.01
CANCELLED_SHARE: Final = 0.003
OPEN_SHARE: Final = 0.0005
RETRIED_SHARE: Final = 0.02
TWICE_SHARE: Final = 0.0035
"""Of all tasks: those with a third attempt."""
WAIT_SECONDS: Final = 0.03
BACKOFF_SECONDS: Final = (1.0, 5.0)
LATE_US: Final = (5 * SECOND_US, 60 * SECOND_US)
"""After its broker is back, a node reports what it did meanwhile."""
PRIORITIES: Final = (0, 0, 0, 0, 0, 0, 5, 9)
SERIES_DIGITS: Final = 20
ATTEMPT_STATES: Final = ("failed", "timeout", "lost")
ATTEMPT_CODES: Final = (codes.FAILED, codes.NO_ANSWER, codes.BACKEND_DIED)


class _Tasks(NamedTuple):
    """Tasks of a slice, in the order of submission."""

    method: Array
    broker: Array
    client: Array
    submitted: Array
    number: Array


class TaskMaker:
    """Generates tasks, slice by slice."""

    def __init__(self, script: Script, uptimes: SourceUptimes, lexicon: Lexicon) -> None:
        plan = script.plan
        self._script, self._uptimes, self._lexicon = script, uptimes, lexicon
        shares = np.array([method.share for method in vocabulary.METHODS])
        peaks = np.array([method.peak_hour for method in vocabulary.METHODS])
        self._rhythm = randomness.Rhythm(plan.tasks * shares / shares.sum(), peaks, plan.start_us, plan.end_us)
        self._methods = lexicon.numbers([method.name for method in vocabulary.METHODS])
        self._run = np.array([method.run_seconds for method in vocabulary.METHODS])
        self._spread = np.array([method.spread for method in vocabulary.METHODS])
        self._clients = lexicon.numbers([f"front-{n + 1:04d}" for n in range(plan.frontends)])
        rng = randomness.rng_for(plan.seed, randomness.TASKS)
        series = [f"{value:0{SERIES_DIGITS}x}." for value in _large_numbers(rng, plan.frontends)]
        self._series = lexicon.numbers(series)
        rank = np.arange(plan.frontends)
        self._client_shares = np.cumsum(1.0 / (rank + 3.0))
        self._client_shares /= self._client_shares[-1]
        data = [TaskSubmitted("", "", "", priority, vocabulary.GROUP).cells()[-1] for priority in PRIORITIES]
        self._data = lexicon.numbers(data)
        self._made = 0
        self._cells = _node_cells(script, lexicon)

    def make(self, slice_number: int, from_us: int, to_us: int) -> Rows:
        """All events of the tasks that are submitted in the slice; some happen after it."""
        rng = randomness.rng_for(self._script.plan.seed, randomness.TASKS, slice_number + 1)
        tasks = self._submitted(from_us, to_us, rng)
        submitted = make(
            tasks.submitted,
            source=tasks.broker,
            kind=self._lexicon.number("task.submitted"),
            identity=self._clients[tasks.client],
            service=self._methods[tasks.method],
            **self._refs(tasks),
            data=self._data[rng.integers(0, len(PRIORITIES), tasks.method.size)],
        )
        retry_draw = rng.random(tasks.method.size)
        runnable = tasks.submitted
        parts = [submitted]
        for attempt, share in ((1, RETRIED_SHARE), (2, TWICE_SHARE)):
            which = np.flatnonzero(retry_draw < share)
            rows = self._attempt(_of(tasks, which), runnable[which], attempt, rng)
            parts.append(rows)
            runnable = runnable.copy()
            runnable[which] = rows.time + randomness.microseconds(rng.uniform(*BACKOFF_SECONDS, which.size))
        attempts = 1 + (retry_draw < RETRIED_SHARE) + (retry_draw < TWICE_SHARE)
        parts.append(self._completed(tasks, runnable, attempts, rng))
        return join(parts)

    def _submitted(self, from_us: int, to_us: int, rng: np.random.Generator) -> _Tasks:
        method, submitted = self._rhythm.draw(from_us, to_us, rng)
        client = np.searchsorted(self._client_shares, rng.random(method.size))
        broker = client % self._script.plan.brokers
        # A client whose broker is down submits nothing.
        which = np.flatnonzero(self._uptimes.is_up(broker, submitted))
        which = which[np.argsort(submitted[which], kind="stable")]
        numbers = self._made + 1 + np.arange(which.size)
        self._made += which.size
        return _Tasks(method[which], broker[which], client[which], submitted[which], numbers)

    def _refs(self, tasks: _Tasks) -> dict[str, Array | int]:
        return {"ref_form": TASK_REF, "ref_head": self._series[tasks.client], "ref_number": tasks.number}

    def _run_us(self, tasks: _Tasks, rng: np.random.Generator) -> Array:
        size = tasks.method.size
        seconds = self._run[tasks.method] * np.exp(self._spread[tasks.method] * rng.standard_normal(size))
        for release in self._script.releases:
            if release.run_factor != 1.0:
                seconds[_released(tasks, release)] *= release.run_factor
        return randomness.microseconds(seconds)

    def _ended(self, tasks: _Tasks, moment: Array, rng: np.random.Generator) -> Array:
        wait_us = rng.integers(*LATE_US, moment.size)
        return self._uptimes.delayed(tasks.broker, moment, wait_us)

    def _attempt(self, tasks: _Tasks, runnable: Array, attempt: int, rng: np.random.Generator) -> Rows:
        size = tasks.method.size
        waited_us = randomness.microseconds(rng.exponential(WAIT_SECONDS, size))
        run_us = self._run_us(tasks, rng) // 2
        ended = self._ended(tasks, runnable + waited_us + run_us, rng)
        how = rng.integers(0, len(ATTEMPT_STATES), size)
        return make(
            ended,
            source=tasks.broker,
            kind=self._lexicon.number("task.attempt_ended"),
            identity=self._node(tasks, ended, rng),
            service=self._methods[tasks.method],
            **self._refs(tasks),
            attempt=attempt,
            code=np.array(ATTEMPT_CODES)[how],
            state=self._lexicon.numbers(list(ATTEMPT_STATES))[how],
            seconds=run_us / 1e6,
            waited=waited_us / 1e6,
        )

    def _completed(self, tasks: _Tasks, runnable: Array, attempts: Array, rng: np.random.Generator) -> Rows:
        draw = rng.random(tasks.method.size)
        failed_share = np.full(tasks.method.size, FAILED_SHARE)
        for release in self._script.releases:
            if release.failed_share:
                failed_share[_released(tasks, release)] = release.failed_share
        is_failed = draw < failed_share
        is_cancelled = draw > 1.0 - CANCELLED_SHARE
        never_ran = is_cancelled & (attempts == 1)
        waited_us = randomness.microseconds(rng.exponential(WAIT_SECONDS, draw.size))
        run_us = np.where(never_ran, 0, self._run_us(tasks, rng))
        ended = self._ended(tasks, runnable + waited_us + run_us, rng)
        state = np.where(is_failed, 1, np.where(is_cancelled, 2, 0))
        rows = make(
            ended,
            source=tasks.broker,
            kind=self._lexicon.number("task.completed"),
            identity=np.where(never_ran, NULL, self._node(tasks, ended, rng)),
            service=self._methods[tasks.method],
            **self._refs(tasks),
            attempt=np.where(never_ran, 0, attempts),
            code=np.where(is_failed, codes.FAILED, NULL_CODE),
            state=self._lexicon.numbers(["finished", "failed", "cancelled"])[state],
            seconds=run_us / 1e6,
            waited=waited_us / 1e6,
        )
        ends = np.flatnonzero(rng.random(draw.size) >= OPEN_SHARE)
        return Rows(*(column[ends] for column in rows))

    def _node(self, tasks: _Tasks, ended: Array, rng: np.random.Generator) -> Array:
        """A node of the broker that offers the method and is present."""
        cells = self._cells
        cell = tasks.broker * cells.parts + tasks.method % cells.parts
        index = (rng.random(cell.size) * cells.sizes[cell]).astype(np.int64)
        node: Array = cells.names[cell, index]
        for name, from_us, to_us, instead in cells.away:
            node[(node == name) & (ended >= from_us) & (ended < to_us)] = instead
        return node


class _Cells(NamedTuple):
    """Which nodes of a broker offer a part of the methods."""

    parts: int
    names: Array
    sizes: Array
    away: list[tuple[int, int, int, int]]
    """Name, from, to, and the replacement."""


def _node_cells(script: Script, lexicon: Lexicon) -> _Cells:
    nodes = [backend for backend in script.backends if backend.is_node]
    parts = max(1, len(vocabulary.METHODS) // sum(method.name in nodes[0].services for method in vocabulary.METHODS))
    cells: list[list[int]] = [[] for _ in range(script.plan.brokers * parts)]
    away = []
    for node in nodes:
        part = next(m % parts for m, method in enumerate(vocabulary.METHODS) if method.name in node.services)
        cells[node.broker * parts + part].append(lexicon.number(node.name))
    for node in nodes:
        name = lexicon.number(node.name)
        cell = next(cell for cell in cells if name in cell)
        instead = cell[(cell.index(name) + 1) % len(cell)]
        away += [(name, gap.from_us - 30 * SECOND_US, gap.to_us + SECOND_US, instead) for gap in node.gaps]
    width = max(map(len, cells))
    names = np.array([[*cell, *[NULL] * (width - len(cell))] for cell in cells], np.int32)
    return _Cells(parts, names, np.array(list(map(len, cells))), away)


def _released(tasks: _Tasks, release: Release) -> Array:
    is_in_time = (tasks.submitted >= release.from_us) & (tasks.submitted < release.to_us)
    found: Array = is_in_time & (tasks.method == release.method)
    return found


def _of(tasks: _Tasks, which: Array) -> _Tasks:
    return _Tasks(*(column[which] for column in tasks))


def _large_numbers(rng: np.random.Generator, count: int) -> list[int]:
    """80-bit numbers, as clients draw them."""
    high, low = rng.integers(0, 2**40, (2, count)).tolist()
    return [(first << 40) + second for first, second in zip(high, low, strict=True)]
