"""Readers of the warehouse: with Spark, with pyarrow, and with DuckDB.

A reader sees exactly what the newest manifest lists, all tables from one manifest. Spark and pyarrow are imported only
by the functions that need them. DuckDB can open only files of the warehouse. If a listed file is gone, the reader
retries once with the newest manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from scale0.history.events.columns import COLUMN_NAMES
from scale0.pipeline.time_ranges import to_time, to_us
from scale0.pipeline.warehouse.records import EVENTS, PART, Manifest, WarehouseDamaged, WarehouseError
from scale0.pipeline.warehouse.selection import Cover, SelectedFiles, Selection, TimeSpan, select, span_of
from scale0.pipeline.warehouse.types import arrow_type, duck_type
from scale0.pipeline.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

GLOB_CHARACTERS: Final = frozenset("*?[]{}")
"""Spark and DuckDB interpret these in paths as patterns."""

WarehouseLocation = Warehouse | Path | str
Result = TypeVar("Result")


def tables(warehouse: WarehouseLocation) -> list[str]:
    return sorted({*_newest(_opened(warehouse)).tables, EVENTS})


def read(
    spark: SparkSession,
    table: str,
    *,
    warehouse: WarehouseLocation,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """A table as a frame: its public columns in order."""

    def frame(chosen: Selection) -> DataFrame:
        from pyspark.sql import functions as f  # noqa: PLC0415  # other readers need no Spark

        from scale0.pipeline.schemas import fields  # noqa: PLC0415

        columns = fields(*chosen.columns.items())
        frames = []
        for files in chosen.files:
            wanted = columns if files.parts is None else fields(*chosen.columns.items(), (PART, "int"))
            rows = spark.read.schema(wanted).parquet(*files.paths)
            if files.parts is not None:
                rows = rows.filter(f.col(PART).isin(sorted(files.parts)))
            if chosen.at is not None:
                rows = rows.filter(f.col("at").between(*(f.lit(to_time(us)) for us in chosen.at)))
            frames.append(rows.select(*chosen.columns))
        return reduce(lambda one, other: one.unionAll(other), frames) if frames else spark.createDataFrame([], columns)

    opened = _opened(warehouse)
    _no_patterns(opened)
    return _reread(opened, lambda manifest: frame(select(opened, manifest, table, _span(since, until))))


def open_arrow(
    warehouse: WarehouseLocation,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    where: pc.Expression | None = None,
) -> pa.Table:
    """A table as Arrow, of the parts that overlap [since, until); `where` filters its rows."""
    import pyarrow as pa  # noqa: PLC0415  # DuckDB's readers need none

    opened = _opened(warehouse)

    def rows(manifest: Manifest) -> pa.Table:
        chosen = select(opened, manifest, table, _span(since, until))
        selected = list(chosen.columns) if columns is None else list(columns)
        schema = pa.schema([(name, arrow_type(type_name)) for name, type_name in chosen.columns.items()])
        if missing := [name for name in selected if name not in schema.names]:
            raise WarehouseError(f"{table} has no column {missing[0]!r}; it has: {', '.join(schema.names)}")
        tables = [_arrow(files, schema, selected, _both(where, _at_filter(chosen))) for files in chosen.files]
        return pa.concat_tables(tables) if tables else schema.empty_table().select(selected)

    return _reread(opened, rows)


def open_duckdb(
    warehouse: WarehouseLocation,
    *,
    tables: Iterable[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    cover: Cover | None = None,
    beside: duckdb.DuckDBPyConnection | None = None,
) -> duckdb.DuckDBPyConnection:
    """A connection with a view for each table (None: all), of the parts that overlap [since, until).

    `cover` limits tables with grains to these parts. `beside` is another connection to this warehouse: the new
    connection shares its database, which is faster than creating one, and gets its own views.
    """
    opened = _opened(warehouse)
    _no_patterns(opened)
    views = WarehouseViews(None if tables is None else tuple(tables), _span(since, until), cover)
    return _reread(opened, lambda manifest: _connected(opened, manifest, views, beside))


def ask(
    warehouse: WarehouseLocation,
    sql: str,
    parameters: Sequence[Any] = (),
    *,
    tables: Iterable[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> pa.Table:
    """The result of one SQL query. If a file disappears meanwhile, the query is repeated with the newest manifest."""
    opened = _opened(warehouse)
    _no_patterns(opened)
    views = WarehouseViews(None if tables is None else tuple(tables), _span(since, until))

    def answer(manifest: Manifest) -> pa.Table:
        with _connected(opened, manifest, views) as connection:
            return connection.sql(sql, params=list(parameters)).to_arrow_table()

    return _reread(opened, answer)


def _opened(warehouse: WarehouseLocation) -> Warehouse:
    return warehouse if isinstance(warehouse, Warehouse) else Warehouse(Path(warehouse))


def _newest(warehouse: Warehouse) -> Manifest:
    manifest = warehouse.latest()
    if manifest is None:
        raise WarehouseError(f"the warehouse {warehouse.root} is empty: run `scale0 pipeline run` first")
    return manifest


def _reread(warehouse: Warehouse, work: Callable[[Manifest], Result]) -> Result:
    """Run `work` with the newest manifest, and again with a newer one if a file was garbage-collected meanwhile."""
    manifest = _newest(warehouse)
    try:
        return work(manifest)
    except Exception as error:
        if not _is_gone(error):
            raise
        newer = _newest(warehouse)
        if newer.number == manifest.number:
            raise WarehouseDamaged(
                f"a file of manifest {manifest.number} of {warehouse.root} is gone: restore it, or backfill ({error})"
            ) from error
        return work(newer)


def _is_gone(error: Exception) -> bool:
    # DuckDB and Spark have one error class for everything that can be wrong with a file.
    return isinstance(error, FileNotFoundError) or any(
        sign in str(error) for sign in ("No files found that match", "No such file or directory", "PATH_NOT_FOUND")
    )


def _span(since: datetime | None, until: datetime | None) -> TimeSpan:
    return span_of(None if since is None else to_us(since), None if until is None else to_us(until))


def _no_patterns(warehouse: Warehouse) -> None:
    if found := GLOB_CHARACTERS.intersection(str(warehouse.root)):
        raise WarehouseError(
            f"the path {warehouse.root} contains {min(found)!r}, which Spark and DuckDB interpret as a pattern: move it"
        )


def _arrow(files: SelectedFiles, schema: pa.Schema, selected: list[str], where: pc.Expression | None) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415  # DuckDB's readers need none
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.dataset as ds  # noqa: PLC0415  # it brings pandas along

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    if files.parts is not None:
        if PART not in schema.names:
            schema = schema.append(pa.field(PART, pa.int32()))
        where = _both(where, pc.field(PART).isin(sorted(files.parts)))
    return ds.dataset(files.paths, format=form, schema=schema, partitioning=None).to_table(
        columns=selected, filter=where
    )


def _at_filter(chosen: Selection) -> pc.Expression | None:
    if chosen.at is None:
        return None
    import pyarrow as pa  # noqa: PLC0415  # DuckDB's readers need none
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = pa.timestamp("us", tz="UTC")
    first, last = (pa.scalar(us, kind) for us in chosen.at)
    return (pc.field("at") >= first) & (pc.field("at") <= last)


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


class WarehouseViews(NamedTuple):
    tables: tuple[str, ...] | None
    """None: all."""
    span: TimeSpan
    cover: Cover | None = None


def _connected(
    warehouse: Warehouse, manifest: Manifest, views: WarehouseViews, beside: duckdb.DuckDBPyConnection | None = None
) -> duckdb.DuckDBPyConnection:
    connection = _database(warehouse) if beside is None else beside.cursor()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for table in sorted({*manifest.tables, EVENTS}) if views.tables is None else views.tables:
            view = _view(select(warehouse, manifest, table, views.span, views.cover))
            # Temporary views are private to a connection and take precedence over shared ones.
            connection.execute(f"CREATE {'' if beside is None else 'TEMP '}VIEW {_name(table)} AS {view}")
    except BaseException:
        connection.close()
        raise
    return connection


def _database(warehouse: Warehouse) -> duckdb.DuckDBPyConnection:
    """An empty database that may only read files of the warehouse."""
    import duckdb  # noqa: PLC0415  # Spark and pyarrow readers need none

    connection = duckdb.connect(
        ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )
    try:
        connection.execute(f"SET allowed_directories = [{_text(f'{warehouse.root}/')}]")
        connection.execute("SET enable_external_access = false")
    except BaseException:
        connection.close()
        raise
    return connection


def _view(chosen: Selection) -> str:
    pieces = [_piece(chosen, files) for files in chosen.files]
    if not pieces:
        nulls = (f"CAST(NULL AS {duck_type(type_name)}) AS {_name(n)}" for n, type_name in chosen.columns.items())
        return f"SELECT {', '.join(nulls)} WHERE false"
    return " UNION ALL ".join(pieces)


def _piece(chosen: Selection, files: SelectedFiles) -> str:
    lacking = COLUMN_NAMES[files.columns :] if files.columns else ()
    columns = ", ".join(
        f"CAST(NULL AS {duck_type(type_name)}) AS {_name(name)}" if name in lacking else _name(name)
        for name, type_name in chosen.columns.items()
    )
    conditions = []
    if files.parts is not None:
        conditions.append(f"{PART} IN ({', '.join(str(part) for part in sorted(files.parts))})")
    if chosen.at is not None:
        first, last = (f"TIMESTAMPTZ '{to_time(us).isoformat()}'" for us in chosen.at)
        conditions.append(f'"at" BETWEEN {first} AND {last}')
    paths = ", ".join(_text(path) for path in files.paths)
    # Names and paths are quoted, and come from a manifest, not from the caller.
    rows = f"SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false)"  # noqa: S608
    return f"{rows} WHERE {' AND '.join(conditions)}" if conditions else rows


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
