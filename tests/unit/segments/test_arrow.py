"""A segment holds exactly what the journal holds, and a damaged one is refused.

Promise: SEG-3
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.history.events.columns import COLUMNS, MAX_BIGINT, SCHEMA_VERSION, EventMetric, EventRow
from scale0.history.events.journal import Journal, JournalRow, read
from scale0.history.segments import arrow
from scale0.history.segments.names import Segment
from scale0.kernel.clock import Now
from tests.unit.events.samples import SAMPLES

TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
INT = st.none() | st.integers(-(2**31), 2**31 - 1)
SECONDS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


class Anything:
    """An event that is its row."""

    kind = "any.thing"

    def __init__(self, row: EventRow) -> None:
        self._row = row

    def row(self) -> EventRow:
        return self._row


ROWS = st.builds(
    EventRow,
    kind=st.text(st.characters(exclude_categories=["Cs"])),
    at=st.none() | st.floats(-1e9, 1e10),
    identity=TEXT,
    service=TEXT,
    ref=TEXT,
    attempt=INT,
    code=INT,
    state=TEXT,
    seconds=SECONDS,
    waited=SECONDS,
    histogram=st.none() | st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, MAX_BIGINT)), max_size=4),
    bytes=st.none() | st.integers(0, MAX_BIGINT),
    metrics=st.none()
    | st.lists(
        st.builds(EventMetric, st.text(st.characters(exclude_categories=["Cs"])), NUMBER, TEXT, SECONDS), max_size=3
    ),
    data=st.none() | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), INT, max_size=3),
)
EVENTS = st.sampled_from([event for event, _ in SAMPLES]) | ROWS.map(Anything)


def rows_of(turns: list[list]) -> list[JournalRow]:
    journal = Journal("east-1", 7, 1, 0)
    rows = [journal.append(turn, Now(0.0, 100.0 + n)) for n, turn in enumerate(turns)]
    return [row for row in rows if row is not None]


def as_journal(table: pa.Table) -> list[dict]:
    for name in ("time", "at"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
    found: list[dict] = table.to_pylist()
    return found


def test_every_kind_of_event_is_in_a_segment_as_it_is_in_the_journal():
    rows = rows_of([[event for event, _ in SAMPLES]])
    assert as_journal(arrow.table_of(rows)) == read(rows[0].body)


@given(st.lists(st.lists(EVENTS, max_size=5), max_size=4))
def test_any_events_come_back_from_a_segment_as_the_journal_gives_them(turns):
    rows = rows_of(turns)
    table = arrow.table_of(rows)
    sink = pa.BufferOutputStream()
    arrow.write(table, sink)
    with arrow.open_segment(pa.BufferReader(sink.getvalue())) as file:
        found = file.read()
    assert found.equals(table)
    assert found.schema.equals(arrow.SCHEMA)
    assert as_journal(found) == [event for row in rows for event in read(row.body)]


def test_the_same_events_are_the_same_bytes():
    rows = rows_of([[event for event, _ in SAMPLES]] * 3)
    written = []
    for _ in range(2):
        sink = pa.BufferOutputStream()
        arrow.write(arrow.table_of(rows), sink)
        written.append(sink.getvalue().to_pybytes())
    assert written[0] == written[1]


def test_a_segment_says_what_it_is_and_has_the_columns_of_the_one_definition(tmp_path):
    arrow.write(arrow.table_of(rows_of([[SAMPLES[0][0]]])), tmp_path / "x")
    file = pq.ParquetFile(tmp_path / "x")
    assert file.metadata.metadata[b"scale0"] == b"events"
    assert file.metadata.metadata[b"scale0.schema_version"] == str(SCHEMA_VERSION).encode()
    assert file.schema_arrow.names == [column.name for column in COLUMNS]
    assert file.schema_arrow.field("time").type == pa.timestamp("us", tz="UTC")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.metadata.row_group(0).column(2).statistics.min == 1


def test_a_flipped_byte_never_changes_what_is_read(tmp_path):
    table = arrow.table_of(rows_of([[event for event, _ in SAMPLES]] * 50))
    path = tmp_path / "x"
    arrow.write(table, path)
    good = path.read_bytes()
    noticed = 0
    for place in range(4, len(good) - 8, 17):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        try:
            arrow.verify(path, Segment("east-1", 7, 1, table.num_rows))
        except arrow.InvalidSegment:
            noticed += 1
            continue
        with arrow.open_segment(path) as file:
            found = file.read()
        # Some bytes are not needed to read it.
        assert found.equals(table), place
    assert noticed > 50


@pytest.mark.parametrize("damage", ["torn", "number", "boot", "count", "type", "future"])
def test_a_damaged_row_is_named_and_never_left_out(damage):
    good, bad, last = rows_of([[SAMPLES[0][0]]] * 3)
    bodies = {
        "torn": JournalRow(2, 2, 7, bad.time_us, bad.body[:-3]),
        "number": JournalRow(2, 2, 7, bad.time_us, good.body),
        "boot": JournalRow(2, 2, 8, bad.time_us, bad.body),
        "count": JournalRow(2, 3, 7, bad.time_us, bad.body),
        "type": JournalRow(2, 2, 7, bad.time_us, bad.body.replace(b"east-1", b"\xff\xfe\xfd\xfc\xfb\xfa")),
        "future": JournalRow(2, 2, 7, bad.time_us, bad.body[:1] + bytes([SCHEMA_VERSION + 1]) + bad.body[2:]),
    }
    with pytest.raises(arrow.DamagedRow) as caught:
        arrow.table_of([good, bodies[damage], last])
    assert caught.value.first_seq == 2


@pytest.mark.parametrize(
    "other", [("west-1", 7, 1, 3), ("east-1", 8, 1, 3), ("east-1", 7, 1, 4), ("east-1", 7, 1, 2), ("east-1", 7, 2, 4)]
)
def test_a_segment_under_another_name_is_noticed(tmp_path, other):
    arrow.write(arrow.table_of(rows_of([[SAMPLES[0][0]]] * 3)), tmp_path / "x")
    arrow.verify(tmp_path / "x", Segment("east-1", 7, 1, 3))
    with pytest.raises(arrow.InvalidSegment):
        arrow.verify(tmp_path / "x", Segment(*other))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_segment_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(arrow.InvalidSegment):
        arrow.open_segment(tmp_path / "x")


def test_a_file_of_somebody_else_or_of_the_future_is_not_read(tmp_path):
    pq.write_table(pa.table({"seq": [1]}), tmp_path / "x")
    with pytest.raises(arrow.InvalidSegment, match="not a segment of Scale0"):
        arrow.open_segment(tmp_path / "x")
    table = arrow.table_of(rows_of([[SAMPLES[0][0]]]))
    newer = {**table.schema.metadata, arrow.VERSION_KEY: b"2"}
    pq.write_table(table.replace_schema_metadata(newer), tmp_path / "x")
    with pytest.raises(arrow.InvalidSegment, match="schema 2"):
        arrow.open_segment(tmp_path / "x")
