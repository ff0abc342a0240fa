"""Events as Arrow tables and Parquet files, with the schema of `history.events.columns`.

A table contains exactly what `history.events.journal.read` returns. A journal body that cannot be read raises an error
with its seq and is never skipped. Equal events make equal tables. Only the exporter process, readers and the pipeline
import this module, because pyarrow is large.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scale0.history.events.columns import COLUMNS, HISTOGRAM_FIELDS, METRIC_FIELDS, SCHEMA_VERSION, EventRow, Type

# The journal's own decoders define what it stores, and a dict for each event would cost more than everything else.
from scale0.history.events.journal import ROWS, TURN, JournalRow
from scale0.history.segments.names import Segment
from scale0.history.segments.page_sizes import PageError, chunk_size
from scale0.kernel.errors import StoreError

MARK: Final = b"scale0"
"""In the key-value metadata of a file: it is a segment of events."""
MARKED: Final = b"events"
VERSION_KEY: Final = b"scale0.schema_version"
MAX_VERSION_DIGITS: Final = 9

ROW_GROUP_EVENTS: Final = 131_072
"""The number of events that a reader must hold at once."""
MAX_GROUP_BYTES: Final = 512 * 1024 * 1024
"""Decoded. The exporter's row groups have about a twentieth of it, and at most TARGET_GROUP_BYTES on average."""
TARGET_GROUP_BYTES: Final = 64 * 1024 * 1024
VALUE_BYTES: Final = 8
"""The largest plain value, or the offset of a text."""
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 3

_MICRO: Final = 1_000_000
_PLAIN: Final[dict[Type, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "timestamp_us": pa.timestamp("us", tz="UTC"),
}
_METRIC_REQUIRED: Final = ("name", "value")

HISTOGRAM: Final = pa.list_(
    pa.field("element", pa.struct([pa.field(name, _PLAIN[kind], False) for name, kind in HISTOGRAM_FIELDS]), False)
)
METRICS: Final = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field(name, _PLAIN[kind], name not in _METRIC_REQUIRED) for name, kind in METRIC_FIELDS]),
        False,
    )
)
TYPES: Final[dict[Type, pa.DataType]] = {**_PLAIN, "histogram": HISTOGRAM, "metrics": METRICS}

SCHEMA: Final = pa.schema(
    [pa.field(column.name, TYPES[column.type], column.nullable) for column in COLUMNS],
    metadata={MARK: MARKED, VERSION_KEY: str(SCHEMA_VERSION).encode()},
)
"""The schema of every segment of this version."""

_CELLS: Final = tuple(field.name for field in msgspec.structs.fields(EventRow))
_cells: Final = operator.attrgetter(*_CELLS)
_metric_cells: Final = operator.attrgetter(*(name for name, _ in METRIC_FIELDS))

_DICTIONARY: Final = [
    *(column.name for column in COLUMNS if column.type == "string"),
    "metrics.list.element.name",
    "metrics.list.element.unit",
]
_DELTA: Final = dict.fromkeys(("boot", "seq", "time", "at"), "DELTA_BINARY_PACKED")
"""Columns whose numbers grow in small steps."""


class DamagedRow(StoreError):
    """A journal row that cannot be read."""

    def __init__(self, first_seq: int, why: str) -> None:
        super().__init__(f"the journal row of event {first_seq} is damaged: {why}")
        self.first_seq = first_seq


class InvalidSegment(StoreError):
    """A file that is not a segment, or of a newer version."""


def table_of(rows: Sequence[JournalRow]) -> pa.Table:
    """All events of these rows, in order. DamagedRow names the first row that cannot be read."""
    try:
        return _table(rows)
    except (DamagedRow, *_CONVERSION_ERRORS):
        for row in rows:
            try:
                _table([row])
            except _CONVERSION_ERRORS as error:
                raise DamagedRow(row.first_seq, " ".join(str(error).split())) from error
        raise


_CONVERSION_ERRORS: Final = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    pa.ArrowException,
)


def source_of(row: JournalRow) -> str:
    """The source of a journal row. DamagedRow if it cannot be read."""
    try:
        return TURN.decode(row.body).source
    except _CONVERSION_ERRORS as error:
        raise DamagedRow(row.first_seq, " ".join(str(error).split())) from error


