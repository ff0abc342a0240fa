"""The health of a network: findings, the worst first, each with the next step, for the command line and the console.

Invariants: what was not read (None) is unknown, and never healthy; a finding says what to type next; the list is
limited, and omitted findings are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from scale0.kernel.time_text import utc_text

Row = Mapping[str, Any]
Rows = Sequence[Row] | None
"""None if it could not be read."""
Severity = Literal["ok", "warning", "critical"]

OK: Final = "ok"
WARNING: Final = "warning"
CRITICAL: Final = "critical"
UNKNOWN: Final = "unknown"
RANKS: Final = {CRITICAL: 0, WARNING: 1, OK: 2}

MAX_OF_A_KIND: Final = 5
"""Findings of one kind that are listed one by one: the list must fit on a screen."""
LOOK_TASKS: Final = 200
"""Queued tasks that are searched for one without a worker."""
OLD_SECONDS: Final = 5.0
"""A request that waits this long for a slot is reported; shorter waits are normal."""
FAILING_SHARE: Final = 0.1
"""A service with a larger share of failures is reported."""
SERVING: Final = ("active", "standby")
NOTED: Final = ("silence", "downtime", "depends_on")
"""Reasons for which notifications are suppressed on purpose; flapping is not one."""


class HealthFinding(msgspec.Struct, frozen=True):
    """One problem, or (with `ok`) one that is already acknowledged."""

    severity: Severity
    what: str
    """The subject: `broker`, `peer b2`, `service thumbs`, `check web-1 disk`, …"""
    words: str
    page: str
    """The console's page with details."""
    next: str
    """The command to type."""


class PartHealth(msgspec.Struct, frozen=True):
    """The state of one part of the network."""

    part: str
    state: Literal["ok", "warning", "critical", "unknown"]
    words: str
    next: str


RESUME_DATABASE: Final = "start or resume the database"
"""The next step while the database is unavailable."""


class NetworkSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a network."""

    status: Row | None
    peers: Rows = None
    services: Rows = None
    queues: Rows = None
    tasks: Rows = None
    """The newest queued tasks, at most LOOK_TASKS."""
    error_clients: Rows = None
    agents: Rows = None
    checks: Rows = None
    incidents: Rows = None
    silent: Sequence[str] = ()
    """Helens that did not answer."""
    watched: bool = True
    """False if no Helen is connected, which is not a problem in a network without monitoring."""


def found_in(seen: NetworkSnapshot) -> list[HealthFinding]:
    if seen.status is None:
        words = "no broker answers"
        return [
            HealthFinding(CRITICAL, "broker", words, "overview", "start one with `scale0 up`, or name another: --join")
        ]
    version = seen.status.get("config_version")
    noted = {row["incident"] for row in seen.checks or () if row.get("incident") and is_noted(row)}
    found = [
        *of_broker(seen.status),
        *bounded(of_peer(row, version) for row in seen.peers or ()),
        *bounded(of_service(row) for row in seen.services or ()),
        *bounded(of_queue(row) for row in seen.queues or ()),
        *bounded(of_tasks(seen)),
        *of_error_clients(seen.status, seen.error_clients),
        *bounded(of_helen(name) for name in seen.silent),
        *bounded(of_agent(row) for row in seen.agents or ()),
        *bounded(of_incident(row, noted) for row in seen.incidents or ()),
        *of_checks(seen.checks or (), seen.incidents or ()),
    ]
    return sorted(found, key=lambda one: RANKS[one.severity])


def worst(found: Iterable[HealthFinding]) -> Severity:
    return min((one.severity for one in found), key=RANKS.__getitem__, default=OK)


def bounded(found: Iterable[HealthFinding | None]) -> Iterator[HealthFinding]:
    """The first few findings of a kind, and the number of the others."""
    those = sorted((one for one in found if one is not None), key=lambda one: RANKS[one.severity])
    yield from those[:MAX_OF_A_KIND]
    if rest := those[MAX_OF_A_KIND:]:
        first = rest[0]
        kind = first.what.partition(" ")[0]
        yield HealthFinding(first.severity, f"{kind}s", f"{len(rest)} more of this kind", first.page, first.next)


def of_broker(status: Row) -> Iterator[HealthFinding]:
    state = status.get("state")
    if status.get("draining"):
        words = "the broker is draining: it finishes work in flight, and accepts nothing new"
        yield HealthFinding(WARNING, "broker", words, "overview", "run `scale0 enable` to serve again")
    elif state == "disabled":
        words = "the broker is disabled: it answers only management commands"
        yield HealthFinding(CRITICAL, "broker", words, "overview", "run `scale0 enable` to serve again")
    elif state not in SERVING:
        words = f"the broker is {state}: it does not serve yet"
        yield HealthFinding(WARNING, "broker", words, "topology", "`scale0 peers` shows what it waits for")
    outage = status.get("outage")
    if outage:
        why = f" ({outage['reason']})" if outage.get("reason") else ""
        words = f"it is unavailable since {utc_text(outage['since'])}{why}: nothing is stored, and no task is read"
        yield HealthFinding(
            CRITICAL, "database", words, "overview", f"{RESUME_DATABASE}; the broker then continues by itself"
        )
    elif status.get("full"):
        words = "nothing can be stored: its disk is almost full"
        yield HealthFinding(CRITICAL, "disk", words, "overview", "free space in its data_dir")
    if status.get("clock_suspect"):
        words = "clients disagree with the clock of the broker, and none confirms it"
        yield HealthFinding(
            WARNING, "clock", words, "overview", "set the clock of its host: `timedatectl set-ntp true`"
        )


def of_peer(row: Row, version: int | None) -> HealthFinding | None:
    name = f"peer {row['broker'] or row.get('endpoint', '')}"
    match row["state"]:
        case "lost":
            words = f"lost, last seen {span(row.get('age'))} ago"
            return HealthFinding(
                CRITICAL, name, words, "topology", "start it again, or read its log; see `scale0 peers`"
            )
        case "unknown":
            words = "never seen: check that it runs, and that this is its peer port"
            return HealthFinding(
                WARNING, name, words, "topology", "check `peers` in the broker's configuration; see `scale0 peers`"
            )
        case "disabled" | "draining" as state:
            next_ = "run `scale0 enable --join ADDRESS` to serve again"
            return HealthFinding(WARNING, name, f"it is {state}", "topology", next_)
        case _ if version is not None and row.get("config_version") != version:
            words = f"it has configuration version {row.get('config_version')}, this broker has {version}"
            return HealthFinding(
                WARNING, name, words, "config", "wait a moment; `scale0 peers --watch` shows whether it catches up"
            )
    return None


def of_service(row: Row) -> HealthFinding | None:
    name, waiting = f"service {row['service']}", row.get("waiting") or 0
    if waiting and not row.get("backends"):
        words = f"{counted(waiting, 'request waits', 'requests wait')} for it, and no worker offers it"
        return HealthFinding(
            CRITICAL, name, words, "services", "start a worker that offers it: scale0 worker FILE.py:worker"
        )
    if waiting and waiting > (row.get("slots") or 0):
        words = f"{waiting} requests wait for {counted(row['slots'], 'slot')}"
        return HealthFinding(WARNING, name, words, "queues", "add workers or slots; see `scale0 queues`")
    rates = row.get("rates") or {}
    failed, answered = rates.get("failed_per_second") or 0.0, rates.get("answered_per_second") or 0.0
    if failed > FAILING_SHARE * (failed + answered):
        words = f"{failed / (failed + answered):.0%} of its answers are failures ({failed:.1f} a second)"
        return HealthFinding(
            WARNING, name, words, "services", "read the traceback in the worker's log; see `scale0 clients`"
        )
    return None


def of_queue(row: Row) -> HealthFinding | None:
    name, oldest = f"queue {row['service']}", row.get("oldest_seconds")
    if oldest is not None and oldest >= OLD_SECONDS and row.get("backends"):
        words = f"{counted(row['waiting'], 'request waits', 'requests wait')}, the first one for {span(oldest)}"
        return HealthFinding(WARNING, name, words, "queues", "add workers or slots; see `scale0 queues`")
    if row.get("tasks_queued") and not row.get("backends"):
        words = f"{counted(row['tasks_queued'], 'task waits', 'tasks wait')} for it, and no worker offers it"
        return HealthFinding(
            WARNING, name, words, "queues", "start a worker that offers it: scale0 worker FILE.py:worker"
        )
    return None


def of_tasks(seen: NetworkSnapshot) -> Iterator[HealthFinding]:
    """Tasks without a worker; tasks of a queue in memory are part of that queue's finding."""
    offered = {row["service"] for row in seen.services or () if row.get("backends")}
    offered.update(row["service"] for row in seen.queues or () if row.get("tasks_queued"))
    waiting = Counter(row["method"] for row in seen.tasks or () if row["method"] not in offered)
    for method, count in waiting.items():
        least = "at least " if len(seen.tasks or ()) >= LOOK_TASKS else ""
        words = f"{least}{counted(count, 'task waits', 'tasks wait')} for it, and no worker offers it"
        next_ = "start a worker that offers it: scale0 worker FILE.py:worker"
        yield HealthFinding(WARNING, f"queue {method}", words, "tasks", next_)


