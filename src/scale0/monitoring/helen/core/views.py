"""Pages of checks and incidents for clients.

A page is limited in its size and in the entries that it examines. `next` is where the next page begins, and None at the
end.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.monitoring.helen.core.check_rules import CompiledCheck, matcher
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.incidents import Incident, Incidents, read_row
from scale0.monitoring.helen.core.monitored_agent import MonitoredAgent
from scale0.storage.check_rows import ReadIncidents

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
"""Items of one page."""
MAX_PAGE_CHARS: Final = 1_000_000
"""The length of one page: a character takes up to six bytes as JSON, and a message that is too long would cost Helen
her connection to the network."""
ITEM_CHARS: Final = 800
"""The length of an item without its message and its suppressions."""
MAX_EXAMINED: Final = 20_000
"""Checks that are examined for one page."""

MAX_READS: Final = 20
"""Reads of the store for one page of incidents."""
STALE_SECONDS: Final = 60.0
"""A result is stale if it is later than its interval and timeout by more than this."""
MAX_DIGITS: Final = 20
"""Digits of the microseconds in an incident's id."""

Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)]
QueryText = Annotated[str, msgspec.Meta(max_length=400)]
SuppressedBy = Callable[[MonitoredAgent, CompiledCheck, CheckState], tuple[str, ...]]
Page = dict[str, Any]
OnPage = Callable[[Page | Refusal, Now | None, Effects], None]
"""Gets the page, or why there is none."""
T = TypeVar("T")


class ChecksQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`agent` and `check` are globs; `state` may also be `problem`: any state but ok."""

    agent: QueryText = ""
    check: QueryText = ""
    state: QueryText = ""
    limit: Limit = DEFAULT_LIMIT
    after: QueryText = ""
    """`agent/check`."""


class IncidentsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Incidents, newest first."""

    open: bool = False
    """Open incidents only."""
    agent: QueryText = ""
    check: QueryText = ""
    limit: Limit = DEFAULT_LIMIT
    after: QueryText = ""


def _read(query: Mapping[str, Any], schema: type[T]) -> T:
    try:
        return msgspec.convert(query, schema)
    except msgspec.ValidationError as error:
        raise Refusal(codes.MALFORMED, str(error)) from None


def _fits(glob: str) -> Callable[[str], object]:
    return matcher((glob,) if glob else ()) or (lambda _name: True)


def checks(
    query: Mapping[str, Any],
    agents: Mapping[str, MonitoredAgent],
    suppressed_by: SuppressedBy,
    known: Incidents,
    wall: float,
) -> Page:
    """A page of checks, by agent and check, at that wall time."""
    wanted = _read(query, ChecksQuery)
    agent_fits, check_fits = _fits(wanted.agent), _fits(wanted.check)
    after_agent, _, after_check = wanted.after.partition("/")
    names = sorted(agents)
    items: list[dict[str, Any]] = []
    examined = chars = 0
    for agent in names[bisect.bisect_left(names, after_agent) :]:
        examined += 1
        if not agent_fits(agent):
            continue
        monitored = agents[agent]
        for check in sorted(monitored.states):
            if agent == after_agent and check <= after_check:
                continue
            examined += 1
            state, definition = monitored.states[check], monitored.selected.get(check)
            if definition is not None and check_fits(check) and _has_state(state, wanted.state):
                items.append(_check(monitored, definition, state, suppressed_by, known, wall))
                chars += _chars(items[-1])
            if len(items) == wanted.limit or examined >= MAX_EXAMINED or chars >= MAX_PAGE_CHARS:
                return {"items": items, "next": f"{agent}/{check}"}
    return {"items": items, "next": None}


def _chars(item: Mapping[str, Any]) -> int:
    return ITEM_CHARS + len(item["message"]) + sum(map(len, item["suppressed"]))


def _has_state(state: CheckState, wanted: str) -> bool:
    return not wanted or state.state == wanted or (wanted == "problem" and state.state != "ok")


