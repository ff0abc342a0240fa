"""Rows of a network for the command line and the HTTP API: pure functions over the rows of brokers and Helens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

HELEN_PREFIX: Final = "helen."
HELEN_SUFFIX: Final = ".agents"
WORST_FIRST: Final = {"critical": 0, "unknown": 1, "warning": 2, "ok": 3}

Row = dict[str, Any]


def brokers_in_order(rows: list[Row]) -> list[Row]:
    """The broker that was asked, then the others by name."""
    first, *others = rows
    return [first, *sorted(others, key=lambda row: str(row["broker"]))]


def grouped(rows: list[Row]) -> dict[str, list[Row]]:
    """Brokers by group, beginning with the group of the broker that was asked."""
    out: dict[str, list[Row]] = {}
    for row in rows:
        out.setdefault(row["group"], []).append(row)
    for members in out.values():
        members.sort(key=lambda row: str(row["broker"]))
    return out


def group_rows(brokers: list[Row]) -> list[Row]:
    return [
        {
            "group": name,
            "brokers": [row["broker"] for row in members],
            "active": sum(row["state"] == "active" for row in members),
            "load": sum(row["load"] for row in members),
        }
        for name, members in grouped(brokers).items()
    ]


def offered_at(services: Iterable[Row]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for row in services:
        for broker in row["where"]:
            out.setdefault(broker, []).append(row["service"])
    return out


def helens_of(services: Iterable[Row]) -> list[str]:
    names = (row["service"] for row in services if row["backends"])
    return sorted(
        name[len(HELEN_PREFIX) : -len(HELEN_SUFFIX)]
        for name in names
        if name.startswith(HELEN_PREFIX)
        and name.endswith(HELEN_SUFFIX)
        and len(name) >= len(HELEN_PREFIX) + len(HELEN_SUFFIX)
    )


def latest(rows: Iterable[Row], name: Callable[[Row], Any], age: Callable[[Row], Any]) -> list[Row]:
    """For each name the row with the largest `age`, sorted by name."""
    found: dict[Any, Row] = {}
    for row in rows:
        other = found.get(name(row))
        if other is None or age(row) > age(other):
            found[name(row)] = row
    return [found[key] for key in sorted(found)]


def known_agents(rows: Iterable[Row]) -> list[Row]:
    """Each agent once: an agent that has moved to another Helen is `away` at the first one, and both report it."""
    return latest(rows, lambda row: row["agent"], lambda row: (row["state"] != "away", row.get("left") or 0))


def known_checks(rows: Iterable[Row], problems: bool) -> list[Row]:
    """Each check once, the worst first; with `problems` only those that are stale or not ok."""
    found = latest(rows, lambda row: (row["agent"], row["check"]), lambda row: row["at"])
    if problems:
        found = [row for row in found if row["state"] != "ok" or row.get("stale")]
    found.sort(key=lambda row: WORST_FIRST.get(row["state"], 1))
    return found


def known_incidents(rows: Iterable[Row]) -> list[Row]:
    """Each incident once, the newest first."""
    found = latest(rows, lambda row: row["id"], lambda row: row["closed"] is not None)
    found.sort(key=lambda row: -row["opened"])
    return found


def is_over(row: Row, now: float) -> bool:
    """True for a silence or downtime that has ended."""
    return bool(0 < row["ends"] <= now)


def entry_path(key: str, name: str, *rest: str) -> str:
    """The path of a named entry in the network document, or of a key in it."""
    return ".".join([key, f"[{name.replace(']', ']]')}]", *rest])
