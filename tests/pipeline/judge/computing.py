"""A history through the pipeline and past the judge: the parts that all tests of it share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.engine.runs import RunOptions, RunOutcome, run
from tests.pipeline.judge import compare
from tests.pipeline.judge.journals import Row, us, write
from tests.pipeline.judge.reckoning import Verdict, judge
from tests.pipeline.judge.results import Formula
from tests.pipeline.judge.seconds import HistoryView, seen

SHOWN = 40
"""Differences that a failure lists."""
FORMULAS = (Formula(), Formula("nagios"), Formula("sensu", 30.0, 20.0), Formula("icinga", 20.0, 10.0))
NOW = us(10 * 86400)


def parameters(formula: Formula, **words: Any) -> Parameters:
    name: Any = formula.name
    return Parameters(flapping=name, flapping_start=formula.start, flapping_end=formula.end, **words)


def compute(
    spark: SparkSession,
    place: Path,
    segments: list[list[Row]],
    *,
    until: int | None = None,
    chosen: Parameters | None = None,
    now_us: int = NOW,
) -> RunOutcome:
    write(segments, place / "segments")
    job = RunOptions(
        warehouse=place / "warehouse",
        segments=(f"file://{place / 'segments'}",),
        parameters=chosen or Parameters(),
        until_us=None if until is None else us(until),
    )
    outcome = run(job, lambda _events: spark, lambda: now_us, lambda *_: None)
    assert outcome.problems == ()
    return outcome


def judged(events: list[Row], until: int, formula: Formula = FORMULAS[0], **words: Any) -> Verdict:
    return judge(HistoryView(seen(events, until), until, **words), formula)


def agree(warehouse: Path, verdict: Verdict) -> None:
    found = compare.differences(warehouse, verdict)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:SHOWN])
