"""Histories for tests of presence: sources that record, liveness samples as of segments, and steps over them."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.presence import PresenceAggregation
from scale0.pipeline.schemas import LIVENESS_SAMPLES, PART
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, to_time, to_us
from tests.pipeline import oracle_presence as oracle
from tests.pipeline.events import START_HOUR, START_US, event, frame

Row = dict[str, Any]
SAMPLE_MINUTE_US = 60_000_000


class Source:
    """One that records: its seq goes on over restarts, and can be made to lose or to go back."""

    def __init__(self, name: str, started: bool = True) -> None:
        self.name, self.started = name, started
        self.seq = 0
        self.boot_us = 0
        self.rows: list[Row] = []

    def boot(self, second: float, *, seq: int | None = None) -> Source:
        self.boot_us = START_US + round(second * 1_000_000)
        self.seq = self.seq if seq is None else seq
        return self.say(second, "broker.started" if self.started else "source.alive", identity=self.name)

    def say(self, second: float, kind: str = "source.alive", at: float | None = None, **columns: Any) -> Source:
        self.seq += 1
        happened = second if at is None else at
        columns = {"identity": self.name, **columns}
        row = event(happened, kind, time=second, seq=self.seq, source=self.name, boot=self.boot_us, **columns)
        self.rows.append(row)
        return self

    def client(self, second: float, what: str, identity: str, **more: Any) -> Source:
        """Of a client; `role`, `services` and `slots` are its data."""
        at = more.pop("at", None)
        data = {"role": "backend", "services": [], "slots": 0, **more}
        extra = {"code": 60} if what == "seen" else {"data": data}
        return self.say(second, f"client.{what}", at, identity=identity, **extra)

    def alive(self, first: float, last: float, every: float = 60) -> Source:
        """It says so, again and again."""
        second = first
        while second <= last:
            self.say(second)
            second += every
        return self

    def lose(self, count: int) -> Source:
        del self.rows[-count:]
        return self


def samples_of(rows: list[Row]) -> list[Row]:
    """As adopting segments makes them: by source, boot and minute of time, without a gap of seq."""
    out: list[Row] = []
    boots: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        boots[row["source"], row["boot"]].append(row)
    for (source, boot), mine in boots.items():
        last: Row | None = None
        for row in sorted(mine, key=lambda row: row["seq"]):
            minute = to_us(row["time"]) // SAMPLE_MINUTE_US
            goes_on = last is not None and row["seq"] == last["last_seq"] + 1
            if last is None or not goes_on or to_us(last["first_time"]) // SAMPLE_MINUTE_US != minute:
                last = {"source": source, "boot": boot, "first_seq": row["seq"], "first_time": row["time"], "events": 0}
                last |= {"duplicates": 0, "rejected": 0}
                out.append(last)
            last |= {"last_seq": row["seq"], "last_time": row["time"]}
            last["events"] += 1
    return out


class History:
    """Events and liveness samples as frames, and steps over them."""

    def __init__(
        self, spark: SparkSession, rows: list[Row], horizon: float, more_samples: list[Row] | None = None
    ) -> None:
        self.rows, self.horizon_us = rows, START_US + round(horizon * 1_000_000)
        self.samples = samples_of(rows) + (more_samples or [])
        names = LIVENESS_SAMPLES.fieldNames()
        self._events = frame(spark, rows)
        self._samples = spark.createDataFrame([tuple(p[n] for n in names) for p in self.samples], LIVENESS_SAMPLES)
        self._spark = spark

    @property
    def hours(self) -> int:
        return (self.horizon_us - START_US) // HOUR_US + 1

    def step(self, world: PresenceAggregation, state: DataFrame | None, first: int, end: int) -> dict[str, DataFrame]:
        time_range = TimeRange(START_HOUR + first, START_HOUR + end, self.horizon_us)
        begin, over = to_time(time_range.from_us), to_time(time_range.end * HOUR_US)
        horizon = to_time(self.horizon_us)
        at, time = self._events["at"], self._samples["first_time"]
        events = self._events.where((at >= begin) & (at < over) & (at <= horizon))
        events = events.where(events["kind"].isin(*world.kinds)).select(*world.columns)
        samples = self._samples.where((time >= begin) & (time <= horizon))
        return dict(world.step(state, {"events": events, "pulses": samples}, time_range, Parameters()))

    def run(self, world: PresenceAggregation, cuts: list[int]) -> dict[str, Counter[tuple[Any, ...]]]:
        """Every data set as a bag of rows, stepping over [0, cut), [cut, cut), …: the last cut is the end."""
        out: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
        state, first = None, 0
        schema = world.state.schema if world.state else None
        for cut in cuts:
            made = self.step(world, state, first, cut)
            for name, rows in made.items():
                if name == "sessions.open":
                    out[name] = Counter()
                out[name].update(plain(row) for row in rows.collect())
            last = [row[1:] for row in out["carry.world"].elements() if row[0] == START_HOUR + cut]
            state = self._spark.createDataFrame([(*row,) for row in last], schema)
            assert made["carry.world"].columns == [PART, *(schema.fieldNames() if schema else [])]
            first = cut
            self._spark.catalog.clearCache()
        return out


def plain(row: Any) -> tuple[Any, ...]:
    """A row that can be counted; times in microseconds."""

    def cell_of(cell: Any) -> Any:
        if isinstance(cell, datetime.datetime):
            return to_us(cell.astimezone(datetime.UTC))
        return tuple(cell) if isinstance(cell, list) else cell

    return tuple(cell_of(cell) for cell in row)


def expected(history: History) -> dict[str, Counter[tuple[Any, ...]]]:
    world = oracle.Presence(history.rows, history.samples, history.horizon_us)
    out: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
    for row in world.timeline():
        out["timeline.world"][row[2] // HOUR_US, *row, None, None] += 1
    for row in world.session_rows():
        if row[4] == "open":
            out["sessions.open"][0, *row] += 1
        else:
            out["sessions"][row[3] // HOUR_US, *row] += 1
    for node, hour, slots, seconds in world.node_slots():
        out["node_slots"][hour, node, slots, seconds] += 1
    for (source, hour), counts in world.hours.items():
        out["source_hours"][hour, source, *counts.values()] += 1
    return out


def differences(got: dict[str, Counter[tuple[Any, ...]]], want: dict[str, Counter[tuple[Any, ...]]]) -> list[str]:
    lines = []
    for name in sorted(set(got) | set(want)):
        lines += [f"{name} too much: {_shown(row)}" for row in got[name] - want[name]]
        lines += [f"{name} missing: {_shown(row)}" for row in want[name] - got[name]]
    return sorted(lines, key=lambda line: line.split(": ", 1)[1])


def _shown(row: tuple[Any, ...]) -> str:
    cells = [f"{(x - START_US) / 1e6:.6f}s" if isinstance(x, int) and x > START_US else str(x) for x in row]
    return " ".join(cells)
