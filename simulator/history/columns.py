"""Converts rows to Arrow tables with the schema of `history.segments`, without a Python loop over events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from scale0.history.segments.arrow import HISTOGRAM, METRICS, SCHEMA
from simulator.history.rows import NO_REF, NULL, NULL_CODE, REQUEST_REF, SPOOL_REF, TASK_REF, Array, Buckets, Rows

if TYPE_CHECKING:
    from simulator.history.vocabulary import Check

TASK_DIGITS: Final = 12
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_HEX4: Final = _HEX[(np.arange(65_536)[:, None] >> np.array([12, 8, 4, 0])) & 15]
"""Four digits of every 16-bit number."""


class Columns:
    def __init__(self, sources: tuple[str, ...], texts: list[str], checks: tuple[Check, ...]) -> None:
        self._sources = sources
        self._texts = pa.array(texts, pa.string())
        heads = [text.encode() for text in texts]
        self._head_lengths = np.array([len(head) for head in heads], np.int64)
        self._heads = np.frombuffer(b"".join(heads), np.uint8)
        self._head_starts = np.cumsum(self._head_lengths) - self._head_lengths
        self._metrics = _MetricSets(checks)

    def table(self, rows: Rows, buckets: Buckets, boot: int, first_seq: int) -> pa.Table:
        """The events of one boot of one source, in order."""
        size = rows.time.size
        name = self._sources[int(rows.source[0])]
        moment = SCHEMA.field("time").type
        arrays = {
            "source": pa.DictionaryArray.from_arrays(np.zeros(size, np.int8), [name]).cast(pa.string()),
            "boot": pa.array(np.full(size, boot, np.int64)),
            "seq": pa.array(np.arange(first_seq, first_seq + size, dtype=np.int64)),
            "time": pa.array(rows.time).cast(moment),
            "at": pa.array(rows.at).cast(moment),
            "kind": self._text(rows.kind),
            "identity": self._text(rows.identity),
            "service": self._text(rows.service),
            "ref": self._refs(rows),
            "attempt": pa.array(rows.attempt, mask=rows.attempt == NULL),
            "code": pa.array(rows.code, mask=rows.code == NULL_CODE),
            "state": self._text(rows.state),
            "seconds": pa.array(rows.seconds, mask=np.isnan(rows.seconds)),
            "waited": pa.array(rows.waited, mask=np.isnan(rows.waited)),
            "histogram": _histograms(rows, buckets),
            "bytes": pa.array(rows.bytes, mask=rows.bytes == NULL),
            "metrics": self._metrics.lists(rows),
            "data": self._text(rows.data),
        }
        return pa.table([arrays[field.name] for field in SCHEMA], schema=SCHEMA)

    def _text(self, numbers: Array) -> pa.Array:
        return self._texts.take(pa.array(numbers, mask=numbers == NULL))

    def _refs(self, rows: Rows) -> pa.Array:
        """Writes head and number of each ref into one buffer."""
        form, head, number = rows.ref_form, rows.ref_head, rows.ref_number
        has = form != NO_REF
        heads = np.where(has, self._head_lengths[head], 0)
        digits = np.zeros(form.size, np.int64)
        digits[form == TASK_REF] = TASK_DIGITS
        spooled, asked = np.flatnonzero(form == SPOOL_REF), np.flatnonzero(form == REQUEST_REF)
        digits[spooled] = _digits(number[spooled], 10)
        digits[asked] = _digits(number[asked], 16)
        ends = np.cumsum(heads + digits)
        starts = ends - heads - digits
        flat = np.zeros(int(ends[-1]), np.uint8)
        # Equal lengths together: one assignment writes all of them.
        for length in np.unique(heads[has]).tolist():
            which = np.flatnonzero(has & (heads == length))
            letters = np.arange(length)
            flat[starts[which, None] + letters] = self._heads[self._head_starts[head[which], None] + letters]
        tail = starts + heads
        tasks = np.flatnonzero(form == TASK_REF)
        for position, shift in enumerate((32, 16, 0)):
            four = _HEX4[(number[tasks] >> shift) & 0xFFFF]
            flat[tail[tasks, None] + (np.arange(4) + 4 * position)] = four
        for which, base in ((spooled, 10), (asked, 16)):
            _write_digits(flat, tail[which], number[which], digits[which], base)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        bitmap = np.packbits(has, bitorder="little")
        buffers = [pa.py_buffer(bitmap), pa.py_buffer(offsets), pa.py_buffer(flat)]
        return pa.Array.from_buffers(pa.string(), form.size, buffers)


def _digits(number: Array, base: int) -> Array:
    """The number of digits of each."""
    count = np.ones(number.size, np.int64)
    power = base
    while number.size and power <= int(number.max()):
        count += number >= power
        power *= base
    return count


def _write_digits(flat: Array, starts: Array, number: Array, digits: Array, base: int) -> None:
    rest = number.copy()
    position = digits - 1
    while rest.size:
        flat[starts + position] = _HEX[rest % base]
        more = np.flatnonzero(position > 0)
        rest, starts, position = rest[more] // base, starts[more], position[more] - 1


def _lists(lengths: Array, has: Array, elements: pa.Array, kind: pa.DataType) -> pa.Array:
    """Lists of these lengths; null where `has` is false."""
    offsets = np.concatenate([[0], np.cumsum(np.where(has, lengths, 0))]).astype(np.int32)
    bitmap = pa.py_buffer(np.packbits(has, bitorder="little"))
    return pa.Array.from_buffers(kind, has.size, [bitmap, pa.py_buffer(offsets)], children=[elements])


def _histograms(rows: Rows, buckets: Buckets) -> pa.Array:
    has = rows.histogram_length != NULL
    lengths = rows.histogram_length[has].astype(np.int64)
    ends = np.cumsum(lengths)
    position = np.repeat(rows.histogram_start[has] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
    struct = HISTOGRAM.value_type
    arrays = [pa.array(buckets.bucket[position]), pa.array(buckets.counts[position])]
    return _lists(rows.histogram_length, has, pa.StructArray.from_arrays(arrays, fields=list(struct)), HISTOGRAM)


class _MetricSets:
    """The metrics of each check: one or two."""

    def __init__(self, checks: tuple[Check, ...]) -> None:
        metrics = [metric for check in checks for metric in check.metrics]
        self._length = np.array([len(check.metrics) for check in checks])
        self._start = np.cumsum(self._length) - self._length
        self._fixed: dict[str, pa.Array] = {
            field.name: pa.array([getattr(metric, field.name) for metric in metrics], field.type)
            for field in METRICS.value_type
            if field.name != "value"
        }

    def lists(self, rows: Rows) -> pa.Array:
        has = rows.metrics != NULL
        check = rows.metrics[has]
        length = self._length[check]
        row = np.repeat(np.arange(check.size), length)
        nth = np.arange(row.size) - np.repeat(np.cumsum(length) - length, length)
        values = np.where(nth == 0, rows.value[has][row], rows.second_value[has][row])
        which = pa.array(self._start[check][row] + nth)
        columns: list[Any] = [
            pa.array(values) if field.name == "value" else self._fixed[field.name].take(which)
            for field in METRICS.value_type
        ]
        lengths = np.zeros(rows.metrics.size, np.int64)
        lengths[has] = length
        return _lists(lengths, has, pa.StructArray.from_arrays(columns, fields=list(METRICS.value_type)), METRICS)
