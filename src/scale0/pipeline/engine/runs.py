"""Runs: what `scale0 pipeline run`, `stream` and `backfill` do.

Lives here: from segments to a committed manifest, in strides. Never here: how a table is computed, or what a person is
shown. Invariants: all of a pass happens under the warehouse's lock; what a stride computed is visible whole or not at
all; a pass that was killed anywhere is simply done again by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.kernel.errors import Scale0Error
from scale0.pipeline.engine.advance import Advance, BackfillRange, NewInput, Told, oldest_hour
from scale0.pipeline.engine.backfill_queue import QueuedBackfill, dequeue, enqueue, put_away, waiting
from scale0.pipeline.engine.late_silences import silent_hours
from scale0.pipeline.engine.restatements import ledger_entry, restated_changes
from scale0.pipeline.parameters import Parameters
from scale0.pipeline.registry import TABLES_VERSION, table_infos
from scale0.pipeline.time_ranges import HOUR_US, day_of, hour_of
from scale0.pipeline.warehouse.compaction import compact
from scale0.pipeline.warehouse.errors import WarehouseBusy
from scale0.pipeline.warehouse.horizon import horizon
from scale0.pipeline.warehouse.ingestion import IngestedSegments, take_in
from scale0.pipeline.warehouse.retention import enough, retention
from scale0.pipeline.warehouse.transaction import Transaction
from scale0.pipeline.warehouse.warehouse import Warehouse, pass_by

if TYPE_CHECKING:
    import threading

    from scale0.pipeline.warehouse.records import Manifest

STRIDE_EVENTS: Final = 25_000_000
"""Events of one stride: what is done before it is committed, and lost if the driver dies."""
STREAM: Final = "stream"
"""What the lock says while a stream holds it: backfills are left to it."""


class PipelineError(Scale0Error):
    """It cannot be done as asked; the message says what to do."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of a run, whoever computes it."""

    warehouse: Path
    segments: tuple[str, ...]
    parameters: Parameters = Parameters()
    parameters_said: bool = False
    """Whether somebody chose them: otherwise a warehouse's own are kept."""
    until_us: int | None = None
    rescan: bool = False
    keep_days: int | None = None


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    number: int | None
    """Of the manifest that it made last; None: nothing was new."""
    horizon_us: int | None
    segments: int = 0
    events: int = 0
    seconds: float = 0.0
    restated: int = 0
    problems: tuple[str, ...] = ()
    """What could not be taken, or done: exit code 1."""
    ignored: tuple[str, ...] = ()
    """Files that are no segments, each said once: nothing is wrong with the tables."""


Start = Callable[[int | None], Any]
"""Starts Spark, for so many events (None: for all that ever come); called once there is something to compute."""
Clock = Callable[[], int]
"""The driver's wall clock, in microseconds."""
NOTHING_NEW: Final = NewInput({}, frozenset(), frozenset(), ())


