"""JSON bodies of calls and tasks: what JSON does not have is an error, never something else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from scale0.client import payload


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
