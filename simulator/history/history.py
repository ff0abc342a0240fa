"""Generates a history, slice by slice, as segments of brokers and Helens.

Seqs of a source have no gaps except the planted ones. Time ascends within a boot. A segment holds one boot of one
source. Equal arguments generate equal histories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scale0.history.segments import arrow, names
from scale0.pipeline.time_ranges import SECOND_US, to_us
from simulator.history import truths as facts
from simulator.history.checks import CheckMaker
from simulator.history.clients import ClientMaker
from simulator.history.columns import Columns
from simulator.history.plan import DEFAULT_START_US, make_plan
from simulator.history.requests import RequestMaker
from simulator.history.rows import Buckets, Lexicon, Rows, empty, join, take
from simulator.history.script import Script, SourceUptimes
from simulator.history.script_builder import plant
from simulator.history.single_events import all_single_events, rows_of
from simulator.history.source import SourceNumbering, exact_truths, pieces
from simulator.history.tasks import TaskMaker
from simulator.history.truths import Counts, Truths

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path


class NotEmpty(ValueError):
    """The directory is not empty."""


def generate(
    *,
    events: int,
    days: int,
    seed: int,
    out: Path,
    start: datetime | None = None,
    progress: Callable[[int, int], None] | None = None,
    counts: Counts | None = None,
) -> Truths:
    """Write about `events` events over `days` days to `out`, and what was planted to `truths.json`.

    `start` is a midnight in UTC (default: a fixed Monday). `progress` is called with the number of events written and
    the total. NotEmpty if the directory is not empty; TooSmall if the days need more events; ValueError for invalid
    arguments.
    """
    start_us = DEFAULT_START_US if start is None else to_us(start)
    script = plant(make_plan(events, days, seed, start_us, counts or Counts()))
    if out.exists() and any(out.iterdir()):
        raise NotEmpty(f"{out} is not empty")
    out.mkdir(parents=True, exist_ok=True)
    history = _History(script, out, progress or (lambda done, total: None))
    history.write()
    found = history.truths()
    facts.write(found, out)
    return found


class _History:
    def __init__(self, script: Script, out: Path, progress: Callable[[int, int], None]) -> None:
        self._script, self._out, self._progress = script, out, progress
        self._lexicon = lexicon = Lexicon()
        self._uptimes = uptimes = SourceUptimes(script.boots)
        self._tasks = TaskMaker(script, uptimes, lexicon)
        self._requests = RequestMaker(script, uptimes, lexicon)
        self._clients = ClientMaker(script, uptimes, lexicon)
        self._checks = CheckMaker(script, uptimes, lexicon)
        single_events = rows_of(all_single_events(script), lexicon)
        self._single_events = take(single_events, uptimes.is_up(single_events.source, single_events.time))
        self._later = empty()
        self._numberings = [SourceNumbering(number, script) for number in range(len(script.plan.sources))]
        self._written = 0
        self._segments = 0
        self._kinds = np.zeros(0, np.int64)

    def write(self) -> None:
        plan = self._script.plan
        for number, from_us in enumerate(range(plan.start_us, plan.end_us, plan.slice_us)):
            to_us = from_us + plan.slice_us
            rows, buckets = self._made(number, from_us, to_us)
            columns = Columns(plan.sources, self._lexicon.texts, plan.checks)
            for numbering in self._numberings:
                which = np.flatnonzero(rows.source == numbering.source)
                order = which[np.argsort(rows.time[which], kind="stable")]
                self._write_source(numbering, take(rows, order), buckets, columns)

    def _made(self, number: int, from_us: int, to_us: int) -> tuple[Rows, Buckets]:
        """The events recorded in the slice; later ones are kept. Single events come first: a boot begins with its
        start.
        """
        single_events = self._single_events
        recorded = take(single_events, (single_events.time >= from_us) & (single_events.time < to_us))
        requests, buckets = self._requests.make(number, from_us, to_us)
        many = [maker.make(number, from_us, to_us) for maker in (self._clients, self._tasks, self._checks)]
        rows = join([recorded, self._later, requests, *many])
        is_later = rows.time >= to_us
        self._later = take(rows, is_later & (rows.time < self._script.plan.end_us))
        return self._stepped(take(rows, ~is_later)), buckets

    def _stepped(self, rows: Rows) -> Rows:
        """While a clock was set back, the time stays constant until it is correct again."""
        time = rows.time
        for step in self._script.steps:
            waits = (rows.source == step.source) & (time >= step.from_us) & (time < step.to_us)
            time = np.where(waits, step.from_us, time)
        return rows._replace(time=time, at=np.minimum(rows.at, time))

    def _write_source(self, numbering: SourceNumbering, rows: Rows, buckets: Buckets, columns: Columns) -> None:
        boots = self._uptimes.boot_of(numbering.source, rows.time)
        for first, end in pieces(boots, numbering.boots, rows.time):
            part = take(rows, np.arange(first, end))
            number = int(boots[first])
            boot = numbering.boots[number].start_us
            first_seq = numbering.number(number, part.time)
            if numbering.is_lost(number, part.time):
                continue
            segment = names.Segment(numbering.name, boot, first_seq, first_seq + end - first - 1)
            folder = self._out / names.folder_of(names.day_at(int(part.time[-1]) / SECOND_US))
            folder.mkdir(exist_ok=True)
            arrow.write(columns.table(part, buckets, boot, first_seq), folder / names.name_of(segment))
            self._count(part)

    def _count(self, part: Rows) -> None:
        counts = np.bincount(part.kind, minlength=max(self._kinds.size, len(self._lexicon.texts)))
        counts[: self._kinds.size] += self._kinds
        self._kinds = counts
        self._segments += 1
        self._written += part.time.size
        self._progress(self._written, max(self._written, self._script.plan.events))

    def truths(self) -> Truths:
        plan = self._script.plan
        sources = [numbering.facts() for numbering in self._numberings]
        kinds = {self._lexicon.texts[n]: int(count) for n, count in enumerate(self._kinds.tolist()) if count}
        return Truths(
            form=facts.FORM,
            events=self._written,
            asked=plan.events,
            days=plan.days,
            seed=plan.seed,
            from_us=plan.start_us,
            to_us=plan.end_us,
            segments=self._segments,
            kinds=dict(sorted(kinds.items())),
            sources=sources,
            agents=plan.agents,
            checks=plan.agents * len(plan.checks),
            truths=exact_truths(self._script, sources),
        )