def _check(
    monitored: MonitoredAgent,
    definition: CompiledCheck,
    state: CheckState,
    suppressed_by: SuppressedBy,
    known: Incidents,
    wall: float,
) -> dict[str, Any]:
    rule = definition.flap_rule
    fresh_until = state.at + definition.interval + definition.timeout
    incident = known.find((monitored.agent, definition.name))
    return {
        "agent": monitored.agent,
        "check": definition.name,
        "state": state.state,
        "hard": state.hard,
        "attempt": state.attempt,
        "max_attempts": definition.max_attempts,
        "flapping": state.flapping,
        "flapping_percent": 0.0 if rule is None else rule.percent(state.history, state.known),
        "message": state.message,
        "at": state.at,
        "since": state.since,
        "seconds": state.seconds,
        "fresh_until": fresh_until,
        "stale": wall > fresh_until + STALE_SECONDS,
        "incident": "" if incident is None else incident.id,
        "suppressed": list(suppressed_by(monitored, definition, state)) if state.state != "ok" else [],
    }


def incidents(query: Mapping[str, Any], known: Incidents) -> Page:
    """A page of the incidents in memory, newest first."""
    return _Search(_read(query, IncidentsQuery), known).page_in_memory()


def find_incidents(query: Mapping[str, Any], known: Incidents, on_page: OnPage, effects: Effects) -> None:
    """A page of all incidents, newest first: open ones are all in memory, closed ones are read from the store."""
    search = _Search(_read(query, IncidentsQuery), known)
    if search.wanted.open:
        on_page(search.page_in_memory(), None, effects)
    else:
        search.on_page = on_page
        search.read_next(effects)


class _Search:
    """A search for one page of incidents."""

    def __init__(self, wanted: IncidentsQuery, known: Incidents) -> None:
        self.wanted = wanted
        self.on_page: OnPage = lambda *_: None
        self._known = known
        self._agent_fits, self._check_fits = _fits(wanted.agent), _fits(wanted.check)
        self._after = _after(wanted.after) if wanted.after else None
        self._items: list[Incident] = []
        self._reads = 0
        self._rows = MAX_LIMIT if wanted.agent or wanted.check else wanted.limit + 1

    def page_in_memory(self) -> Page:
        self._add_matching(self._known.newest_first(self.wanted.open))
        return self._page(None)

    def read_next(self, effects: Effects) -> None:
        before_us, before_id = (None, "") if self._after is None else self._after
        effects.ask(StoreQuery(ReadIncidents(False, before_us, before_id, self._rows), self._on_rows, aside=True))

    def _on_rows(self, rows: Any, now: Now, effects: Effects) -> None:
        if isinstance(rows, Refusal):
            self.on_page(rows, now, effects)
            return
        self._reads += 1
        floor = (rows[-1].opened_us, rows[-1].id) if len(rows) == self._rows else None
        found = {row.id: read_row(row) for row in rows}
        # An incident in memory is newer than its row, which may not be written yet.
        for incident in self._known.newest_first(False):
            if (self._after is None or incident.sort_key < self._after) and (
                floor is None or incident.sort_key >= floor
            ):
                found[incident.id] = incident
        self._add_matching(sorted(found.values(), key=lambda one: one.sort_key, reverse=True))
        if floor is None or len(self._items) > self.wanted.limit:
            self.on_page(self._page(None), now, effects)
        elif self._reads >= MAX_READS:
            self.on_page(self._page(floor[1]), now, effects)
        else:
            self._after = floor
            self.read_next(effects)

    def _add_matching(self, found: Iterable[Incident]) -> None:
        for incident in found:
            if self._after is not None and incident.sort_key >= self._after:
                continue
            if not incident.moved and self._agent_fits(incident.agent) and self._check_fits(incident.check):
                self._items.append(incident)
                if len(self._items) > self.wanted.limit:
                    return

    def _page(self, examined: str | None) -> Page:
        """The page; `examined` is the id of the last examined incident if there may be more."""
        items: list[dict[str, Any]] = []
        chars = 0
        for incident in self._items[: self.wanted.limit]:
            items.append(incident.to_dict())
            chars += _chars(items[-1])
            if chars >= MAX_PAGE_CHARS:
                break
        more = items[-1]["id"] if len(self._items) > len(items) else examined
        return {"items": items, "next": more}


def _after(id_: str) -> tuple[int, str]:
    """The sort key in an incident's id."""
    opened = id_.rpartition("@")[2]
    if not (opened.isascii() and opened.isdigit() and len(opened) < MAX_DIGITS):
        raise Refusal(codes.MALFORMED, "`after` must be the id of an incident")
    return int(opened), id_
