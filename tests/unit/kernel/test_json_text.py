"""Numbers that are slow to decode are counted where they are numbers, and in all of their forms."""

# Promise: WIRE-5
from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.json_text import LONG_EXPONENT, SHORT_BYTES, has_slow_numbers
from tests.fakes.examples import examples

MOST = 100


def array(unit: str, count: int) -> bytes:
    return b"[" + b",".join([unit.encode()] * count) + b"]"


@pytest.mark.parametrize("unit", ["3e-310", "3E-310", "-1.5e+300", "7e0000", "1.7976931348623157e308"])
def test_long_exponents_count_several_times(unit):
    most = MOST // LONG_EXPONENT
    assert not has_slow_numbers(array(unit, most) + b" " * SHORT_BYTES, MOST)
    assert has_slow_numbers(array(unit, most + 1) + b" " * SHORT_BYTES, MOST)


@pytest.mark.parametrize("unit", ["1e5", "1.25E+22", "9e-9"])
def test_other_exponents_count_once(unit):
    assert not has_slow_numbers(array(unit, MOST), MOST)
    assert has_slow_numbers(array(unit, MOST + 1), MOST)


@pytest.mark.parametrize(
    "unit", ["true", "false", "1.5", "123456", "null", '"3e-310"', '"\\"3e-310,\\\\"', '{"1e300":1}']
)
def test_text_and_other_values_do_not_count(unit):
    assert not has_slow_numbers(array(unit, 100 * MOST), MOST)


def test_short_text_is_not_searched():
    text = array("3e-310", 18)
    assert len(text) <= SHORT_BYTES
    assert not has_slow_numbers(text, 0)


values = st.recursive(
    st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text('e013.,-"\\[é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('e01"'), inner),
)


@given(st.lists(values, min_size=10))
@examples(300)
def test_no_number_with_an_exponent_is_missed(value):
    """What decodes floats counts them: those whose text has an exponent."""
    seen: list[str] = []

    def count(text: str) -> float:
        seen.append(text.lower())
        return float(text)

    body = json.dumps(value).encode() + b" " * SHORT_BYTES
    msgspec.json.Decoder(float_hook=count).decode(body)
    exponents = [text.partition("e")[2].strip("+-") for text in seen if "e" in text]
    cost = sum(LONG_EXPONENT if len(one) > 2 else 1 for one in exponents)
    assert not has_slow_numbers(body, cost)
    assert not cost or has_slow_numbers(body, cost - 1)
