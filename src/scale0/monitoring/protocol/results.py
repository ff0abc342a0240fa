"""The JSON of `result` and `report`: what a check found.

Any bytes of an agent give a finding: if they are not a valid result, its state is `unknown` with the reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from scale0.history.events.columns import EventMetric
from scale0.kernel.json_text import MAX_BODY_EXPONENTS, has_slow_numbers

State = Literal["ok", "warning", "critical", "unknown"]
OK: Final[State] = "ok"
WARNING: Final[State] = "warning"
CRITICAL: Final[State] = "critical"
UNKNOWN: Final[State] = "unknown"

SEVERITY: Final[dict[str, int]] = {"ok": 0, "warning": 1, "unknown": 2, "critical": 3}
"""The order of states for the worst of several."""

MAX_MESSAGE_CHARS: Final = 4_000
"""The length of a result's message; the rest is cut."""
MAX_METRICS: Final = 500
"""Metrics of one result; the rest is dropped."""
MAX_METRIC_NAME_CHARS: Final = 128
MAX_UNIT_CHARS: Final = 32
"""The length of a metric's unit; the rest is cut."""


class CheckFinding(msgspec.Struct, frozen=True, gc=False):
    """The result of a check. `started` is wall time at the agent; `seconds` is the run time."""

    state: State
    message: str = ""
    metrics: tuple[EventMetric, ...] = ()
    started: float | None = None
    seconds: float | None = None


class _Number(msgspec.Struct, frozen=True, gc=False):
    """The wire format of a metric."""

    name: str
    value: float
    unit: str | None = None
    warn: float | None = None
    crit: float | None = None
    min: float | None = None
    max: float | None = None


class _Wire(msgspec.Struct, frozen=True, gc=False):
    """The wire format of a result; unknown keys are ignored."""

    state: State
    message: str = ""
    metrics: Annotated[list[_Number], msgspec.Meta(max_length=100_000)] = []
    started: float | None = None
    seconds: float | None = None
    spool: str | None = None
    n: int | None = None
    age: float | None = None
    sent: float | None = None
    labels: dict[str, str] | None = None
    checks: list[str] | None = None


class ReportedResult(msgspec.Struct, frozen=True, gc=False):
    """A finding with its spool and number; empty and 0: it was not spooled."""

    finding: CheckFinding
    spool: str = ""
    n: int = 0
    age: float | None = None
    """Seconds from the check's end to the sending, by a monotonic clock; None: unknown."""
    sent: float | None = None
    """The agent's wall clock at the sending."""
    labels: dict[str, str] | None = None
    """In an agent's report about itself (AGENT_REPORT): its labels."""
    checks: tuple[str, ...] = ()
    """In the same report: the checks that it can run."""


AGENT_REPORT: Final = "equus.agent"
"""The name of the report with labels and checks that an agent sends each time it is accepted."""

_decode: Final = msgspec.json.Decoder(_Wire).decode
_encode: Final = msgspec.json.Encoder().encode


def read_result(body: bytes) -> ReportedResult:
    """Decode a result; invalid ones give `unknown` with the reason."""
    if has_slow_numbers(body, MAX_BODY_EXPONENTS):
        message = f"invalid result: more than {MAX_BODY_EXPONENTS} numbers with an exponent"
        return ReportedResult(CheckFinding(UNKNOWN, message))
    try:
        wire = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ReportedResult(CheckFinding(UNKNOWN, f"invalid result: {error}"))
    metrics = tuple(
        EventMetric(one.name, one.value, one.unit and one.unit[:MAX_UNIT_CHARS], one.warn, one.crit, one.min, one.max)
        for one in wire.metrics[:MAX_METRICS]
        if 0 < len(one.name) <= MAX_METRIC_NAME_CHARS
    )
    finding = CheckFinding(wire.state, wire.message[:MAX_MESSAGE_CHARS], metrics, wire.started, wire.seconds)
    return ReportedResult(
        finding,
        wire.spool or "",
        wire.n if wire.spool and wire.n is not None and 0 < wire.n < 2**63 else 0,
        wire.age,
        wire.sent,
        wire.labels,
        tuple(wire.checks or ()),
    )


def write_result(finding: CheckFinding) -> bytes:
    """The JSON of a finding, without spool and number."""
    return _encode(result_object(finding))


def result_object(finding: CheckFinding) -> dict[str, Any]:
    """A finding in plain values, without empty fields."""
    out: dict[str, Any] = {
        "state": finding.state,
        "message": finding.message[:MAX_MESSAGE_CHARS],
        "metrics": [metric_object(metric) for metric in finding.metrics[:MAX_METRICS]],
    }
    if finding.started is not None:
        out["started"] = finding.started
    if finding.seconds is not None:
        out["seconds"] = finding.seconds
    return out


def metric_object(metric: EventMetric) -> dict[str, Any]:
    """A metric in plain values, without empty fields."""
    fields = zip(metric.__struct_fields__, msgspec.structs.astuple(metric), strict=True)
    return {name: value for name, value in fields if value is not None}
