"""The capacity report: which limits will be reached when, how busy the nodes are, and which load grows.

A forecast is the newest of the period. A node's load is its busy time divided by the time of its slots. An attempt
counts in the hour in which it ended, so an hour may exceed its slots.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from scale0.pipeline.reports import latency
from scale0.pipeline.reports.data_quality import document
from scale0.pipeline.reports.formatting import counted, moment
from scale0.pipeline.reports.model import Cone, LinePlot, Plot, PlotLine, ReportColumn, ReportDocument, ReportTable
from scale0.pipeline.reports.query import ReportReader, Row
from scale0.pipeline.time_ranges import DAY_US, HOUR_US

TABLES: Final = ("forecasts", "node_stats", "task_stats", "metric_trends")
MAX_CONES: Final = 4
"""The soonest forecasts, which are drawn."""
HISTORY_US: Final = 14 * DAY_US
"""The range to which a line is fitted."""

_ROOM_US: Final = f'(slots * least({HOUR_US}, $end - epoch_us("hour")))'
"""The microseconds that a node's slots had in an hour, up to the end of the period."""
_BUSY_US: Final = "round(busy_seconds * 1e6)::BIGINT"
_SUMS: Final = f"sum({_BUSY_US})::BIGINT / 1e6, sum({_ROOM_US})::BIGINT / 1e6"
"""Busy seconds and available seconds: summed as integers, since sums of doubles differ from run to run."""

FORECASTS: Final = (
    ReportColumn("subject", "Check"),
    ReportColumn("metric", "Metric"),
    ReportColumn("value", "Now", "number"),
    ReportColumn("limit", "Limit", "number"),
    ReportColumn("slope_per_day", "A day", "number"),
    ReportColumn("exhausted_at", "Runs out", "time"),
    ReportColumn("exhausted_low", "Earliest", "time"),
    ReportColumn("exhausted_high", "Latest", "time"),
    ReportColumn("r2", "R²", "number", detail=True),
    ReportColumn("as_of", "As of", "time", detail=True),
)
NODES: Final = (
    ReportColumn("node", "Node"),
    ReportColumn("load_share", "Load", "share"),
    ReportColumn("busiest_share", "Busiest hour", "share"),
    ReportColumn("busy_seconds", "Busy", "seconds"),
    ReportColumn("slots", "Slots", "count"),
    ReportColumn("attempts", "Attempts", "count"),
    ReportColumn("lost", "Lost", "count"),
)
GROWTH: Final = (
    ReportColumn("method", "Method"),
    ReportColumn("first_per_day", "A day, first half", "number"),
    ReportColumn("second_per_day", "A day, second half", "number"),
    ReportColumn("change", "Growth", "change"),
)


class Forecast(NamedTuple):
    agent: str
    check: str
    metric: str
    value: float | None
    limit: float | None
    slope: float | None
    exhausted_us: int | None
    low_us: int | None
    high_us: int | None
    r2: float | None
    as_of_us: int
    fitted_to_us: int | None


def forecasts_of(reader: ReportReader) -> list[Forecast]:
    rows = reader.rows(
        'SELECT agent, "check", metric, value, "limit", slope, epoch_us(exhausted_at), epoch_us(exhausted_low),'
        " epoch_us(exhausted_high), r2, epoch_us(as_of), epoch_us(fitted_to) FROM forecasts"
        " WHERE as_of < $until AND ($agent = '' OR agent GLOB $agent)"
        " AND ($subject = '' OR agent || '/' || \"check\" GLOB $subject)"
        " AND ($check = '' OR \"check\" GLOB $check OR agent || '/' || \"check\" GLOB $check)"
        ' QUALIFY row_number() OVER (PARTITION BY agent, "check", metric ORDER BY as_of DESC) = 1'
        ' ORDER BY exhausted_at NULLS LAST, agent, "check", metric',
        ("forecasts",),
        agent=reader.filters.agent,
        check=reader.filters.check,
        subject=reader.filters.subject,
        **reader.period.bounds,
    )
    return [Forecast(*row) for row in rows]


def nodes_of(reader: ReportReader) -> list[Row]:
    """(node, busy, capacity, busiest, slots, attempts, lost), the busiest first."""
    rows = reader.rows(
        f"SELECT node, {_SUMS}, max(busy_seconds / nullif({_ROOM_US} / 1e6, 0)),"  # noqa: S608
        " max(slots), sum(attempts)::BIGINT, sum(lost)::BIGINT"
        ' FROM node_stats WHERE "hour" >= $since AND "hour" < $until AND ($subject = \'\' OR node GLOB $subject)'
        " GROUP BY node ORDER BY node",
        ("node_stats",),
        subject=reader.filters.subject,
        end=reader.period.to_us,
        **reader.period.bounds,
    )
    return sorted(rows, key=lambda row: (-(row[1] / row[2] if row[2] else 0.0), row[0]))


def loads_of(reader: ReportReader) -> tuple[tuple[int, float | None], ...]:
    """The load of all nodes together, by step."""
    rows = reader.rows(
        f'SELECT epoch_us("hour") // $unit * $unit AS step, {_SUMS}'  # noqa: S608
        ' FROM node_stats WHERE "hour" >= $since AND "hour" < $until AND ($subject = \'\' OR node GLOB $subject)'
        " GROUP BY ALL",
        ("node_stats",),
        unit=reader.period.unit_us,
        subject=reader.filters.subject,
        end=reader.period.to_us,
        **reader.period.bounds,
    )
    known = {step: busy / whole if whole else None for step, busy, whole in rows}
    return tuple((step, known.get(step)) for step in reader.period.steps())


