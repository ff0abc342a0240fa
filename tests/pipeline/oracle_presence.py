"""Presence by hand: plain Python, one subject and one instant at a time, from the meanings of the tables alone.

Nothing here knows hours of a step, carries, or Spark. `Presence` takes a whole history and says what every table holds.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from scale0.pipeline.time_ranges import HOUR_US, SECOND_US, to_us

Row = dict[str, Any]
SILENCE = 150 * SECOND_US
DAY = 24 * HOUR_US
ABSENT_AFTER = 7 * DAY
ENDS = {"client.left": "left", "client.lost": "lost", "client.replaced": "replaced"}


def name_of(source: str, boot: int, seq: int) -> str:
    return f"{source}:{boot}:{seq}"


@dataclass
class Break:
    """A boot's sessions end at `us`; `again` is the next event of its source: (us, boot, seq)."""

    us: int
    seq: int
    again: tuple[int, int, int] | None


@dataclass
class Gap:
    """A broker was not heard over [from_us, to_us); None: not yet again."""

    from_us: int
    to_us: int | None
    last: str
    first: str
    hole: bool
    stopped: bool
    restarted: bool


@dataclass
class Session:
    source: str
    boot: int
    role: str
    identity: str
    joined_us: int
    id: str
    offers: list[tuple[int, int, list[str], int]] = field(default_factory=list)
    """(from_us, seq of the event, services, slots), in order."""
    left_us: int | None = None
    reason: str = "open"
    end_seq: int = 0
    over: tuple[int, str, str] | None = None
    """When the doubt ended, why, and by which event."""

    def order(self) -> tuple[int, str, int, int, bool]:
        """A join that replaces a session, and is its source's last word, ends two at once: its own is the latest."""
        assert self.left_us is not None
        return (self.left_us, self.source, self.boot, self.end_seq, self.reason != "replaced")

    def spans(self) -> list[tuple[int, int | None, int, list[str], int]]:
        """(from, to, seq, services, slots) of every offer."""
        ends = [offer[0] for offer in self.offers[1:]] + [self.left_us]
        return [(start, end, seq, s, n) for (start, seq, s, n), end in zip(self.offers, ends, strict=True)]


