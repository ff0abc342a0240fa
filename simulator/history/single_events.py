"""Rare events, generated one by one: starts and stops, sessions, downtimes, commands, and unknown kinds.

An event is recorded only while its source records. Its columns are those of the event's own `row()`, and its data is
the JSON text of the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from scale0.history.events.changes import ConfigChanged, ManagementCommanded
from scale0.history.events.checks import CheckAnswered, DowntimeEnded, DowntimeStarted
from scale0.history.events.clients import ClientChanged, ClientJoined, ClientLeft, ClientLost, ClientReplaced
from scale0.history.events.columns import EventRow
from scale0.history.events.requests import RequestFailed
from scale0.history.events.sources import (
    BrokerStarted,
    BrokerStopped,
    PeerJoined,
    PeerLost,
    SourceAlive,
    SourceClockStepped,
)
from scale0.kernel import codes
from scale0.pipeline.time_ranges import HOUR_US, MINUTE_US, SECOND_US
from simulator.history import randomness, vocabulary
from simulator.history.rows import NO_REF, NULL, NULL_CODE, TEXT_REF, Lexicon, Rows, make
from simulator.history.script_clients import MORE_SLOTS
from simulator.history.script_sources import back_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scale0.history.events.columns import Event
    from simulator.history.script import Script

_to_json: Final = msgspec.json.Encoder(order="sorted").encode


class SingleEvent(NamedTuple):
    """An event with its recording time and source."""

    time: int
    source: int
    row: EventRow


def single_event(time: int, source: int, event: Event) -> SingleEvent:
    return SingleEvent(time, source, event.row())


def data_text(row: EventRow) -> str:
    """A row's data as the journal stores it."""
    return _to_json(row.data).decode()


def rows_of(lines: Sequence[SingleEvent], lexicon: Lexicon) -> Rows:
    """These events as rows; they have no histograms or metrics."""
    rows = [each.row for each in lines]

    def texts(values: list[str | None]) -> Any:
        return np.array([NULL if text is None else lexicon.number(text) for text in values], np.int32)

    def numbers(values: list[Any], missing: Any, kind: Any) -> Any:
        return np.array([missing if value is None else value for value in values], kind)

    time = np.array([each.time for each in lines], np.int64)
    at = [each.time if each.row.at is None else round(each.row.at * SECOND_US) for each in lines]
    return make(
        time,
        source=np.array([each.source for each in lines], np.int8),
        at=np.minimum(np.array(at, np.int64), time),
        kind=texts([row.kind for row in rows]),
        identity=texts([row.identity for row in rows]),
        service=texts([row.service for row in rows]),
        ref_form=np.array([NO_REF if row.ref is None else TEXT_REF for row in rows], np.int8),
        ref_head=texts([row.ref for row in rows]),
        attempt=numbers([row.attempt for row in rows], NULL, np.int32),
        code=numbers([row.code for row in rows], NULL_CODE, np.int32),
        state=texts([row.state for row in rows]),
        seconds=numbers([row.seconds for row in rows], np.nan, np.float64),
        waited=numbers([row.waited for row in rows], np.nan, np.float64),
        bytes=numbers([row.bytes for row in rows], NULL, np.int64),
        data=texts([None if row.data is None else data_text(row) for row in rows]),
    )


PATIENCE_US: Final = 15 * SECOND_US
"""From the last sign of life until a client is lost; Helen waits longer."""
HELEN_PATIENCE_US: Final = 30 * SECOND_US
PEER_US: Final = 10 * SECOND_US
REJOIN_US: Final = (SECOND_US, 5 * SECOND_US)
"""How long after its source's start a client joins."""
COMMANDS_A_DAY: Final = 4
TURBINES_A_DAY: Final = 3
ASKED_CHECKS: Final = 5
"""Manually requested checks; they are critical, but do not count because they are not scheduled."""
OUTAGE_FAILURES: Final = 12
"""Unanswerable requests in an outage."""
BACKEND: Final = "backend"
AGENT: Final = "agent"

Spans = list[tuple[int, int]]


def sessions_of(script: Script, number: int) -> Spans:
    """When a backend has a session with its broker."""
    backend = script.backends[number]
    gaps = [(gap.from_us, gap.to_us) for gap in backend.gaps]
    return _spans(script, backend.broker, number, gaps)


