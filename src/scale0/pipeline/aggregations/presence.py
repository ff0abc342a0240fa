"""The aggregation of presence: brokers, clients, agents and services, from what sources recorded.

A step goes from evidence to classes: liveness samples show when a source was observing (`presence_sources`); that and
clients' events make sessions (`presence_sessions`); these and the brokers' own events make boundaries
(`presence_boundaries`); boundaries add up to states, and states are split at the hours.

All events of one instant count before a subject gets its class there. A run of one class and reason keeps its first
evidence, also across hours. A planned downtime overlays a class without changing it.

A subject has rows in the hours in which it is not absent for any time at all, and these rows cover such an hour
completely, up to the horizon. In other hours it has no rows: it is absent. An absence that began in an earlier hour has
the reason `away`.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.pipeline.aggregations import presence_brokers, presence_clients, presence_downtimes
from scale0.pipeline.aggregations.presence_boundaries import of_carried, of_clients, of_services
from scale0.pipeline.aggregations.presence_brokers import of_gaps, of_said, stops
from scale0.pipeline.aggregations.presence_clients import deaths, said
from scale0.pipeline.aggregations.presence_downtimes import downtimes, downtimes_kept, of_downtimes
from scale0.pipeline.aggregations.presence_sessions import (
    SESSIONS,
    SESSIONS_OPEN,
    segments,
    sessions,
    sessions_kept,
    sessions_open,
)
from scale0.pipeline.aggregations.presence_source_hours import SOURCE_HOURS, source_hours
from scale0.pipeline.aggregations.presence_sources import boots, chain, sight, tails
from scale0.pipeline.aggregations.presence_state import CARRY, empty
from scale0.pipeline.aggregations.presence_subjects import states, states_kept
from scale0.pipeline.aggregations.presence_timeline import NODE_SLOTS, TIMELINE_WORLD, node_slots, timeline
from scale0.pipeline.caching import cut
from scale0.pipeline.time_ranges import DAY_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from scale0.pipeline.data_file import DataSet
    from scale0.pipeline.parameters import Parameters
    from scale0.pipeline.time_ranges import TimeRange

EVENTS: Final = "events"
PULSES: Final = "pulses"


class PresenceAggregation(NamedTuple):
    name: str = "world"
    reads: tuple[str, ...] = (EVENTS, PULSES)
    kinds: frozenset[str] = frozenset(
        (*presence_brokers.KINDS, *presence_clients.SESSION_KINDS, presence_clients.SEEN, *presence_downtimes.KINDS)
    )
    columns: tuple[str, ...] = ("source", "boot", "seq", "time", "at", "kind", "identity", "service", "ref", "data")
    key: str = ""
    slabs: tuple[DataSet, ...] = (TIMELINE_WORLD, SESSIONS, SESSIONS_OPEN, NODE_SLOTS, SOURCE_HOURS)
    carry: DataSet | None = CARRY

    def step(
        self, carry: DataFrame | None, rows: Mapping[str, DataFrame], stretch: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        events, pulses = rows[EVENTS], rows[PULSES]
        before = empty(events.sparkSession) if carry is None else carry
        seen, absent_us = sight(stretch, parameters), parameters.absent_days * DAY_US
        links = cut(chain(pulses, stops(events), before, seen))
        lives = boots(links)
        parts = cut(segments(said(events, before, lives, stretch.from_us), lives))
        planned = downtimes(events, before)
        boundaries = [
            of_carried(before, stretch, absent_us),
            of_clients(parts, stretch),
            of_services(parts, stretch, absent_us),
            of_gaps(links, seen),
            of_said(events, seen),
            of_downtimes(planned, stretch),
        ]
        stand = cut(states(boundaries, stretch, absent_us))
        carries = [
            tails(links, stretch),
            sessions_kept(parts, deaths(events, before), stretch),
            downtimes_kept(planned, stretch),
            states_kept(stand, stretch),
        ]
        return {
            TIMELINE_WORLD.name: timeline(stand, stretch),
            SESSIONS.name: sessions(parts, stretch),
            SESSIONS_OPEN.name: sessions_open(parts, stretch),
            NODE_SLOTS.name: node_slots(stand, stretch),
            SOURCE_HOURS.name: source_hours(links, pulses, stretch),
            CARRY.name: reduce(lambda one, other: one.unionByName(other), carries),
        }