def _table(rows: Iterable[JournalRow]) -> pa.Table:
    """The same, with the original error."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for row in rows:
        turn = TURN.decode(row.body)
        if turn.schema_version > SCHEMA_VERSION:
            raise DamagedRow(
                row.first_seq, f"it has schema {turn.schema_version}, this program supports {SCHEMA_VERSION}"
            )
        events = ROWS.decode(turn.rows)
        count = len(events)
        if (turn.first_seq, turn.boot, turn.time_us) != (row.first_seq, row.boot, row.time_us):
            raise DamagedRow(row.first_seq, "its seq, boot or time differs from the store's")
        if count != row.last_seq - row.first_seq + 1:
            raise DamagedRow(row.first_seq, f"it has {count} events instead of {row.last_seq - row.first_seq + 1}")
        time_us = turn.time_us
        columns["source"] += [turn.source] * count
        columns["boot"] += [turn.boot] * count
        columns["seq"] += range(turn.first_seq, turn.first_seq + count)
        columns["time"] += [time_us] * count
        for name, cells in zip(_CELLS, zip(*map(_cells, events), strict=True), strict=True):
            if name == "at":
                columns[name] += [time_us if at is None else min(time_us, round(at * _MICRO)) for at in cells]
            else:
                columns[name] += cells
    return pa.table([_array(column.type, columns[column.name]) for column in COLUMNS], schema=SCHEMA)


def _array(kind: Type, values: list[Any]) -> pa.Array:
    match kind:
        case "histogram":
            return _lists(HISTOGRAM, values, tuple)
        case "metrics":
            return _lists(METRICS, values, _metric_cells)
        case _:
            return pa.array(values, _PLAIN[kind])


def _lists(kind: pa.ListType, values: list[Any], cells_of: Any) -> pa.Array:
    """Lists of structs, built from their columns: most lists are null, and few are long."""
    offsets: list[int | None] = []
    flat: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(flat))
        if value:
            flat += map(cells_of, value)
    struct = kind.value_type
    parts = list(zip(*flat, strict=True)) if flat else [()] * struct.num_fields
    arrays = [pa.array(part, struct.field(n).type) for n, part in enumerate(parts)]
    elements = pa.StructArray.from_arrays(arrays, fields=list(struct))
    return pa.ListArray.from_arrays(pa.array([*offsets, len(flat)], pa.int32()), elements, type=kind)


OPTIONS: Final[dict[str, Any]] = {
    "compression": COMPRESSION,
    "compression_level": COMPRESSION_LEVEL,
    "use_dictionary": _DICTIONARY,
    "column_encoding": _DELTA,
    "write_statistics": True,
    "write_page_checksum": True,
}
"""Options of pyarrow's Parquet writer: checksums on every page, and statistics."""


def write(table: pa.Table, where: Any) -> None:
    """Write a table as Parquet to an open file or a path."""
    fitting = table.num_rows * TARGET_GROUP_BYTES // max(1, table.nbytes)
    pq.write_table(table, where, row_group_size=max(1, min(ROW_GROUP_EVENTS, fitting)), **OPTIONS)


class SegmentData:
    """An open segment. Its decoded size is checked before it is decoded: a small file can decode to any size.

    Texts are read as dictionaries, which are as large as their pages; they are expanded only if the result is small
    enough.
    """

    def __init__(self, where: Any) -> None:
        self._source = pa.OSFile(str(where)) if isinstance(where, str | Path) else where
        try:
            self.metadata = pq.read_metadata(self._source)
            self.schema: pa.Schema = self.metadata.schema.to_arrow_schema()
            _check_footer(self.metadata, self.schema)
            leaves = {self.metadata.schema.column(number).path for number in range(self.metadata.num_columns)}
            self._file = pq.ParquetFile(
                self._source,
                metadata=self.metadata,
                page_checksum_verification=True,
                read_dictionary=[path for path in _DICTIONARY if path in leaves],
            )
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> SegmentData:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._source.close()

    def read_group(self, number: int, columns: Sequence[str] | None = None, use_threads: bool = True) -> pa.Table:
        """The events of one row group. InvalidSegment if they are too many bytes."""
        self._check_pages(number, columns)
        names = None if columns is None else list(columns)
        return _expanded(self._file.read_row_group(number, columns=names, use_threads=use_threads))

    def read(self) -> pa.Table:
        """All events; for segments of this program's own."""
        return pa.concat_tables([SCHEMA.empty_table(), *self.batches(ROW_GROUP_EVENTS)]).combine_chunks()

    def batches(self, events: int) -> Iterator[pa.Table]:
        """All events in order, at most so many at once."""
        for number in range(self.metadata.num_row_groups):
            if not self.metadata.row_group(number).num_rows:
                continue  # it has no pages
            self._check_pages(number, None)
            for batch in self._file.iter_batches(events, row_groups=[number]):
                yield _expanded(pa.Table.from_batches([batch]))

    def _check_pages(self, number: int, columns: Sequence[str] | None) -> None:
        group = self.metadata.row_group(number)
        decoded = 0
        for at in range(group.num_columns):
            chunk = group.column(at)
            name, nested, _ = chunk.path_in_schema.partition(".")
            if columns is not None and name not in columns:
                continue
            starts = [chunk.data_page_offset]
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                starts.append(chunk.dictionary_page_offset)
            try:
                size = chunk_size(self._source, min(starts), chunk.total_compressed_size)
            except PageError as error:
                raise InvalidSegment(f"column {name}: {error}") from None
            if size.values != chunk.num_values or (not nested and size.values != group.num_rows):
                raise InvalidSegment(f"column {name} has another number of values than the file says: it is damaged")
            decoded += size.bytes + VALUE_BYTES * size.values
            if decoded > MAX_GROUP_BYTES:
                raise _too_large(decoded)


