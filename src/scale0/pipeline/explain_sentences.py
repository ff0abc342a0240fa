"""Sentences in English for events: one for each kind, and one for a run of routine events.

An unknown kind gets a generic sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.pipeline.reports.formatting import counted, duration

Event = dict[str, Any]
"""The columns of an event; `time` and `at` in microseconds."""

ROUTINE: Final = frozenset({"client.seen", "request.summed", "source.alive"})
"""Kinds that only confirm that nothing changed."""
MAX_TEXT: Final = 200
"""Limit for messages and reasons from other programs."""


def is_routine(event: Event, sort: str, answered: str | None) -> bool:
    """True if the event gets no entry of its own. `answered` is the previous state of the check, in a check's
    timeline.
    """
    if event["kind"] in ROUTINE:
        return True
    if sort == "task":
        return False
    if event["kind"] in ("task.completed", "task.submitted"):
        return event["state"] in (None, "finished")
    return bool(event["kind"] == "check.answered" and event["state"] in ("ok", answered))


def data_of(event: Event) -> dict[str, Any]:
    """The decoded `data` column; empty if it is not a JSON object."""
    try:
        found = msgspec.json.decode(event["data"] or "{}")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def sentence_of(event: Event, sort: str) -> str:
    subject = event["kind"].partition(".")[0]
    match subject:
        case "task":
            return _task(event, sort)
        case "client":
            return _client(event)
        case "check" | "incident" | "downtime" | "notice":
            return _check(event)
        case _:
            return _other(event)


def _task(event: Event, sort: str) -> str:
    whose = "" if sort == "task" else f" {event['ref']} ({event['service']})"
    attempt = f"attempt {event['attempt']}" if event["attempt"] is not None else "an attempt"
    match event["kind"]:
        case "task.submitted":
            method = f" for {event['service']}" if sort == "task" else f"{whose}"
            return f"submitted by {event['identity'] or 'an unknown client'}{method}{_priority(event)}"
        case "task.attempt_ended":
            node = f" on {event['identity']}" if event["identity"] else ""
            return f"{attempt}{whose}{node} ended: {event['state'] or 'unknown'}{_code(event)}{_times(event)}"
        case "task.completed":
            after = f" after {duration(event['seconds'])}" if event["seconds"] is not None else ""
            node = f", {attempt} on {event['identity']}" if event["identity"] and event["attempt"] else ""
            waited = f", waited {duration(event['waited'])}" if event["waited"] is not None else ""
            return f"{event['state'] or 'ended'}{whose}{after}{_code(event)}{node}{waited}"
        case "task.refused":
            node = event["identity"] or "an unknown node"
            more = data_of(event).get("more")
            if isinstance(more, int):
                return f"{counted(more, 'more result')} from {node} arrived too late"
            return f"{attempt}{whose}: a result from {node} arrived too late{_code(event)}"
        case "task.reopened":
            return f"reopened{whose}: will be retried"
        case _:
            return _other(event)


def _client(event: Event) -> str:
    data = data_of(event)
    offered = data.get("services")
    services = ", ".join(map(str, offered[:5])) if isinstance(offered, list) and offered else ""
    what = f" as {data['role']}" if data.get("role") else ""
    offers = f", offers {_short(services)}" if services else ""
    slots = f" in {counted(data['slots'], 'slot')}" if services and isinstance(data.get("slots"), int) else ""
    match event["kind"]:
        case "client.joined":
            return f"joined {event['source']}{what}{offers}{slots}"
        case "client.changed":
            return f"changed its services{what}{offers}{slots}"
        case "client.left":
            return f"left {event['source']} cleanly"
        case "client.lost":
            late = (event["time"] - event["at"]) / 1e6
            return f"last seen; {event['source']} declared it lost {duration(late)} later"
        case "client.replaced":
            return f"replaced at {event['source']}: the same identity connected again"
        case "client.refused":
            return f"refused by {event['source']}{_code(event)}{_because(data)}"
        case _:
            return _other(event)


def _check(event: Event) -> str:
    data = data_of(event)
    message = f": {_short(data['message'])}" if isinstance(data.get("message"), str) and data["message"] else ""
    match event["kind"]:
        case "check.answered":
            took = f" in {duration(event['seconds'])}" if event["seconds"] is not None else ""
            asked = "" if data.get("scheduled", True) else ", requested manually"
            return f"answered {event['state']}{took}{asked}{message}"
        case "check.state_changed":
            hard = "hard" if data.get("hard") else f"soft, attempt {event['attempt']}"
            flapping = ", flapping" if data.get("flapping") else ""
            was = f", was {data['previous']}" if data.get("previous") else ", first result"
            return f"became {event['state']} ({hard}{flapping}){was}{message}"
        case "check.removed":
            return "removed: the agent no longer runs it"
        case "incident.opened":
            return f"incident {event['ref']} opened: {event['state']}{message}"
        case "incident.closed":
            lasted = f" after {duration(event['seconds'])}" if event["seconds"] is not None else ""
            return f"incident {event['ref']} closed{lasted}; worst state {event['state']}"
        case "downtime.started":
            of = f" of {event['service']}" if event["service"] else ""
            return f"downtime {event['ref']}{of} started{_because(data)}"
        case "downtime.ended":
            return f"downtime {event['ref']} ended"
        case "notice.sent":
            how = " directly, without the queue" if data.get("via") == "direct" else ""
            return f"notification sent to {data.get('handler', 'a handler')}{how}"
        case _:
            return _other(event)


def _other(event: Event) -> str:
    """A generic sentence for a kind without one of its own."""
    parts = event["kind"].replace(".", " ").replace("_", " ")
    extra = [f"{name} {event[name]}" for name in ("service", "state", "code") if event[name] not in (None, "")]
    if event["seconds"] is not None:
        extra.append(f"after {duration(event['seconds'])}")
    return f"{parts}{': ' if extra else ''}{', '.join(extra)}{_because(data_of(event))}"


def _priority(event: Event) -> str:
    priority = data_of(event).get("priority")
    return f", priority {priority}" if isinstance(priority, int) and priority else ""


def _times(event: Event) -> str:
    ran = f" after {duration(event['seconds'])}" if event["seconds"] is not None else ""
    waited = f", waited {duration(event['waited'])}" if event["waited"] is not None else ""
    return ran + waited


def _code(event: Event) -> str:
    return f" (code {event['code']})" if event["code"] else ""


def _because(data: dict[str, Any]) -> str:
    reason = data.get("reason")
    return f": {_short(reason)}" if isinstance(reason, str) and reason else ""


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def routine_sentence(events: Sequence[Event]) -> str:
    kinds = Counter(event["kind"] for event in events)
    parts = []
    answers = [event for event in events if event["kind"] == "check.answered"]
    for state, count in Counter(event["state"] for event in answers).items():
        slowest = max(event["seconds"] or 0.0 for event in answers if event["state"] == state)
        times = "once" if count == 1 else f"{count:,} times"
        parts.append(f"answered {state} {times}, at most in {duration(slowest)}")
    if kinds["task.completed"]:
        parts.append(f"{counted(kinds['task.completed'], 'task')} finished")
    if kinds["task.submitted"]:
        parts.append(f"{counted(kinds['task.submitted'], 'task')} submitted")
    if kinds["request.summed"]:
        answered = sum(event["code"] or 0 for event in events if event["kind"] == "request.summed")
        parts.append(f"{counted(answered, 'request')} answered")
    if kinds["client.seen"]:
        gap = max((e["seconds"] or 0.0 for e in events if e["kind"] == "client.seen"), default=0.0)
        parts.append(f"alive, longest heartbeat gap {duration(gap)}")
    if kinds["source.alive"]:
        parts.append("watching")
    return "; ".join(parts)