def growth_of(reader: ReportReader) -> list[tuple[str, float, float]]:
    """(method, tasks per day in the first half, in the second half)."""
    period = reader.period
    rows = reader.covered(
        "SELECT method, epoch_us(start) < $middle AS early, sum(submitted)::BIGINT FROM task_stats GROUP BY ALL",
        "task_stats",
        middle=period.middle_us,
    )
    days = {True: (period.middle_us - period.from_us) / DAY_US, False: (period.to_us - period.middle_us) / DAY_US}
    if min(days.values()) <= 0:
        return []
    found: dict[str, dict[bool, float]] = {}
    for method, early, count in rows:
        found.setdefault(method, {})[early] = count / days[early]
    pairs = [(method, halves.get(True, 0.0), halves.get(False, 0.0)) for method, halves in found.items()]
    return sorted(pairs, key=lambda row: (row[1] - row[2], row[0]))


def histories_of(reader: ReportReader, drawn: list[Forecast]) -> dict[tuple[str, str, str], list[tuple[int, float]]]:
    """The hourly averages of the forecasts that are drawn."""
    if not drawn:
        return {}
    end_us = max(one.fitted_to_us or one.as_of_us for one in drawn)
    rows = reader.rows(
        # The agents are a separate condition: files can be filtered by a plain column, not by an expression.
        "SELECT agent, \"check\", metric, epoch_us(start), avg FROM metric_trends WHERE grain = 'hour'"
        " AND agent IN $agents AND agent || '/' || \"check\" || '/' || metric IN $names ORDER BY start",
        ("metric_trends",),
        since_us=end_us - HISTORY_US,
        until_us=end_us,
        agents=[one.agent for one in drawn],
        names=[f"{one.agent}/{one.check}/{one.metric}" for one in drawn],
    )
    found: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for agent, check, metric, start_us, avg in rows:
        found.setdefault((agent, check, metric), []).append((start_us, avg))
    return found


def report(reader: ReportReader) -> ReportDocument:
    forecasts, nodes = forecasts_of(reader), nodes_of(reader)
    growth = [] if reader.filters.any else growth_of(reader)
    ending = [one for one in forecasts if one.exhausted_us is not None]
    others = len(forecasts) - len(ending)
    note = f"{counted(others, 'other metric')} with a limit will not reach it according to the linear fit."
    found = bool(forecasts or nodes)
    return document(
        reader,
        "capacity",
        _summary(ending, nodes),
        (
            ReportTable(
                "forecasts",
                "Limits that will be reached",
                FORECASTS,
                tuple(map(_forecast_row, ending)),
                "no limit will be reached",
            ),
            ReportTable("nodes", "Nodes, busiest first", NODES, tuple(map(_node_row, nodes)), "no node worked"),
            ReportTable("growth", "Tasks per day", GROWTH, tuple(map(_growth_row, growth)), "nothing to compare"),
        ),
        reads=TABLES,
        plots=_plots(reader, ending[:MAX_CONES]),
        notes=(note,) if others else (),
        found=found,
        known=_known(reader) if reader.filters.any and not found else (),
    )


def _known(reader: ReportReader) -> tuple[str, ...]:
    subjects = reader.rows("SELECT DISTINCT agent || '/' || \"check\" AS s FROM forecasts ORDER BY s", ("forecasts",))
    nodes = reader.rows("SELECT DISTINCT node FROM node_stats ORDER BY node", ("node_stats",))
    return tuple(name for (name,) in (*subjects, *nodes))


def _forecast_row(one: Forecast) -> Row:
    subject = f"{one.agent}/{one.check}"
    times = one.exhausted_us, one.low_us, one.high_us
    return (subject, one.metric, one.value, one.limit, one.slope, *times, one.r2, one.as_of_us)


def _node_row(row: Row) -> Row:
    node, busy, whole, busiest, slots, attempts, lost = row
    return (node, busy / whole if whole else None, busiest, busy, slots, attempts, lost)


def _growth_row(row: tuple[str, float, float]) -> Row:
    return (*row, latency.change(row[1], row[2]))


def _plots(reader: ReportReader, drawn: list[Forecast]) -> tuple[Plot, ...]:
    unit, histories, loads = reader.period.unit, histories_of(reader, drawn), loads_of(reader)
    found = (_cone(one, histories.get((one.agent, one.check, one.metric), [])) for one in drawn)
    cones = tuple(cone for cone in found if cone)
    if not any(load for _, load in loads):
        return cones
    about = f"The share of all slots that was busy in each {unit}."
    return (*cones, LinePlot(f"Load of all nodes by {unit}", about, "share", (PlotLine("load", loads),)))


def _cone(one: Forecast, history: list[tuple[int, float]]) -> Cone | None:
    if one.exhausted_us is None or one.value is None or one.limit is None or one.low_us is None:
        return None
    title = f"{one.agent}/{one.check}: {one.metric}"
    about = f"It reaches its limit on {moment(one.exhausted_us)} UTC if the trend continues."
    at_us = one.fitted_to_us or one.as_of_us
    return Cone(title, about, tuple(history), at_us, one.value, one.limit, one.exhausted_us, one.low_us, one.high_us)


def _summary(ending: list[Forecast], nodes: list[Row]) -> str:
    first = "No limit will be reached."
    if ending:
        soonest = ending[0]
        first = (
            f"{counted(len(ending), 'metric')} will reach a limit, first {soonest.metric} of"
            f" {soonest.agent}/{soonest.check}"
            f" on {moment(soonest.exhausted_us or 0)} UTC."
        )
    return f"{first} {counted(len(nodes), 'node')} worked." if nodes else first
