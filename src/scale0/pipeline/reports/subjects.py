"""Filters for subjects."""

from __future__ import annotations

from typing import Any, Final

from scale0.pipeline.reports.query import Filters, ReportReader

CHECK_NAME: Final = "substr(subject, position('/' IN subject) + 1)"
"""A check's subject is `agent/check`: an agent's name has no slash, a check's may."""
AGENT_NAME: Final = "split_part(subject, '/', 1)"


def condition(filters: Filters) -> tuple[str, dict[str, Any]]:
    """A SQL condition on (subject_kind, subject), and its parameters."""
    found: list[str] = ["true"]
    if filters.subject:
        found.append("subject GLOB $subject")
    if filters.service:
        found.append("subject_kind = 'service' AND subject GLOB $service")
    if filters.agent:
        found.append(f"subject_kind IN ('agent', 'check') AND {AGENT_NAME} GLOB $agent")
    if filters.check:
        found.append(f"subject_kind = 'check' AND (subject GLOB $check OR {CHECK_NAME} GLOB $check)")
    names = ("subject", "service", "agent", "check")
    return " AND ".join(f"({one})" for one in found), {name: getattr(filters, name) for name in names}


def known(desk: ReportReader, kinds: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every subject of the period."""
    rows = desk.rows(
        "SELECT DISTINCT subject FROM availability WHERE (len($kinds) = 0 OR subject_kind IN $kinds) ORDER BY subject",
        ("availability",),
        kinds=list(kinds),
    )
    return tuple(subject for (subject,) in rows)