def agent_sessions(script: Script, agent: int) -> list[tuple[int, int, int]]:
    """When an agent has a session, and with which source. One that was cut off has another Helen afterwards."""
    helen = script.helen_of(agent)
    absences = [each for each in script.absences if each.agent == agent]
    gaps = [(each.from_us, each.to_us) for each in absences if not each.is_cut_off]
    cut = next((each for each in absences if each.is_cut_off), None)
    spans = _spans(script, helen, agent, gaps)
    if cut is None:
        return [(helen, *span) for span in spans]
    before = [(begins, min(ends, cut.from_us)) for begins, ends in spans if begins < cut.from_us]
    other, back_us = script.other_helen(agent), second_join_us(cut.to_us)
    after = [(max(begins, back_us), ends) for begins, ends in _spans(script, other, agent, gaps) if ends > back_us]
    short = (helen, cut.to_us, cut.to_us + SHORT_US)
    return [*((helen, *span) for span in before), short, *((other, *span) for span in after)]


SHORT_US: Final = 1_500_000
"""How long an agent that was cut off is connected to its old Helen before the connection breaks again."""


def second_join_us(back_us: int) -> int:
    return back_us + 20 * SECOND_US


def _spans(script: Script, source: int, number: int, gaps: Spans) -> Spans:
    """The boots of a source without the gaps; clients join a moment after each start."""
    low, high = REJOIN_US
    spans = [(boot.start_us + low + number * 37_003 % (high - low), boot.end_us) for boot in script.boots[source]]
    for from_us, to_us in gaps:
        cut = []
        for begins, ends in spans:
            if to_us <= begins or ends <= from_us:
                cut.append((begins, ends))
            else:
                cut += [(begins, from_us), (to_us, ends)]
        spans = cut
    return spans


def all_single_events(script: Script) -> list[SingleEvent]:
    events = [
        *_sources(script),
        *_peers(script),
        *_backends(script),
        *_agents(script),
        *_downtimes(script),
        *_outage_failures(script),
        *_changes(script),
    ]
    return sorted(events, key=lambda each: (each.time, each.source))


def _sources(script: Script) -> Iterator[SingleEvent]:
    for source, boots in enumerate(script.boots):
        name, is_broker = script.plan.sources[source], source < script.plan.brokers
        for number, boot in enumerate(boots):
            if is_broker:
                yield single_event(boot.start_us, source, BrokerStarted(name, vocabulary.VERSION, number + 1))
            if boot.is_stopped:
                stopped = BrokerStopped(name, "asked to stop") if is_broker else SourceAlive(name)
                yield single_event(boot.end_us - 1, source, stopped)
    for step in script.steps:
        name = script.plan.sources[step.source]
        yield single_event(step.from_us, step.source, SourceClockStepped(name, back_seconds(step)))


def _peers(script: Script) -> Iterator[SingleEvent]:
    """Each broker records the other brokers' ends and starts."""
    names = script.plan.sources
    for source in range(script.plan.brokers):
        for other in range(script.plan.brokers):
            if source == other:
                continue
            for number, boot in enumerate(script.boots[other]):
                joined_us = boot.start_us + PEER_US
                yield single_event(joined_us, source, PeerJoined(names[other], vocabulary.GROUP, "active"))
                if number + 1 < len(script.boots[other]):
                    lost = PeerLost(names[other], boot.end_us / SECOND_US, vocabulary.GROUP)
                    yield single_event(boot.end_us + PEER_US, source, lost)


def _backends(script: Script) -> Iterator[SingleEvent]:
    for number, backend in enumerate(script.backends):
        source, slots = backend.broker, backend.slots
        for begins_us, _ in sessions_of(script, number):
            now = MORE_SLOTS if 0 < backend.changed_us < begins_us else slots
            yield single_event(begins_us, source, ClientJoined(backend.name, BACKEND, backend.services, now))
        for gap in backend.gaps:
            now = MORE_SLOTS if 0 < backend.changed_us < gap.from_us else slots
            if gap.is_left:
                yield single_event(gap.from_us, source, ClientLeft(backend.name, BACKEND, backend.services, now))
            else:
                lost = ClientLost(backend.name, gap.from_us / SECOND_US, BACKEND, backend.services, now)
                yield single_event(gap.from_us + PATIENCE_US, source, lost)
        if backend.replaced_us:
            yield single_event(
                backend.replaced_us, source, ClientReplaced(backend.name, BACKEND, backend.services, slots)
            )
            yield single_event(
                backend.replaced_us, source, ClientJoined(backend.name, BACKEND, backend.services, slots)
            )
        if backend.changed_us:
            changed = ClientChanged(backend.name, BACKEND, backend.services, MORE_SLOTS)
            yield single_event(backend.changed_us, source, changed)


