"""The name of a segment: one for each range of each source, and nothing else is one.

Promise: SEG-3
"""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.history.events.columns import MAX_BIGINT
from scale0.history.segments.names import MAX_NAME_BYTES, Segment, day_at, day_of, fits, folder_of, name_of, parse

IDENTITIES = st.from_regex(r"[A-Za-z0-9._:-]{1,128}", fullmatch=True).filter(fits)
NUMBERS = st.integers(1, MAX_BIGINT)


@st.composite
def segments(draw, sources=IDENTITIES):
    first, last = sorted((draw(NUMBERS), draw(NUMBERS)))
    return Segment(draw(sources), draw(st.integers(0, MAX_BIGINT)), first, last)


@given(segments() | segments(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(fits)))
def test_a_name_means_the_segment_that_it_was_made_for(segment):
    name = name_of(segment)
    assert parse(name) == segment
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert not set(name) & set(":/\\ \0")
    assert not name.startswith(("_", "."))


@given(segments(), segments())
def test_two_segments_never_share_a_name(one, other):
    assert (name_of(one) == name_of(other)) == (one == other)


@given(st.text() | st.from_regex(r"seg-[%A-Fa-f0-9.-]*-[0-9]+-[0-9]+-[0-9]+\.parquet", fullmatch=True))
def test_what_is_taken_for_a_segment_is_written_exactly_so(text):
    found = parse(text)
    assert found is None or name_of(found) == text


@pytest.mark.parametrize(
    "name",
    [
        "",
        "seg-a-1-1-1",
        "seg--1-1-1.parquet",
        "seg-a-1-2-1.parquet",
        "seg-a-1-0-1.parquet",
        "seg-a-01-1-1.parquet",
        "seg-a-1-1-01.parquet",
        "seg-a-+1-1-1.parquet",
        "seg-a-1-1-1_0.parquet",
        "seg-a-1-1-٣.parquet",
        "seg-a-1-1-9223372036854775808.parquet",
        "seg-a-1-1-1.parquet\n",
        "seg-a-1-1-1.parquet.crc",
        ".seg-a-1-1-1.parquet",
        "seg-a:b-1-1-1.parquet",
        "seg-a/b-1-1-1.parquet",
        "seg-%61-1-1-1.parquet",
        "seg-%3a-1-1-1.parquet",
        "seg-%FF-1-1-1.parquet",
        "seg-%C0%AF-1-1-1.parquet",
        "seg-%-1-1-1.parquet",
        f"seg-{'a' * 250}-1-1-1.parquet",
    ],
)
def test_whatever_is_not_written_exactly_so_is_no_segment(name):
    assert parse(name) is None


def test_a_source_with_dashes_and_colons_is_read_from_the_right():
    assert name_of(Segment("host-7:12-3", 5, 6, 7)) == "seg-host-7%3A12-3-5-6-7.parquet"
    assert parse("seg-host-7%3A12-3-5-6-7.parquet") == Segment("host-7:12-3", 5, 6, 7)


def test_a_source_too_long_for_a_file_name_is_refused():
    assert fits("a" * 128)
    assert not fits(":" * 128)
    with pytest.raises(ValueError, match="too long"):
        name_of(Segment(":" * 128, 1, 1, 1))


@given(st.dates())
def test_a_folder_means_its_day(day):
    assert day_of(folder_of(day)) == day


@pytest.mark.parametrize("folder", ["", "written=", "written=2026-5-1", "written=2026-02-30", "2026-05-01"])
def test_whatever_else_is_no_day(folder):
    assert day_of(folder) is None
    assert day_of("written=٢٠٢٦-05-01") is None


def test_a_day_is_that_of_utc():
    assert day_at(1_777_679_999.9) == date(2026, 5, 1)
    assert day_at(1_777_680_000.0) == date(2026, 5, 2)
