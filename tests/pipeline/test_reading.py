"""Readers see what the newest manifest lists: the same rows with Spark, with pyarrow and with DuckDB."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from scale0.history.segments.arrow import MARK, MARKED, VERSION_KEY
from scale0.pipeline.reading import ask, open_arrow, open_duckdb, read, tables
from scale0.pipeline.time_ranges import DAY_US, HOUR_US, Period, to_time
from scale0.pipeline.warehouse.records import (
    RESTATEMENTS,
    DataSetInfo,
    FileEntry,
    TableInfo,
    WarehouseDamaged,
    WarehouseError,
)
from scale0.pipeline.warehouse.selection import TimeSpan, span_of
from scale0.pipeline.warehouse.types import arrow_type, duck_type
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.warehouse_made import (
    DAY,
    HOUR,
    NOW_US,
    START_US,
    TALLY,
    add,
    begin,
    commit,
    put,
    rows,
    run,
    seqs,
    table,
)

RICH = TableInfo(
    {
        "subject": "string",
        "from": "timestamp",
        "ok": "boolean",
        "share": "double",
        "attempts": "int",
        "histogram": "array<struct<bucket:int,count:bigint>>",
        "failed": "map<int,bigint>",
    },
    {"rich": DataSetInfo("hour"), "rich.open": DataSetInfo("open", ("hidden",))},
)
RICH_ROWS = [
    {
        "subject": "a",
        "from": to_time(START_US),
        "ok": True,
        "share": 0.5,
        "attempts": 3,
        "histogram": [{"bucket": 1, "count": 2}],
        "failed": [(404, 1)],
    },
    {"subject": "b", "from": None, "ok": None, "share": None, "attempts": None, "histogram": [], "failed": None},
]
RESTATEMENTS_TABLE = TableInfo({"run": "bigint", "part": "timestamp"}, {RESTATEMENTS: DataSetInfo("open")})
BARE = TableInfo(RICH.columns, {"bare": DataSetInfo("month")})


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "ware house's")


@pytest.fixture
def filled(warehouse, tmp_path):
    """Events of an old and a new version, a carved data set, a rich table of two, an empty one, and restatements."""
    put(tmp_path / "segments", rows(6, 20), source="broker:ü")
    older = put(tmp_path / "segments", rows(1, 5), source="broker:ü")
    older.unlink()
    plain = table(rows(1, 5), "broker:ü").drop_columns(["data", "metrics"])
    pq.write_table(plain.replace_schema_metadata({MARK: MARKED, VERSION_KEY: b"0"}), older)
    put(tmp_path / "segments", rows(21, 30, at=START_US + DAY_US), source="broker:ü", day="2026-05-11")
    run(warehouse, tmp_path / "segments")
    with begin(warehouse) as transaction:
        add(transaction, "tally", [(HOUR, "old", 1), (HOUR + 1, "stays", 2), (HOUR + 24, "next day", 3)])
        add(transaction, "tally", [(HOUR, "new", 4)])
        made_of: list[tuple[str, Period, int, int]] = [("rich", "hour", HOUR, 0), ("rich.open", "open", 0, 1)]
        for data_set, period, part, row in made_of:
            path = transaction.staging.new_file(data_set, "made")
            kinds = pa.schema([(name, arrow_type(word)) for name, word in RICH.columns.items()])
            made = pa.Table.from_pylist([RICH_ROWS[row]], schema=kinds)
            made = made.append_column("part", pa.array([part], pa.int32()))
            pq.write_table(made.append_column("row_hash", pa.array([9])), path)
            transaction.replace(data_set, period, {part}, transaction.staging.register(data_set, [path]))
        path = transaction.staging.new_file(RESTATEMENTS, "made")
        pq.write_table(pa.table({"run": [2], "part": pa.array([START_US], pa.timestamp("us", "UTC"))}), path)
        transaction.append_restatements([FileEntry(transaction.staging.relative(path), 1, {2: (1, 0)}, True)])
        all_tables = {"tally": TALLY, "rich": RICH, "bare": BARE, RESTATEMENTS: RESTATEMENTS_TABLE}
        transaction.commit(transaction.newest_us, now_us=NOW_US, parameters={}, code_version="1", tables=all_tables)
    return warehouse


TALLIES = [("new", 4), ("next day", 3), ("stays", 2)]


def test_arrow_shows_exactly_what_counts(filled):
    tally = open_arrow(filled, "tally")
    assert tally.column_names == ["name", "count"]
    assert sorted(map(tuple, (row.values() for row in tally.to_pylist()))) == TALLIES
    assert sorted(open_arrow(filled, "rich").to_pylist(), key=lambda row: row["subject"]) == RICH_ROWS
    assert open_arrow(filled, "bare").num_rows == 0
    assert open_arrow(filled, "bare").schema == open_arrow(filled, "rich").schema
    assert open_arrow(filled, RESTATEMENTS).to_pylist() == [{"run": 2, "part": to_time(START_US)}]
    assert tables(filled) == ["bare", "events", RESTATEMENTS, "rich", "tally"]


def test_arrow_reads_the_columns_and_rows_that_are_asked_for(filled):
    assert open_arrow(filled, "tally", columns=["count"], where=pc.field("name") == "new").to_pylist() == [{"count": 4}]
    assert open_arrow(filled, "events", columns=["seq"], where=pc.field("kind") == "nothing").num_rows == 0
    with pytest.raises(WarehouseError, match="tally has no column 'secret'; it has: name, count"):
        open_arrow(filled, "tally", columns=["secret"])
    with pytest.raises(WarehouseError, match="no table 'weather'; there are: bare, events"):
        open_arrow(filled, "weather")


def test_duckdb_has_a_view_of_every_table(filled):
    with open_duckdb(filled) as connection:
        assert sorted(connection.execute("SELECT * FROM tally").fetchall()) == TALLIES
        assert connection.execute("SELECT count(*), sum(len(histogram)) FROM rich").fetchall() == [(2, 1)]
        assert connection.execute('SELECT "from" FROM rich WHERE ok').fetchall() == [(to_time(START_US),)]
        assert connection.execute("SELECT * FROM bare").fetchall() == []
        assert connection.execute("SELECT run, part FROM restatements").fetchall() == [(2, to_time(START_US))]
        assert connection.execute("SELECT seq FROM events ORDER BY seq").fetchall() == [(seq,) for seq in range(1, 31)]
        assert connection.execute("SELECT count(metrics) FROM events").fetchall() == [(5,)]
        shapes = {
            name: [(row[0], row[1]) for row in connection.execute(f"DESCRIBE {name}").fetchall()]
            for name in ("rich", "bare")
        }
        assert shapes["rich"] == shapes["bare"], "an empty table has its types"


def test_duckdb_opens_nothing_but_the_warehouse(filled, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with open_duckdb(filled) as connection:
        with pytest.raises(duckdb.Error, match="disabled by configuration"):
            connection.execute(f"SELECT * FROM read_csv('{secret}')")
        with pytest.raises(duckdb.Error):
            connection.execute("INSTALL httpfs")
        with pytest.raises(duckdb.Error):
            connection.execute("SET enable_external_access = true")


def test_a_connection_beside_another_has_views_of_its_own_and_no_more_rights(filled, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with (
        open_duckdb(filled, tables=("tally",), until=to_time(START_US)) as none,
        open_duckdb(filled, tables=("tally", "rich"), beside=none) as whole,
    ):
        assert sorted(whole.execute("SELECT * FROM tally").fetchall()) == TALLIES
        assert none.execute("SELECT * FROM tally").fetchall() == []
        assert whole.execute(
            'SELECT DISTINCT timezone(\'UTC\', "from") = "from"::TIMESTAMP FROM rich WHERE ok'
        ).fetchall() == [(True,)]
        with pytest.raises(duckdb.Error, match="disabled by configuration"):
            whole.execute(f"SELECT * FROM read_csv('{secret}')")
        with pytest.raises(duckdb.Error, match="rich does not exist"):
            none.execute("SELECT * FROM rich")


def test_a_question_in_sql_has_an_answer(filled):
    answer = ask(filled, "SELECT name FROM tally WHERE count > ? ORDER BY name", [2], tables=["tally"])
    assert answer.to_pylist() == [{"name": "new"}, {"name": "next day"}]


@pytest.mark.slow
def test_spark_sees_the_same(spark, filled):
    tally = read(spark, "tally", warehouse=filled)
    assert tally.columns == ["name", "count"]
    assert sorted(map(tuple, tally.collect())) == TALLIES
    rich = read(spark, "rich", warehouse=filled)
    assert [(row["subject"], row["failed"]) for row in rich.collect()] == [("a", {404: 1}), ("b", None)]
    bare = read(spark, "bare", warehouse=filled)
    assert (bare.schema, bare.isEmpty()) == (rich.schema, True)
    assert [row["run"] for row in read(spark, RESTATEMENTS, warehouse=filled).collect()] == [2]
    events = read(spark, "events", warehouse=filled).select("seq", "source", "metrics").collect()
    assert sorted(row["seq"] for row in events) == list(range(1, 31))
    assert {row["source"] for row in events} == {"broker:ü"}
    assert sum(row["metrics"] is not None for row in events) == 5
    day = to_time((DAY + 1) * DAY_US)
    assert read(spark, "events", warehouse=filled, since=day).count() == 10
    assert [row["count"] for row in read(spark, "tally", warehouse=filled, since=day).collect()] == [3]


# Spans of time.


def test_only_the_day_manifests_of_a_span_are_opened(filled):
    manifest = filled.latest()
    filled.path(manifest.chapters[DAY + 1].path).write_text("damaged")
    fresh = Warehouse(filled.root)
    until = to_time((DAY + 1) * DAY_US)
    assert sorted(open_arrow(fresh, "tally", until=until)["count"].to_pylist()) == [2, 4]
    assert seqs(fresh, until=until) == list(range(1, 21))
    with open_duckdb(fresh, until=until) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchall() == [(20,)]
    with pytest.raises(WarehouseDamaged):
        open_arrow(fresh, "tally")


def test_a_span_may_have_no_end(filled):
    since = to_time((DAY + 1) * DAY_US)
    assert seqs(filled, since=since) == list(range(21, 31))
    assert ask(filled, "SELECT count(*) AS n FROM events", since=since).to_pylist() == [{"n": 10}]


@pytest.mark.parametrize(
    ("since", "until", "counts"), [(0, 1, [4]), (1, 2, [2]), (0, 24, [2, 4]), (24, 25, [3]), (30, 40, []), (5, 2, [])]
)
def test_a_span_has_the_parts_that_it_touches(filled, since, until, counts):
    bounds: Any = {"since": to_time(START_US + since * HOUR_US), "until": to_time(START_US + until * HOUR_US)}
    assert sorted(open_arrow(filled, "tally", **bounds)["count"].to_pylist()) == counts
    assert sorted(ask(filled, "SELECT count FROM tally", **bounds)["count"].to_pylist()) == counts


def test_a_span_is_rounded_to_whole_hours():
    assert span_of(None, None) == TimeSpan()
    assert span_of(HOUR_US, HOUR_US) == TimeSpan(1, 1)
    assert span_of(HOUR_US - 1, HOUR_US + 1) == TimeSpan(0, 2)
    assert TimeSpan(0, 25).parts("day") == range(2)
    assert TimeSpan(24 * 31, 24 * 32).parts("month") == range(1, 2)
    assert TimeSpan().parts("month").stop == (10_000 - 1970) * 12


# While others write and collect.


def test_a_reader_whose_files_were_collected_reads_the_manifest_again(filled, monkeypatch):
    old = filled.latest()
    with begin(filled) as transaction:
        add(transaction, "tally", [(HOUR, "newest", 9), (HOUR + 1, "newest", 9), (HOUR + 24, "newest", 9)])
        commit(transaction, NOW_US)
    filled.collect(NOW_US + 3 * DAY_US)
    for reader in (
        lambda place: open_arrow(place, "tally")["count"].to_pylist(),
        lambda place: ask(place, "SELECT count FROM tally")["count"].to_pylist(),
        lambda place: [row[0] for row in open_duckdb(place).execute("SELECT count FROM tally").fetchall()],
    ):
        place = Warehouse(filled.root)
        newest = place.latest
        looks: list[Any] = [old]
        monkeypatch.setattr(place, "latest", lambda looks=looks, newest=newest: looks.pop() if looks else newest())
        assert reader(place) == [9, 9, 9]
        assert not looks


def test_a_listed_file_that_is_gone_is_an_error_that_says_so(filled):
    manifest = filled.latest()
    for entry in filled.day_manifest(manifest, DAY).slabs["tally"]:
        filled.path(entry.path).unlink()
    for reader in (lambda: open_arrow(filled, "tally"), lambda: open_duckdb(filled), lambda: ask(filled, "SELECT 1")):
        with pytest.raises(WarehouseDamaged, match="is gone: restore it, or backfill"):
            reader()


def test_a_reader_holds_on_to_the_manifest_that_it_opened(filled):
    with open_duckdb(filled) as connection:
        with begin(filled) as transaction:
            add(transaction, "tally", [(HOUR, "newest", 9)])
            commit(transaction, NOW_US)
        filled.collect(NOW_US + HOUR_US)
        assert sorted(connection.execute("SELECT * FROM tally").fetchall()) == TALLIES


def test_a_path_that_would_be_taken_for_a_pattern_is_refused(tmp_path):
    with pytest.raises(WarehouseError, match="pattern"):
        open_duckdb(tmp_path / "a[b]")


@pytest.mark.processes
def test_reading_without_spark_needs_no_spark(filled):
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from scale0.pipeline.reading import ask, open_arrow\n"
        "print(open_arrow(sys.argv[1], 'tally').num_rows)\n"
        "print(ask(sys.argv[1], 'SELECT 1 FROM events').num_rows)\n"
    )
    command = [sys.executable, "-c", program, str(filled.root)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "3\n30\n"


# Types.


@pytest.mark.parametrize(
    ("word", "kind", "duck"),
    [
        ("bigint", pa.int64(), "BIGINT"),
        ("map<int,bigint>", pa.map_(pa.int32(), pa.int64()), "MAP(INTEGER, BIGINT)"),
        (
            "array<struct<a:string,b:map<int,array<double>>>>",
            pa.list_(pa.struct([("a", pa.string()), ("b", pa.map_(pa.int32(), pa.list_(pa.float64())))])),
            'STRUCT("a" VARCHAR, "b" MAP(INTEGER, DOUBLE[]))[]',
        ),
    ],
)
def test_types_have_a_word_in_every_reader(word, kind, duck):
    assert arrow_type(word) == kind
    assert duck_type(word) == duck


@pytest.mark.parametrize(
    "word", ["", "decimal(10,2)", "array<int", "map<int>", "struct<a b:int>", "array<" * 20 + "int" + ">" * 20]
)
def test_a_type_that_nobody_knows_is_an_error(word):
    with pytest.raises(WarehouseDamaged, match="does not know"):
        arrow_type(word)
    with pytest.raises(WarehouseDamaged, match="does not know"):
        duck_type(word)


def test_every_plain_word_means_the_same_to_arrow_and_to_duckdb():
    words = ("string", "boolean", "int", "bigint", "float", "double", "date", "timestamp", "binary")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for word in words:
            (kind,) = connection.sql(f"SELECT CAST(NULL AS {duck_type(word)})").to_arrow_table().schema.types
            assert kind == arrow_type(word), word
