"""The aggregation of incidents, computed from the timeline.

An incident lasts from the first down second to the next up or absent one. Up, absent and missing rows are equivalent: a
gap between the rows that keep an incident open, so only those few rows are sorted. The timeline is split at hours, so
an incident that is open at an hour's end has a piece that ends there: its mark.

An incident is in the hour of the later of its closing and its opening + `together_seconds`: by then all of its columns
are final. Before, it is in `incidents.open`. A closing at an hour's border belongs to the hour that begins. The state
holds open incidents, and openings so recent that a later one may be correlated with them.

Expressions are Spark SQL: a call for each operator costs a round trip to the JVM, a second for a step of this size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.monitoring.protocol.results import SEVERITY
from scale0.pipeline.caching import cache
from scale0.pipeline.schemas import DOWN, DOWNTIME, PART, UNOBSERVED, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, OPEN_PART, SECOND_US, TimeRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from scale0.pipeline.aggregation import Parameters

KEEPS_OPEN: Final = (DOWN, DOWNTIME, UNOBSERVED)
"""The classes that do not close an incident."""

SUBJECT: Final = ("subject_kind", "subject")

STATE_SCHEMA: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("opened_us", "bigint"),
    ("closed_us", "bigint"),
    ("worst", "int"),
    ("down_us", "bigint"),
    ("flapping", "boolean"),
    ("also_failing", "bigint"),
    ("also_failing_first", t.ArrayType(fields(("subject_kind", "string"), ("subject", "string")))),
)
"""Incidents that are open, or whose opening may still matter to others; `closed_us` is null while it is open.

