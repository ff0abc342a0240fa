"""Small histories that hypothesis draws, so that what fails becomes as small as it can.

Lives here: what a network may do, as strategies, and its telling. Never here: what a history means, or anything of
`src/scale0`. Invariants: the same drawing makes the same events; what was not drawn does not happen.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from hypothesis import strategies as st

from tests.pipeline.judge.histories import SESSION_ENDS, happen
from tests.pipeline.judge.journals import Journal, Row, Story, answer, downtime, offer

Thing = TypeVar("Thing")

HOUR = 3600
BEGINS = (0, 600, HOUR, 22 * HOUR, 23 * HOUR - 1)
GAPS = (1, 20, 149, 150, 151, 400, 1500)
SILENCES = (100, 149, 150, 151, 300, 900)
JUMPS = (0, 0, 5, -5, -1)
"""Of the numbers, over a restart: a hole, or a rewind."""
DELAYS = (0, 0, 0, 3, 100, 1000, 4000)
"""Until a result is recorded: at once, late, or from a spool."""
STATES = ("ok", "ok", "critical", "warning", "unknown")
INTERVALS = (60, 120, 300)
HAPPENINGS = ("changed", "left", "lost", "replaced", "seen", "again")
SERVICES = ("paint", "glue")
LEAST_RESULTS, MOST_RESULTS = 22, 45
"""Flapping looks at 21 of them."""
TOGETHER = 4
"""Networks of one history: a run costs more than what it computes."""


class Boot(NamedTuple):
    """How long it ran, how long it was away before, and how its numbers went on."""

    away: int
    length: int
    jump: int


class Source(NamedTuple):
    """A broker or a Helen: its boots; when it stood still, and what was lost of it, from its beginning on."""

    boots: tuple[Boot, ...]
    silences: tuple[tuple[int, int], ...]
    holes: tuple[tuple[int, int], ...]


class Deed(NamedTuple):
    """What a client did, how long after the deed before, and how long ago it was last heard then."""

    after: int
    what: str
    heard: int
    services: tuple[str, ...]


class Client(NamedTuple):
    """A backend or an agent, and which of two sources it is at."""

    at: int
    deeds: tuple[Deed, ...]


class Result(NamedTuple):
    """Of a check: how many intervals after the one before, and how late it was recorded, by which Helens."""

    state: str
    steps: int
    delay: int
    helens: tuple[int, ...]


class Check(NamedTuple):
    """A check of the agent, and all of its results."""

    interval: int
    attempts: int
    results: tuple[Result, ...]


class Downtime(NamedTuple):
    """Of the agent, or of one of its checks; `early`: when it was ended before its time, or never."""

    begin: int
    length: int
    check: str | None
    early: int | None


class Network(NamedTuple):
    """All that happens in one network."""

    brokers: tuple[Source, ...]
    helens: tuple[Source, ...]
    backends: tuple[Client, ...]
    agent: Client
    checks: tuple[Check, ...]
    downtimes: tuple[Downtime, ...]


class Drawn(NamedTuple):
    """Networks beside each other over the same hours; which segments come late; and where the tables end."""

    begin: int
    seconds: int
    networks: tuple[Network, ...]
    cut: int
    late: int | None
    before_end: int


# Strategies.


def many(things: st.SearchStrategy[Thing], most: int, least: int = 0) -> st.SearchStrategy[tuple[Thing, ...]]:
    return st.lists(things, min_size=least, max_size=most).map(tuple)


def stretches(lengths: tuple[int, ...]) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    return many(st.tuples(st.integers(0, 3 * HOUR), st.sampled_from(lengths)), 2)


def clients(most: int) -> st.SearchStrategy[Client]:
    services = st.sampled_from((SERVICES[:1], SERVICES[1:], SERVICES))
    deeds = st.builds(Deed, st.integers(0, 2500), st.sampled_from(HAPPENINGS), st.sampled_from((0, 15, 45)), services)
    return st.builds(Client, st.integers(0, 1), many(deeds, most, 1))


def networks() -> st.SearchStrategy[Network]:
    boot = st.builds(Boot, st.sampled_from(GAPS), st.integers(600, 3 * HOUR), st.sampled_from(JUMPS))
    source = st.builds(Source, many(boot, 4, 2), stretches(SILENCES), stretches((30, 100, 200, 600)))
    sources = st.tuples(source, source)
    result = st.builds(
        Result,
        st.sampled_from(STATES),
        st.sampled_from((1, 1, 1, 1, 2, 6)),
        st.sampled_from(DELAYS),
        st.sampled_from(((0,), (1,), (0, 1))),
    )
    check = st.builds(Check, st.sampled_from(INTERVALS), st.integers(1, 4), many(result, MOST_RESULTS, LEAST_RESULTS))
    pause = st.builds(
        Downtime,
        st.integers(900, 3 * HOUR),
        st.sampled_from((0, 60, 600, 3000, 9000)),
        st.sampled_from((None, "check-0")),
        st.none() | st.integers(0, 3000),
    )
    return st.builds(
        Network, sources, sources, many(clients(6), 2, 1), clients(4), many(check, 2, 1), many(pause, 3, 1)
    )


def histories() -> st.SearchStrategy[Drawn]:
    return st.builds(
        Drawn,
        st.sampled_from(BEGINS),
        st.integers(HOUR, 3 * HOUR),
        many(networks(), TOGETHER, TOGETHER),
        st.sampled_from((10_000, 200, 20)),
        st.sampled_from((None, None, None, 2, 4)),
        st.integers(0, 1800),
    )


# Telling.


def tell(drawn: Drawn) -> Story:
    story = Story(drawn.begin, drawn.begin + drawn.seconds)
    for number, network in enumerate(drawn.networks):
        _tell_network(story, network, f"n{number}-")
    return story


def _tell_network(story: Story, network: Network, prefix: str) -> None:
    brokers = [story.broker(f"{prefix}broker-{n}", (0, 0)) for n in range(len(network.brokers))]
    helens = [story.helen(f"{prefix}helen-{n}", (0, 0)) for n in range(len(network.helens))]
    for journal, source in zip(brokers + helens, network.brokers + network.helens, strict=True):
        _run(story, journal, source)
    for number, client in enumerate(network.backends):
        _attend(story, brokers[client.at], f"{prefix}worker-{number}", client, prefix)
    agent = f"{prefix}agent"
    _attend(story, helens[network.agent.at], agent, network.agent, None)
    for number, check in enumerate(network.checks):
        _answer(story, helens, agent, f"check-{number}", check)
    for number, pause in enumerate(network.downtimes):
        begin = story.begin + pause.begin
        ends = begin + pause.length
        early = 0 if pause.early is None else min(begin + pause.early, ends)
        downtime(helens[0], f"{prefix}down-{number}", agent, pause.check, begin, ends, early)


def _run(story: Story, journal: Journal, source: Source) -> None:
    """Its boots, one after the other; the last one lasts."""
    journal.boots.clear()
    begin = story.begin
    for number, boot in enumerate(source.boots):
        begin += boot.away
        last = number == len(source.boots) - 1
        end = story.end + 1 if last else min(begin + boot.length, story.end + 1)
        if begin < end:
            journal.boot(begin, end, boot.jump if number else 0)
        begin = end
    journal.frozen += [(story.begin + first, story.begin + first + length) for first, length in source.silences]
    journal.holes += [(story.begin + first, story.begin + first + length) for first, length in source.holes]


def _attend(story: Story, journal: Journal, name: str, client: Client, prefix: str | None) -> None:
    """Whoever comes to a source that has just started joins it, whatever was to happen."""
    now, within = story.begin, -1
    for deed in client.deeds:
        now += deed.after
        boot = journal.boot_at(now)
        if boot is None or now > story.end:
            continue
        data = offer(("check-0",), "agent", 0) if prefix is None else offer([f"{prefix}{s}" for s in deed.services])
        what = deed.what if within == boot else "joined"
        happen(journal, now, name, data, boot, what, deed.heard)
        within = -1 if what in SESSION_ENDS else boot


def _answer(story: Story, helens: list[Journal], agent: str, name: str, check: Check) -> None:
    at = story.begin
    words: Row = {"interval": check.interval, "max_attempts": check.attempts}
    for number, result in enumerate(check.results):
        at += result.steps * check.interval
        for helen in result.helens:
            second, ref = at + result.delay, f"spool:{name}-{number}"
            while second <= story.end and not answer(
                helens[helen], second, agent, name, result.state, ref, at=at, **words
            ):
                second += 20
