"""The judge: what every second of a small history was, by plain loops, as the contract of the tables says it.

Neither Spark nor anything of `scale0.pipeline` is used here: it must be obviously right, not fast. Times are whole
seconds since START; a second s is [s, s + 1); events after the horizon have not happened.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tests.pipeline.naive_history import START

SILENCE = 150
DAY = 86400
BACKEND, AGENT = "backend", "agent"


class Seen(NamedTuple):
    """An event, in seconds."""

    at: int
    source: str
    boot: int
    seq: int
    time: int
    kind: str
    identity: str
    service: str
    ref: str
    data: dict[str, Any]
    row: dict[str, Any]

    @property
    def key(self) -> tuple[int, str, int, int]:
        """The order of events."""
        return self.at, self.source, self.boot, self.seq

    @property
    def id(self) -> str:
        return f"{self.source}:{self.boot}:{self.seq}"


def second(us: int) -> int:
    """Microseconds of 1970 as seconds of the history; what is no whole second is a mistake of the history."""
    whole, rest = divmod(us, 1_000_000)
    assert rest == 0, us
    return int(whole - START)


def seen(events: list[dict[str, Any]], horizon: int) -> list[Seen]:
    out = []
    for row in events:
        data = json.loads(row["data"]) if row["data"] else {}
        texts = (row["identity"] or "", row["service"] or "", row["ref"] or "")
        numbers = (row["source"], row["boot"], row["seq"], second(row["time"]))
        out.append(Seen(second(row["at"]), *numbers, row["kind"], *texts, data, row))
    return sorted((one for one in out if one.at <= horizon), key=lambda one: one.key)


# Sources.


class Break(NamedTuple):
    """A source did not watch from its event at `begin` to its next one at `end`; None: there is none until now."""

    begin: int
    end: int | None
    restart: bool
    hole: bool
    silence: bool
    last: Seen
    """The event before it."""

    @property
    def ends_sessions(self) -> bool:
        return self.restart or self.silence

    def over(self, now: int) -> bool:
        return self.end is not None and self.end <= now


class Source:
    """Somebody who records: brokers and Helens."""

    def __init__(self, name: str, events: list[Seen], horizon: int, silence: int) -> None:
        self.name = name
        mine = [one for one in events if one.source == name and one.time <= horizon]
        self.events = sorted(mine, key=lambda one: (one.boot, one.seq))
        self.breaks: list[Break] = []
        for a, b in itertools.pairwise(self.events):
            restart, hole, quiet = a.boot != b.boot, b.seq > a.seq + 1, b.time - a.time > silence
            if restart or hole or quiet:
                self.breaks.append(Break(a.time, b.time, restart, hole, quiet, a))
        last = self.events[-1]
        if horizon - last.time > silence:
            self.breaks.append(Break(last.time, None, False, False, True, last))

    @cached_property
    def broker_since(self) -> int | None:
        """When it first recorded that it is a broker. What it recorded before, if that was lost, may be a Helen's."""
        return min((one.time for one in self.events if one.kind == "broker.started"), default=None)

    def pause(self, now: int) -> Break | None:
        """The break that this second lies in."""
        for one in self.breaks:
            if one.begin <= now and not one.over(now):
                return one
        return None


# Sessions.


@dataclass
class Session:
    """From one `client.joined` (or from being heard of again after a silence) to whatever ended it first."""

    identity: str
    source: str
    joined: Seen
    role: str
    offers: list[tuple[int, frozenset[str]]]
    """What it offers, from when on."""
    ended: int | None = None
    reason: str = "open"
    end_key: tuple[Any, ...] = ()
    pause: Break | None = None
    """Of `broker_lost`: the break that ended it."""

    def live(self, now: int) -> bool:
        return self.joined.at <= now and (self.ended is None or now < self.ended)

    def offered(self, now: int) -> frozenset[str]:
        current: frozenset[str] = frozenset()
        for since, services in self.offers:
            if since <= now:
                current = services
        return current

    def known_lost(self, now: int) -> bool:
        """Ended with its source, which has not been heard again."""
        return self.pause is not None and self.pause.begin <= now and not self.pause.over(now)


REASONS = {
    "client.left": "left",
    "client.lost": "lost",
    "client.replaced": "replaced",
    "client.joined": "replaced",
}


def sessions_of(events: list[Seen], sources: dict[str, Source]) -> list[Session]:
    out = []
    for source, identity in sorted({(one.source, one.identity) for one in events if one.kind == "client.joined"}):
        mine = [one for one in events if (one.source, one.identity) == (source, identity)]
        breaks = sources[source].breaks if source in sources else []
        current: Session | None = None
        for number, one in enumerate(mine):
            if one.kind == "client.joined":
                services, role = frozenset(one.data["services"]), one.data["role"]
            elif current is not None and _heard_again(current, one):
                services = frozenset(one.data["services"]) if one.data else current.offered(one.at)
                role = current.role
            else:
                continue
            current = Session(identity, source, one, role, [(one.at, services)])
            _end(current, mine[number + 1 :], breaks)
            out.append(current)
    return out


def _heard_again(session: Session, event: Seen) -> bool:
    """A source that was silent, and did not restart, speaks of a client again: it is still there."""
    speaks = event.kind in ("client.seen", "client.changed") and event.boot == session.joined.boot
    silent = session.pause is not None and not session.pause.restart
    return speaks and silent and session.pause is not None and session.pause.over(event.at)