`worst` is the severity plus one; 0 for a subject without states. `also_failing` is null until no later opening can add
to it.
"""

FIRST_FAILING: Final = STATE_SCHEMA["also_failing_first"].dataType

_RANKS: Final = {name: rank + 1 for name, rank in SEVERITY.items()}
_SEVERITY: Final = " ".join(
    ("CASE state", *(f"WHEN '{name}' THEN {rank}" for name, rank in _RANKS.items()), "ELSE 0 END")
)
WORST_STATE: Final = " ".join(
    ("CASE worst", *(f"WHEN {rank} THEN '{name}'" for name, rank in _RANKS.items()), f"ELSE '{DOWN}' END")
)
"""`worst` as shown in the table."""

_PIECES: Final = (
    *SUBJECT,
    "unix_micros(`from`) AS from_us",
    "unix_micros(`to`) AS to_us",
    # A piece that makes an incident by itself.
    f"IF(class = '{DOWN}', unix_micros(`from`), NULL) AS opened_us",
    "CAST(NULL AS BIGINT) AS closed_us",
    f"IF(class = '{DOWN}', {_SEVERITY}, 0) AS worst",
    f"IF(class = '{DOWN}', unix_micros(`to`) - unix_micros(`from`), 0L) AS down_us",
    "coalesce(flapping, false) AS flapping",
    "CAST(NULL AS BIGINT) AS also_failing",
    f"CAST(NULL AS {FIRST_FAILING.simpleString()}) AS also_failing_first",
)

_GROWING: Final = ("to_us", "closed_us", "worst", "down_us", "flapping", "also_failing")

_ALONG: Final = "PARTITION BY subject_kind, subject ORDER BY from_us, to_us"
_SO_FAR: Final = (
    "PARTITION BY subject_kind, subject, chain ORDER BY from_us, to_us ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
)


def incidents(timeline: DataFrame, state: DataFrame | None, time_range: TimeRange) -> DataFrame:
    """One row per incident of the range or the previous state, at time_range.until_us, and `marks`.

    A mark is the incident at the start of an hour (`part`) at which it was open, for the hours that need a state.
    `also_failing` is what the state knows, or null. Partitioned by subject. The state's rows enter as pieces without
    length, so there is one exchange.
    """
    kept = ", ".join(f"'{name}'" for name in KEEPS_OPEN)
    pieces = timeline.filter(f"class IN ({kept})").selectExpr(*_PIECES)
    if state is not None:
        pieces = pieces.unionByName(_from_state(state, time_range))
    inside = _accumulated(_chained(pieces))
    part = f"CAST(to_us DIV {HOUR_US} AS INT)"
    marked = f"to_us % {HOUR_US} = 0 AND {part} > {time_range.first} AND {part} <= {time_range.last_state}"
    mark = f"IF({marked}, named_struct('part', {part}, 'worst', worst, 'down_us', down_us, 'flapping', flapping), NULL)"
    inside = inside.selectExpr("*", f"{mark} AS mark")
    grouped = inside.groupBy(*SUBJECT, "opened_us").agg(
        # Sums only grow, so the largest value is the last.
        *(f.expr(f"max({name}) AS {name}") for name in _GROWING),
        f.expr("first(also_failing_first, true) AS also_failing_first"),
        f.expr("collect_list(mark) AS marks"),
    )
    closed = f"coalesce(closed_us, IF(to_us < {time_range.until_us}, to_us, NULL)) AS closed_us"
    return grouped.selectExpr(*SUBJECT, "opened_us", closed, *STATE_SCHEMA.fieldNames()[4:], "marks")


def _from_state(state: DataFrame, time_range: TimeRange) -> DataFrame:
    """An open incident is placed at the start of the range, where its subject's first piece may touch it; a closed one
    at its own opening, where nothing can.
    """
    stands = f"IF(closed_us IS NULL, {time_range.from_us}L, opened_us)"
    return state.selectExpr(*SUBJECT, f"{stands} AS from_us", f"{stands} AS to_us", *STATE_SCHEMA.fieldNames()[2:])


def _chained(pieces: DataFrame) -> DataFrame:
    """Adds `chain`: the start of the run of touching pieces to which a piece belongs."""
    touches = f"coalesce(lag(to_us) OVER ({_ALONG}) = from_us, false)"
    return pieces.selectExpr("*", f"IF({touches}, NULL, from_us) AS starts_us").selectExpr(
        "*", f"max(starts_us) OVER ({_ALONG}) AS chain"
    )


def _accumulated(chained: DataFrame) -> DataFrame:
    """The pieces within incidents, with `worst`, `down_us` and `flapping` of the incident up to the piece's end."""
    before = [name for name in chained.columns if name != "opened_us"]
    opened = chained.selectExpr(*before, f"min(opened_us) OVER ({_SO_FAR}) AS opened_us")
    return opened.filter("opened_us IS NOT NULL").selectExpr(
        *SUBJECT,
        "to_us",
        "opened_us",
        "closed_us",
        f"max(worst) OVER ({_SO_FAR}) AS worst",
        f"sum(down_us) OVER ({_SO_FAR}) AS down_us",
        f"max(flapping) OVER ({_SO_FAR}) AS flapping",
        "also_failing",
        "also_failing_first",
    )


NAMED: Final = 10
"""How many of the correlated subjects are named; all are counted."""
SEARCHED: Final = 20
"""How many openings, from the first within reach on, are searched for names: some are of the incident's own subject or
repeated. With more repetitions, fewer are named.
"""

_SEEN: Final = (
    "collect_list(named_struct('opened_us', opened_us, 'before_us', before_us,"
    " 'subject_kind', subject_kind, 'subject', subject))"
    f" OVER (ORDER BY opened_us, subject_kind, subject ROWS BETWEEN CURRENT ROW AND {SEARCHED - 1} FOLLOWING)"
)
"""An opening and those after it, of all subjects."""

_BACKWARDS: Final = (
    "ORDER BY at_us DESC, asks DESC, subject_kind DESC, subject DESC ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
)

_INCIDENT: Final = (*STATE_SCHEMA.fieldNames()[3:], "marks")


