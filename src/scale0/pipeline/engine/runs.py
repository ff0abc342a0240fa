"""Runs: `scale0 pipeline run`, `stream` and `backfill`, from segments to a committed manifest, in batches.

A pass holds the warehouse's lock. A batch becomes visible as a whole or not at all. The next pass repeats one that was
killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.kernel.errors import Scale0Error
from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.engine.advance import Advance, BackfillRange, NewInput, Progress, oldest_hour
from scale0.pipeline.engine.backfill_queue import QueuedBackfill, dequeue, enqueue, queued, reject
from scale0.pipeline.engine.liveness import gap_hours
from scale0.pipeline.engine.restatements import restated_changes, write_restatements
from scale0.pipeline.registry import TABLES_VERSION, table_infos
from scale0.pipeline.time_ranges import HOUR_US, day_of, hour_of
from scale0.pipeline.warehouse.compaction import compact
from scale0.pipeline.warehouse.ingestion import IngestedSegments, ingest_segments
from scale0.pipeline.warehouse.records import WarehouseBusy
from scale0.pipeline.warehouse.retention import check_keep_days, retention
from scale0.pipeline.warehouse.transaction import Transaction, horizon
from scale0.pipeline.warehouse.warehouse import Warehouse, no_failpoint

if TYPE_CHECKING:
    import threading

    from scale0.pipeline.warehouse.records import Manifest

BATCH_EVENTS: Final = 25_000_000
"""Events of one batch: the work that is lost if the driver dies before the commit."""
STREAM: Final = "stream"
"""The purpose in the lock file of a stream: a backfill then queues its request."""


class PipelineError(Scale0Error):
    """The request cannot be executed; the message says what to do."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    warehouse: Path
    segments: tuple[str, ...]
    parameters: Parameters = Parameters()
    parameters_given: bool = False
    """True if the user chose them; otherwise the warehouse's own parameters are used."""
    until_us: int | None = None
    rescan: bool = False
    keep_days: int | None = None


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    number: int | None
    """Of the last manifest written; None: nothing was new."""
    horizon_us: int | None
    segments: int = 0
    events: int = 0
    seconds: float = 0.0
    restated: int = 0
    problems: tuple[str, ...] = ()
    """What failed: exit code 1."""
    ignored: tuple[str, ...] = ()
    """Files that are not segments, each reported once: the tables are not affected."""


Start = Callable[[int | None], Any]
"""Starts Spark for this number of events (None: unlimited); called when there is something to compute."""
Clock = Callable[[], int]
"""The driver's wall clock, in microseconds."""
NOTHING_NEW: Final = NewInput({}, frozenset(), frozenset(), ())