def _expanded(table: pa.Table) -> pa.Table:
    """The same events with plain texts."""
    decoded = sum(_decoded_bytes(chunk) for column in table.columns for chunk in column.chunks)
    if decoded > MAX_GROUP_BYTES:
        raise _too_large(decoded)
    # The metadata of the file says nothing that a reader needs, and tables of several files must be equal.
    return table.cast(pa.schema([SCHEMA.field(name) for name in table.column_names], SCHEMA.metadata))


def _decoded_bytes(array: pa.Array) -> int:
    """The size of an array once its dictionaries are expanded."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0) + VALUE_BYTES * len(array)
    if pa.types.is_list(kind):
        return int(VALUE_BYTES * len(array)) + _decoded_bytes(array.flatten())
    if pa.types.is_struct(kind):
        return sum(_decoded_bytes(array.field(number)) for number in range(kind.num_fields))
    return int(array.nbytes)


def _too_large(decoded: int) -> InvalidSegment:
    return InvalidSegment(
        f"a row group decodes to {decoded:,} bytes or more, the limit is {MAX_GROUP_BYTES:,}: it is damaged or forged"
    )


def open_segment(where: Any) -> SegmentData:
    """Open a segment, with verification of checksums. InvalidSegment if it is none, or too new for this program."""
    try:
        return SegmentData(where)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InvalidSegment(f"it cannot be read: {' '.join(str(error).split())}") from error


def _check_footer(metadata: pq.FileMetaData, schema: pa.Schema) -> None:
    texts = metadata.metadata or {}
    version = texts.get(VERSION_KEY, b"")
    if texts.get(MARK) != MARKED or not version.isdigit() or len(version) > MAX_VERSION_DIGITS:
        raise InvalidSegment("it is not a segment of Scale0")
    if int(version) > SCHEMA_VERSION:
        raise InvalidSegment(f"it has schema {int(version)}, this program supports {SCHEMA_VERSION}")
    # Pages have checksums, but the list of columns has none: a changed name would read as a null column.
    columns = list(schema)
    if columns != list(SCHEMA)[: len(columns)] or (int(version) == SCHEMA_VERSION and len(columns) < len(SCHEMA)):
        raise InvalidSegment("its columns differ from its schema: it is damaged")
    groups = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    if sum(groups) != metadata.num_rows:
        raise InvalidSegment("its row groups have another number of events than the file: it is damaged")


def verify(where: Any, segment: Segment) -> None:
    """Read a segment to its end. InvalidSegment unless it is undamaged and contains what its name says."""
    expected = segment.first_seq
    with open_segment(where) as file:
        try:
            for batch in file.batches(ROW_GROUP_EVENTS):
                numbers = pa.array(range(expected, expected + batch.num_rows), pa.int64())
                same = batch["source"].unique().to_pylist(), batch["boot"].unique().to_pylist()
                if not batch["seq"].equals(pa.chunked_array([numbers])) or same != ([segment.source], [segment.boot]):
                    raise InvalidSegment(f"near event {expected} it contains other events than its name says")
                expected += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InvalidSegment(f"it cannot be read: {' '.join(str(error).split())}") from error
    if expected != segment.last_seq + 1:
        raise InvalidSegment(f"it has {expected - segment.first_seq} events, but its name says {segment.events}")