class Pass:
    """One driver at one warehouse, for as long as it holds the lock."""

    def __init__(
        self, job: RunOptions, start: Start, clock: Clock, told: Told, reach: Callable[[str], None] = pass_by
    ) -> None:
        enough(job.keep_days)
        self._job = job
        self._start = start
        self._clock = clock
        self._told = told
        self.warehouse = Warehouse(job.warehouse, reach)

    def run(self) -> RunOutcome:
        """Take in what is new, and bring the tables up to the newest horizon, stride by stride."""
        began = time.monotonic()
        manifest = self.warehouse.latest()
        parameters = self._parameters(manifest)
        old = None if manifest is None else manifest.horizon_us
        with self.warehouse.begin() as attempt:
            draft = Transaction(manifest, self.warehouse, attempt)
            self._told("segments", 0, 1)
            taken = take_in(draft, self._job.segments, self._clock(), rescan=self._job.rescan)
            target = horizon(draft, self._clock(), self._job.until_us)
            fresh = fresh_of(draft, taken)
            idle = old is not None and target <= old and not fresh.hours
            if idle or not draft.days():
                # Also what is wrong is news: `status` tells of it, too.
                if manifest is not None and (taken.segments or draft.has_other_problems()):
                    manifest = self._commit(draft, manifest.horizon_us, parameters)
                return self._outcome(manifest, None, taken, began, 0)
            stops = strides(draft, old, max(target, old or 0))
            restated = self._advance(draft, parameters, (old, stops[0]), fresh, None, "late events")
            manifest = self._commit(draft, stops[0], parameters)
        for stop in stops[1:]:
            with self.warehouse.begin() as attempt:
                draft = Transaction(manifest, self.warehouse, attempt)
                self._advance(draft, parameters, (manifest.horizon_us, stop), NOTHING_NEW, None, "")
                manifest = self._commit(draft, stop, parameters)
        manifest = self._tidy(manifest, parameters)
        return self._outcome(manifest, manifest.number, taken, began, restated)

    def backfill(self, wanted: QueuedBackfill) -> RunOutcome:
        """Compute the hours that are wanted again, from the events that are held; without parameters with its own."""
        began = time.monotonic()
        manifest = self.warehouse.latest()
        if manifest is None:
            raise PipelineError(f"{self.warehouse.root} has no tables yet: use `scale0 pipeline run` first")
        parameters = wanted.parameters or own_parameters(manifest)
        with self.warehouse.begin() as attempt:
            draft = Transaction(manifest, self.warehouse, attempt)
            until = manifest.horizon_us
            oldest = oldest_hour(draft, until)
            first = max(oldest, hour_of(wanted.first_us))
            end = min(hour_of(until) + 1, hour_of(until if wanted.end_us is None else wanted.end_us - 1) + 1)
            whole = first == oldest and end > hour_of(until)
            if not whole and msgspec.to_builtins(parameters) != manifest.parameters:
                raise PipelineError(
                    "other parameters need all tables to be computed again: backfill from the first day"
                )
            if not whole and manifest.code_version != code_version():
                raise PipelineError("another version made these tables: backfill from the first day, all of it")
            restated = 0
            if first < end:
                span = BackfillRange(first, end)
                restated = self._advance(draft, parameters, (until, until), NOTHING_NEW, span, "backfill")
            manifest = self._commit(draft, until, parameters)
        if wanted.parameters is not None:
            # A stream goes on with what its warehouse was made of last.
            self._job = msgspec.structs.replace(self._job, parameters=parameters)
        self._told("tables", 1, 1)
        seconds = time.monotonic() - began
        return RunOutcome(number=manifest.number, horizon_us=until, seconds=seconds, restated=restated)

    def _parameters(self, manifest: Manifest | None) -> Parameters:
        """Those of the warehouse; others are refused, because the tables would be of two sorts."""
        if manifest is None:
            return self._job.parameters
        own = own_parameters(manifest)
        if self._job.parameters_said and own != self._job.parameters:
            raise PipelineError(
                "this warehouse was made with other parameters; to have all of it made anew with these, use"
                " `scale0 pipeline backfill --from` its first day"
            )
        if manifest.code_version != code_version():
            raise PipelineError(
                f"this warehouse was made by version {manifest.code_version} of the tables, this is {code_version()}:"
                " have all of it made anew by `scale0 pipeline backfill --from` its first day"
            )
        return own

    def _advance(
        self,
        draft: Transaction,
        parameters: Parameters,
        horizons: tuple[int | None, int],
        fresh: NewInput,
        span: BackfillRange | None,
        cause: str,
    ) -> int:
        """Bring the draft's tables up to a horizon; how many parts that were said are others now."""
        self._told("Spark", 0, 1)
        spark = self._start(events_ahead(draft, horizons, fresh, span))
        advance = Advance(spark, draft, draft.attempt, parameters, horizons, self._told)
        advance.go(fresh, span)
        others = restated_changes(advance.changes, horizons[0])
        if others:
            draft.append_ledger([ledger_entry(draft.attempt, others, cause)])
        return len(others)

    def _commit(self, draft: Transaction, horizon_us: int, parameters: Parameters) -> Manifest:
        return draft.commit(
            horizon_us,
            now_us=self._clock(),
            parameters=msgspec.to_builtins(parameters),
            code_version=code_version(),
            tables=table_infos(),
        )

    def _tidy(self, manifest: Manifest, parameters: Parameters) -> Manifest:
        """Closed days become few files, days beyond retention go, and what nobody lists any more is removed."""
        with self.warehouse.begin() as attempt:
            draft = Transaction(manifest, self.warehouse, attempt)
            done = compact(draft, manifest.horizon_us)
            if self._job.keep_days is not None:
                done += retention(draft, self._job.keep_days)
            if done:
                manifest = self._commit(draft, manifest.horizon_us, parameters)
        self.warehouse.collect(self._clock())
        return manifest

    def _outcome(
        self, manifest: Manifest | None, number: int | None, taken: IngestedSegments, began: float, restated: int
    ) -> RunOutcome:
        return RunOutcome(
            number=number,
            horizon_us=None if manifest is None else manifest.horizon_us,
            segments=taken.segments,
            events=taken.events,
            seconds=time.monotonic() - began,
            restated=restated,
            problems=tuple(f"{one.name}: {one.why}" for one in taken.problems if one.kind != "foreign"),
            ignored=tuple(f"{one.name}: {one.why}" for one in taken.problems if one.kind == "foreign"),
        )