def _agents(script: Script) -> Iterator[SingleEvent]:
    checks = tuple(sorted(check.name for check in script.plan.checks))
    for agent in range(script.plan.agents):
        name = script.agent_name(agent)
        for source, begins_us, _ in agent_sessions(script, agent):
            yield single_event(begins_us, source, ClientJoined(name, AGENT, checks))
    for absence in script.absences:
        name, helen = script.agent_name(absence.agent), script.helen_of(absence.agent)
        lost = ClientLost(name, absence.from_us / SECOND_US, AGENT, checks)
        yield single_event(absence.from_us + HELEN_PATIENCE_US, helen, lost)
        if absence.is_cut_off:
            broken_us = absence.to_us + SHORT_US
            again = ClientLost(name, broken_us / SECOND_US, AGENT, checks)
            yield single_event(broken_us + HELEN_PATIENCE_US, helen, again)


def _downtimes(script: Script) -> Iterator[SingleEvent]:
    for each in script.downtimes:
        name, helen, ends = script.agent_name(each.agent), script.helen_of(each.agent), each.to_us / SECOND_US
        from_us = each.from_us / SECOND_US
        started = DowntimeStarted(each.ref, name, each.check, ends, "new memory", "ann", from_us)
        yield single_event(each.from_us + 2_000, helen, started)
        yield single_event(each.to_us + 2_000, helen, DowntimeEnded(each.ref, name, each.check, ends, ends))


def _outage_failures(script: Script) -> Iterator[SingleEvent]:
    for backend in script.backends:
        for gap in backend.gaps:
            if gap.is_left:
                continue
            step_us = (gap.to_us - gap.from_us - MINUTE_US) // OUTAGE_FAILURES
            for n in range(OUTAGE_FAILURES):
                failed = RequestFailed(
                    backend.services[0],
                    f"{gap.from_us % 2**32:x}.{n:x}",
                    "",
                    codes.NO_SUCH_SERVICE,
                    0.001,
                    "front-0001",
                )
                yield single_event(gap.from_us + MINUTE_US + n * step_us, backend.broker, failed)


def _changes(script: Script) -> Iterator[SingleEvent]:
    """Commands, configuration changes, unknown kinds, and manually requested checks, outside of all truths."""
    plan = script.plan
    rng = randomness.rng_for(plan.seed, randomness.SCRIPTED)
    span_us = plan.end_us - plan.start_us

    def moments(count: int, sources: range) -> Iterator[tuple[int, int, int]]:
        for n in range(count):
            source = sources[n % len(sources)]
            us = plan.start_us + HOUR_US + int(rng.random() * (span_us - 2 * HOUR_US))
            if any(boot.start_us + MINUTE_US < us < boot.end_us for boot in script.boots[source]):
                yield n, us, source

    brokers = range(plan.brokers)
    for n, us, source in moments(COMMANDS_A_DAY * plan.days, brokers):
        if n % 4 == 0:
            parent, hash_ = f"{n:08x}", f"{n + 1:08x}"
            yield single_event(us, source, ConfigChanged(n // 4 + 2, hash_, parent, "ann"))
        after: Any = {"level": n % 3}
        yield single_event(us, source, ManagementCommanded("ann", "set_config", codes.OK, "frontend/ann", None, after))
    for n, us, source in moments(TURBINES_A_DAY * plan.days, brokers):
        data = {"turns": n, "blades": [n, n + 1]}
        yield SingleEvent(
            us, source, EventRow(kind=vocabulary.FUTURE_KIND, identity=f"turbine-{n % 2}", code=n, data=data)
        )
    yield from _asked(script)


def _asked(script: Script) -> Iterator[SingleEvent]:
    """Of an agent without a truth."""
    pairs = [*(each.pair for each in script.episodes), *(each.pair for each in script.fillings)]
    busy = {each.agent for each in script.absences} | {pair // script.schedule.checks for pair in pairs}
    agent = next(n for n in range(script.plan.agents) if n not in busy)
    helen = script.helen_of(agent)
    middle = script.boots[helen][0]
    first_us = (middle.start_us + middle.end_us) // 2
    for n in range(ASKED_CHECKS):
        us = first_us + n * 10 * SECOND_US
        name, check = script.agent_name(agent), script.plan.checks[vocabulary.LOAD].name
        answered = CheckAnswered(name, check, f"asked.{n:x}", us / SECOND_US, vocabulary.CRITICAL, 0.1, (), "as asked")
        yield single_event(us + 5_000, helen, answered)