def of_error_clients(status: Row, rows: Rows) -> Iterator[HealthFinding]:
    count = len(rows) if rows is not None else status.get("error_clients") or 0
    if count:
        whose = ": " + listed([str(row["client"]) for row in rows]) if rows else ""
        words = f"{counted(count, 'client is', 'clients are')} ignored for bad input{whose}"
        next_ = "see `scale0 error-clients`; `scale0 error-clients forgive CLIENT` unblocks one"
        yield HealthFinding(WARNING, "error clients", words, "clients/errors", next_)


def of_helen(name: str) -> HealthFinding:
    words = "no answer: the state of her agents is unknown"
    return HealthFinding(CRITICAL, f"Helen {name}", words, "agents", "read her log; see `scale0 clients`")


def of_agent(row: Row) -> HealthFinding | None:
    name = f"agent {row['agent']}"
    match row["state"]:
        case "doubled":
            words = "two machines have its certificate"
            return HealthFinding(
                CRITICAL, name, words, "agents", f"`scale0 agent forget {row['agent']}`, then enrol both"
            )
        case "away":
            words = "not connected: the state of its machine is unknown"
            return HealthFinding(
                WARNING, name, words, "agents", "start it there: scale0 agent --config agent/agent.zpl"
            )
    return None


def of_incident(row: Row, noted: Container[str]) -> HealthFinding | None:
    """An open incident; `noted`: the ids of incidents that a silence or a downtime covers."""
    if row.get("closed") is not None or row["id"] in noted:
        return None
    severity: Severity = WARNING if row["worst"] == WARNING else CRITICAL
    name = f"{row['agent']} {row['check']}"
    next_ = f"`scale0 explain {row['agent']}/{row['check']}`; `scale0 silence add` while it is being repaired"
    return HealthFinding(severity, f"incident {name}", first_line(row["message"]) or row["worst"], "incidents", next_)


def of_checks(rows: Sequence[Row], incidents: Sequence[Row]) -> Iterator[HealthFinding]:
    """Checks in a hard problem state that no incident covers; silenced ones are not a problem."""
    covered = {row["id"] for row in incidents if row.get("closed") is None}
    bad = [row for row in rows if row["hard"] and row["state"] != OK]
    quiet = [row for row in bad if is_noted(row)]
    yield from bounded(of_check(row) for row in bad if not is_noted(row) and row.get("incident") not in covered)
    if quiet:
        words = f"{counted(len(quiet), 'check is', 'checks are')} bad, and silenced: {listed(map(named, quiet))}"
        yield HealthFinding(OK, "checks", words, "silences", "`scale0 silence list`, `scale0 downtime list`")
    if stale := [row for row in rows if row.get("stale")]:
        words = (
            f"{counted(len(stale), 'check is', 'checks are')} stale, its result overdue: {listed(map(named, stale))}"
        )
        yield HealthFinding(WARNING, "checks", words, "checks", "`scale0 checks --problems`; is the agent connected?")


