"""Correlation: which other subjects opened an incident at about the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.aggregations.incidents_chains import CARRY, SUBJECT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMED: Final = 10
"""How many of the correlated subjects are named; all are counted."""
LOOKED_AT: Final = 20
"""How many openings, from the first within reach on, are searched for names: some are of the incident's own subject or
repeated. With more repetitions, fewer are named.
"""

_SEEN: Final = (
    "collect_list(named_struct('opened_us', opened_us, 'before_us', before_us,"
    " 'subject_kind', subject_kind, 'subject', subject))"
    f" OVER (ORDER BY opened_us, subject_kind, subject ROWS BETWEEN CURRENT ROW AND {LOOKED_AT - 1} FOLLOWING)"
)
"""An opening and those after it, of all subjects."""

_BACKWARDS: Final = (
    "ORDER BY at_us DESC, asks DESC, subject_kind DESC, subject DESC ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
)

_INCIDENT: Final = (*CARRY.fieldNames()[3:], "marks")


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
