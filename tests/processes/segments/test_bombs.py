"""A small segment that decodes to gigabytes is refused before it is decoded, by every reader.

Promise: SEG-4
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from scale0.history.segments import arrow
from scale0.history.segments.names import name_of
from scale0.history.segments.page_sizes import ChunkSize, CompactReader, PageError, chunk_size
from tests.fakes.bombs import DAY, SEGMENT, write_bomb
from tests.fakes.killed import run_program

MIB = 1 << 20


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bomb") / "segments" / f"written={DAY}"
    return write_bomb(folder / name_of(SEGMENT))


@pytest.mark.processes
@pytest.mark.parametrize("reader", ["verify", "history", "forwards", "backwards", "inspection"])
def test_a_text_that_is_repeated_by_a_dictionary_is_not_expanded(bomb, reader):
    assert bomb.stat().st_size < 20_000
    child = run_program("tests.fakes.bombs", reader, bomb)
    assert child.returncode == 0, child.stderr
    reason, peak = child.stdout.split("\n")[:2]
    wanted = "damaged" if reader in ("forwards", "backwards") else "a row group decodes to "
    assert wanted in reason
    assert int(peak) < 600 * MIB


def refused(path: Path) -> str:
    with pytest.raises(arrow.InvalidSegment) as error, arrow.open_segment(path) as file:
        list(file.batches(arrow.ROW_GROUP_EVENTS))
    return str(error.value)


def test_an_encoding_that_repeats_parts_of_values_is_refused(tmp_path):
    options: Any = {"use_dictionary": False, "column_encoding": {"data": "DELTA_BYTE_ARRAY"}}
    path = write_bomb(tmp_path / "a.parquet", events=1_000, **options)
    assert path.stat().st_size < 100_000
    assert refused(path) == "column data: a page has the encoding 7, which segments do not use"


def test_a_page_that_decompresses_to_too_much_is_refused_whatever_the_footer_says(tmp_path):
    path = write_bomb(tmp_path / "a.parquet", events=100)
    with arrow.open_segment(path) as file:
        chunk = file.metadata.row_group(0).column(24)
        start = chunk.dictionary_page_offset
        true = chunk_size(pa.OSFile(str(path)), start, chunk.total_compressed_size)
    assert (chunk.path_in_schema, true.values) == ("data", 100)
    assert true.bytes > 35_000
    # The header of the dictionary: type 2, then the uncompressed size, in zigzag.
    text = bytearray(path.read_bytes())
    size = varint(35_004 << 1)
    assert text[start : start + 3] == b"\x15\x04\x15"
    assert text[start + 3 : start + 3 + len(size)] == size
    text[start + 3 : start + 3 + len(size)] = varint(1_040_000 << 1)
    path.write_bytes(text)
    with arrow.open_segment(path) as file:
        lies = chunk_size(pa.OSFile(str(path)), start, chunk.total_compressed_size)
        assert file.metadata.row_group(0).column(24).total_uncompressed_size < 100_000
    assert lies.bytes - true.bytes == 1_040_000 - 35_004


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def header(uncompressed: int, compressed: int, values: int, encoding: int = 0) -> bytes:
    """Of a data page, in Thrift's compact protocol."""
    numbers = [b"\x15" + varint(one << 1) for one in (0, uncompressed, compressed)]
    return b"".join(numbers) + b"\x2c\x15" + varint(values << 1) + b"\x15" + varint(encoding << 1) + b"\x00\x00"


class File(io.BytesIO):
    def read_at(self, count: int, at: int) -> bytes:
        return self.getvalue()[at : at + count]


def test_the_size_of_a_chunk_is_that_of_all_its_pages():
    pages = header(2**31 - 1, 10, 5) + bytes(10) + header(7, 3, 2) + bytes(3)
    assert chunk_size(File(b"junk" + pages), 4, len(pages)) == ChunkSize(2**31 + 6, 7)


@pytest.mark.parametrize(
    "pages",
    [
        header(1, 1, 1)[:-2],
        header(1, 1, 1, encoding=7) + b"x",
        b"\xff" * 100,
        b"\x15\x04" + b"\x1c" * 1_000,
        b"\x00" * 10,
        header(1, 0, 1).replace(b"\x15\x00", b"\x15\x01", 1),
    ],
)
def test_a_damaged_header_is_refused(pages):
    with pytest.raises(PageError):
        chunk_size(File(pages), 0, len(pages))


def test_the_exporter_writes_row_groups_that_readers_accept(tmp_path):
    events = 40
    table = pa.table(
        {name: pa.array(["x" * 8_000_000] * events) if name == "data" else one for name, one in plain(events).items()},
        schema=arrow.SCHEMA,
    )
    arrow.write(table, tmp_path / "a.parquet")
    with arrow.open_segment(tmp_path / "a.parquet") as file:
        assert file.metadata.num_row_groups > 1
        assert sum(batch.num_rows for batch in file.batches(arrow.ROW_GROUP_EVENTS)) == events


def plain(events: int) -> dict[str, pa.Array]:
    return {
        field.name: pa.nulls(events, field.type)
        if field.nullable
        else pa.array(["a" if pa.types.is_string(field.type) else 7] * events, field.type)
        for field in arrow.SCHEMA
    }


# Promise: SEG-4
@pytest.mark.parametrize("kind", [9, 10, 12], ids=["list", "set", "struct"])
def test_a_page_header_that_nests_deeply_is_damaged(kind):
    with pytest.raises(PageError, match="nests too deeply"):
        CompactReader(bytes((0x10 | kind,)) * 5_000).struct()
