"""Events as columns of numbers, and the dictionary of texts.

A missing value is NULL (NULL_CODE for `code`, NaN for durations). All columns of Rows have equal lengths.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

NULL: Final = -1
NULL_CODE: Final = -(2**31)
"""`code` has its own null: -1 is a valid code."""

NO_REF: Final = 0
TEXT_REF: Final = 1
"""The head alone."""
TASK_REF: Final = 2
"""The head, and the number as 12 hexadecimal digits: an id in a client's series."""
SPOOL_REF: Final = 3
"""The head, and the number in decimal: a result of an agent's spool."""
REQUEST_REF: Final = 4
"""The head, and the number in hexadecimal without padding: a frontend's request."""

Array = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """Events without boot and seq."""

    source: Array
    """Index of the recording source in the plan."""
    time: Array
    at: Array
    kind: Array
    """This and every other text is a number of the lexicon."""
    identity: Array
    service: Array
    ref_form: Array
    ref_head: Array
    ref_number: Array
    attempt: Array
    code: Array
    state: Array
    seconds: Array
    waited: Array
    bytes: Array
    data: Array
    histogram_start: Array
    """The start of its buckets in the slice's `Buckets`."""
    histogram_length: Array
    metrics: Array
    """Index of the check whose metrics it has."""
    value: Array
    """The values of the first and of the second metric."""
    second_value: Array


DEFAULTS: Final[dict[str, tuple[Any, Any]]] = {
    "source": (np.int8, 0),
    "time": (np.int64, 0),
    "at": (np.int64, 0),
    "kind": (np.int32, NULL),
    "identity": (np.int32, NULL),
    "service": (np.int32, NULL),
    "ref_form": (np.int8, NO_REF),
    "ref_head": (np.int32, NULL),
    "ref_number": (np.int64, 0),
    "attempt": (np.int32, NULL),
    "code": (np.int32, NULL_CODE),
    "state": (np.int32, NULL),
    "seconds": (np.float64, np.nan),
    "waited": (np.float64, np.nan),
    "bytes": (np.int64, NULL),
    "data": (np.int32, NULL),
    "histogram_start": (np.int64, 0),
    "histogram_length": (np.int32, NULL),
    "metrics": (np.int32, NULL),
    "value": (np.float64, np.nan),
    "second_value": (np.float64, np.nan),
}


class Buckets(NamedTuple):
    """The concatenated histograms of a slice."""

    bucket: Array
    counts: Array


class Lexicon:
    """Numbers the texts of a history."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found

    def numbers(self, texts: list[str]) -> Array:
        return np.array([self.number(text) for text in texts], np.int32)


def make(time: Array, **columns: Any) -> Rows:
    """Rows of these columns; `at` defaults to the time, other columns to missing. A scalar applies to all rows."""
    columns = {"at": time, **columns, "time": time}
    return Rows(
        *(
            np.broadcast_to(np.asarray(columns.get(name, default), kind), time.shape)
            for name, (kind, default) in DEFAULTS.items()
        )
    )


def empty() -> Rows:
    return make(np.zeros(0, np.int64))


def join(parts: list[Rows]) -> Rows:
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True))) if parts else empty()


def take(rows: Rows, which: Array) -> Rows:
    """`which` is a mask, or an order."""
    return Rows(*(column[which] for column in rows))
