"""How the network is, in words: what is well, what needs somebody, and what to do next.

Lives here: pure judgement over rows. Never here: asking for them. Invariant: whatever is not ok says what to do next,
and is in the list of what needs attention, the worst first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

OK: Final = "ok"
WARNING: Final = "warning"
CRITICAL: Final = "critical"
UNKNOWN: Final = "unknown"
RANKS: Final = {CRITICAL: 0, WARNING: 1, UNKNOWN: 2, OK: 3}
MAX_ATTENTION: Final = 100
"""Lines that need attention; whoever has more has one problem."""
MAX_NAMES: Final = 3
"""That stand in one sentence."""
MAX_WORDS_CHARS: Final = 300
FAILED_WARNING: Final = 0.05
"""Share of requests that fail, over the last ten seconds."""
FAILED_CRITICAL: Final = 0.5

Row = dict[str, Any]


class Facts(NamedTuple):
    """What is known; None where somebody did not answer."""

    status: Row
    brokers: list[Row]
    services: list[Row]
    queues: list[Row]
    rates: Row
    helens: list[str]
    silent: list[str]
    agents: list[Row]
    checks: list[Row]
    incidents: list[Row]


class Finding(NamedTuple):
    """One thing that is so."""

    part: str
    state: str
    words: str
    next: str = ""
    page: str = "overview"


PARTS: Final = ("broker", "peers", "configuration", "services", "requests", "tasks", "clients", "monitoring", "checks")
WELL: Final = {
    "peers": "no broker is lost",
    "configuration": "every broker has the same version",
    "services": "whatever is asked for is offered",
    "requests": "requests are answered",
    "tasks": "whatever is queued has somebody to do it",
    "clients": "nobody is ignored",
    "monitoring": "every Helen answers",
    "checks": "no check has a problem",
}


def judged(facts: Facts) -> tuple[list[Row], list[Row]]:
    """The health of every part, and what needs attention."""
    found = [
        *_broker(facts),
        *_peers(facts),
        *_services(facts),
        *_requests(facts),
        *_tasks(facts),
        *_clients(facts),
        *_monitoring(facts),
        *_checks(facts),
    ]
    health = [_part(part, [one for one in found if one.part == part]) for part in PARTS]
    wrong = sorted((one for one in found if one.state != OK), key=lambda one: RANKS[one.state])
    attention = [
        {
            "severity": one.state,
            "what": one.part,
            "words": one.words[:MAX_WORDS_CHARS],
            "page": f"#/{one.page}",
            "next": one.next,
        }
        for one in wrong[:MAX_ATTENTION]
    ]
    return health, attention


def _part(part: str, found: list[Finding]) -> Row:
    if not found:
        return {"part": part, "state": OK, "words": WELL.get(part, "well"), "next": ""}
    worst = min(found, key=lambda one: RANKS[one.state])
    more = sum(one.state != OK for one in found) - 1
    words = worst.words[:MAX_WORDS_CHARS] + (f", and {more} more" if more > 0 else "")
    return {"part": part, "state": worst.state, "words": words, "next": worst.next}


def named(names: list[str]) -> str:
    """Some names in a sentence."""
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown


def _broker(facts: Facts) -> Iterator[Finding]:
    name, state = facts.status["broker"], facts.status["state"]
    enable = f"scale0 enable {name}"
    if facts.status.get("draining"):
        yield Finding("broker", WARNING, f"{name} is draining: it takes no new clients", enable, "topology")
    elif state == "disabled":
        yield Finding("broker", CRITICAL, f"{name} is disabled: it serves nobody", enable, "topology")
    elif state == "joining":
        yield Finding("broker", WARNING, f"{name} waits for a broker that it knows", "scale0 peers", "topology")
    else:
        yield Finding("broker", OK, f"{name} is {state}")


def _peers(facts: Facts) -> Iterator[Finding]:
    for row in facts.brokers[1:]:
        if row["state"] == "lost":
            words = f"{row['broker']} was not heard for {row['age']:.0f} s"
            yield Finding("peers", CRITICAL, words, "look at its machine; `scale0 peers` tells its address", "topology")
    versions = {row["config_version"] for row in facts.brokers if row["state"] != "lost"}
    if len(versions) > 1:
        behind = [row["broker"] for row in facts.brokers if row["config_version"] < max(versions)]
        words = f"{named(behind)}: not yet at version {max(versions)} of the configuration"
        yield Finding("configuration", WARNING, words, "scale0 config history", "config")


def _services(facts: Facts) -> Iterator[Finding]:
    for row in facts.services:
        name, waiting = row["service"], row["waiting"]
        if waiting and not row["where"]:
            words = f"{_counted(waiting, 'request')} wait for {name}, which nobody offers"
            yield Finding("services", CRITICAL, words, "start a worker that offers it", "services")
        elif waiting and row["slots"] and row["busy"] >= row["slots"]:
            words = f"{_counted(waiting, 'request')} wait for {name}: all of its {row['slots']} slots are busy"
            yield Finding("services", WARNING, words, "start more workers, or give them more slots", "queues")


def _requests(facts: Facts) -> Iterator[Finding]:
    answered = facts.rates.get("answered_per_second")
    failed = facts.rates.get("failed_per_second")
    if answered is None or failed is None:
        yield Finding("requests", UNKNOWN, "rates are not known yet", "wait a second; then see this server's log")
        return
    share = failed / (answered + failed) if answered + failed else 0.0
    words = f"{share:.0%} of requests failed in the last seconds ({failed:.1f}/s)"
    if share >= FAILED_WARNING:
        state = CRITICAL if share >= FAILED_CRITICAL else WARNING
        yield Finding("requests", state, words, "see which: sort services by failures", "services")
    else:
        yield Finding("requests", OK, f"{answered:.1f} requests/s are answered")


def _tasks(facts: Facts) -> Iterator[Finding]:
    for row in facts.queues:
        if row.get("tasks_queued") and not row["backends"]:
            words = f"{_counted(row['tasks_queued'], 'task')} wait for {row['service']}, which nobody here offers"
            yield Finding("tasks", WARNING, words, "start a worker that offers it", "queues")


def _clients(facts: Facts) -> Iterator[Finding]:
    count = facts.status["error_clients"]
    if count:
        words = f"{_counted(count, 'client')} sent too much that was wrong, and are ignored"
        yield Finding("clients", WARNING, words, "see who: error clients; then mend or forgive them", "clients")


def _monitoring(facts: Facts) -> Iterator[Finding]:
    if not facts.helens:
        yield Finding("monitoring", UNKNOWN, "no Helen is connected: nothing is watched", "scale0 helen --config FILE")
    for name in facts.silent:
        words = f"{name} does not answer: what she watches is not known"
        yield Finding("monitoring", CRITICAL, words, "her log says more; `scale0 clients` shows who is there", "agents")
    doubled = [row["agent"] for row in facts.agents if row["state"] == "doubled"]
    if doubled:
        words = f"two machines have the certificate of {named(doubled)}"
        yield Finding("monitoring", CRITICAL, words, "enrol one of them again: scale0 agent enrol", "agents")
    away = [row["agent"] for row in facts.agents if row["state"] == "away"]
    if away:
        words = f"{_counted(len(away), 'agent')} away: {named(away)}"
        yield Finding("monitoring", WARNING, words, "look at the machine, or forget it: scale0 agent forget", "agents")


def _checks(facts: Facts) -> Iterator[Finding]:
    for row in facts.incidents:
        where = f"{row['check']} on {row['agent']}: {row['message'].strip().splitlines()[0] if row['message'] else ''}"
        state = CRITICAL if row["state"] in (CRITICAL, UNKNOWN) else WARNING
        step = f"scale0 explain {row['agent']}/{row['check']}"
        yield Finding("checks", state, f"{row['state']}: {where}".rstrip(": "), step, "incidents")
    stale = [f"{row['check']} on {row['agent']}" for row in facts.checks if row.get("stale")]
    if stale:
        words = f"{_counted(len(stale), 'check')} stale: {named(stale)}"
        yield Finding("checks", WARNING, words, "see whether the agent is connected: scale0 agents", "checks")
    if facts.helens and not facts.checks:
        yield Finding("checks", UNKNOWN, "no check has answered yet", "scale0 check add disks --check disk", "checks")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def counts(facts: Facts) -> Row:
    """How many there are of everything."""
    states = {state: sum(row["state"] == state for row in facts.checks) for state in (OK, WARNING, CRITICAL, UNKNOWN)}
    return {
        "brokers": len(facts.brokers),
        "brokers_lost": sum(row["state"] == "lost" for row in facts.brokers),
        "clients": facts.status["clients"],
        "services": len(facts.services),
        "error_clients": facts.status["error_clients"],
        "requests": facts.status["requests"],
        "tasks": facts.status["tasks"],
        "helens": len(facts.helens),
        "agents": len(facts.agents),
        "agents_away": sum(row["state"] == "away" for row in facts.agents),
        "checks": states,
        "incidents_open": len(facts.incidents),
    }