class PipelineDriver:
    """One driver of a warehouse, while it holds the lock."""

    def __init__(
        self,
        options: RunOptions,
        start: Start,
        clock: Clock,
        progress: Progress,
        reach: Callable[[str], None] = no_failpoint,
    ) -> None:
        check_keep_days(options.keep_days)
        self._options = options
        self._start = start
        self._clock = clock
        self._progress = progress
        self.warehouse = Warehouse(options.warehouse, reach)

    def run(self) -> RunOutcome:
        """Ingest new segments, and advance the tables to the newest horizon, batch by batch."""
        began = time.monotonic()
        manifest = self.warehouse.latest()
        parameters = self._parameters(manifest)
        old = None if manifest is None else manifest.horizon_us
        with self.warehouse.begin() as staging:
            transaction = Transaction(manifest, self.warehouse, staging)
            self._progress("segments", 0, 1)
            ingested = ingest_segments(transaction, self._options.segments, self._clock(), rescan=self._options.rescan)
            target = horizon(transaction, self._clock(), self._options.until_us)
            new = new_input(transaction, ingested)
            idle = old is not None and target <= old and not new.hours
            if idle or not transaction.days():
                # Changed problems are committed too: `status` reports them.
                if manifest is not None and (ingested.segments or transaction.has_other_problems()):
                    manifest = self._commit(transaction, manifest.horizon_us, parameters)
                return self._outcome(manifest, None, ingested, began, 0)
            stops = batch_horizons(transaction, old, max(target, old or 0))
            restated = self._advance(transaction, parameters, (old, stops[0]), new, None, "late events")
            manifest = self._commit(transaction, stops[0], parameters)
        for stop in stops[1:]:
            with self.warehouse.begin() as staging:
                transaction = Transaction(manifest, self.warehouse, staging)
                self._advance(transaction, parameters, (manifest.horizon_us, stop), NOTHING_NEW, None, "")
                manifest = self._commit(transaction, stop, parameters)
        manifest = self._tidy(manifest, parameters)
        return self._outcome(manifest, manifest.number, ingested, began, restated)

    def backfill(self, wanted: QueuedBackfill) -> RunOutcome:
        """Recompute the requested hours from the stored events; with the warehouse's own parameters if none are
        given.
        """
        began = time.monotonic()
        manifest = self.warehouse.latest()
        if manifest is None:
            raise PipelineError(f"{self.warehouse.root} has no tables yet: run `scale0 pipeline run` first")
        parameters = wanted.parameters or own_parameters(manifest)
        with self.warehouse.begin() as staging:
            transaction = Transaction(manifest, self.warehouse, staging)
            until = manifest.horizon_us
            oldest = oldest_hour(transaction, until)
            first = max(oldest, hour_of(wanted.first_us))
            end = min(hour_of(until) + 1, hour_of(until if wanted.end_us is None else wanted.end_us - 1) + 1)
            whole = first == oldest and end > hour_of(until)
            if not whole and msgspec.to_builtins(parameters) != manifest.parameters:
                raise PipelineError("changed parameters require a backfill of all tables: backfill from the first day")
            if not whole and manifest.code_version != code_version():
                raise PipelineError(
                    "these tables were computed by another version: backfill all of them, from the first day"
                )
            restated = 0
            if first < end:
                backfill_range = BackfillRange(first, end)
                restated = self._advance(
                    transaction, parameters, (until, until), NOTHING_NEW, backfill_range, "backfill"
                )
            manifest = self._commit(transaction, until, parameters)
        if wanted.parameters is not None:
            # A stream continues with the parameters of the last backfill.
            self._options = msgspec.structs.replace(self._options, parameters=parameters)
        self._progress("tables", 1, 1)
        seconds = time.monotonic() - began
        return RunOutcome(number=manifest.number, horizon_us=until, seconds=seconds, restated=restated)

    def _parameters(self, manifest: Manifest | None) -> Parameters:
        """The warehouse's parameters; others are refused, because tables would mix them."""
        if manifest is None:
            return self._options.parameters
        own = own_parameters(manifest)
        if self._options.parameters_given and own != self._options.parameters:
            raise PipelineError(
                "this warehouse was computed with other parameters; to recompute all of it with these, run"
                " `scale0 pipeline backfill --from` its first day"
            )
        if manifest.code_version != code_version():
            raise PipelineError(
                f"this warehouse has version {manifest.code_version} of the tables, this program has {code_version()}:"
                " recompute all of it with `scale0 pipeline backfill --from` its first day"
            )
        return own

    def _advance(
        self,
        transaction: Transaction,
        parameters: Parameters,
        horizons: tuple[int | None, int],
        new: NewInput,
        backfill_range: BackfillRange | None,
        cause: str,
    ) -> int:
        """Advance the transaction's tables to a horizon; returns the number of restated parts."""
        self._progress("Spark", 0, 1)
        spark = self._start(events_ahead(transaction, horizons, new, backfill_range))
        advance = Advance(spark, transaction, parameters, horizons, self._progress)
        advance.go(new, backfill_range)
        others = restated_changes(advance.changes, horizons[0])
        if others:
            transaction.append_restatements([write_restatements(transaction.staging, others, cause)])
        return len(others)

    def _commit(self, transaction: Transaction, horizon_us: int, parameters: Parameters) -> Manifest:
        return transaction.commit(
            horizon_us,
            now_us=self._clock(),
            parameters=msgspec.to_builtins(parameters),
            code_version=code_version(),
            tables=table_infos(),
        )

    def _tidy(self, manifest: Manifest, parameters: Parameters) -> Manifest:
        """Compact closed days, apply retention, and delete files that are no longer listed."""
        with self.warehouse.begin() as staging:
            transaction = Transaction(manifest, self.warehouse, staging)
            done = compact(transaction, manifest.horizon_us)
            if self._options.keep_days is not None:
                done += retention(transaction, self._options.keep_days)
            if done:
                manifest = self._commit(transaction, manifest.horizon_us, parameters)
        self.warehouse.collect(self._clock())
        return manifest

    def _outcome(
        self, manifest: Manifest | None, number: int | None, ingested: IngestedSegments, began: float, restated: int
    ) -> RunOutcome:
        return RunOutcome(
            number=number,
            horizon_us=None if manifest is None else manifest.horizon_us,
            segments=ingested.segments,
            events=ingested.events,
            seconds=time.monotonic() - began,
            restated=restated,
            problems=tuple(f"{one.name}: {one.why}" for one in ingested.problems if one.kind != "foreign"),
            ignored=tuple(f"{one.name}: {one.why}" for one in ingested.problems if one.kind == "foreign"),
        )