def _end(session: Session, later: list[Seen], breaks: list[Break]) -> None:
    """The first of what ends a session; and what it offers until then."""
    for one in later:
        if one.kind in REASONS:
            session.ended, session.reason, session.end_key = one.at, REASONS[one.kind], one.key
            break
    for pause in breaks:
        sooner = session.ended is None or pause.begin < session.ended
        if pause.ends_sessions and pause.begin >= session.joined.at and sooner:
            session.ended, session.reason, session.end_key = pause.begin, "broker_lost", pause.last.key
            session.pause = pause
            break
    for one in later:
        if one.kind == "client.changed" and (session.ended is None or one.at < session.ended):
            session.offers.append((one.at, frozenset(one.data["services"])))


# Downtimes.


class Downtime(NamedTuple):
    """Of an agent, or (service) of one check of it."""

    identity: str
    service: str
    begin: int
    end: int


def downtimes_of(events: list[Seen]) -> list[Downtime]:
    """Each from its start to the earlier of its planned end and its recorded one."""
    out = []
    for start in events:
        if start.kind != "downtime.started":
            continue
        ends = [int(start.data["ends"]) - START] if start.data.get("ends") is not None else []
        ends += [
            one.at for one in events if one.kind == "downtime.ended" and one.ref == start.ref and one.at >= start.at
        ]
        end = min(ends, default=10**9)
        if end > start.at:
            out.append(Downtime(start.identity, start.service, start.at, end))
    return out


# Everything together.


@dataclass
class HistoryView:
    """A history as it looks at a horizon."""

    events: list[Seen]
    horizon: int
    silence: int = SILENCE
    absent_days: int = 7
    sources: dict[str, Source] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    downtimes: list[Downtime] = field(default_factory=list)
    farewells: list[Seen] = field(default_factory=list)
    peers_lost: list[Seen] = field(default_factory=list)
    by_identity: dict[str, list[Session]] = field(default_factory=dict)
    by_service: dict[str, list[Session]] = field(default_factory=dict)
    """Of backends: those that ever offered it."""

    def __post_init__(self) -> None:
        self.farewells = [one for one in self.events if one.kind == "client.left"]
        self.peers_lost = [one for one in self.events if one.kind == "peer.lost"]
        for name in sorted({one.source for one in self.events if one.time <= self.horizon}):
            self.sources[name] = Source(name, self.events, self.horizon, self.silence)
        self.sessions = sessions_of(self.events, self.sources)
        self.downtimes = downtimes_of(self.events)
        for one in self.sessions:
            self.by_identity.setdefault(one.identity, []).append(one)
            for service in {service for _, offer in one.offers for service in offer if one.role == BACKEND}:
                self.by_service.setdefault(service, []).append(one)

    def in_downtime(self, agent: str, check: str | None, now: int) -> bool:
        """Of the agent as a whole (check None), or of one of its checks."""
        return any(
            one.identity == agent and one.begin <= now < one.end and (not one.service or one.service == check)
            for one in self.downtimes
        )

    def brokers(self) -> list[str]:
        return [name for name, source in self.sources.items() if source.broker_since is not None]

    def clients(self, role: str) -> list[str]:
        return sorted({one.identity for one in self.sessions if one.role == role})

    def services(self) -> list[str]:
        return sorted(self.by_service)

    def broker_class(self, name: str, now: int) -> str:
        source = self.sources[name]
        if source.broker_since is None or now < source.broker_since:
            return "absent"
        pause = source.pause(now)
        if pause is None:
            return "up"
        if pause.end is None:
            reports = (one for one in self.peers_lost if one.identity == name)
            return "down" if any(pause.begin <= one.at <= now for one in reports) else "unobserved"
        return "unobserved" if pause.hole else "down"

    def client_class(self, identity: str, now: int) -> str:
        mine = [one for one in self.by_identity[identity] if one.joined.at <= now]
        if not mine:
            return "absent"
        if any(one.live(now) for one in mine):
            return "up"
        latest = max(mine, key=lambda one: (one.ended, one.end_key))
        if latest.reason == "left" or self._left_since(latest, now):
            return "absent"
        return "unobserved" if latest.known_lost(now) else "down"

    def _left_since(self, latest: Session, now: int) -> bool:
        """An orderly `client.left` of somebody whose session had ended already."""
        return any(
            one.identity == latest.identity and latest.end_key < one.key and one.at <= now for one in self.farewells
        )

    def agent_class(self, identity: str, now: int) -> str:
        found = self.client_class(identity, now)
        return "downtime" if found != "absent" and self.in_downtime(identity, None, now) else found

    def service_class(self, service: str, now: int) -> str:
        offered = []
        for one in self.by_service[service]:
            if one.joined.at <= now and any(since <= now and service in offer for since, offer in one.offers):
                offered.append(one)
        if not offered:
            return "absent"
        if any(one.live(now) and service in one.offered(now) for one in offered):
            return "up"
        if now - max(_last_offer(one, service, now) for one in offered) >= self.absent_days * DAY:
            return "absent"
        lost = (one for one in offered if one.reason == "broker_lost" and service in one.offered(one.ended or 0))
        return "unobserved" if any(one.known_lost(now) for one in lost) else "down"


def _last_offer(session: Session, service: str, now: int) -> int:
    """When this session, which does not offer it now, last did."""
    ends = [since for since, _ in session.offers[1:]] + [now if session.ended is None else session.ended]
    spans = zip(session.offers, ends, strict=True)
    return max((min(end, now) for (since, offer), end in spans if service in offer and since <= now), default=-(10**9))
