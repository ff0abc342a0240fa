"""JSON bodies of calls and tasks: what JSON does not have is an error, never something else."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from scale0.client import payload
from scale0.kernel.errors import Refusal


@dataclass
class Point:
    x: float


NOT_JSON = [math.nan, math.inf, -math.inf, [1.0, math.nan], {"a": {"b": (math.inf,)}}, Point(math.nan)]


@pytest.mark.parametrize("value", NOT_JSON, ids=str)
def test_a_number_that_json_does_not_have_is_an_error_and_not_null(value: Any) -> None:
    """Promise: TASK-1."""
    with pytest.raises(ValueError, match="NaN or infinity"):
        payload.encode(value)
    with pytest.raises(ValueError, match="NaN or infinity"):
        payload.encode_arguments((value,), {})
    with pytest.raises(ValueError, match="NaN or infinity"):
        payload.encode_arguments((1,), {"value": value})


def test_null_is_a_value() -> None:
    value = {"a": None, "b": ["null", 1.5, Point(0.5)]}
    assert payload.decode(payload.encode(value)) == {"a": None, "b": ["null", 1.5, {"x": 0.5}]}
    assert payload.encode(None) == b"null"
    assert payload.encode([None, msgspec.Raw(b"1")]) == b"[null,1]"


def python_calls(do: Callable[[], Any], name: str) -> int:
    """How many calls of a Python function `do` makes: between them, other threads run."""
    count = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_name == name

    sys.setprofile(profile)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


# Promise: WIRE-5
@pytest.mark.parametrize("decode", [payload.decode, lambda body: payload.decode_arguments(body)[0]])
def test_numbers_that_are_slow_to_decode_do_not_stop_other_threads(decode):
    slow, usual = b"[%b]" % b",".join([b"3e-310"] * 2_000), b"[%b]" % b",".join([b"3.25", b"1e3"] * 1_000)
    assert decode(slow) == [3e-310] * 2_000
    assert python_calls(lambda: decode(slow), "finite") == 2_000
    assert python_calls(lambda: decode(usual), "finite") == 0
    with pytest.raises((msgspec.DecodeError, Refusal, ValueError)):
        decode(slow[:-1] + b",1e999]")