class Presence:
    """All of a history up to `horizon_us`."""

    def __init__(self, events: list[Row], samples: list[Row], horizon_us: int) -> None:
        self.h = horizon_us
        self.events = [self._event(row) for row in events if to_us(row["at"]) <= horizon_us]
        self.events.sort(key=lambda e: (e["at"], e["source"], e["boot"], e["seq"]))
        self.samples = [p for p in samples if to_us(p["first_time"]) <= horizon_us]
        self.stops = {(e["source"], e["boot"], e["seq"]) for e in self.events if e["kind"] == "broker.stopped"}
        self.breaks: dict[tuple[str, int], list[Break]] = defaultdict(list)
        self.gaps: dict[str, list[Gap]] = defaultdict(list)
        self.hours: dict[tuple[str, int], Row] = {}
        self._watch()
        self.sessions: list[Session] = []
        self.farewells: dict[tuple[str, str], list[tuple[int, str, int, int]]] = defaultdict(list)
        """Of whom a client.left says that it is gone, though it had no session: when, and by which event."""
        self._all_sessions()

    @staticmethod
    def _event(row: Row) -> Row:
        data = json.loads(row["data"]) if row["data"] else {}
        return row | {"at": to_us(row["at"]), "time": to_us(row["time"]), "data": data}

    # Watching

    def _watch(self) -> None:
        by_source: dict[str, list[Row]] = defaultdict(list)
        for p in self.samples:
            first, last = to_us(p["first_time"]), min(to_us(p["last_time"]), self.h)
            if p["events"]:
                by_source[p["source"]].append(p | {"first": first, "last": last})
            hour = self._hour(p["source"], first // HOUR_US)
            hour["duplicates"] += p["duplicates"]
            hour["rejected"] += p["rejected"]
        for source, samples in by_source.items():
            samples.sort(key=lambda p: (p["first"], p["boot"], p["first_seq"]))
            self._watch_source(source, samples)

    def _hour(self, source: str, hour: int) -> Row:
        blank = {"events": 0, "first_seq": None, "last_seq": None, "holes": 0, "rewinds": 0}
        return self.hours.setdefault((source, hour), blank | {"duplicates": 0, "rejected": 0})

    def _watch_source(self, source: str, samples: list[Row]) -> None:
        for number, p in enumerate(samples):
            same = [q for q in samples[:number] if q["boot"] == p["boot"]]
            before = same[-1] if same else (samples[number - 1] if number else None)
            p["begins"] = not same
            p["hole"] = before is not None and p["first_seq"] > before["last_seq"] + 1
            p["rewind"] = not same and before is not None and p["first_seq"] <= before["last_seq"]
            hour = self._hour(source, p["first"] // HOUR_US)
            hour["events"] += p["events"]
            hour["first_seq"] = min(x for x in (hour["first_seq"], p["first_seq"]) if x is not None)
            hour["last_seq"] = max(x for x in (hour["last_seq"], p["last_seq"]) if x is not None)
            hour["holes"] += p["hole"]
            hour["rewinds"] += p["rewind"]
        for number, p in enumerate(samples):
            p["stopped"] = (source, p["boot"], p["last_seq"]) in self.stops
            self._break(source, p, samples[number + 1 :])
            self._gap(source, p, max(q["last"] for q in samples[: number + 1]), samples[number + 1 :])

    def _break(self, source: str, p: Row, later: list[Row]) -> None:
        own = next((q for q in later if q["boot"] == p["boot"]), None)
        begin = next((q for q in later if q["begins"]), None)
        if own is not None and own["first"] - p["last"] <= SILENCE:
            return
        if own is None and begin is None and not p["stopped"] and self.h - p["last"] <= SILENCE:
            return
        heard = min((q for q in (own, begin) if q is not None), key=lambda q: q["first"], default=None)
        first = None if heard is None else (heard["first"], heard["boot"], heard["first_seq"])
        self.breaks[source, p["boot"]].append(Break(p["last"], p["last_seq"], first))

    def _gap(self, source: str, p: Row, heard: int, later: list[Row]) -> None:
        following = later[0] if later else None
        again = None if following is None else following["first"]
        if following is None:
            parted = p["stopped"] or self.h - heard > SILENCE
        else:
            parted = following["begins"] or following["hole"] or following["first"] - heard > SILENCE
        if not parted or (again is not None and again <= heard):
            return
        first = "" if following is None else name_of(source, following["boot"], following["first_seq"])
        hole, begins = (following["hole"], following["begins"]) if following is not None else (False, False)
        last = name_of(source, p["boot"], p["last_seq"])
        self.gaps[source].append(Gap(heard, again, last, first, hole, p["stopped"], begins))

    # Sessions

    def _all_sessions(self) -> None:
        keys: dict[tuple[str, int, str, str], list[Row]] = defaultdict(list)
        for e in self.events:
            if e["identity"] is None:
                continue
            if e["kind"] == "client.seen":
                for role in ("backend", "frontend", "agent"):
                    keys[e["source"], e["boot"], role, e["identity"]].append(e)
            elif e["kind"] in ENDS or e["kind"] in ("client.joined", "client.changed"):
                keys[e["source"], e["boot"], e["data"].get("role", ""), e["identity"]].append(e)
        for key, rows in keys.items():
            self._sessions_of(key, sorted(rows, key=lambda e: (e["at"], e["seq"])))

    def _sessions_of(self, key: tuple[str, int, str, str], rows: list[Row]) -> None:
        source, boot, role, identity = key
        breaks = sorted(self.breaks[source, boot], key=lambda b: b.us)
        live: Session | None = None
        doubted: Session | None = None
        died = -1

        def pass_breaks(upto: int) -> None:
            nonlocal live, doubted
            while breaks and breaks[0].us < upto:
                one = breaks.pop(0)
                if live is not None:
                    live.left_us, live.reason, live.end_seq = one.us, "broker_lost", one.seq
                    if one.again is not None:
                        why = "unheard" if one.again[1] == boot else "restarted"
                        live.over = (one.again[0], why, name_of(source, one.again[1], one.again[2]))
                    live, doubted = None, live

        def begin(e: Row) -> Session:
            known = next((s for s in reversed(self.sessions) if (s.source, s.boot, s.role, s.identity) == key), None)
            if e["kind"] == "client.seen":
                assert known is not None
                services, slots = known.offers[-1][2:]
            else:
                services, slots = sorted(set(e["data"].get("services", []))), e["data"].get("slots", 0)
            one = Session(source, boot, role, identity, e["at"], name_of(source, boot, e["seq"]))
            one.offers.append((e["at"], e["seq"], services, slots))
            self.sessions.append(one)
            return one

        for e in rows:
            pass_breaks(e["at"])
            kind, at = e["kind"], e["at"]
            if kind in ENDS:
                if kind == "client.lost":
                    died = max(died, e["seq"])
                if live is not None:
                    live.left_us, live.reason, live.end_seq, live = at, ENDS[kind], e["seq"], None
                elif kind == "client.left":
                    self.farewells[_kind(role), identity].append((at, source, boot, e["seq"]))
                doubted = None
            elif kind == "client.joined":
                if live is not None:
                    live.left_us, live.reason, live.end_seq, live = at, "replaced", e["seq"], None
                stillborn = e["seq"] < died
                doubted = None
                one = begin(e)
                if stillborn:
                    one.left_us, one.reason, one.end_seq = at, "lost", e["seq"]
                else:
                    live = one
            elif e["seq"] < died:
                continue
            elif live is not None:
                if kind == "client.changed":
                    offer = (sorted(set(e["data"].get("services", []))), e["data"].get("slots", 0))
                    live.offers.append((at, e["seq"], *offer))
            elif doubted is not None:
                doubted = None
                live = begin(e)
        pass_breaks(self.h + 1)

    def session_rows(self) -> list[tuple[Any, ...]]:
        return [
            (
                s.identity,
                s.id,
                s.joined_us,
                s.left_us,
                s.reason,
                s.source,
                s.role,
                tuple(s.offers[-1][2]),
                s.offers[-1][3],
            )
            for s in self.sessions
        ]

    # Subjects: each is a list of instants, and what it is at one.

    def timeline(self) -> list[tuple[Any, ...]]:
        """(kind, subject, from, to, class, reason, evidence), cut at hours."""
        out: list[tuple[Any, ...]] = []
        clients = {
            (("agent" if s.role == "agent" else "client"), s.identity) for s in self.sessions if s.role != "frontend"
        }
        for kind, identity in clients:
            mine = [s for s in self.sessions if s.identity == identity and _kind(s.role) == kind]
            planned = self._downtimes(identity) if kind == "agent" else []
            out += self._subject(kind, identity, *self._client(mine, self.farewells[kind, identity]), planned)
        services = {x for s in self.sessions if s.role == "backend" for o in s.offers for x in o[2]}
        for service in services:
            out += self._subject("service", service, *self._service(service), [])
        for broker in {e["source"] for e in self.events if e["kind"] == "broker.started"}:
            out += self._subject("broker", broker, *self._broker(broker), [])
        return out

    def _client(self, mine: list[Session], left: list[tuple[int, str, int, int]]) -> tuple[set[int], Any]:
        instants = {s.joined_us for s in mine} | {s.left_us for s in mine if s.left_us is not None}
        instants |= {s.over[0] for s in mine if s.over is not None} | {x[0] for x in left}

        def at(t: int) -> tuple[str, str, str | None]:
            if any(s.joined_us <= t and (s.left_us is None or t < s.left_us) for s in mine):
                started = max((s.joined_us, s.source, s.boot, s.offers[0][1], s.id) for s in mine if s.joined_us <= t)
                return ("up", "session", started[-1])
            past = [s for s in mine if s.left_us is not None and s.left_us <= t]
            if not past:
                return ("absent", "away", None)
            last = max(past, key=Session.order)
            gone = max((x for x in left if x[0] <= t), default=None)
            if gone is not None and gone > last.order()[:4]:
                return ("absent", "left", name_of(*gone[1:]))
            reason, evidence = last.reason, name_of(last.source, last.boot, last.end_seq)
            if last.over is not None and last.over[0] <= t:
                reason, evidence = last.over[1:]
            classes = {"left": "absent", "broker_lost": "unobserved"}
            return (classes.get(reason, "down"), reason, evidence)

        return instants, at

    def _service(self, service: str) -> tuple[set[int], Any]:
        spans = []
        for s in self.sessions:
            if s.role == "backend":
                every = s.spans()
                for number, (start, end, seq, services, _) in enumerate(every):
                    if service in services:
                        lost = s.reason == "broker_lost" and number == len(every) - 1
                        end_seq = s.end_seq if number == len(every) - 1 else every[number + 1][2]
                        spans.append((start, end, seq, end_seq, lost, s))
        ends = {x[1] for x in spans if x[1] is not None}
        overs = {x[5].over[0] for x in spans if x[4] and x[5].over is not None}
        instants = {x[0] for x in spans} | ends | overs | {x + ABSENT_AFTER for x in ends}

        def at(t: int) -> tuple[str, str, str | None]:
            if any(x[0] <= t and (x[1] is None or t < x[1]) for x in spans):
                last = max((x[0], x[5].source, x[5].boot, x[2]) for x in spans if x[0] <= t)
                return ("up", "offered", name_of(*last[1:]))
            past = [x for x in spans if x[1] is not None and x[1] <= t]
            if not past or t >= max(x[1] for x in past if x[1] is not None) + ABSENT_AFTER:
                return ("absent", "away", None)
            why = [(x[1], x[5].source, x[5].boot, x[3], 0, name_of(x[5].source, x[5].boot, x[3])) for x in past]
            for x in past:
                over = x[5].over
                if x[4] and over is not None and over[0] <= t:
                    why.append((over[0], x[5].source, x[5].boot, x[3], 1, over[2]))
            doubt = any(x[4] and (x[5].over is None or t < x[5].over[0]) for x in past)
            evidence = max(why)[-1]
            return ("unobserved", "broker_lost", evidence) if doubt else ("down", "no_backend", evidence)

        return instants, at

    def _broker(self, broker: str) -> tuple[set[int], Any]:
        starts = [e for e in self.events if e["kind"] == "broker.started" and e["source"] == broker]
        known = min(e["at"] for e in starts)
        reports = [
            e for e in self.events if e["kind"] in ("peer.lost", "peer.joined") and e["identity"] == broker
        ] + starts
        reports.sort(key=lambda e: (e["at"], e["source"], e["boot"], e["seq"]))
        gaps = self.gaps[broker]
        instants = (
            {e["at"] for e in reports} | {g.from_us for g in gaps} | {g.to_us for g in gaps if g.to_us is not None}
        )

        def at(t: int) -> tuple[str, str, str | None]:
            if t < known:
                return ("absent", "away", None)
            gap = next((g for g in gaps if g.from_us <= t and (g.to_us is None or t < g.to_us)), None)
            if gap is None:
                began = [(e["at"], name_of(broker, e["boot"], e["seq"])) for e in starts if e["at"] <= t]
                began += [(g.to_us, g.first) for g in gaps if g.to_us is not None and g.to_us <= t]
                return ("up", "watching", max(began, key=lambda x: x[0])[1])
            if gap.to_us is not None:
                if gap.hole:
                    return ("unobserved", "hole", gap.first)
                if gap.stopped:
                    return ("down", "stopped", gap.last)
                return ("down", "restarted" if gap.restarted else "asleep", gap.first)
            if gap.stopped:
                return ("down", "stopped", gap.last)
            heard = [e for e in reports if e["at"] <= t]
            if heard and heard[-1]["kind"] == "peer.lost" and heard[-1]["at"] >= gap.from_us:
                e = heard[-1]
                return ("down", "peer_lost", name_of(e["source"], e["boot"], e["seq"]))
            return ("unobserved", "silent", gap.last)

        return instants, at

    def _downtimes(self, agent: str) -> list[tuple[int, int | None, str]]:
        mine = [
            e for e in self.events if e["kind"].startswith("downtime.") and e["identity"] == agent and not e["service"]
        ]
        out: list[tuple[int, int | None, str]] = []
        for number, e in enumerate(mine):
            if e["kind"] == "downtime.started":
                ended = [x["at"] for x in mine[number + 1 :] if x["ref"] == e["ref"]]
                ends = [round(e["data"]["ends"] * SECOND_US)] if "ends" in e["data"] else []
                end = min(ended[:1] + ends, default=None)
                if end is None or end > e["at"]:
                    out.append((e["at"], end, name_of(e["source"], e["boot"], e["seq"])))
        return out

    def _subject(
        self, kind: str, subject: str, instants: set[int], at: Any, planned: list[tuple[int, int | None, str]]
    ) -> list[tuple[Any, ...]]:
        times = instants | {p[0] for p in planned} | {p[1] for p in planned if p[1] is not None}
        base: tuple[str, str] | None = None
        why: str | None = None
        cover: str | None = None
        pieces: list[list[Any]] = []
        for t in sorted(x for x in times if x <= self.h):
            state, reason, evidence = at(t)
            if (state, reason) != base:
                base, why = (state, reason), evidence
            over = [p for p in planned if p[0] <= t and (p[1] is None or t < p[1])]
            cover = (cover or max(p[2] for p in over if p[0] == t)) if over else None
            shown = ("downtime", "downtime", cover) if over and state != "absent" else (state, reason, why)
            if not pieces or pieces[-1][2:] != list(shown):
                if pieces:
                    pieces[-1][1] = t
                pieces.append([t, self.h, *shown])
        return [(kind, subject, *row) for row in _cut(pieces)]

    # Slots

    def node_slots(self) -> list[tuple[str, int, int, float]]:
        """(node, hour, most slots, live seconds)."""
        out = []
        for identity in {s.identity for s in self.sessions if _kind(s.role) == "client"}:
            spans = []
            for s in self.sessions:
                if s.identity == identity and _kind(s.role) == "client":
                    for start, end, _, _, slots in s.spans():
                        spans.append((start, self.h if end is None else end, slots if s.role == "backend" else 0))
            times = sorted({x for span in spans for x in span[:2]})
            edges = {h * HOUR_US for h in range(times[0] // HOUR_US, times[-1] // HOUR_US + 1)}
            times = sorted(set(times) | {x for x in edges if times[0] < x})
            hours: dict[int, list[int]] = {}
            for one, other in itertools.pairwise(times):
                live = [s for s in spans if s[0] <= one < s[1]]
                if live:
                    hour = hours.setdefault(one // HOUR_US, [0, 0])
                    hour[0] = max(hour[0], sum(s[2] for s in live))
                    hour[1] += other - one
            out += [(identity, hour, slots, us / SECOND_US) for hour, (slots, us) in hours.items()]
        return out


def _kind(role: str) -> str:
    return {"agent": "agent", "frontend": ""}.get(role, "client")


def _cut(pieces: list[list[Any]]) -> list[tuple[Any, ...]]:
    """By hours; only those hours in which it was ever anything but absent, but these wholly."""
    hours: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    while pieces and pieces[0][2] == "absent":
        pieces = pieces[1:]
    if not pieces:
        return []
    first = pieces[0][0]
    pieces = [[first // HOUR_US * HOUR_US, first, "absent", "away", None], *pieces]
    for start, end, state, reason, why in pieces:
        t = start
        while t < end:
            edge = min(end, (t // HOUR_US + 1) * HOUR_US)
            earlier = state == "absent" and t // HOUR_US > start // HOUR_US
            hours[t // HOUR_US].append((t, edge, state, *(("away", None) if earlier else (reason, why))))
            t = edge
    merged = []
    for rows in hours.values():
        if any(row[2] != "absent" for row in rows):
            merged += rows
    return merged