def with_also_failing(incidents: DataFrame, reach_us: int) -> DataFrame:
    """Adds `also_failing` and `also_failing_first` to every incident whose state does not have them yet.

    Two subjects are correlated if openings of theirs are at most `reach` apart; each other subject counts once. One
    sort of three moments per opening replaces a join: a thousand subjects that fail at once would make a million pairs.

    An opening o, whose subject opened before at p, is the one by which that subject counts for an opening at x if p < x
    - reach <= o <= x + reach. So it counts from the later of p + reach + 1 and o - reach on, until o + reach, and no
    two openings of a subject count at once: a running sum counts subjects. In descending order, the last end of
    counting before x belongs to the first opening within reach of x, and that row knows the openings after it.
    """
    before = "lag(opened_us) OVER (PARTITION BY subject_kind, subject ORDER BY opened_us) AS before_us"
    openings = incidents.selectExpr("*", before).selectExpr("*", f"{_SEEN} AS seen")
    asked = _moments(openings, reach_us).selectExpr(
        *SUBJECT,
        "opened_us",
        "asks",
        "incident",
        f"-1 - sum(delta) OVER ({_BACKWARDS}) AS others",
        f"last(seen, true) OVER ({_BACKWARDS}) AS seen",
    )
    return asked.filter("asks").selectExpr(
        *SUBJECT,
        "opened_us",
        *(f"incident.{name}" for name in _INCIDENT[:4]),
        "coalesce(incident.also_failing, others) AS also_failing",
        f"coalesce(incident.also_failing_first, {_named(reach_us)}) AS also_failing_first",
        "incident.marks",
    )


def _moments(openings: DataFrame, reach_us: int) -> DataFrame:
    """Three rows per opening: it starts to count, it stops to count, and it asks which others count."""
    moments = (
        (f"greatest(opened_us - {reach_us}L, before_us + {reach_us + 1}L)", 1, False),
        (f"opened_us + {reach_us + 1}L", -1, False),
        ("opened_us", 0, True),
    )
    structs = (f"named_struct('at_us', {at}, 'delta', {delta}L, 'asks', {asks})" for at, delta, asks in moments)
    incident = f"struct({', '.join(_INCIDENT)}) AS incident"
    exploded = openings.selectExpr(*SUBJECT, "opened_us", incident, "seen", f"inline(array({', '.join(structs)}))")
    return exploded.selectExpr(
        *SUBJECT,
        "opened_us",
        "at_us",
        "delta",
        "asks",
        "IF(asks, incident, NULL) AS incident",
        "IF(delta = -1, seen, NULL) AS seen",
    )


def _named(reach_us: int) -> str:
    """Other subjects within reach, each by its first opening there, in their order."""
    within = f"o.opened_us <= opened_us + {reach_us}L"
    first = f"(o.before_us IS NULL OR o.before_us < opened_us - {reach_us}L)"
    another = "NOT (o.subject_kind = subject_kind AND o.subject = subject)"
    found = f"slice(filter(seen, o -> {within} AND {first} AND {another}), 1, {NAMED})"
    return f"transform({found}, o -> named_struct('subject_kind', o.subject_kind, 'subject', o.subject))"


TIMELINE: Final = "timeline"

OPENED: Final = "opened"
CLOSED: Final = "closed"

_SCHEMA: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("opened", "timestamp"),
    ("closed", "timestamp"),
    ("worst_state", "string"),
    ("down_seconds", "double"),
    ("flapping", "boolean"),
    ("also_failing", "bigint"),
    ("also_failing_first", FIRST_FAILING),
)

_EDGES_SCHEMA: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("at", "timestamp"),
    ("edge", "string"),
    ("opened", "timestamp"),
    ("down_us", "bigint"),
)
"""`edge` is opened or closed; `down_us`, for closed, is the incident's total down time."""

INCIDENTS: Final = DataSet("incidents", "incidents", "hour", _SCHEMA)
OPEN_INCIDENTS: Final = DataSet("incidents.open", "incidents", "open", _SCHEMA)
EDGES: Final = DataSet("incident_edges", "", "hour", _EDGES_SCHEMA)
STATE: Final = DataSet("carry.incidents", "", "hour", STATE_SCHEMA)


