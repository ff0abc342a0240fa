"""Events as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from scale0.history.events.columns import EventRow
from scale0.pipeline.time_ranges import SECOND_US
from simulator.history.rows import NO_REF, NULL, NULL_CODE, TEXT_REF, Lexicon, Rows, make

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scale0.history.events.columns import Event

_to_json: Final = msgspec.json.Encoder(order="sorted").encode


class Line(NamedTuple):
    """An event with its recording time and source."""

    time: int
    source: int
    row: EventRow


def line(time: int, source: int, event: Event) -> Line:
    return Line(time, source, event.row())


def data_text(row: EventRow) -> str:
    """A row's data as the journal stores it."""
    return _to_json(row.data).decode()


def rows_of(lines: Sequence[Line], lexicon: Lexicon) -> Rows:
    """These events as rows; they have no histograms or metrics."""
    rows = [each.row for each in lines]

    def texts(values: list[str | None]) -> Any:
        return np.array([NULL if text is None else lexicon.number(text) for text in values], np.int32)

    def numbers(values: list[Any], missing: Any, kind: Any) -> Any:
        return np.array([missing if value is None else value for value in values], kind)

    time = np.array([each.time for each in lines], np.int64)
    at = [each.time if each.row.at is None else round(each.row.at * SECOND_US) for each in lines]
    return make(
        time,
        source=np.array([each.source for each in lines], np.int8),
        at=np.minimum(np.array(at, np.int64), time),
        kind=texts([row.kind for row in rows]),
        identity=texts([row.identity for row in rows]),
        service=texts([row.service for row in rows]),
        ref_form=np.array([NO_REF if row.ref is None else TEXT_REF for row in rows], np.int8),
        ref_head=texts([row.ref for row in rows]),
        attempt=numbers([row.attempt for row in rows], NULL, np.int32),
        code=numbers([row.code for row in rows], NULL_CODE, np.int32),
        state=texts([row.state for row in rows]),
        seconds=numbers([row.seconds for row in rows], np.nan, np.float64),
        waited=numbers([row.waited for row in rows], np.nan, np.float64),
        bytes=numbers([row.bytes for row in rows], NULL, np.int64),
        data=texts([None if row.data is None else data_text(row) for row in rows]),
    )