def events_ahead(
    transaction: Transaction, horizons: tuple[int | None, int], new: NewInput, backfill_range: BackfillRange | None
) -> int:
    old_us, until_us = horizons
    first = oldest_hour(transaction, until_us) if old_us is None else hour_of(old_us)
    again = range(0) if backfill_range is None else range(backfill_range.first, backfill_range.end)
    return sum(transaction.kinds_in({*range(first, hour_of(until_us) + 1), *new.hours, *again}).values())


def run(
    options: RunOptions, start: Start, clock: Clock, progress: Progress, reach: Callable[[str], None] = no_failpoint
) -> RunOutcome:
    one = PipelineDriver(options, start, clock, progress, reach)
    with one.warehouse.lock("run"):
        return one.run()


def backfill(
    options: RunOptions,
    start: Start,
    clock: Clock,
    progress: Progress,
    first_us: int,
    end_us: int | None,
    reach: Callable[[str], None] = no_failpoint,
) -> RunOutcome | None:
    """Returns None if a stream holds the lock: the request is then queued for it."""
    one = PipelineDriver(options, start, clock, progress, reach)
    wanted = QueuedBackfill(first_us, end_us, options.parameters if options.parameters_given else None)
    try:
        with one.warehouse.lock("backfill"):
            return one.backfill(wanted)
    except WarehouseBusy as error:
        if error.purpose != STREAM:
            raise
        enqueue(one.warehouse.root, wanted)
        return None


def stream(
    options: RunOptions, start: Start, clock: Clock, progress: Progress, stop: threading.Event, every_seconds: float
) -> Iterator[RunOutcome]:
    """Run whenever there may be new segments, until `stop` is set; queued backfills go first."""
    one = PipelineDriver(options, lambda _events: start(None), clock, progress)
    with one.warehouse.lock(STREAM):
        while not stop.is_set():
            began = time.monotonic()
            # Without tables there is nothing to recompute: requests wait.
            for name, wanted in queued(one.warehouse.root) if one.warehouse.latest() is not None else ():
                yield run_queued(one, name, wanted)
            outcome = one.run()
            if outcome.number is not None or outcome.problems or outcome.ignored:
                yield outcome
            stop.wait(max(0.0, every_seconds - (time.monotonic() - began)))


def run_queued(one: PipelineDriver, name: str, wanted: QueuedBackfill | str) -> RunOutcome:
    """Execute a queued backfill. One that fails is reported and renamed: others wait behind it."""
    try:
        if isinstance(wanted, str):
            raise PipelineError(wanted)
        outcome = one.backfill(wanted)
    except PipelineError as error:
        manifest = one.warehouse.latest()
        rejected = reject(one.warehouse.root, name)
        why = f"a queued backfill failed: {error} (its request is kept as {rejected})"
        return RunOutcome(number=None, horizon_us=None if manifest is None else manifest.horizon_us, problems=(why,))
    dequeue(one.warehouse.root, name)
    return outcome


def code_version() -> str:
    """Recorded in manifests: equal versions compute equal tables."""
    return str(TABLES_VERSION)


def own_parameters(manifest: Manifest) -> Parameters:
    return msgspec.convert(manifest.parameters, Parameters)


def new_input(transaction: Transaction, ingested: IngestedSegments) -> NewInput:
    ours = f"{transaction.staging.relative(transaction.staging.folder)}/"
    days = {day_of(hour) for hour in ingested.hours}
    paths = {file.path for day in days for file in transaction.day_manifest(day).events if file.path.startswith(ours)}
    hours = {hour: frozenset(kinds) for hour, kinds in ingested.hours.items()}
    files = tuple(str(transaction.warehouse.path(path)) for path in sorted(paths))
    return NewInput(hours, frozenset(ingested.liveness_hours), gap_hours(transaction, ingested.liveness_hours), files)


def batch_horizons(transaction: Transaction, old_us: int | None, target_us: int) -> list[int]:
    """The horizons at which to commit on the way to the target: whole hours, so that no batch has too many events."""
    first = oldest_hour(transaction, target_us) if old_us is None else hour_of(old_us)
    stops: list[int] = []
    total = 0
    for hour in transaction.hours_with_events(first, hour_of(target_us) + 1):
        count = sum(transaction.kinds_in({hour}).values())
        if total and total + count > BATCH_EVENTS:
            stops.append(hour * HOUR_US)
            total = 0
        total += count
    return [stop for stop in stops if stop > (old_us or 0)] + [target_us]