def events_ahead(
    draft: Transaction, horizons: tuple[int | None, int], fresh: NewInput, span: BackfillRange | None
) -> int:
    """How many events the hours have that will be stepped through."""
    old, new = horizons
    first = oldest_hour(draft, new) if old is None else hour_of(old)
    again = range(0) if span is None else range(span.first, span.end)
    return sum(draft.kinds_in({*range(first, hour_of(new) + 1), *fresh.hours, *again}).values())


def run(job: RunOptions, start: Start, clock: Clock, told: Told, reach: Callable[[str], None] = pass_by) -> RunOutcome:
    """`pipeline run`."""
    one = Pass(job, start, clock, told, reach)
    with one.warehouse.lock("run"):
        return one.run()


def backfill(
    job: RunOptions,
    start: Start,
    clock: Clock,
    told: Told,
    first_us: int,
    end_us: int | None,
    reach: Callable[[str], None] = pass_by,
) -> RunOutcome | None:
    """`pipeline backfill`; None: a stream holds the warehouse, and will do it."""
    one = Pass(job, start, clock, told, reach)
    wanted = QueuedBackfill(first_us, end_us, job.parameters if job.parameters_said else None)
    try:
        with one.warehouse.lock("backfill"):
            return one.backfill(wanted)
    except WarehouseBusy as error:
        if error.purpose != STREAM:
            raise
        enqueue(one.warehouse.root, wanted)
        return None


def stream(
    job: RunOptions, start: Start, clock: Clock, told: Told, stop: threading.Event, every_seconds: float
) -> Iterator[RunOutcome]:
    """`pipeline stream`: a run whenever there may be something new, until `stop` is set; backfills go first."""
    one = Pass(job, lambda _events: start(None), clock, told)
    with one.warehouse.lock(STREAM):
        while not stop.is_set():
            began = time.monotonic()
            # Where there are no tables yet, requests wait: there is nothing to compute again.
            for name, wanted in waiting(one.warehouse.root) if one.warehouse.latest() is not None else ():
                yield asked(one, name, wanted)
            outcome = one.run()
            if outcome.number is not None or outcome.problems or outcome.ignored:
                yield outcome
            stop.wait(max(0.0, every_seconds - (time.monotonic() - began)))


def asked(one: Pass, name: str, wanted: QueuedBackfill | str) -> RunOutcome:
    """Do what waits in the queue; what cannot be done is told, and put away: others wait behind it."""
    try:
        if isinstance(wanted, str):
            raise PipelineError(wanted)
        outcome = one.backfill(wanted)
    except PipelineError as error:
        manifest = one.warehouse.latest()
        aside = put_away(one.warehouse.root, name)
        why = f"a backfill that was asked for is not done: {error} (it is kept as {aside})"
        return RunOutcome(number=None, horizon_us=None if manifest is None else manifest.horizon_us, problems=(why,))
    dequeue(one.warehouse.root, name)
    return outcome


def code_version() -> str:
    """What a manifest records: equal ones make equal tables."""
    return str(TABLES_VERSION)


def own_parameters(manifest: Manifest) -> Parameters:
    """Those that a warehouse was made with."""
    return msgspec.convert(manifest.parameters, Parameters)


def fresh_of(draft: Transaction, taken: IngestedSegments) -> NewInput:
    """What came in, as the engine asks for it."""
    ours = f"{draft.attempt.relative(draft.attempt.folder)}/"
    days = {day_of(hour) for hour in taken.hours}
    paths = {file.path for day in days for file in draft.chapter(day).events if file.path.startswith(ours)}
    hours = {hour: frozenset(kinds) for hour, kinds in taken.hours.items()}
    files = tuple(str(draft.warehouse.path(path)) for path in sorted(paths))
    return NewInput(hours, frozenset(taken.pulse_hours), silent_hours(draft, taken.pulse_hours), files)


def strides(draft: Transaction, old_us: int | None, target_us: int) -> list[int]:
    """The horizons to stop at on the way to the target: whole hours, so that no stride has too many events."""
    first = oldest_hour(draft, target_us) if old_us is None else hour_of(old_us)
    stops: list[int] = []
    total = 0
    for hour in draft.hours_with_events(first, hour_of(target_us) + 1):
        count = sum(draft.kinds_in({hour}).values())
        if total and total + count > STRIDE_EVENTS:
            stops.append(hour * HOUR_US)
            total = 0
        total += count
    return [stop for stop in stops if stop > (old_us or 0)] + [target_us]
