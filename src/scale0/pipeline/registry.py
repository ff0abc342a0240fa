"""All aggregations and marts, in the order in which they run.

A reader of a table comes after its writer; a data set has one writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.aggregations.checks import CheckAggregation
from scale0.pipeline.aggregations.heartbeats import HeartbeatAggregation
from scale0.pipeline.aggregations.incidents import IncidentAggregation
from scale0.pipeline.aggregations.metrics import MetricAggregation
from scale0.pipeline.aggregations.presence import PresenceAggregation
from scale0.pipeline.aggregations.request_stats import RequestStatsAggregation
from scale0.pipeline.aggregations.task_stats import TaskStatsAggregation
from scale0.pipeline.aggregations.tasks import TaskAggregation
from scale0.pipeline.engine.restatements import COLUMNS
from scale0.pipeline.marts.anomalies import Anomalies
from scale0.pipeline.marts.audit import Audit
from scale0.pipeline.marts.availability import AvailabilityDay, AvailabilityHour, AvailabilityMonth
from scale0.pipeline.marts.forecasts import Forecasts
from scale0.pipeline.marts.metric_days import MetricDays
from scale0.pipeline.marts.node_stats import NodeStats
from scale0.pipeline.marts.noise import Noise
from scale0.pipeline.marts.series import SeriesMart
from scale0.pipeline.marts.stat_days import RequestDays, TaskDays
from scale0.pipeline.warehouse.records import LEDGER, DataSetInfo, TableInfo

if TYPE_CHECKING:
    from scale0.pipeline.aggregation import Aggregation, Mart
    from scale0.pipeline.data_file import DataSet

FAMILIES: Final[tuple[Aggregation, ...]] = (
    CheckAggregation(),
    PresenceAggregation(),
    TaskAggregation(),
    TaskStatsAggregation(),
    RequestStatsAggregation(),
    MetricAggregation(),
    HeartbeatAggregation(),
    IncidentAggregation(),
)

DERIVATIONS: Final[tuple[Mart, ...]] = (
    Audit(),
    AvailabilityHour(),
    AvailabilityDay(),
    AvailabilityMonth(),
    Noise(),
    TaskDays(),
    RequestDays(),
    NodeStats(),
    MetricDays(),
    SeriesMart(),
    Anomalies(),
    Forecasts(),
)

TABLES_VERSION: Final = 1
"""Recorded with every run. A larger version computes different rows from the same events and requires a full
backfill.
"""


def _all_slabs() -> dict[str, DataSet]:
    found: dict[str, DataSet] = {}
    for family in FAMILIES:
        for slab in (*family.slabs, *((family.carry,) if family.carry else ())):
            found[slab.name] = slab
    for derivation in DERIVATIONS:
        for slab in derivation.slabs:
            found[slab.name] = slab
    return found


SLABS: Final = _all_slabs()


def slabs_of(table: str, period: str | None = None) -> tuple[DataSet, ...]:
    """The data sets of a table; only those of `period` if it is given."""
    return tuple(slab for slab in SLABS.values() if slab.table == table and period in (None, slab.period))


def table_infos() -> dict[str, TableInfo]:
    """How tables consist of data sets, as the manifest records it for readers without Spark."""
    infos: dict[str, TableInfo] = {}
    for slab in SLABS.values():
        if not slab.table:
            continue
        columns = {field.name: field.dataType.simpleString() for field in slab.schema if field.name not in slab.hidden}
        known = infos.get(slab.table)
        slabs = {} if known is None else known.slabs
        infos[slab.table] = TableInfo(columns, {**slabs, slab.name: DataSetInfo(slab.period, slab.hidden)})
    return {**infos, LEDGER: TableInfo(COLUMNS, {})}
