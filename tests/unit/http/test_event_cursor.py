"""A position has one text, and only that text is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.http.events.event_index import InvalidCursor, format_cursor, parse_cursor

SOURCES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=40)
VECTORS = st.dictionaries(SOURCES, st.integers(0, 2**63 - 1), max_size=10)


# Promise: FEED-1
@given(VECTORS)
def test_a_position_survives_being_written(found):
    assert parse_cursor(format_cursor(found)) == found


@given(st.text(max_size=60))
def test_whatever_is_read_is_written_the_same_or_refused(text):
    try:
        found = parse_cursor(text)
    except InvalidCursor:
        return
    assert format_cursor(found) == text


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "a",
        "a:",
        ":1",
        "a:1,",
        "a:1,a:2",
        "b:1,a:2",
        "a:01",
        "a:+1",
        "a:-1",
        "a:1_0",
        "a:٣",
        "a:9223372036854775808",
        "a: 1",
        "%61:1",
        "%2f:1",
        "%ff:1",
        "a\n:1",
        "ä:1",
        "a:1\r\ndata: x",
        "x" * 9_000 + ":1",
        ",".join(f"s{n:03}:1" for n in range(65)),
    ],
)
def test_what_is_no_position_is_refused(text):
    with pytest.raises(InvalidCursor):
        parse_cursor(text)


def test_an_identity_stands_as_it_is():
    assert format_cursor({"host.a:12:b_c-d": 7, "a": 0}) == "a:0,host.a:12:b_c-d:7"
