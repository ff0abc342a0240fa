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
from scale0.pipeline.marts import availability
from scale0.pipeline.marts.anomalies import Anomalies
from scale0.pipeline.marts.audit import AUDIT
from scale0.pipeline.marts.forecasts import Forecasts
from scale0.pipeline.marts.metric_days import METRIC_DAYS
from scale0.pipeline.marts.node_stats import NODE_HOURS
from scale0.pipeline.marts.noise import Noise
from scale0.pipeline.marts.series import SERIES_HOURS
from scale0.pipeline.marts.stat_days import REQUEST_DAYS, TASK_DAYS
from scale0.pipeline.warehouse.records import RESTATEMENTS, DataSetInfo, TableInfo

if TYPE_CHECKING:
    from scale0.pipeline.aggregation import Aggregation, Mart
    from scale0.pipeline.schemas import DataSet

AGGREGATIONS: Final[tuple[Aggregation, ...]] = (
    CheckAggregation(),
    PresenceAggregation(),
    TaskAggregation(),
    TaskStatsAggregation(),
    RequestStatsAggregation(),
    MetricAggregation(),
    HeartbeatAggregation(),
    IncidentAggregation(),
)

MARTS: Final[tuple[Mart, ...]] = (
    AUDIT,
    availability.HOUR_MART,
    availability.DAY_MART,
    availability.MONTH_MART,
    Noise(),
    TASK_DAYS,
    REQUEST_DAYS,
    NODE_HOURS,
    METRIC_DAYS,
    SERIES_HOURS,
    Anomalies(),
    Forecasts(),
)

TABLES_VERSION: Final = 1
"""Recorded with every run. A larger version computes different rows from the same events and requires a full
backfill.
"""


def _all_data_sets() -> dict[str, DataSet]:
    found: dict[str, DataSet] = {}
    for aggregation in AGGREGATIONS:
        for data_set in (*aggregation.data_sets, *((aggregation.state,) if aggregation.state else ())):
            found[data_set.name] = data_set
    for mart in MARTS:
        for data_set in mart.data_sets:
            found[data_set.name] = data_set
    return found


DATA_SETS: Final = _all_data_sets()


def data_sets_of(table: str, period: str | None = None) -> tuple[DataSet, ...]:
    """The data sets of a table; only those of `period` if it is given."""
    return tuple(
        data_set for data_set in DATA_SETS.values() if data_set.table == table and period in (None, data_set.period)
    )


def table_infos() -> dict[str, TableInfo]:
    """How tables consist of data sets, as the manifest records it for readers without Spark."""
    infos: dict[str, TableInfo] = {}
    for data_set in DATA_SETS.values():
        if not data_set.table:
            continue
        columns = {
            field.name: field.dataType.simpleString() for field in data_set.schema if field.name not in data_set.hidden
        }
        known = infos.get(data_set.table)
        slabs = {} if known is None else known.slabs
        infos[data_set.table] = TableInfo(
            columns, {**slabs, data_set.name: DataSetInfo(data_set.period, data_set.hidden)}
        )
    return {**infos, RESTATEMENTS: TableInfo(COLUMNS, {})}