def is_noted(row: Row) -> bool:
    """True if a silence, a downtime or a dependency explains the check's state."""
    return any(why.partition(" ")[0] in NOTED for why in row.get("suppressed") or ())


def of_check(row: Row) -> HealthFinding:
    severity: Severity = WARNING if row["state"] == WARNING else CRITICAL
    words = f"{row['state']}: {first_line(row['message'])}"
    return HealthFinding(
        severity, f"check {named(row)}", words, "checks", f"`scale0 check run {named(row)}` repeats it"
    )


PARTS: Final[tuple[tuple[str, str, Callable[[NetworkSnapshot], Rows]], ...]] = (
    ("brokers", "topology", lambda seen: seen.peers),
    ("configuration", "config", lambda seen: seen.peers),
    ("services", "services", lambda seen: seen.services),
    ("queues", "queues", lambda seen: seen.services),
    ("tasks", "tasks", lambda seen: seen.tasks),
    ("clients", "clients/errors", lambda seen: None if error_count(seen) is None else ()),
    ("agents", "agents", lambda seen: seen.agents),
    ("checks", "checks", lambda seen: seen.checks),
    ("incidents", "incidents", lambda seen: seen.incidents),
)
"""Each part with its console page, and the rows that are needed to judge it."""
WELL: Final = {
    "broker": "serving, and able to store",
    "brokers": "none is lost",
    "configuration": "the same version everywhere",
    "services": "every requested service has workers",
    "queues": "no request waits long",
    "tasks": "every queued task has a worker",
    "clients": "no client is ignored",
    "agents": "all are connected",
    "checks": "no problems beside the incidents",
    "incidents": "none is open",
}
"""The text for a part without findings."""


def parts(seen: NetworkSnapshot, found: Sequence[HealthFinding]) -> list[PartHealth]:
    out = [part_of("broker", [one for one in found if one.page == "overview"], known=True)]
    outage = seen.status is not None and bool(seen.status.get("outage"))
    for name, page, rows in PARTS:
        mine = [one for one in found if one.page == page]
        if page in ("agents", "checks", "incidents") and not seen.watched and not mine:
            words = "no monitoring: no Helen is connected"
            out.append(
                PartHealth(name, UNKNOWN, words, "`scale0 up` starts one here; else: scale0 helen --config FILE")
            )
        else:
            out.append(part_of(name, mine, known=rows(seen) is not None, outage=outage))
    return out


def part_of(name: str, found: Sequence[HealthFinding], known: bool, outage: bool = False) -> PartHealth:
    bad = [one for one in found if one.severity != OK]
    if bad:
        first = bad[0]
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return PartHealth(name, first.severity, f"{first.what}: {first.words}{more}", first.next)
    if not known and outage:
        return PartHealth(name, UNKNOWN, "not read: the database is unavailable", RESUME_DATABASE)
    if not known:
        return PartHealth(name, UNKNOWN, "not read", "give --data-dir FOLDER, --token or --auth-id NAME")
    return PartHealth(name, OK, WELL[name], "")


def error_count(seen: NetworkSnapshot) -> int | None:
    """The number of ignored clients, if known."""
    if seen.error_clients is not None:
        return len(seen.error_clients)
    return None if seen.status is None else seen.status.get("error_clients")


# Text.


def counted(count: int, one: str, many: str = "") -> str:
    """`1 slot`, `2 slots`; `1 request waits`, `2 requests wait`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def named(row: Row) -> str:
    return f"{row['agent']} {row['check']}"


def listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - MAX_OF_A_KIND} more" if len(known) > MAX_OF_A_KIND else ""
    return ", ".join(known[:MAX_OF_A_KIND]) + more


def first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def span(seconds: float | None) -> str:
    """A duration, rounded so that the text does not change with every refresh."""
    if seconds is None:
        return "never"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"
