"""Generates source.alive, client.seen and frontend sessions. A client that is seen has a session at that broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scale0.history.events.clients import ClientJoined
from scale0.pipeline.time_ranges import HOUR_US, MINUTE_US, SECOND_US
from simulator.history import randomness
from simulator.history.plan import FRONTEND_MINUTES
from simulator.history.rows import Array, Lexicon, Rows, join, make
from simulator.history.single_events import data_text, sessions_of

if TYPE_CHECKING:
    from simulator.history.script import Boot, Script, SourceUptimes

HEARTBEATS: Final = 12
"""Per minute."""
BEAT_SECONDS: Final = 5.0
LOST_SHARE: Final = 0.05
"""Of the frontends' sessions: the others leave cleanly."""
PATIENCE_US: Final = 15 * SECOND_US
SHORTEST_US: Final = 2 * MINUTE_US
LONGEST_US: Final = 4 * HOUR_US
PEAK_HOUR: Final = 12.0


class ClientMaker:
    """Generates events of sources and clients, slice by slice."""

    def __init__(self, script: Script, uptimes: SourceUptimes, lexicon: Lexicon) -> None:
        plan = script.plan
        self._script, self._uptimes, self._lexicon = script, uptimes, lexicon
        self._sources = lexicon.numbers(list(plan.sources))
        self._rhythm = randomness.Rhythm(
            np.array([plan.frontend_sessions]), np.array([PEAK_HOUR]), plan.start_us, plan.end_us
        )
        self._fronts = lexicon.numbers([f"front-{n + 1:04d}" for n in range(plan.frontends)])
        self._front_data = lexicon.number(data_text(ClientJoined("", "frontend").row()))
        self._sessions = [sessions_of(script, n) for n in range(len(script.backends))]

    def make(self, slice_number: int, from_us: int, to_us: int) -> Rows:
        """All events of the slice; sessions that begin in it may end later."""
        rng = randomness.rng_for(self._script.plan.seed, randomness.CLIENTS, slice_number + 1)
        parts = [
            self._alive(source, boot, from_us, to_us)
            for source, boots in enumerate(self._script.boots)
            for boot in boots
        ]
        return join([*parts, self._seen(from_us, to_us, rng), self._frontends(from_us, to_us, rng)])

    def _alive(self, source: int, boot: Boot, from_us: int, to_us: int) -> Rows:
        """Every minute of a boot; a Helen starts with one."""
        is_helen = source >= self._script.plan.brokers
        time = _ticks(boot.start_us + (0 if is_helen else MINUTE_US), min(boot.end_us, to_us), from_us)
        return make(time, source=source, kind=self._lexicon.number("source.alive"), identity=self._sources[source])

    def _seen(self, from_us: int, to_us: int, rng: np.random.Generator) -> Rows:
        every = self._script.plan.seen_minutes
        times, names, sources = [], [], []
        for n, backend in enumerate(self._script.backends):
            for begins_us, ends_us in self._sessions[n]:
                if begins_us < to_us and ends_us > from_us:
                    time = _ticks(begins_us + (1 + n % every) * MINUTE_US, min(ends_us, to_us), from_us, every)
                    times.append(time)
                    names.append(np.full(time.size, self._lexicon.number(backend.name), np.int32))
                    sources.append(np.full(time.size, backend.broker, np.int8))
        if not times:
            return join([])
        return self._received(np.concatenate(times), np.concatenate(names), np.concatenate(sources), every, rng)

    def _received(self, time: Array, name: Array, source: Array, every: int, rng: np.random.Generator) -> Rows:
        """Heartbeats of a minute: with longer intervals there are fewer."""
        missed = rng.random(time.size) < 0.01
        gap = BEAT_SECONDS + rng.exponential(0.05, time.size) + np.where(missed, BEAT_SECONDS, 0.0)
        return make(
            time,
            source=source,
            kind=self._lexicon.number("client.seen"),
            identity=name,
            code=np.maximum(1, HEARTBEATS // every - missed),
            seconds=np.round(gap * every, 6),
        )

    def _frontends(self, from_us: int, to_us: int, rng: np.random.Generator) -> Rows:
        _, begins = self._rhythm.draw(from_us, to_us, rng)
        front = rng.integers(0, self._fronts.size, begins.size)
        source = front % self._script.plan.brokers
        length = randomness.microseconds(rng.exponential(FRONTEND_MINUTES * 60.0, begins.size))
        ends = begins + np.clip(length, SHORTEST_US, LONGEST_US)
        up = np.flatnonzero(self._uptimes.is_up(source, begins))
        front, source, begins, ends = front[up], source[up], begins[up], ends[up]
        is_lost = rng.random(up.size) < LOST_SHARE
        recorded = ends + np.where(is_lost, PATIENCE_US, 0)
        # A session whose broker ends first has no end of its own.
        ended = np.flatnonzero(self._uptimes.is_up(source, recorded) & self._same_boot(source, begins, recorded))
        kinds = self._lexicon.numbers(["client.left", "client.lost"])
        joined = make(
            begins,
            source=source,
            kind=self._lexicon.number("client.joined"),
            identity=self._fronts[front],
            data=self._front_data,
        )
        gone = make(
            recorded[ended],
            at=ends[ended],
            source=source[ended],
            kind=kinds[is_lost[ended].astype(np.int64)],
            identity=self._fronts[front[ended]],
            data=self._front_data,
        )
        return join([joined, gone, self._fronts_seen(front, source, begins, ends, rng)])

    def _fronts_seen(self, front: Array, source: Array, begins: Array, ends: Array, rng: np.random.Generator) -> Rows:
        minutes = (ends - begins) // MINUTE_US
        which = np.repeat(np.arange(front.size), minutes)
        number = np.arange(which.size) - np.repeat(np.cumsum(minutes) - minutes, minutes) + 1
        time = begins[which] + number * MINUTE_US - 1
        source = source[which]
        seen = np.flatnonzero(self._uptimes.is_up(source, time) & self._same_boot(source, begins[which], time))
        return self._received(time[seen], self._fronts[front[which[seen]]], source[seen], 1, rng)

    def _same_boot(self, source: Array, first: Array, second: Array) -> Array:
        same = np.zeros(first.size, bool)
        for each in range(self._script.plan.brokers):
            which = np.flatnonzero(source == each)
            same[which] = self._uptimes.boot_of(each, first[which]) == self._uptimes.boot_of(each, second[which])
        return same


def _ticks(first_us: int, end_us: int, from_us: int, minutes: int = 1) -> Array:
    """Every `minutes` from first_us on, within [from_us, end_us)."""
    step_us = minutes * MINUTE_US
    skipped = max(0, -((first_us - from_us) // step_us))
    return np.arange(first_us + skipped * step_us, end_us, step_us, dtype=np.int64)
