"""The engine: however the events come in, and whatever is killed, the tables are the same.

Promise: PIPE-1, PIPE-4
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.engine import advance
from scale0.pipeline.engine.backfill_queue import QueuedBackfill, enqueue
from scale0.pipeline.engine.runs import PipelineError, RunOutcome
from scale0.pipeline.time_ranges import HOUR_US
from scale0.pipeline.warehouse.records import WarehouseBusy
from scale0.pipeline.warehouse.warehouse import FAILPOINTS, Warehouse
from tests.pipeline.engine_runs import Bench, NaiveSegments, compiled, differences, only_tables, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.extended]

SECONDS = 3 * 3600
ROLL_SECONDS = 900


class Killed(BaseException):
    """A driver died here."""


class History(NaiveSegments):
    """Three hours with an outage, a killed broker, a hole, flapping; and its tables.

    They are computed as those of many events are; all other runs are of few events, and what they make must be equal.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder, SECONDS, ROLL_SECONDS)
        self.whole = self.bench("whole")
        self.whole.deliver(*self.files)
        with compiled(spark):
            self.outcome = self.whole.run()
        self.tables = self.whole.tables()

    def copy(self, name: str) -> Bench:
        """A place where everything was computed before."""
        shutil.copytree(self.whole.folder, self.folder / name)
        return self.bench(name)


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(spark, tmp_path_factory.mktemp("engine"))


@pytest.fixture
def few_tables() -> Iterator[None]:
    """Where it does not matter what is computed."""
    with only_tables({"task_stats", "task_days"}):
        yield


def test_a_run_takes_every_event_and_says_so(history: History):
    assert history.outcome.problems == ()
    assert history.outcome.horizon_us == history.last_us
    assert history.outcome.events == len(rows_of(history.whole.warehouse, "events")) == history.whole.ahead
    assert all(history.tables[name] for name in ("timeline", "availability", "tasks", "task_stats", "check_states"))


def test_a_run_without_news_changes_nothing_and_starts_no_spark(history: History):
    starts = history.whole.starts
    outcome = history.whole.run()
    assert (outcome.number, outcome.events) == (None, 0)
    assert history.whole.starts == starts


def test_many_runs_make_the_tables_of_one(history: History, monkeypatch: pytest.MonkeyPatch):
    """Segments come bit by bit, the horizon stops in the middle of an hour and on one, and some come late.

    Late hours have steps of their own, for the keys that they touch alone, as where many events lie between.
    """
    monkeypatch.setattr(advance, "NEAR_EVENTS", -1)
    bench = history.bench("pieces")
    late = [path for number, path in enumerate(history.files) if number % 5 == 2]
    timely = [path for path in history.files if path not in late]
    bench.deliver(*timely[: len(timely) // 3])
    bench.run()
    bench.deliver(*timely[len(timely) // 3 :])
    bench.run(until_us=history.first_us // HOUR_US * HOUR_US + 2 * HOUR_US)
    bench.deliver(*late)
    outcome = bench.run()
    assert outcome.restated > 0
    assert len(rows_of(bench.warehouse, "restatements")) >= outcome.restated
    assert differences(bench.tables(), history.tables) == []


def test_a_stream_makes_the_tables_of_one_run(history: History):
    """Segments come while it runs, some of them late; it is killed between two tables; a backfill is asked for.

    Late hours are so near that one step goes through them and the newest.
    """
    bench = history.bench("stream")
    late = [path for number, path in enumerate(history.files) if number % 4 == 1]
    timely = [path for path in history.files if path not in late]
    half = len(timely) // 2
    stop, killing = threading.Event(), True

    def progress(what: str, _done: int, _whole: int) -> None:
        if killing and len(outcomes) == 1 and what == "tasks":
            raise Killed

    outcomes: list[RunOutcome] = []
    bench.deliver(*timely[:half])
    killed = bench.stream(progress, stop)
    outcomes.append(next(killed))
    bench.deliver(*timely[half:])
    with pytest.raises(Killed):
        next(killed)
    killing = False
    for outcome in bench.stream(progress, stop):
        outcomes.append(outcome)
        if len(outcomes) == 2:
            bench.deliver(*late)
        elif len(outcomes) == 3:
            enqueue(bench.warehouse, QueuedBackfill(history.first_us, None, Parameters()))
        else:
            stop.set()
    assert [(outcome.number, outcome.problems) for outcome in outcomes] == [(number, ()) for number in (1, 2, 3, 4)]
    assert sum(outcome.events for outcome in outcomes) == history.outcome.events
    assert outcomes[2].restated > 0, "those that came late"
    assert outcomes[3].restated == 0, "a backfill makes the same again"
    assert bench.ahead is None, "a stream goes on"
    assert differences(bench.tables(), history.tables) == []


def test_a_backfill_computes_the_same_again(history: History):
    bench = history.copy("again")
    outcome = bench.backfill(history.first_us)
    assert outcome is not None
    assert outcome.restated == 0
    assert bench.ahead == history.outcome.events
    assert differences(bench.tables(), history.tables) == []


@pytest.mark.usefixtures("few_tables")
def test_other_parameters_need_a_backfill_of_everything(history: History):
    bench = history.copy("parameters")
    other: dict[str, Any] = {"parameters": Parameters(flapping="nagios"), "parameters_given": True}
    with pytest.raises(PipelineError, match="other parameters"):
        bench.run(**other)
    with pytest.raises(PipelineError, match="backfill from the first day"):
        bench.backfill(history.last_us, **other)
    bench.backfill(history.first_us, **other)
    assert Warehouse(bench.warehouse).latest().parameters["flapping"] == "nagios"  # type: ignore[union-attr]


@pytest.mark.usefixtures("few_tables")
def test_a_driver_killed_at_any_step_loses_and_doubles_nothing(history: History):
    """Of few tables, because it takes a run for each step."""
    bench = history.bench("killed")
    half = len(history.files) // 2
    held = [history.files[-1], history.files[-2]]
    bench.deliver(*history.files[:half])
    for point in (name for name in FAILPOINTS if not name.startswith("collection")):

        def reach(name: str, point: str = point) -> None:
            if name == point:
                raise Killed

        with pytest.raises(Killed):
            bench.run(reach=reach)
        if point == "manifest.written":
            bench.deliver(*history.files[half:-2])
        if point in ("manifest.created", "manifest.synced"):
            # Now it is visible: the next step needs something that is new.
            bench.deliver(held.pop())
    bench.run()
    assert rows_of(bench.warehouse, "task_stats") == history.tables["task_stats"]


def test_a_second_driver_is_refused(history: History):
    other: Any = Warehouse(history.whole.warehouse)
    with other.lock("run"), pytest.raises(WarehouseBusy, match="in use by process"):
        history.whole.run()