class IncidentAggregation:
    name = "incidents"
    reads = (TIMELINE,)
    kinds: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()
    key = ""
    data_sets = (INCIDENTS, OPEN_INCIDENTS, EDGES)
    state: DataSet | None = STATE

    def step(
        self, state: DataFrame | None, rows: Mapping[str, DataFrame], time_range: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """All data sets are views of one small cached frame."""
        reach_us = parameters.together_seconds * SECOND_US
        known = cache(with_also_failing(incidents(rows[TIMELINE], state, time_range), reach_us))
        settled_us = f"greatest(closed_us, opened_us + {reach_us}L)"
        settled = f"closed_us IS NOT NULL AND {settled_us} < {time_range.until_us}"
        here = known.filter(f"{settled} AND {settled_us} >= {time_range.from_us}")
        return {
            INCIDENTS.name: here.selectExpr(*_SHOWN, f"CAST({settled_us} DIV {HOUR_US} AS INT) AS {PART}"),
            OPEN_INCIDENTS.name: known.filter(f"NOT ({settled})").selectExpr(*_SHOWN, f"{OPEN_PART} AS {PART}"),
            EDGES.name: _edges(known, time_range),
            STATE.name: _states(known, time_range, reach_us),
        }


_SHOWN: Final = (
    *SUBJECT,
    "timestamp_micros(opened_us) AS opened",
    "timestamp_micros(closed_us) AS closed",
    f"{WORST_STATE} AS worst_state",
    f"down_us / {SECOND_US} AS down_seconds",
    "flapping",
    "also_failing",
    "also_failing_first",
)


def _edges(known: DataFrame, time_range: TimeRange) -> DataFrame:
    """The openings and closings of the range."""
    edges = (
        f"named_struct('at_us', opened_us, 'edge', '{OPENED}', 'down_us', CAST(NULL AS BIGINT))",
        f"named_struct('at_us', closed_us, 'edge', '{CLOSED}', 'down_us', down_us)",
    )
    exploded = known.selectExpr(*SUBJECT, "opened_us", f"inline(array({', '.join(edges)}))")
    return exploded.filter(f"at_us >= {time_range.from_us} AND at_us < {time_range.until_us}").selectExpr(
        *SUBJECT,
        "timestamp_micros(at_us) AS at",
        "edge",
        "timestamp_micros(opened_us) AS opened",
        "down_us",
        f"CAST(at_us DIV {HOUR_US} AS INT) AS {PART}",
    )


def _states(known: DataFrame, time_range: TimeRange, reach_us: int) -> DataFrame:
    """Each incident at the hours that must know it: as it was while open, and as it ended while it is recent.

    At T, openings from T - 2 * reach on are kept: one at T - reach may still be correlated with one at T, and must then
    know those `reach` before itself.
    """
    first = f"greatest(CAST(closed_us DIV {HOUR_US} AS INT), {time_range.first}) + 1"
    last = f"least(CAST((opened_us + {2 * reach_us}L) DIV {HOUR_US} AS INT), {time_range.last_state})"
    as_it_ended = _values_at("h", f"sequence({first}, {last})", "h", "closed_us", "")
    while_open = _values_at("m", "marks", "m.part", "CAST(NULL AS BIGINT)", "m.")
    young = f"closed_us IS NOT NULL AND {first} <= {last}"
    complete = f"opened_us + {reach_us}L < stands.{PART} * {HOUR_US}L"
    exploded = known.selectExpr(
        *SUBJECT,
        "opened_us",
        "also_failing",
        "also_failing_first",
        f"explode(IF({young}, concat({while_open}, {as_it_ended}), {while_open})) AS stands",
    )
    return exploded.selectExpr(
        *SUBJECT,
        "opened_us",
        *(f"stands.{name}" for name in ("closed_us", "worst", "down_us", "flapping")),
        *(f"IF({complete}, {name}, NULL) AS {name}" for name in ("also_failing", "also_failing_first")),
        f"stands.{PART}",
    )


def _values_at(each: str, array: str, part: str, closed_us: str, of: str) -> str:
    """An array of an incident's values at several hours."""
    rest = ", ".join(f"'{name}', {of}{name}" for name in ("worst", "down_us", "flapping"))
    return f"transform({array}, {each} -> named_struct('{PART}', {part}, 'closed_us', {closed_us}, {rest}))"
