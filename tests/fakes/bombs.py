"""Segments that are small on disk and huge in memory. As a program: read one, and print the reason and the memory."""

from __future__ import annotations

import resource
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scale0.history.segments import arrow
from scale0.history.segments.catalog import SegmentCatalog
from scale0.history.segments.event_reader import EventReader
from scale0.history.segments.names import Segment
from scale0.history.segments.reader import EventFilter, read_all_events

EVENTS = arrow.ROW_GROUP_EVENTS
TEXT_BYTES = 35_000
SEGMENT = Segment("east-1", 7, 1, EVENTS)
DAY = date(2026, 5, 1)
ADDRESS_BYTES = 3 << 30


def columns(text: str, events: int) -> dict[str, Any]:
    """All events have this text; it is in memory once."""
    plain: dict[str, Any] = {"seq": pa.array(range(1, events + 1), pa.int64())}
    texts = {"source": SEGMENT.source, "kind": "source.alive", "data": text}
    for field in arrow.SCHEMA:
        if field.name in texts:
            indices = pa.array([0] * events, pa.int32())
            plain[field.name] = pa.DictionaryArray.from_arrays(indices, pa.array([texts[field.name]]))
        elif field.name not in plain:
            plain[field.name] = pa.nulls(events, field.type) if field.nullable else pa.array([7] * events, field.type)
    return plain


def write_bomb(path: Path, text: str = "x" * TEXT_BYTES, events: int = EVENTS, **options: Any) -> Path:
    found = columns(text, events)
    fields = [pa.field(field.name, found[field.name].type, field.nullable) for field in arrow.SCHEMA]
    schema = pa.schema(fields, arrow.SCHEMA.metadata)
    table = pa.table([found[field.name] for field in arrow.SCHEMA], schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the schema of Arrow in it, it is what `arrow.write` would write.
    with pq.ParquetWriter(path, schema, store_schema=False, **{**arrow.OPTIONS, **options}) as writer:
        writer.add_key_value_metadata({key.decode(): value.decode() for key, value in arrow.SCHEMA.metadata.items()})
        writer.write_table(table, row_group_size=events)
    return path


def read(reader: str, path: Path) -> str:
    """The reason that this reader gives."""
    data_dir = path.parents[2]
    try:
        match reader:
            case "verify":
                arrow.verify(str(path), SEGMENT)
            case "history":
                faults: list[str] = []
                read_all_events(data_dir, EventFilter(), faults.append)
                return faults[0]
            case "forwards":
                return str(EventReader("east-1", None, SegmentCatalog(data_dir)).after(0, 10).reason)  # type: ignore[union-attr]
            case "backwards":
                found = EventReader("east-1", None, SegmentCatalog(data_dir)).before(EVENTS + 1, EventFilter(), 10)
                return str(found.reason)  # type: ignore[union-attr]
            case _:
                from scale0.pipeline.warehouse.inspection import inspect
                from scale0.pipeline.warehouse.segment_sources import ListedSegment

                return inspect(path, ListedSegment(str(data_dir), path.parent.name, path.name, SEGMENT)).fault
    except arrow.InvalidSegment as error:
        return str(error)
    return "it was read"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    why = read(sys.argv[1], Path(sys.argv[2]))
    # Not `ru_maxrss`: that counts the memory of the parent, too, until it started this program.
    [peak] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
    sys.stdout.write(f"{why}\n{int(peak) * 1024}\n")
