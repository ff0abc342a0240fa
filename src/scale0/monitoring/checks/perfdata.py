"""The output of a Nagios plugin: exit status, text and performance data become a CheckFinding.

Invariant: the exit status alone decides the state; any output, however broken, is parsed without an exception and in
linear time. Units and numbers stay as the plugin prints them. Of `warn` and `crit` a metric keeps one number, the upper
end of the good range: `10`, `5:10` and `~:10` are 10; `10:` has no upper end and `@5:10` is inverted: both are none. A
value of `U` is unknown, and makes no metric.
"""

from __future__ import annotations

import math
import re
from typing import Final

from scale0.history.events.columns import EventMetric
from scale0.monitoring.protocol.results import (
    CRITICAL,
    MAX_MESSAGE_CHARS,
    MAX_METRIC_NAME_CHARS,
    MAX_METRICS,
    OK,
    UNKNOWN,
    WARNING,
    CheckFinding,
    State,
)

STATES: Final[dict[int, State]] = {0: OK, 1: WARNING, 2: CRITICAL, 3: UNKNOWN}
"""By exit status; any other is unknown."""

MAX_PERFDATA_CHARS: Final = 65_536
"""Of performance data; the rest is ignored."""
MAX_UNIT_CHARS: Final = 16

_NUMBER: Final = r"[-+]?(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
_QUOTED: Final = re.compile(r"'((?:[^']|'')++)'=", re.ASCII)
_BARE: Final = re.compile(r"([^\s=']++)=", re.ASCII)
_WORD: Final = re.compile(r"\S*+", re.ASCII)
_VALUE: Final = re.compile(rf"({_NUMBER})([^0-9;\s][^;\s]*)?", re.ASCII)
_PLAIN: Final = re.compile(_NUMBER, re.ASCII)
_CONTROL: Final = {number: " " for number in (*range(32), 127) if chr(number) not in "\n\t"}


def read_plugin(status: int, stdout: bytes, stderr: bytes = b"") -> CheckFinding:
    """A plugin's exit status and output as a finding. A negative status: the signal that killed it."""
    text, perfdata = split_output(_readable(stdout))
    if not text:
        text = _readable(stderr).strip() or "no output"
    state = STATES.get(status, UNKNOWN)
    if status < 0:
        text = f"the plugin was killed by signal {-status}: {text}"
    elif status not in STATES:
        text = f"the plugin ended with {status}: {text}"
    return CheckFinding(state, text[:MAX_MESSAGE_CHARS], read_perfdata(perfdata))


def split_output(output: str) -> tuple[str, str]:
    """The text and the performance data: of the first line, then long text, then more data after a second bar."""
    first, _, rest = output.strip("\n").partition("\n")
    text, _, perfdata = first.partition("|")
    long_text, _, more = rest.partition("|")
    parts = [part for part in (text.strip(), long_text.strip()) if part]
    return "\n".join(parts), f"{perfdata} {more}" if more else perfdata


def read_perfdata(text: str) -> tuple[EventMetric, ...]:
    """The metrics; invalid ones are skipped."""
    text = text[:MAX_PERFDATA_CHARS]
    found: list[EventMetric] = []
    position = 0
    while len(found) < MAX_METRICS:
        while position < len(text) and text[position].isspace():
            position += 1
        if position >= len(text):
            break
        label = _QUOTED.match(text, position) or _BARE.match(text, position)
        if label is not None:
            position = label.end()
        word = _WORD.match(text, position)
        if word is None:  # it matches anywhere; for the type checker
            break
        position = max(word.end(), position + 1)
        if label is not None:
            metric = read_metric(label.group(1).replace("''", "'"), word.group())
            if metric is not None:
                found.append(metric)
    return tuple(found)


def read_metric(name: str, text: str) -> EventMetric | None:
    """`value[unit];[warn];[crit];[min];[max]`; None: it has no number."""
    fields = text.split(";")
    value = _VALUE.fullmatch(fields[0])
    if value is None or not name or len(name) > MAX_METRIC_NAME_CHARS:
        return None
    number = _finite(value.group(1))
    unit = value.group(2)
    if number is None or (unit is not None and len(unit) > MAX_UNIT_CHARS):
        return None
    warn, crit, low, high = (*fields[1:5], "", "", "", "")[:4]
    return EventMetric(name, number, unit, upper_end(warn), upper_end(crit), _plain(low), _plain(high))


def upper_end(text: str) -> float | None:
    """The upper end of a Nagios range, if it has one."""
    if text.startswith("@"):
        return None
    _, _, end = text.rpartition(":")
    return _plain(end)


def _plain(text: str) -> float | None:
    return _finite(text) if _PLAIN.fullmatch(text) else None


def _finite(text: str) -> float | None:
    number = float(text.replace(",", "."))
    return number if math.isfinite(number) else None


def _readable(data: bytes) -> str:
    """As text: invalid UTF-8 is replaced, control characters become blanks."""
    return data.decode("utf-8", "replace").replace("\r\n", "\n").translate(_CONTROL)
