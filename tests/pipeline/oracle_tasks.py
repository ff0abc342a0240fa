"""Tasks by plain Python: the rules of `aggregations/tasks.py`, one hour and one event at a time, in no hurry.

It shares no code with the aggregation: where the two agree, they agree about the rules.
"""

from __future__ import annotations

import json
from typing import Any

from scale0.pipeline.time_ranges import HOUR_US, to_time, to_us

Event = dict[str, Any]
Life = dict[str, Any]

LOST_ALL = -32090


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)


def closes(event: Event) -> bool:
    """Whether a node had an attempt that ends with this event."""
    if event["kind"] == "task.attempt_ended":
        return True
    if event["kind"] != "task.completed":
        return False
    if event["state"] == "finished":
        return True
    return event["attempt"] != 0 and bool(event["identity"]) and event["code"] != LOST_ALL


def sort_key(event: Event) -> tuple[Any, ...]:
    at = to_us(event["at"])
    first = 0 if event["kind"] == "task.submitted" else 1
    tie = 0 if event["kind"] == "task.attempt_ended" else 1
    return (at // HOUR_US, first, at, tie, event["source"], event["boot"], event["seq"])


class Oracle:
    def __init__(self) -> None:
        self.open: dict[tuple[str, str], Life] = {}
        self.unmatched: dict[tuple[str, str], int] = {}
        """In which hour it ended without a submission."""
        self.rows: list[dict[str, Any]] = []
        self.carries: dict[int, list[dict[str, Any]]] = {}

    def run(self, events: list[Event], first: int, end: int) -> None:
        by_hour: dict[int, list[Event]] = {}
        for event in events:
            by_hour.setdefault(to_us(event["at"]) // HOUR_US, []).append(event)
        for hour in range(first, end):
            ended: set[tuple[str, str]] = set()
            for event in sorted(by_hour.get(hour, []), key=sort_key):
                self.take(event, hour, ended)
            self.unmatched = {key: when for key, when in self.unmatched.items() if when == hour}
            self.carries[hour + 1] = [
                *({"ref": ref, "method": method, "ended": False, **life} for (ref, method), life in self.open.items()),
                *({"ref": ref, "method": method, "ended": True} for ref, method in self.unmatched),
            ]

    def take(self, event: Event, hour: int, ended: set[tuple[str, str]]) -> None:
        key = (event["ref"], event["service"])
        life = self.open.get(key)
        match event["kind"]:
            case "task.submitted" if life is None and key not in self.unmatched and key not in ended:
                data = json.loads(event["data"]) if event["data"] else {}
                self.open[key] = opened(event, data, reopened=False)
            case "task.reopened" if life is None:
                self.open[key] = opened(event, {}, reopened=True)
                self.unmatched.pop(key, None)
            case "task.attempt_ended" if life is not None:
                self.open[key] = added(life, event)
            case "task.completed" if life is not None:
                self.rows.append(ended_row(key, added(life, event), event))
                del self.open[key]
                ended.add(key)
            case "task.completed" if key not in ended and key not in self.unmatched:
                nobody = opened(event, {}, reopened=False) | {"start_us": None, "client": None}
                self.rows.append(ended_row(key, added(nobody, event), event))
                self.unmatched[key] = hour


def opened(event: Event, data: dict[str, Any], *, reopened: bool) -> Life:
    return {
        "start_us": to_us(event["at"]),
        "client": event["identity"],
        "group": data.get("group"),
        "priority": data.get("priority"),
        "reopened": reopened,
        "base": None if reopened else 0,
        "attempts": 0,
        "first_us": None,
        "wait_us": None,
        "wasted_us": 0,
    }


def added(life: Life, event: Event) -> Life:
    life = dict(life)
    run = micros(event["seconds"]) or 0
    if closes(event):
        if life["base"] is None:
            life["base"] = event["attempt"] - 1
        if life["first_us"] is None and (life["reopened"] or event["attempt"] == 1):
            life["first_us"] = to_us(event["at"]) - run
            life["wait_us"] = micros(event["waited"])
    if closes(event) or not life["reopened"]:
        life["attempts"] = max(life["attempts"], event["attempt"] - life["base"])
    if event["kind"] == "task.attempt_ended":
        life["wasted_us"] += run
    return life


def shown(key: tuple[str, str], life: Life) -> dict[str, Any]:
    delay = None
    if life["first_us"] is not None and life["start_us"] is not None:
        delay = max(0, life["first_us"] - life["start_us"] - (life["wait_us"] or 0)) / 1e6
    return {
        "ref": key[0],
        "submitted": None if life["start_us"] is None else to_time(life["start_us"]),
        "client": life["client"],
        "method": key[1],
        "group": life["group"],
        "priority": life["priority"],
        "first_assigned": None if life["first_us"] is None else to_time(life["first_us"]),
        "ended": None,
        "outcome": "open",
        "attempts": life["attempts"],
        "node": None,
        "code": None,
        "wait_seconds": None if life["wait_us"] is None else life["wait_us"] / 1e6,
        "delay_seconds": delay,
        "run_seconds": None,
        "wasted_seconds": life["wasted_us"] / 1e6,
        "part": 0,
    }


def ended_row(key: tuple[str, str], life: Life, event: Event) -> dict[str, Any]:
    return shown(key, life) | {
        "ended": event["at"],
        "outcome": event["state"],
        "node": event["identity"],
        "code": event["code"],
        "run_seconds": (micros(event["seconds"]) or 0) / 1e6 if closes(event) else None,
        "part": to_us(event["at"]) // HOUR_US,
    }
