"""Generates request.summed and request.failed events.

The counts of a histogram add up to `code`; the longest request is in its last bucket; an absent backend answers
nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from scale0.history.events.histogram import GAMMA, bucket_of
from scale0.history.events.requests import RequestFailed
from scale0.kernel import codes
from scale0.pipeline.time_ranges import HOUR_US, SECOND_US
from simulator.history import randomness, vocabulary
from simulator.history.rows import NULL, REQUEST_REF, Array, Buckets, Lexicon, Rows, join, make
from simulator.history.script_clients import QUIET_PER_HOUR
from simulator.history.single_events import data_text

if TYPE_CHECKING:
    from simulator.history.script import Script, SourceUptimes

SUM_US: Final = 10 * SECOND_US
BUCKETS: Final = (5, 16)
"""Range of the number of buckets."""
QUIET_BUCKETS: Final = (1, 3)
MEAN_COUNT: Final = 4.0
"""Mean count of a bucket, in addition to 1."""
BUCKET_STEP: Final = (1, 7)
BYTES: Final = (200, 2_000)
"""Per request and answer."""
PEAK_HOUR: Final = 14.0
FAILED_CODES: Final = (codes.FAILED, codes.FAILED, codes.FAILED, codes.NO_ANSWER, codes.BACKEND_DIED, codes.TOO_MANY)
NODE_CODES: Final = frozenset({codes.FAILED, codes.BACKEND_DIED, codes.NO_ANSWER})
"""Codes of failures at a backend."""


class RequestMaker:
    """Generates requests, slice by slice."""

    def __init__(self, script: Script, uptimes: SourceUptimes, lexicon: Lexicon) -> None:
        plan = script.plan
        self._script, self._uptimes, self._lexicon = script, uptimes, lexicon
        offers = _offers(script)
        self._services = lexicon.numbers([name for name, *_ in offers])
        self._centre = np.array([bucket_of(seconds) for _, _, seconds, _ in offers])
        self._is_quiet = np.array([name.startswith(vocabulary.QUIET_SERVICE) for name, *_ in offers])
        shares = np.array([share for _, share, _, _ in offers])
        rates = plan.summed * shares / shares.sum()
        rates[self._is_quiet] = QUIET_PER_HOUR * (plan.end_us - plan.start_us) / HOUR_US
        peaks = np.full(len(offers), PEAK_HOUR)
        self._summed = randomness.Rhythm(rates, peaks, plan.start_us, plan.end_us)
        self._failed = randomness.Rhythm(plan.failed * shares / shares.sum(), peaks, plan.start_us, plan.end_us)
        self._sizes = np.array([len(backends) for *_, backends in offers])
        width = int(self._sizes.max())
        self._backends = np.array([[*each, *[NULL] * (width - len(each))] for *_, each in offers])
        self._names = lexicon.numbers([backend.name for backend in script.backends])
        self._broker = np.array([backend.broker for backend in script.backends])
        fronts = [f"front-{n + 1:04d}" for n in range(plan.frontends)]
        self._data = lexicon.numbers([data_text(RequestFailed("", "", "", 0, 0.0, name).row()) for name in fronts])
        rng = randomness.rng_for(plan.seed, randomness.REQUESTS)
        self._heads = lexicon.numbers([f"{n:x}." for n in rng.integers(2**28, 2**32, plan.frontends).tolist()])
        self._asked = 0

    def make(self, slice_number: int, from_us: int, to_us: int) -> tuple[Rows, Buckets]:
        """All events of the slice, and their histograms."""
        rng = randomness.rng_for(self._script.plan.seed, randomness.REQUESTS, slice_number + 1)
        summed, buckets = self._sums(from_us, to_us, rng)
        return join([summed, self._failures(from_us, to_us, rng)]), buckets

    def _drawn(
        self, rhythm: randomness.Rhythm, from_us: int, to_us: int, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        service, moment = rhythm.draw(from_us, to_us, rng)
        index = (rng.random(service.size) * self._sizes[service]).astype(np.int64)
        return service, self._backends[service, index], moment

    def _sums(self, from_us: int, to_us: int, rng: np.random.Generator) -> tuple[Rows, Buckets]:
        service, backend, moment = self._drawn(self._summed, from_us, to_us, rng)
        period = (moment - from_us) // SUM_US
        key = (period * len(self._names) + backend) * len(self._services) + service
        key, first = np.unique(key, return_index=True)
        service, backend, period = service[first], backend[first], period[first]
        broker = self._broker[backend]
        # Every broker has its own phase within the ten seconds.
        time = from_us + period * SUM_US + SUM_US - 1 - broker * 1_234_567
        which = np.flatnonzero(self._uptimes.is_up(broker, time) & self._is_there(backend, time))
        service, backend, broker, time = service[which], backend[which], broker[which], time[which]
        length, buckets, total, last = self._histograms(service, rng)
        rows = make(
            time,
            source=broker,
            kind=self._lexicon.number("request.summed"),
            identity=self._names[backend],
            service=self._services[service],
            code=total,
            seconds=np.exp((last - 0.5) * math.log(GAMMA)),
            bytes=total * rng.integers(*BYTES, total.size),
            histogram_start=np.cumsum(length) - length,
            histogram_length=length,
        )
        return rows, buckets

    def _histograms(self, service: Array, rng: np.random.Generator) -> tuple[Array, Buckets, Array, Array]:
        """For each row: its length, the buckets, the sum of counts, the last bucket."""
        quiet = self._is_quiet[service]
        length = np.where(quiet, rng.integers(*QUIET_BUCKETS, quiet.size), rng.integers(*BUCKETS, quiet.size))
        ends = np.cumsum(length)
        starts = ends - length
        flat = int(ends[-1]) if ends.size else 0
        steps = rng.integers(*BUCKET_STEP, flat)
        row = np.repeat(np.arange(length.size), length)
        climbed = np.cumsum(steps)
        base = self._centre[service] - 12 + rng.integers(-4, 5, length.size)
        bucket = base[row] + climbed - (climbed[starts] - steps[starts])[row] if flat else np.zeros(0, np.int64)
        count = 1 + np.where(quiet[row], 0, rng.poisson(MEAN_COUNT, flat))
        total = np.add.reduceat(count, starts) if flat else np.zeros(0, np.int64)
        last = bucket[ends - 1] if flat else np.zeros(0, np.int64)
        return length, Buckets(bucket.astype(np.int32), count.astype(np.int64)), total, last

    def _failures(self, from_us: int, to_us: int, rng: np.random.Generator) -> Rows:
        service, backend, time = self._drawn(self._failed, from_us, to_us, rng)
        broker = self._broker[backend]
        which = np.flatnonzero(self._uptimes.is_up(broker, time) & self._is_there(backend, time))
        service, backend, broker, time = service[which], backend[which], broker[which], time[which]
        code = np.array(FAILED_CODES)[rng.integers(0, len(FAILED_CODES), which.size)]
        client = rng.integers(0, len(self._data), which.size)
        numbers = self._asked + 1 + np.arange(which.size)
        self._asked += which.size
        return make(
            time,
            source=broker,
            kind=self._lexicon.number("request.failed"),
            identity=np.where(np.isin(code, list(NODE_CODES)), self._names[backend], NULL),
            service=self._services[service],
            ref_form=REQUEST_REF,
            ref_head=self._heads[client],
            ref_number=numbers,
            code=code,
            seconds=rng.exponential(0.5, which.size),
            data=self._data[client],
        )

    def _is_there(self, backend: Array, time: Array) -> Array:
        there = np.ones(time.size, bool)
        for n, each in enumerate(self._script.backends):
            for gap in each.gaps:
                there[(backend == n) & (time >= gap.from_us) & (time < gap.to_us + SUM_US)] = False
        return there


def _offers(script: Script) -> list[tuple[str, float, float, list[int]]]:
    """Each service: its share, its usual seconds, and the backends that offer it."""
    nodes = [n for n, backend in enumerate(script.backends) if backend.is_node]
    offers = [(service.name, service.share, service.seconds, nodes) for service in vocabulary.SERVICES]
    for n, backend in enumerate(script.backends):
        if backend.is_node:
            continue
        (service,) = backend.services
        if service.startswith(vocabulary.QUIET_SERVICE):
            offers.append((service, 0.0, vocabulary.QUIET_SECONDS, [n]))
        else:
            offers.append((service, vocabulary.SOLO_SHARE, vocabulary.SOLO_SECONDS, [n]))
    return offers
