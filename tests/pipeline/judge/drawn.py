"""Small histories that hypothesis draws, so that what fails becomes as small as it can.

Nothing of `src/scale0` is used here. The same draws make the same events; what was not drawn does not happen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.pipeline.judge.histories import SESSION_ENDS, happen
from tests.pipeline.judge.journals import Journal, Row, Story, answer, downtime, offer

HOUR = 3600
BEGINS = (0, 600, HOUR, 22 * HOUR, 23 * HOUR - 1)
GAPS = (1, 20, 149, 150, 151, 400, 1500)
SILENCES = (100, 149, 150, 151, 300, 900)
HOLES = (30, 100, 200, 600)
JUMPS = (0, 0, 5, -5, -1)
"""Of the numbers, over a restart: a hole, or a rewind."""
DELAYS = (0, 0, 0, 3, 100, 1000, 4000)
"""Until a result is recorded: at once, late, or from a spool."""
STATES = ("ok", "ok", "critical", "warning", "unknown")
INTERVALS = (60, 120, 300)
HAPPENINGS = ("changed", "left", "lost", "replaced", "seen", "again")
SERVICES = (("paint",), ("glue",), ("paint", "glue"))
LEAST_RESULTS, MOST_RESULTS = 22, 45
"""Flapping looks at 21 of them."""
TOGETHER = 4
"""Networks of one history: a run costs more than what it computes."""

RESULTS = st.lists(
    st.tuples(
        *(st.sampled_from(values) for values in (STATES, (1, 1, 1, 1, 2, 6), DELAYS, ((0,), (1,), (0, 1)))),
    ),
    min_size=LEAST_RESULTS,
    max_size=MOST_RESULTS,
)
"""State, intervals after the result before, seconds until it is recorded, and the Helens that record it."""


class Drawn(NamedTuple):
    """Networks beside each other over the same hours; which segments come late; and where the tables end."""

    story: Story
    cut: int
    late: int | None
    before_end: int


@st.composite
def histories(draw: Any) -> Drawn:
    begin = draw(st.sampled_from(BEGINS))
    story = Story(begin, begin + draw(st.integers(HOUR, 3 * HOUR)))
    for number in range(TOGETHER):
        _network(draw, story, f"n{number}-")
    cut, late = draw(st.sampled_from((10_000, 200, 20))), draw(st.sampled_from((None, None, None, 2, 4)))
    return Drawn(story, cut, late, draw(st.integers(0, 1800)))


def _network(draw: Any, story: Story, prefix: str) -> None:
    brokers = [story.broker(f"{prefix}broker-{number}", (0, 0)) for number in range(2)]
    helens = [story.helen(f"{prefix}helen-{number}", (0, 0)) for number in range(2)]
    for journal in brokers + helens:
        _boots(draw, story, journal)
    for number in range(draw(st.integers(1, 2))):
        _client(draw, story, draw(st.sampled_from(brokers)), f"{prefix}worker-{number}", prefix)
    agent = f"{prefix}agent"
    _client(draw, story, draw(st.sampled_from(helens)), agent, None)
    for number in range(draw(st.integers(1, 2))):
        _check(draw, story, helens, agent, f"check-{number}")
    for number in range(draw(st.integers(1, 3))):
        begin = story.begin + draw(st.integers(900, 3 * HOUR))
        ends = begin + draw(st.sampled_from((0, 60, 600, 3000, 9000)))
        check, early = draw(st.sampled_from((None, "check-0"))), draw(st.none() | st.integers(0, 3000))
        over = 0 if early is None else min(begin + early, ends)
        downtime(helens[0], f"{prefix}down-{number}", agent, check, begin, ends, over)


def _boots(draw: Any, story: Story, journal: Journal) -> None:
    """One after the other, of which the last one lasts; when it stood still, and what of it was lost."""
    journal.boots.clear()
    begin, count = story.begin, draw(st.integers(2, 4))
    for number in range(count):
        begin += draw(st.sampled_from(GAPS))
        length, jump = draw(st.integers(600, 3 * HOUR)), draw(st.sampled_from(JUMPS))
        end = story.end + 1 if number == count - 1 else min(begin + length, story.end + 1)
        if begin < end:
            journal.boot(begin, end, jump if number else 0)
        begin = end
    for spans, lengths in ((journal.frozen, SILENCES), (journal.holes, HOLES)):
        some = st.lists(st.tuples(st.integers(0, 3 * HOUR), st.sampled_from(lengths)), max_size=2)
        spans += [(story.begin + first, story.begin + first + length) for first, length in draw(some)]


def _client(draw: Any, story: Story, journal: Journal, name: str, prefix: str | None) -> None:
    """A backend, or (no prefix) the agent. One that comes to a source that has just started joins it."""
    now, within = story.begin, -1
    chances = (st.sampled_from(HAPPENINGS), st.sampled_from((0, 15, 45)), st.sampled_from(SERVICES))
    happenings = st.lists(st.tuples(st.integers(0, 2500), *chances), min_size=1, max_size=4 if prefix is None else 6)
    for after, happening, silent_seconds, services in draw(happenings):
        now += after
        boot = journal.boot_at(now)
        if boot is None or now > story.end:
            continue
        data = offer(("check-0",), "agent", 0) if prefix is None else offer([f"{prefix}{s}" for s in services])
        what = happening if within == boot else "joined"
        happen(journal, now, name, data, boot, what, silent_seconds)
        within = -1 if what in SESSION_ENDS else boot


def _check(draw: Any, story: Story, helens: list[Journal], agent: str, name: str) -> None:
    at, interval = story.begin, draw(st.sampled_from(INTERVALS))
    options: Row = {"interval": interval, "max_attempts": draw(st.integers(1, 4))}
    for number, (state, steps, delay, recorders) in enumerate(draw(RESULTS)):
        at += steps * interval
        for helen in recorders:
            second, ref = at + delay, f"spool:{name}-{number}"
            while second <= story.end and not answer(helens[helen], second, agent, name, state, ref, at=at, **options):
                second += 20
